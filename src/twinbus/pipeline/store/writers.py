"""The writers of a ledger: who is at work, who ended, who stopped without an end; no Spark.

`twinbus ledger status` shows them, and `twinbus ledger close` records a person's word that nothing
is missing where one stopped.
"""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from typing import Any, Final

from twinbus.ledger.facts import FileFacts, WriterNote
from twinbus.ledger.files import HOST, process_name
from twinbus.ledger.notes import note_file
from twinbus.ledger.record import LedgerError
from twinbus.pipeline.store.inspection import InspectedLedger
from twinbus.pipeline.store.place_files import PlaceFiles

ENDED, AT_WORK = "ended", "at work"
STOPPED, CLOSED = "stopped without an end", "closed"
EARLIER = "of an earlier version"
"""States of a writer, as people read them."""

REASON_MAX: Final = 500


def writers_document(shown: InspectedLedger) -> dict[str, Any]:
    """How many writers there are of each state, those that did not end, and all findings."""
    last: dict[str, FileFacts] = {}
    for name, file in shown.files.items():
        facts = file.facts
        if name not in shown.refused and facts.lines:
            other = last.setdefault(facts.process, facts)
            if (facts.number or 0) > (other.number or 0):
                last[facts.process] = facts
    gaps = {gap.process: gap for gap in shown.gaps}
    states = {}
    for process, facts in last.items():
        if process in gaps:
            states[process] = STOPPED if gaps[process].closed_by is None else CLOSED
        elif not facts.begins:
            states[process] = EARLIER
        else:
            states[process] = ENDED if facts.closing == "ended" else AT_WORK
    return {
        "files": len(shown.files) - len(shown.refused),
        "writers": dict(sorted(Counter(states.values()).items())),
        "at_work": sorted(process for process, state in states.items() if state == AT_WORK),
        "gaps": [
            {
                "process": gap.process,
                "from_ms": gap.from_ms,
                "to_ms": gap.to_ms,
                "closed_by": gap.closed_by,
                "sentence": gap.sentence,
            }
            for gap in shown.gaps
        ],
        "missing": list(shown.missing),
        "remarks": list(shown.said),
    }


def close_writer(
    ledger: Path | str, shown: InspectedLedger, process: str, reason: str, *, user: str
) -> str:
    """Record that nothing is missing where a process stopped; return the name of the new file.

    LedgerError where nothing is in doubt for that process: its name may be wrong.
    """
    doubted = sorted({gap.process for gap in shown.gaps if gap.closed_by is None} | shown.lacking)
    if process not in doubted:
        others = ", ".join(doubted[:5]) or "none"
        raise LedgerError(
            f"nothing is in doubt for {process} in the ledger at {ledger}; processes with a gap or"
            f" a missing file: {others}"
        )
    now_ms = time.time_ns() // 1_000_000
    note = WriterNote("closed", now_ms, process, f"{reason[:REASON_MAX]} ({user})")
    name, content = note_file(process_name("close"), HOST, now_ms, [note])
    PlaceFiles(str(ledger)).put(name, content)
    return name
