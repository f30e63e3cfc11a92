"""The ledger: what every process of a pair did, one line for each operation (SPEC 8).

`record` says what a line holds, `writer` appends lines cheaply and survives a crash, `files` begins
and ends the files, `adoption` ends those of the dead, `missing` names those that are gone, `reader`
reads them without Spark. The tables over it are in `twinbus.pipeline`.
"""

from __future__ import annotations

from twinbus.ledger.adoption import adopt
from twinbus.ledger.files import process_name
from twinbus.ledger.reader import Reading, read
from twinbus.ledger.record import LedgerError, LineForm
from twinbus.ledger.writer import LedgerWriter, NullLedger, open_ledger

__all__ = [
    "LedgerError",
    "LedgerWriter",
    "LineForm",
    "NullLedger",
    "Reading",
    "adopt",
    "open_ledger",
    "process_name",
    "read",
]
