"""Who says that an entity failed over, until when, and when that is enough."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twinbus.fleet.core import evidence as module
from twinbus.fleet.core.evidence import LIVES_MAX_S, PROCESS_LIVES_S, Evidence
from twinbus.fleet.core.notices import EPOCH_MAX, Notice

OWN = "0" * 16
SINCE = 1_794_934_812.0
"""17:00:12 UTC of a day."""


def host(number: int) -> str:
    return f"{number:016x}"


def said_by(host_id: str, entity: str = "orders", **changes: object) -> Notice:
    notice = Notice(entity=entity, host=host_id, since=SINCE, kinds=("timeout 3",), epoch=1)
    return replace(notice, **changes)  # type: ignore[arg-type]


def heard(quorum: int, *hosts: int, lives_s: float = 60.0) -> Evidence:
    it = Evidence(OWN, quorum=quorum)
    for number in hosts:
        it.heard_on_board(said_by(host(number)), lives_s, 0.0)
    return it


def test_a_quorum_of_other_hosts_is_enough_and_its_text_names_them() -> None:
    assert heard(2, 1).enough("orders", 1.0) is None
    assert heard(2, 1).text("orders", 1.0) == "1 other host since 17:00:12 UTC"
    assert heard(2, 1, 2).enough("orders", 1.0) == "2 other hosts since 17:00:12 UTC"
    assert heard(1, 1).enough("ORDERS", 1.0) == "1 other host since 17:00:12 UTC"
    assert heard(1, 1).enough("billing", 1.0) is None


def test_one_host_is_one_host_however_often_it_speaks_and_the_own_one_is_none() -> None:
    it = heard(2, 1, 1, 1)
    it.heard_on_board(said_by(host(1), entity="Orders", epoch=7), 60.0, 0.0)
    it.heard_on_board(said_by(OWN), 60.0, 0.0)
    assert it.enough("orders", 1.0) is None
    assert (it.hosts("orders", 1.0), it.hosts_seen(1.0)) == (1, 1)


def test_one_other_process_of_this_host_is_enough() -> None:
    it = heard(2, 1)
    assert it.read_processes({"a.notices": [said_by(OWN)]}, 0.0) == []
    assert it.enough("orders", 1.0) == "1 other process and 1 other host since 17:00:12 UTC"
    it.read_processes({}, 2.0)
    assert it.enough("orders", 2.0) is None


def test_what_was_heard_ends_by_the_readers_clock_whatever_the_writer_says() -> None:
    it = heard(1, 1, lives_s=60.0)
    it.heard_on_board(said_by(host(2), entity="billing"), 1e9, 0.0)
    it.heard_on_board(said_by(host(3), entity="late"), -5.0, 0.0)
    it.read_processes({"a.notices": [said_by(OWN, entity="stock")]}, 0.0)
    assert it.enough("orders", 59.9)
    assert it.enough("orders", 60.0) is None
    assert it.enough("late", 0.0) is None
    assert it.enough("billing", LIVES_MAX_S - 1)
    assert it.enough("billing", LIVES_MAX_S) is None
    assert it.enough("stock", PROCESS_LIVES_S)
    assert it.enough("stock", PROCESS_LIVES_S + 0.1) is None


def test_a_recovery_ends_what_other_hosts_said_before_and_is_news_once() -> None:
    it = heard(1, 1, 2)
    recovery = said_by(host(3), epoch=9, recovered=True)
    assert it.heard_on_board(recovery, 60.0, 1.0)
    assert it.enough("orders", 1.0) is None
    assert not it.heard_on_board(recovery, 60.0, 2.0)
    # A later failover counts, and a later recovery of the same host is news.
    it.heard_on_board(said_by(host(1), epoch=10), 60.0, 3.0)
    assert it.enough("orders", 3.0)
    assert it.heard_on_board(replace(recovery, epoch=11), 60.0, 4.0)


def test_a_forged_recovery_hides_no_recovery_of_the_host_that_it_names() -> None:
    it = heard(1)
    forged = said_by(host(1), epoch=EPOCH_MAX, recovered=True)
    assert it.heard_on_board(forged, 600.0, 0.0)
    real = said_by(host(1), epoch=9, recovered=True)
    assert it.heard_on_board(real, 60.0, 10.0)
    # Both are passed on, and each is news once.
    other = Evidence(OWN, quorum=1)
    said = {"a.notices": it.of_board(11.0)}
    assert sorted(one.epoch for one in other.read_processes(said, 11.0)) == [9, EPOCH_MAX]
    assert other.read_processes(said, 14.0) == []


def test_a_forged_recovery_of_the_own_host_silences_no_process_of_it() -> None:
    forged = said_by(OWN, epoch=EPOCH_MAX, recovered=True)
    it = heard(2, 1, 2)
    assert not it.heard_on_board(forged, 600.0, 0.0)
    assert it.enough("orders", 1.0)
    other = Evidence(OWN, quorum=2)
    other.read_processes({"a.notices": [*it.of_board(1.0), said_by(OWN)]}, 1.0)
    assert other.enough("orders", 1.0) == "1 other process and 2 other hosts since 17:00:12 UTC"


def test_looking_again_from_the_oldest_message_on_ends_the_same_notices_again() -> None:
    it = heard(1)
    board = [said_by(host(1)), said_by(host(3), epoch=9, recovered=True)]
    for at in (0.0, 5.0):
        for notice in board:
            it.heard_on_board(notice, 60.0, at)
        assert it.enough("orders", at) is None


def test_a_recovery_of_the_host_ends_what_its_other_processes_still_say() -> None:
    it = Evidence(OWN, quorum=2)
    files = {
        "a.notices": [said_by(OWN, epoch=5)],
        "b.notices": [said_by(OWN, epoch=8, recovered=True)],
    }
    assert [notice.epoch for notice in it.read_processes(files, 0.0)] == [8]
    assert it.enough("orders", 0.0) is None
    for at in (20.0, 45.0):
        assert it.read_processes(files, at) == [], "it is heard again before it ends"
    files["a.notices"] = [said_by(OWN, epoch=9)]
    it.read_processes(files, 46.0)
    assert it.enough("orders", 46.0)


def test_only_what_was_read_on_the_board_itself_is_passed_on() -> None:
    it = heard(2, 1)
    it.read_processes({"a.notices": [said_by(host(2)), said_by(OWN)]}, 0.0)
    assert it.enough("orders", 1.0)
    assert [notice.host for notice in it.of_board(1.0)] == [host(1)]
    assert [notice.host for notice in it.of_host(1.0)] == [OWN]
    # What a file passes on does not lengthen what was read on the board.
    it.read_processes({"a.notices": [said_by(host(1))]}, 59.0)
    assert it.of_board(60.0) == []


def test_an_older_notice_does_not_replace_a_later_one() -> None:
    it = heard(1)
    it.heard_on_board(said_by(host(1), epoch=5, since=SINCE + 5), 60.0, 0.0)
    it.heard_on_board(said_by(host(1), epoch=4, since=SINCE), 60.0, 30.0)
    assert it.text("orders", 0.0) == "1 other host since 17:00:17 UTC"
    assert it.enough("orders", 60.0) is None


def test_the_book_is_bounded_and_has_room_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "KEPT_MAX", 10)
    it = heard(1, *range(1, 30))
    assert it.hosts("orders", 0.0) == 10
    it.heard_on_board(said_by(host(77), entity="billing"), 60.0, 61.0)
    assert (it.enough("billing", 61.0), it.hosts_seen(61.0)) == (
        "1 other host since 17:00:12 UTC", 1,
    )  # fmt: skip


NOTICES = st.builds(
    Notice,
    entity=st.sampled_from(["orders", "Orders", "billing"]),
    host=st.sampled_from([OWN, host(1), host(2), host(3)]),
    since=st.sampled_from([0.0, SINCE, 253_402_300_799.0]),
    kinds=st.just(()),
    epoch=st.integers(0, 5),
    recovered=st.booleans(),
)
STEPS = st.lists(
    st.tuples(
        st.floats(0, 50),
        st.one_of(
            st.tuples(NOTICES, st.floats(-10, 1e4)),
            st.dictionaries(st.sampled_from("abc"), st.lists(NOTICES, max_size=4), max_size=3),
        ),
    ),
    max_size=40,
)


@given(STEPS, st.integers(1, 3))
def test_evidence_is_fresh_from_enough_others_whatever_is_heard(
    steps: list[tuple[float, tuple[Notice, float] | dict[str, list[Notice]]]], quorum: int
) -> None:
    it, now = Evidence(OWN, quorum=quorum), 0.0
    said: dict[tuple[str, str], float] = {}
    """By entity and host, until when a notice of it may count at most."""
    by_process: dict[str, float] = {}
    for gap, step in steps:
        now += gap
        if isinstance(step, dict):
            it.read_processes(step, now)
            by_process = {
                notice.entity_key: now + PROCESS_LIVES_S
                for notices in step.values()
                for notice in notices
                if notice.host == OWN and not notice.recovered
            }
            heard_now = [(one, PROCESS_LIVES_S) for notices in step.values() for one in notices]
        else:
            told, told_s = step
            it.heard_on_board(told, told_s, now)
            heard_now = [(told, min(told_s, LIVES_MAX_S))]
        for one, lives_s in heard_now:
            if not one.recovered and one.host != OWN:
                key = one.entity_key, one.host
                said[key] = max(said.get(key, 0.0), now + lives_s)
        for entity in ("orders", "billing"):
            hosts = sum(until > now for (about, _), until in said.items() if about == entity)
            may = hosts >= quorum or by_process.get(entity, -1.0) >= now
            text = it.enough(entity, now)
            assert text is None or may
            assert it.hosts(entity, now) <= hosts
            assert text is None or text == it.text(entity, now)


def test_a_status_on_another_thread_reads_while_the_loop_hears_of_more() -> None:
    it = heard(2, 1, 2)
    numbers = iter(range(3, 1_000))

    class Meanwhile(float):
        """A time; whenever it is compared, another host and another entity have been heard of."""

        def __lt__(self, other: float) -> bool:
            number = next(numbers)
            it.heard_on_board(said_by(host(number)), 60.0, 0.0)
            it.heard_on_board(said_by(host(number), f"more-{number}"), 60.0, 0.0)
            return float(self) < other

    assert it.text("orders", Meanwhile(1.0)) == "2 other hosts since 17:00:12 UTC"
    assert it.hosts_seen(Meanwhile(1.0)) >= 2
