"""What `twinbus fleet` prints of notices."""

from __future__ import annotations

from twinbus.console.watch.fleet import fleet_lines, newest
from twinbus.fleet.board import FreshNotice
from twinbus.fleet.core.notices import Notice

HERE, THERE = "0" * 16, "1" * 16
BOARD = "contoso/x-twinbus-board"


def fresh(entity: str, host: str, since: float, *, recovered: bool = False) -> FreshNotice:
    kinds = () if recovered else ("timeout 3", "connection 1")
    return FreshNotice(Notice(entity, host, since, kinds, 1, recovered), 60.0)


def test_a_table_has_the_last_word_of_each_host_about_each_entity() -> None:
    found = [
        fresh("orders", THERE, 1_800_000_000.0),
        fresh("Orders", HERE, 1_800_000_001.0),
        fresh("bills", HERE, 1_800_000_002.0),
        fresh("BILLS", HERE, 1_800_000_062.0, recovered=True),
    ]
    assert fleet_lines(newest(found), BOARD) == [
        "ENTITY  HOST              STATE        SINCE                      FAILURES",
        "BILLS   0000000000000000  answered     2027-01-15T08:01:02+00:00",
        "Orders  0000000000000000  FAILED_OVER  2027-01-15T08:00:01+00:00  timeout 3, connection 1",
        "orders  1111111111111111  FAILED_OVER  2027-01-15T08:00:00+00:00  timeout 3, connection 1",
        "",
        f"{BOARD}: 1 entity failed over, by the word of 2 hosts; others may be silent",
    ]


def test_a_board_without_notices_is_one_line() -> None:
    assert fleet_lines([], BOARD) == [
        f"{BOARD} has no notice: no host says that an entity failed over"
    ]
