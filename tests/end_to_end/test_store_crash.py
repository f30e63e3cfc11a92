"""The store in real processes: kill -9, a full disk, forks, two owners, damaged files."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import textwrap
from typing import TYPE_CHECKING

import pytest

from twinbus.broker.journal import EntityImage, StoredMessage
from twinbus.broker.lmdb_store import LmdbStore
from twinbus.broker.store import flush

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.end_to_end

KILLS = 12
PRELUDE = """
import asyncio, os, resource, sys, time
from pathlib import Path
from twinbus.broker.commit import GroupCommit
from twinbus.broker.journal import StoredMessage
from twinbus.broker.lmdb_store import LmdbStore
from twinbus.broker.store import StoreError, StoreFull, flush

directory = Path(sys.argv[1])

def message(number):
    return StoredMessage(number, enqueued_at_ms=1, size_bytes=1, message_id=f"m{number}")

def say(line):
    os.write(1, line.encode() + b"\\n")
"""

SENDER = """
# Sends and completes as fast as it can; says what is acknowledged only when it is durable.
async def main():
    store = LmdbStore(directory)
    [image] = store.recover()
    number = image.last_sequence_number
    waiting = image.messages
    commit = GroupCommit(store, asyncio.get_running_loop())
    say("ready")
    while True:
        sent, done = [], []
        for _ in range(1 + number % 40):
            number += 1
            fresh = message(number)
            store.put(1, fresh, str(number).encode() * (1 + number % 700))
            sent.append(number)
            waiting.append(fresh)
        while len(waiting) > 60:
            old = waiting.pop(number % len(waiting))
            store.remove(1, old)
            done.append(old.sequence_number)
        line = f"sent {sent} done {done}"
        commit.after_commit(lambda line=line: say(line))
        # Some groups go while the last one is in flight.
        await (commit.durable() if number % 3 else asyncio.sleep(0))

asyncio.run(main())
"""


def run(script: str, directory: Path, **limits: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", PRELUDE + textwrap.dedent(script), str(directory)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        **limits,  # type: ignore[call-overload]
    )


def made(directory: Path, count: int = 0, size_bytes: int = 100) -> None:
    """A store with one queue of `count` messages."""
    store = LmdbStore(directory)
    store.put_entity(1, "queue", "q", {})
    for number in range(1, count + 1):
        kept = StoredMessage(number, enqueued_at_ms=1, size_bytes=1)
        store.put(1, kept, os.urandom(size_bytes))
        if number % 50 == 0:
            flush(store)
    flush(store)
    store.close()


def recovered(directory: Path) -> EntityImage:
    store = LmdbStore(directory)
    [image] = store.recover()
    for kept in image.messages:
        store.payload(1, kept.sequence_number)
    store.close()
    return image


def test_what_was_acknowledged_survives_kill_9_at_any_moment(tmp_path: Path) -> None:
    made(tmp_path / "ns")
    generator = random.Random(7)
    sent: set[int] = set()
    done: set[int] = set()
    for _ in range(KILLS):
        child = subprocess.Popen(
            [sys.executable, "-c", PRELUDE + SENDER, str(tmp_path / "ns")],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        for _ in range(generator.randrange(1, 60)):
            note(child.stdout.readline(), sent, done)
        child.send_signal(signal.SIGKILL)
        for line in child.stdout:
            note(line, sent, done)
        child.wait()
        child.stdout.close()
        check(tmp_path / "ns", sent, done)
    assert len(sent) > 100
    assert len(done) > 100


def note(line: str, sent: set[int], done: set[int]) -> None:
    if line.endswith("\n"):
        words = line.removeprefix("sent ").split(" done ")
        for text, numbers in zip(words, (sent, done), strict=True):
            numbers.update(int(word) for word in text.strip("[]\n").split(", ") if word)


def check(directory: Path, sent: set[int], done: set[int]) -> None:
    store = LmdbStore(directory)
    [image] = store.recover()
    held = {kept.sequence_number for kept in image.messages}
    assert not done & held, "completed messages are back"
    lost = sent - done - held
    # What was being completed when the process died may be gone: nobody was told either way.
    assert len(lost) <= 2 * 40, f"acknowledged messages are lost: {sorted(lost)}"
    assert image.last_sequence_number >= max(sent, default=0), "a number could be given twice"
    for number in held:
        assert store.payload(1, number) == str(number).encode() * (1 + number % 700)
    # A group is there as a whole: nothing above the highest number that is held is missing.
    done |= lost
    sent |= held
    store.close()
