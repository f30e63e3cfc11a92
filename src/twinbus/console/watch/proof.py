"""`twinbus check --proof`: whether a message is lost, by the ledger of this host, without Spark.

The first line is that of a Nagios plugin; the lines below it name messages and what was not read.
"""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Final

from twinbus.console import STOPPED
from twinbus.console.output import LiveLine, Output, WrongUse, progress_bar, show
from twinbus.console.report.sheets import sheet_of
from twinbus.console.watch.check import (
    CheckFinding,
    CheckLevel,
    PerfFigure,
    plugin_line,
    print_verdict,
)
from twinbus.errors import TwinbusError
from twinbus.pipeline.proof.proof import LedgerProof, proof_of
from twinbus.pipeline.reports.documents import ReportVerdict
from twinbus.pipeline.reports.values import iso
from twinbus.wording import visible

SHOWN_MAX: Final = 20
"""Messages, and lines, that the text names; `--output json` has up to 1,000."""

SHOW_AFTER_S: Final = 2.0

_LEVELS: Final = {
    ReportVerdict.GOOD: CheckLevel.OK,
    ReportVerdict.BAD: CheckLevel.CRITICAL,
    ReportVerdict.UNKNOWN: CheckLevel.UNKNOWN,
}
_FIGURES: Final = ("accepted", "delivered", "waiting", "dead_lettered", "expired", "undecided")


class ProofLine(LiveLine):
    """The current step with a bar, on a terminal; elsewhere a line every ten seconds."""

    SILENT_S = 10.0

    def __init__(self) -> None:
        super().__init__()
        self._began_s = time.monotonic()
        self._share = 0.0

    def step(self, step: str, share: float) -> None:
        self._step, self._share = step, share

    def text(self) -> str:
        took_s = time.monotonic() - self._began_s
        if took_s < SHOW_AFTER_S:
            return ""
        return f"{progress_bar(self._share)} {self._step}, {took_s:.0f} s"


def run_proof(ledger: str, output: Output) -> int:
    """Print whether a message is lost; return the exit status that monitoring systems expect."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        proof = _proof(ledger)
    except KeyboardInterrupt:
        print("twinbus: stopped", file=sys.stderr)
        return STOPPED
    except Exception as error:  # noqa: BLE001  # a traceback would exit with 1, which is WARNING
        internal = f"internal error of Twinbus: {type(error).__name__}: {error}"
        text = str(error) if isinstance(error, TwinbusError) else internal
        return print_verdict([CheckFinding(CheckLevel.UNKNOWN, text)], [], output)
    finally:
        signal.signal(signal.SIGTERM, before or signal.SIG_DFL)
    return _print_proof(proof, output)


def _proof(ledger: str) -> LedgerProof:
    if "://" in ledger:
        raise WrongUse(
            f"--proof reads a directory of this machine; for {ledger} use twinbus report"
            " conservation"
        )
    with ProofLine() as line:
        return proof_of(Path(ledger), line.step)


def _print_proof(proof: LedgerProof, output: Output) -> int:
    report = proof.report
    level = _LEVELS[report.verdict]
    findings = [CheckFinding(level, sheet_of(report).headline)]
    numbers = [
        PerfFigure("lost", report.lost_at_least),
        *(PerfFigure(name, getattr(report.total, name) or 0) for name in _FIGURES),
    ]
    document = {
        "state": level,
        "exit_status": level.exit_status,
        "findings": [asdict(finding) for finding in findings],
        "figures": {number.name: number.value for number in numbers},
        "proof": report.as_json(),
        "rejected_lines": [one._asdict() for one in proof.rejected],
    }
    show(output, document, [plugin_line(findings, numbers), *_details(proof)])
    return level.exit_status


def _details(proof: LedgerProof) -> Iterator[str]:
    """Yield messages that are not delivered, what is unknown and why, and what was not read."""
    report = proof.report
    shown = report.messages[:SHOWN_MAX]
    for one in shown:
        fate = "unknown: waiting, or lost" if one.fate == "undecided" else one.fate
        at = "" if one.at_ms is None else f", accepted {iso(one.at_ms)}"
        yield f"{visible(one.message_id)}: {fate.replace('_', '-')} ({visible(one.entity)}{at})"
    more = len(report.messages) - len(shown) + report.messages_left_out
    if more:
        yield f"and {more:,} more that are not delivered: --output json names up to 1,000"
    yield from (f"unknown: {visible(text)}" for text in report.unknown)
    for line in proof.rejected[:SHOWN_MAX]:
        yield f"not read: {visible(line.file)} line {line.number:,}: {line.why}"
    rejected = sum(report.scope.rejected.values())
    if rejected > SHOWN_MAX:
        yield f"and {rejected - SHOWN_MAX:,} more lines"
    yield from (visible(text) for text in report.scope.remarks)
    yield f"read: {report.scope.records:,} records of {visible(report.scope.ledger)}"
