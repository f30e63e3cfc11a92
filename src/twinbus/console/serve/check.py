"""`twinbus serve --check DIR`: read every record of a data directory and print what is damaged."""

from __future__ import annotations

import sys
import time
from functools import partial
from pathlib import Path
from typing import Final

from twinbus.broker.storage.check import Checked, check_store, stores_in
from twinbus.console import ATTENTION
from twinbus.console.output import LiveLine, Output, show

PROGRESS_AFTER_S: Final = 2.0


class _Progress:
    """A line on stderr for each `PROGRESS_AFTER_S` of reading; on a terminal one that changes."""

    def __init__(self) -> None:
        self._line = LiveLine()
        self._said_s = time.monotonic()

    def say(self, name: str, count: int) -> None:
        now = time.monotonic()
        if now - self._said_s < PROGRESS_AFTER_S:
            return
        text = f"twinbus: {name}: {count:,} records read"
        if self._line.is_live:
            self._line.show(text)
        else:
            self._said_s = now
            print(text, file=sys.stderr, flush=True)

    def end(self) -> None:
        self._line.clear()


def check(directory: Path, output: Output) -> int:
    """Print one line for each damage, then one for each namespace; 3 if anything is damaged."""
    found: dict[str, Checked] = {}
    progress = _Progress()
    try:
        for path in stores_in(directory):
            found[path.name] = check_store(path, partial(progress.say, path.name))
    finally:
        progress.end()
    document = [
        {
            "namespace": name,
            "messages": each.messages,
            "records": each.records,
            "has_checksums": each.has_checksums,
            "damage": [
                {"entity": one.entity, "sequence_number": one.sequence_number, "what": one.what}
                for one in each.damage
            ],
        }
        for name, each in found.items()
    ]
    show(output, document, (line for name, each in found.items() for line in _lines(name, each)))
    return ATTENTION if any(each.damage for each in found.values()) else 0


def _lines(name: str, checked: Checked) -> list[str]:
    lines = [f"{name}{'/' if one.entity else ': '}{one}" for one in checked.damage]
    read = f"{name}: {checked.messages:,} messages, {checked.records:,} records read"
    if not checked.has_checksums:
        return [*lines, f"{read}; it has no checksums: the next start of a broker gives it some"]
    count = len(checked.damage)
    return [*lines, f"{read}; {f'{count:,} damaged' if count else 'nothing is damaged'}"]
