"""Any order of deliveries and completions: no redelivery is suppressed, each match is used once."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from twinbus.pairing.core.sides import Side
from twinbus.pairing.receiving.copies import Copy, SecondCopies

SINCE_MS = 1_700_000_000_000

events = st.lists(
    st.tuples(
        st.sampled_from(["arrives", "completed", "abandoned"]),
        st.sampled_from(list(Side)),
        st.integers(0, 3),
        st.sampled_from("ab"),
        st.booleans(),
    ),
    max_size=60,
)


@given(events)
def test_never_more_copies_are_suppressed_than_were_completed(
    given_events: list[tuple[str, Side, int, str, bool]],
) -> None:
    copies = SecondCopies(copies_max=5)
    completed: dict[Side, int] = dict.fromkeys(Side, 0)
    suppressed: dict[Side, set[int]] = {side: set() for side in Side}
    handed_out: set[tuple[Side, int]] = set()
    for kind, side, index, body, is_marked in given_events:
        number = index * 2 + (body == "b")  # A number has one body.
        since_ms = SINCE_MS if is_marked and side is Side.SECONDARY else None
        copy = Copy(side, number, "a", body.encode(), SINCE_MS, since_ms)
        if kind == "arrives":
            if copies.is_second(copy):
                assert copy.place not in handed_out, "a redelivery was suppressed"
                suppressed[side].add(number)
            else:
                copies.handed_out(copy.place)
                handed_out.add(copy.place)
        elif copy.place in handed_out and kind == "completed":
            copies.completed(copy)
            handed_out.discard(copy.place)
            completed[side] += 1
        assert len(suppressed[side]) <= completed[side.other]
        assert all(one.count <= 5 for one in copies._completed.values())
        if len(handed_out) > 5:
            return  # The oldest of them are forgotten, as documented.
