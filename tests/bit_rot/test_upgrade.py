"""The upgrade of a store without checksums is killed at random moments: nothing is lost by it."""

from __future__ import annotations

import os
import random
import shutil
import signal
import sys
from pathlib import Path

import lmdb
import pytest

from tests.bit_rot.small_store import MAP_SIZE, ORDERS, body, message
from twinbus.broker.storage import records, upgrade
from twinbus.broker.storage.checksums import unsealed
from twinbus.broker.storage.lmdb_store import LmdbStore
from twinbus.broker.storage.store import flush

MESSAGES = 1_000
SLICE_BYTES = 10_000
"""Some tens of commits, each of which a kill may end."""

HALVES, HALVES_SOAK = 5, 1_000
"""Kills that must leave a store half upgraded."""

SLICES = 10
"""A kill comes in one of the first slices of a life, or in those after it."""

SOON_S, MORE_S = 1e-6, 0.003
"""How long after its beginning: a slice takes about a millisecond."""

LIVES_MAX = 20
"""For each of them; the other kills come before the first commit or after the last."""

Records = dict[bytes, bytes]


def stored(directory: Path) -> Records:
    with (
        lmdb.open(str(directory), readonly=True, lock=False) as environment,
        environment.begin() as transaction,
    ):
        return dict(transaction.cursor())


@pytest.fixture
def sealed(tmp_path: Path) -> Records:
    """The records as an upgrade must leave them, those of the whole store aside."""
    store = LmdbStore(tmp_path / "whole", map_size=MAP_SIZE)
    store.put_entity(ORDERS, "queue", "orders", {})
    for number in range(1, MESSAGES + 1):
        store.put(ORDERS, message(number), body(number))
    flush(store)
    store.close()
    return of_entities(stored(tmp_path / "whole"))


def of_entities(found: Records) -> Records:
    whole = (records.FORMAT_KEY, records.INVENTORY_KEY)
    return {key: record for key, record in found.items() if key not in whole}


def make_old(directory: Path, sealed: Records) -> None:
    """The store as an earlier Twinbus wrote it."""
    directory.mkdir()
    with (
        lmdb.open(str(directory), map_size=MAP_SIZE) as environment,
        environment.begin(write=True) as transaction,
    ):
        for key, record in sealed.items():
            transaction.put(key, bytes(unsealed(record)))
        transaction.put(records.FORMAT_KEY, records.UNCHECKED_VERSION.to_bytes(4, "little"))


def live(directory: Path, slices: int, more_s: float) -> bool:
    """Open the store in a process that dies soon after so many slices; whether it lived on.

    Its own timer ends it, so the moment does not depend on how busy the machine is. The kernel does
    that as it does for SIGKILL: nothing of Python runs any more.
    """
    child = os.fork()
    if child == 0:
        status = 1
        try:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            seal_slice, left = upgrade._seal_slice, iter(range(slices, 0, -1))

            def counted(
                transaction: lmdb.Transaction[bytes], last: bytes, slice_bytes: int
            ) -> bytes | None:
                if next(left, 0) == 1:
                    signal.setitimer(signal.ITIMER_REAL, more_s)
                return seal_slice(transaction, last, slice_bytes)

            upgrade._seal_slice = counted
            LmdbStore(directory, map_size=MAP_SIZE).close()
            status = 0
        finally:
            os._exit(status)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status in (0, -signal.SIGALRM)
    return status == 0


def check_half(directory: Path, sealed: Records) -> bool:
    """Each record is there, sealed up to the key that is noted; whether some are and some not."""
    found = stored(directory)
    noted = found[records.FORMAT_KEY]
    if len(noted) == records.FORMAT_BYTES:
        last = b""
    else:
        last = bytes(unsealed(noted)[records.FORMAT_BYTES :]) or b"\xff"
    expected = {
        key: record if key <= last else bytes(unsealed(record)) for key, record in sealed.items()
    }
    assert of_entities(found) == expected
    return b"" < last < b"\xff"


def kill_upgrades(directory: Path, sealed: Records, halves: int) -> None:
    generator = random.Random(5)
    left = lives = stores = 0
    while left < halves:
        stores += 1
        old = directory / str(stores)
        make_old(old, sealed)
        while not live(old, generator.randint(1, SLICES), generator.uniform(SOON_S, MORE_S)):
            lives += 1
            left += check_half(old, sealed)
            assert lives < LIVES_MAX * halves, "the kills come too early or too late"
        store = LmdbStore(old, map_size=MAP_SIZE)
        [image] = store.recover()
        assert [kept.sequence_number for kept in image.messages] == [*range(1, MESSAGES + 1)]
        assert store.payload(ORDERS, MESSAGES) == body(MESSAGES)
        store.close()
        assert of_entities(stored(old)) == sealed
        shutil.rmtree(old)
    sys.stdout.write(f"{stores} upgrades, {lives} kills, {left} of them between two commits\n")


def test_an_upgrade_that_is_killed_goes_on_and_loses_nothing(
    tmp_path: Path, sealed: Records, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upgrade.upgrade, "__defaults__", (SLICE_BYTES,))
    kill_upgrades(tmp_path, sealed, HALVES)


@pytest.mark.soak
def test_an_upgrade_that_is_killed_a_thousand_times_loses_nothing(
    tmp_path: Path, sealed: Records, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upgrade.upgrade, "__defaults__", (SLICE_BYTES,))
    kill_upgrades(tmp_path, sealed, HALVES_SOAK)
