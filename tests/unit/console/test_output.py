"""Values as a person reads them."""

from __future__ import annotations

import io
import os
import shutil
import sys
from decimal import Decimal

import pytest

from twinbus.console.output import money, table_lines


def test_money_is_exact_enough_to_see_and_unknown_is_not_nothing() -> None:
    assert money(Decimal("0.007232"), "USD") == "0.007232 USD"
    assert money(Decimal("12.3456"), "USD") == "12.35 USD"
    assert money(Decimal("1234567.8"), "USD") == "1,234,567.80 USD"
    assert money(Decimal(0), "USD") == "0.00 USD"
    assert money(None, "USD") == "not priced"


COLUMNS = ("ENTITY", ">SENT", "REASON")
REASON = "a send failed, fails over in 42 s"


def test_a_wide_table_wraps_its_last_column_between_words() -> None:
    lines = table_lines(COLUMNS, [("orders", 1_200, REASON), ("bills", 7, "")], width=34)
    assert lines == [
        "ENTITY   SENT  REASON",
        "orders  1,200  a send failed,",
        "               fails over in 42 s",
        "bills       7",
    ]
    wide = table_lines(COLUMNS, [("orders", 1_200, REASON)], width=80)
    assert wide[-1] == f"orders  1,200  {REASON}"


def test_a_table_without_room_for_its_last_column_becomes_paragraphs() -> None:
    rows = [("contoso/x-servicebus-transfer/0", 12, REASON), ("events", 0, ""), ("", 9, "")]
    assert table_lines(COLUMNS, rows, width=40) == [
        "contoso/x-servicebus-transfer/0",
        "  sent 12",
        "  reason a send failed, fails over in 42",
        "  s",
        "events",
        "  sent 0",
        "  sent 9",
    ]
    numbers = table_lines(("QUEUE", ">ACTIVE", ">DEAD"), [("a" * 20, 1, 2)], width=24)
    assert numbers == ["a" * 20, "  active 1  dead 2"]


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_only_a_terminal_has_a_width(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "get_terminal_size", lambda: os.terminal_size((36, 24)))
    row = ("orders", 1_200, REASON)
    assert len(table_lines(COLUMNS, [row])) == 2
    monkeypatch.setattr(sys, "stdout", Screen())
    assert table_lines(COLUMNS, [row]) == table_lines(COLUMNS, [row], width=34)
    assert len(table_lines(COLUMNS, [row])) == 3
