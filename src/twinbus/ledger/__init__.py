"""The ledger: what every process of a pair did, one line for each operation.

docs/observability.md states the rules.
`record` defines a line, `writer` appends lines cheaply and survives a crash, `files` begins and
ends the files, `open_file` is one of them and ends those of dead processes. `facts` reads the facts
of one file, `chain` compares all files: gaps, missing, changed and doubled files. What reads the
records, the tables over them, is in `twinbus.pipeline`.
"""

from __future__ import annotations

from twinbus.ledger.chain import LedgerFindings, verify
from twinbus.ledger.facts import FileFacts, facts_of
from twinbus.ledger.files import process_name
from twinbus.ledger.open_file import adopt
from twinbus.ledger.record import LedgerError, LineForm
from twinbus.ledger.writer import LedgerWriter, NullLedger, open_ledger

__all__ = [
    "FileFacts",
    "LedgerError",
    "LedgerFindings",
    "LedgerWriter",
    "LineForm",
    "NullLedger",
    "adopt",
    "facts_of",
    "open_ledger",
    "process_name",
    "verify",
]
