"""The tables at an object store: Azurite, Azure's emulator, by `npm install --global azurite`."""

from __future__ import annotations

import base64
import hashlib
import hmac
import http.client
import secrets
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from email.utils import formatdate
from pathlib import Path

import pytest

from tests.unit.pipeline.store.lake_writer import add, both, check_two_processes, ids_at, lake_at
from twinbus.pipeline.store.lake import CommitConflict, Snapshot

AZURITE = shutil.which("azurite-blob")
ACCOUNT = "ledgers"
START_LIMIT_S = 60.0

pytestmark = [
    pytest.mark.soak,
    pytest.mark.skipif(
        AZURITE is None, reason="Azurite is not installed: npm install --global azurite"
    ),
]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A place in a container of an emulator, with the credentials in the environment."""
    assert AZURITE is not None
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    key = base64.b64encode(secrets.token_bytes(32)).decode()
    monkeypatch.setenv("AZURITE_ACCOUNTS", f"{ACCOUNT}:{key}")
    monkeypatch.setenv("AZURE_STORAGE_USE_EMULATOR", "true")
    monkeypatch.setenv("AZURITE_BLOB_STORAGE_URL", f"http://127.0.0.1:{port}")
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", ACCOUNT)
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", key)
    options = ("--inMemoryPersistence", "--silent", "--disableTelemetry", "--skipApiVersionCheck")
    emulator = subprocess.Popen([AZURITE, "--blobPort", str(port), *options], cwd=tmp_path)
    try:
        _create_container(port, key, "lake")
        yield f"abfss://lake@{ACCOUNT}.dfs.core.windows.net/tables"
    finally:
        emulator.terminate()
        emulator.wait()


def _create_container(port: int, key: str, name: str) -> None:
    path, date = f"/{ACCOUNT}/{name}", formatdate(usegmt=True)
    own = {"x-ms-date": date, "x-ms-version": "2021-12-02"}
    # The verb, eleven standard headers that are empty, ours, and the resource.
    headers = "".join(f"{name}:{value}\n" for name, value in own.items())
    text = "PUT" + "\n" * 12 + f"{headers}/{ACCOUNT}{path}\nrestype:container"
    digest = hmac.new(base64.b64decode(key), text.encode(), hashlib.sha256).digest()
    own["Authorization"] = f"SharedKey {ACCOUNT}:{base64.b64encode(digest).decode()}"
    limit = time.monotonic() + START_LIMIT_S
    while True:
        service = http.client.HTTPConnection("127.0.0.1", port)
        try:
            service.request("PUT", f"{path}?restype=container", headers=own)
        except ConnectionRefusedError:
            assert time.monotonic() < limit, "Azurite does not start"
            time.sleep(0.2)
        else:
            assert service.getresponse().status == 201
            return
        finally:
            service.close()


def test_of_two_that_commit_at_once_one_wins(place: str) -> None:
    first = add(place, Snapshot(), "0-a", ["1"])
    winner = add(place, first, "1-a", ["2"])
    with pytest.raises(CommitConflict):
        add(place, first, "1-b", ["3"])
    assert lake_at(place).latest() == winner
    assert ids_at(place) == both("1", "2")


def test_processes_that_commit_beside_each_other_lose_and_double_nothing(place: str) -> None:
    check_two_processes(place, 6)
