"""The ledger: what every process of a pair did, one line for each operation.

docs/observability.md states the rules.
`record` defines a line, `writer` appends lines cheaply and survives a crash, `files` begins and
ends the files, `open_file` is one of them and ends those of dead processes. `facts` reads the facts
of one file, `chain` compares all files: gaps, missing, changed and doubled files. `reader` reads a
ledger without Spark. The tables over it are in `twinbus.pipeline`.
"""

from __future__ import annotations

from twinbus.ledger.chain import Gap, LedgerFindings, verify
from twinbus.ledger.facts import FileFacts, WriterNote, facts_of
from twinbus.ledger.files import process_name
from twinbus.ledger.open_file import adopt
from twinbus.ledger.reader import Inspection, Reading, inspect, read
from twinbus.ledger.record import LedgerError, LineForm
from twinbus.ledger.writer import LedgerWriter, NullLedger, open_ledger

__all__ = [
    "FileFacts",
    "Gap",
    "Inspection",
    "LedgerError",
    "LedgerFindings",
    "LedgerWriter",
    "LineForm",
    "NullLedger",
    "Reading",
    "WriterNote",
    "adopt",
    "facts_of",
    "inspect",
    "open_ledger",
    "process_name",
    "read",
    "verify",
]
