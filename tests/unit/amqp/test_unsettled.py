"""Unsettled deliveries: any ranges, in any order, give what a plain dict gives."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from twinbus.amqp.connection import Connection
from twinbus.amqp.link import HALF_SERIAL, SERIAL_MASK, SWEEP_FLOOR, SenderLink, Unsettled

STARTS = st.sampled_from((0, SERIAL_MASK - 150, HALF_SERIAL - 50, HALF_SERIAL))
STEPS = st.lists(
    st.tuples(
        st.integers(0, 200),
        st.integers(-50, 500),
        st.one_of(st.integers(0, 300), st.just(HALF_SERIAL - 1)),
    ),
    max_size=8,
)


@given(STARTS, STEPS)
def test_a_range_takes_each_delivery_in_it_once(
    start: int, steps: list[tuple[int, int, int]]
) -> None:
    link = SenderLink(Connection("c").begin(), "l", 0)
    unsettled, model, next_id = Unsettled(), set[int](), start
    unsettled._known_to = start
    for count, offset, span in steps:
        for _ in range(count):
            unsettled.by_id[next_id] = (link, b"")
            model.add(next_id)
            next_id = (next_id + 1) & SERIAL_MASK
        first = (start + offset) & SERIAL_MASK
        last = (first + span) & SERIAL_MASK
        taken = [number for number, _, _ in unsettled.take(first, last, next_id)]
        wanted = {number for number in model if (number - first) & SERIAL_MASK <= span}
        assert sorted(taken) == sorted(wanted)
        model -= wanted
        assert unsettled.by_id.keys() == model


def test_the_deliveries_of_closed_links_are_dropped_when_they_are_many() -> None:
    session = Connection("c").begin()
    unsettled, kept = Unsettled(), SenderLink(session, "kept", 0)
    for number in range(5_000):
        link = SenderLink(session, str(number), 1)
        unsettled.by_id[number] = (link if number % 10 else kept, b"")
        link.detach()
        unsettled.forget()
    assert len(unsettled.by_id) <= 2 * 500 + SWEEP_FLOOR
    assert len(unsettled.take(0, 5_000, 5_000)) == 500


def test_a_wide_range_after_ever_so_many_narrow_ones_looks_at_what_is_left() -> None:
    link = SenderLink(Connection("c").begin(), "l", 0)
    unsettled = Unsettled()
    sent = 1_000_000_000  # To look at each of them would take minutes.
    unsettled.by_id.update({sent - back: (link, b"") for back in (3, 2, 1)})
    taken = unsettled.take(0, sent, sent)
    assert [number for number, _, _ in taken] == [sent - 3, sent - 2, sent - 1]
