"""Results of `twinbus ledger` as lines to read. Pure."""

from __future__ import annotations

from typing import Any

from twinbus.console.terminal.table import aligned, size

Document = dict[str, Any]


def table_lines(result: Document) -> list[str]:
    """Return how many records the tables hold, and their last commit."""
    rejected = sum(result["set_aside"].values())
    return [
        f"{result['records']:,} records, {rejected:,} lines set aside"
        + "".join(f", {count:,} {why}" for why, count in result["set_aside"].items()),
        f"commit {result['commit']}, batch {result['batch']}",
    ]


def status_lines(result: Document) -> list[str]:
    """Return a row for each kind of table."""
    if result["commit"] < 0:
        return [f"{result['place']}: no tables yet; make a report, or twinbus ledger update LEDGER"]
    rows = [("", "parts", "files", "size")]
    rows += [
        (kind, f"{one['parts']:,}", f"{one['files']:,}", size(one["bytes"]))
        for kind, one in result["kinds"].items()
    ]
    records, commit = table_lines(result)
    return [f"{result['place']}: {records}", commit, *aligned(rows, right={1, 2, 3})]


def compact_lines(result: Document) -> list[str]:
    """Return the number of parts before and after, for each kind of table."""
    after = result["parts_after"]
    lines = [
        f"{kind}: {before:,} parts -> {after[kind]:,}"
        for kind, before in result["parts_before"].items()
    ]
    removed = result["raw_files_removed"]
    return lines if removed is None else [*lines, f"files of the ledger removed: {removed:,}"]


def retain_lines(result: Document) -> list[str]:
    """Return what was removed, and which older journeys stay."""
    removed = (
        f"{result['records_removed']:,} records and {result['journeys_removed']:,} settled journeys"
    )
    return [
        f"kept from {result['first_day_kept']} on; removed: {removed}",
        f"{result['journeys_open']:,} older journeys are still open, and stay",
    ]
