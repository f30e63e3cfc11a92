"""Sides on their way to a Spark task: what travels, what is opened there, and no secret in it."""

from __future__ import annotations

import asyncio
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
from azure.core.credentials import AzureNamedKeyCredential
from azure.servicebus import TransportType

from twinbus.errors import SyphonError
from twinbus.namespace.access import NamespaceAccess
from twinbus.namespace.namespace import Namespace
from twinbus.pipeline.drain.task import DrainTask, open_side, shipped_side

HOST = "contoso.servicebus.windows.net"
KEY = f"Endpoint=sb://{HOST}/;SharedAccessKeyName=Root;SharedAccessKey=s3cret"


def factory() -> Namespace:
    return Namespace(HOST, AzureNamedKeyCredential("Root", "made in the task"))


def test_a_task_carries_no_secret_and_opens_its_credential_where_it_runs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("CONTOSO", KEY)
    path = tmp_path / "token"
    path.write_text("opaque-s3cret")
    sides = {
        "env": shipped_side("primary", f"sb://{HOST}?credential=env:CONTOSO"),
        "file": shipped_side("primary", Namespace.of(f"sb://{HOST}?credential=file:{path}")),
        "factory": shipped_side("primary", factory),
    }
    for side in sides.values():
        task = DrainTask(primary=side, secondary=side)
        shipped = pickle.dumps(task)
        assert b"s3cret" not in shipped
        assert "s3cret" not in repr(task) + repr(side)
        endpoint = open_side(pickle.loads(shipped).primary)
        assert endpoint.host == HOST
        assert "s3cret" not in repr(endpoint) + endpoint.tokens.who
    token = asyncio.run(open_side(sides["file"]).token("orders", 0.0))
    assert token.header == "Bearer opaque-s3cret"


def test_a_connection_string_travels_with_its_route() -> None:
    access = NamespaceAccess.parse(KEY, transport="websocket")
    side = shipped_side("primary", Namespace.from_access(access))
    assert side == access
    assert open_side(side).route.websocket
    assert "s3cret" not in repr(DrainTask(primary=side, secondary=side))
    named = shipped_side("primary", Namespace.from_connection_string(KEY, name="shop"))
    assert open_side(named).label == "shop"


@pytest.mark.parametrize(
    "given",
    [
        None,
        Namespace(HOST, AzureNamedKeyCredential("Root", "s3cret")),
        Namespace.from_connection_string(KEY, transport_type=TransportType.AmqpOverWebsocket),
    ],
)
def test_what_cannot_be_shipped_says_what_can(given: object) -> None:
    with pytest.raises(SyphonError, match="the primary needs a connection string, sb://") as caught:
        shipped_side("primary", given)
    assert "s3cret" not in str(caught.value)


def test_a_task_with_a_key_or_a_token_file_needs_neither_the_sdk_nor_certifi(
    tmp_path: Path,
) -> None:
    path = tmp_path / "token"
    path.write_text("opaque")
    script = (
        "import sys\n"
        "for name in ('azure', 'azure.core', 'aiohttp', 'certifi'): sys.modules[name] = None\n"
        "from twinbus.pipeline.drain.task import open_side, shipped_side\n"
        "for text in sys.argv[1:]: print(open_side(shipped_side('primary', text)).host)\n"
    )
    texts = (KEY, f"sb://{HOST}?credential=file:{path}")
    done = subprocess.run(
        [sys.executable, "-c", script, *texts], capture_output=True, text=True, check=False
    )
    assert (done.stdout.split(), done.stderr) == ([HOST, HOST], "")
