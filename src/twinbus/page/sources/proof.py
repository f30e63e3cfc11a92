"""The last conservation report that the page had made of its ledger, kept in the ledger."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from twinbus.page.sources.jobs import JobResult, JobRunner

FILE: Final = "_proof.json"
"""Spark passes over names that begin so."""

JOB: Final = "prove"
VERDICTS: Final = {"good": "nothing lost", "bad": "lost", "unknown": "unknown"}


class Proof:
    """Makes the conservation report of a ledger, and remembers its answer."""

    def __init__(self, ledger: Path, jobs: JobRunner) -> None:
        self._ledger = ledger
        self._jobs = jobs

    def document(self) -> dict[str, Any]:
        """Return the verdict of the last report, and whether one is being made."""
        known: Any = None
        with contextlib.suppress(OSError, ValueError):
            known = json.loads((self._ledger / FILE).read_bytes())
        if not isinstance(known, dict) or known.get("verdict") not in VERDICTS.values():
            known = {"made_at": None, "verdict": "none", "text": "no report yet", "unknown": []}
        return {**known, "making": self._jobs.is_running(JOB)}

    def make(self, ended: Callable[[str, bool], None]) -> bool:
        """Start a new report; `ended` gets its answer and whether it was made. False: one runs."""
        place = self._ledger / f"_report-{os.getpid()}.json"
        arguments = ["report", "conservation", str(self._ledger), "--output", "json"]

        def take(result: JobResult) -> None:
            try:
                text, is_made = self._kept(place, result)
            finally:
                place.unlink(missing_ok=True)
            ended(text, is_made)

        return self._jobs.start(JOB, [*arguments, "--to", str(place)], take)

    def _kept(self, place: Path, result: JobResult) -> tuple[str, bool]:
        try:
            report = json.loads(place.read_bytes())
            verdict, unknown = report["verdict"], [str(one) for one in report["unknown"]]
            text = result.lines[0] if result.lines else VERDICTS[verdict]
            keep_proof(self._ledger, verdict, text, unknown)
        except (OSError, ValueError, KeyError, TypeError):
            return f"the report could not be made: {result.error}", False
        return text, True


def keep_proof(ledger: Path, verdict: str, text: str, unknown: Sequence[str]) -> None:
    """Keep the answer of a conservation report, whose verdict is a key of VERDICTS."""
    known = {
        "made_at": time.time(),
        "verdict": VERDICTS[verdict],
        "text": text,
        "unknown": list(unknown),
    }
    written = ledger / f"{FILE}.new"
    written.write_text(json.dumps(known))
    written.replace(ledger / FILE)
