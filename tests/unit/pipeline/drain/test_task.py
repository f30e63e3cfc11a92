"""A drain on Spark: its tasks, their ledgers, their link to the driver, and Ctrl-C."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import pickle
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from azure.core.credentials import AzureNamedKeyCredential
from azure.servicebus import TransportType

from tests.ledger_reading import read
from twinbus.errors import SyphonError
from twinbus.ledger import LedgerError, LedgerFindings, facts_of, verify
from twinbus.namespace.access import NamespaceAccess
from twinbus.namespace.namespace import Namespace
from twinbus.pipeline.drain import place_link
from twinbus.pipeline.drain.driver_link import (
    PROBLEM_LENGTH_MAX,
    PROBLEMS_MAX,
    DriverLink,
    DriverListener,
)
from twinbus.pipeline.drain.place_link import PlaceAddress, PlaceLink, PlaceListener
from twinbus.pipeline.drain.task import (
    DrainTask,
    UploadedLedger,
    identify,
    open_side,
    prepare_place,
    shipped_side,
    task_ledger,
)
from twinbus.pipeline.spark.session import is_url
from twinbus.pipeline.store.inspection import LedgerFolder

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


def test_a_directory_is_written_to_as_it_is(tmp_path: Path) -> None:
    for place in (str(tmp_path / "one"), f"file://{tmp_path}/two"):
        with task_ledger(place, "spark-1") as ledger:
            ledger.record("complete", message_id="a")
    for name in ("one", "two"):
        assert [path.name for path in (tmp_path / name).glob("*.jsonl*")] == ["spark-1-00000.jsonl"]


def test_a_url_gets_closed_files_now_and_then_and_at_the_end(tmp_path: Path) -> None:
    target = tmp_path / "ledger"
    with UploadedLedger(f"file://{target}", "spark-1", upload_s=0.05) as ledger:
        ledger.record("complete", message_id="a")
        ends = time.monotonic() + 10
        while not list(target.glob("*.jsonl")):
            assert time.monotonic() < ends
            time.sleep(0.01)
        assert [record["message_id"] for record in read(target)] == ["a"]
        for number in range(1_000):
            ledger.record("complete", message_id=str(number))
        staging = ledger.directory
        # Its last file says that there is another, which was not carried yet: the task lives.
        assert read(target).findings == LedgerFindings()
    reading = read(target)
    assert [one["message_id"] for one in reading] == ["a", *map(str, range(1_000))]
    assert reading.findings == LedgerFindings()
    assert len(list(target.glob("*.jsonl"))) > 1
    assert not staging.exists()
    assert not list(target.glob("*.draft"))


def test_files_that_the_url_does_not_take_are_kept_and_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "ledger").write_text("a file where the directory should be")
    with UploadedLedger(f"file://{tmp_path}/ledger", "spark-1", last_wait_s=0.01) as ledger:
        ledger.record("complete", message_id="a")
    assert [record["message_id"] for record in read(ledger.directory)] == ["a"]
    assert str(ledger.directory) in caplog.text
    assert [record.levelno for record in caplog.records] == [logging.WARNING, logging.ERROR]


def test_a_file_that_is_not_there_whole_is_none_of_the_ledger(tmp_path: Path) -> None:
    uploaded = UploadedLedger(f"file://{tmp_path}/ledger", "spark-1", last_wait_s=0.01)
    uploaded.files = mock.Mock(wraps=uploaded.files)
    uploaded.files.move.side_effect = OSError("the store is gone")
    with uploaded as ledger:
        ledger.record("complete", message_id="a")
    assert list(tmp_path.glob("ledger/.*"))
    assert list(read(tmp_path / "ledger")) == []
    shutil.rmtree(ledger.directory)


def test_what_is_a_url() -> None:
    assert is_url("hdfs://namenode/ledger")
    assert not is_url("/mnt/ledger")
    assert not is_url("file:///mnt/ledger")


def test_a_url_that_nobody_can_write_to_is_one_line() -> None:
    with pytest.raises(LedgerError, match=r"^tasks cannot write a ledger to ftp://x/y: [^\n]+$"):
        prepare_place("ftp://x/y")
    prepare_place("/mnt/ledger")
    prepare_place(None)


def test_the_names_that_hadoop_gives_s3_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    class Files:
        @staticmethod
        def from_uri(url: str) -> tuple[Any, str]:
            asked.append(url)
            return mock.MagicMock(), "bucket/ledger/"

    monkeypatch.setattr("pyarrow.fs.FileSystem", Files)
    prepare_place("s3a://bucket/ledger/")
    assert asked == ["s3://bucket/ledger/"]


def test_a_ledger_at_a_url_gets_one_identity(tmp_path: Path) -> None:
    for _ in range(2):
        identify(f"file://{tmp_path}/ledger")
        identity = (tmp_path / "ledger" / "ledger.id").read_text()
        with UploadedLedger(f"file://{tmp_path}/ledger", "spark-1") as ledger:
            ledger.record("complete", message_id="a")
        assert (tmp_path / "ledger" / "ledger.id").read_text() == identity


def test_a_task_that_was_killed_leaves_files_that_say_that_there_was_more(tmp_path: Path) -> None:
    uploaded = UploadedLedger(f"file://{tmp_path}/ledger", "spark-1")
    with uploaded as ledger:
        ledger.record("complete", message_id="a")
        ledger.hand_over()
        uploaded.upload()
        [path] = (tmp_path / "ledger").glob("*.jsonl")
        facts = facts_of(path.name, [path.read_bytes()])
        ledger.record("complete", message_id="b")
    assert facts.closing == "continued"
    [gap] = verify([facts], now_ms=1 << 44).gaps
    assert gap.to_ms is None


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not holds():  # noqa: ASYNC110 - what is waited for is on another thread
            await asyncio.sleep(0.005)


def test_a_task_tells_its_problems_and_ends_when_it_is_released() -> None:
    async def run(post: DriverListener) -> None:
        async with DriverLink(post.address) as one, DriverLink(post.address) as two:
            one.report(("orders: full",))
            two.report(("orders: full", "events: disabled"))
            await until(lambda: set(post.problems) == {"orders: full", "events: disabled"})
            two.report(())
            await until(lambda: post.problems == ("orders: full",))
            released = asyncio.ensure_future(one.released())
            await asyncio.sleep(0.05)
            assert not released.done()
            post.release()
            async with asyncio.timeout(10):
                await released
                await two.released()
        async with DriverLink(post.address) as late, asyncio.timeout(10):
            await late.released()

    with DriverListener("127.0.0.1") as post:
        asyncio.run(run(post))
        assert post.attached == 0


def test_a_task_of_a_driver_that_it_cannot_reach_reads_and_writes_at_the_ledger(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(place_link, "STOP_POLL_S", 0.005)
    monkeypatch.setattr(place_link, "PROBLEMS_POLL_S", 0.0)
    address: PlaceAddress = pickle.loads(pickle.dumps(PlaceAddress(str(tmp_path), "link-a")))

    async def run(post: PlaceListener) -> None:
        async with PlaceLink(address, "one") as one, PlaceLink(address, "two") as two:
            released = [asyncio.ensure_future(each.released()) for each in (one, two)]
            one.report(("orders: full",))
            two.report(("orders: full", "events: disabled"))
            await until(lambda: set(post.problems) == {"orders: full", "events: disabled"})
            two.report(())
            await until(lambda: post.problems == ("orders: full",))
            assert not any(each.done() for each in released)
            post.release()
            async with asyncio.timeout(10):
                await asyncio.gather(*released)
        assert post.problems == ()

    with PlaceListener(address) as post:
        assert post.problems == ()
        asyncio.run(run(post))
        # Readers of the ledger see nothing of it.
        assert LedgerFolder(tmp_path).inspect({}).remarks == ()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("told", "problems"),
    [
        (b"7", ()),
        (b'{"orders": 1}', ()),
        (b'["orders: fu', ()),
        (b"[" * 100_000, ()),
        (b"\xff", ()),
        (b'["%s", 7]' % (b"x" * 9_999), ("x" * PROBLEM_LENGTH_MAX, "7")),
        (b"[%s]" % b",".join(b"%d" % n for n in range(99)), tuple(map(str, range(PROBLEMS_MAX)))),
    ],
)
def test_what_others_write_at_the_ledger_ends_no_driver(
    told: bytes, problems: tuple[str, ...], tmp_path: Path
) -> None:
    with PlaceListener(PlaceAddress(str(tmp_path), "link-a")) as post:
        (tmp_path / ".link-a").mkdir()
        (tmp_path / ".link-a" / "one.problems").write_bytes(told)
        assert post.problems == problems


def test_a_task_ends_when_its_driver_is_gone() -> None:
    async def run() -> None:
        post = DriverListener("127.0.0.1")
        with post:
            async with DriverLink(post.address) as link:
                await until(lambda: post.attached == 1)
                post.__exit__()
                async with asyncio.timeout(10):
                    await link.released()

    asyncio.run(run())


@pytest.mark.parametrize("line", [b"wrong\n", b"", b"x" * 100_000])
def test_a_stranger_is_not_listened_to(line: bytes) -> None:
    with DriverListener("127.0.0.1") as post:
        assert post.address is not None
        with socket.create_connection((post.address.host, post.address.port)) as stranger:
            stranger.settimeout(10)
            stranger.sendall(line)
            stranger.shutdown(socket.SHUT_WR)
            with contextlib.suppress(ConnectionResetError):
                assert stranger.recv(1) == b""
        assert post.attached == 0


def test_a_task_that_cannot_reach_the_driver_works_without() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]

        async def run() -> None:
            with DriverListener("127.0.0.1") as post:
                assert post.address is not None
                address = replace(post.address, port=port)
            async with DriverLink(address) as link:
                link.report(("orders: full",))
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0.05):
                        await link.released()

        began = time.monotonic()
        asyncio.run(run())
        assert time.monotonic() - began < 5


def test_a_driver_that_cannot_listen_goes_on_without() -> None:
    with DriverListener("driver.example", bind="203.0.113.1") as post:
        assert post.address is None
        post.release()


@pytest.mark.parametrize(("interrupts", "reaches_its_end"), [(1, True), (2, False)])
def test_the_first_interrupt_stops_gently_and_the_second_does_not(
    interrupts: int, reaches_its_end: bool
) -> None:
    pytest.importorskip("pyspark")
    from twinbus.pipeline.drain.drain import _stopped_by_interrupt

    stop, ends = threading.Event(), []

    def work() -> None:
        with _stopped_by_interrupt(stop):
            for _ in range(interrupts):
                os.kill(os.getpid(), signal.SIGINT)
            ends.append(stop.wait(5))

    with pytest.raises(KeyboardInterrupt):
        work()
    assert ends == [True] * reaches_its_end
    assert stop.is_set()
