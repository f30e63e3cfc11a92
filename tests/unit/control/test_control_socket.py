"""A control socket: its place, rights and bounds, what is said, and answers to nonsense."""
# ruff: noqa: ASYNC240  # nobody but the test waits for its loop

from __future__ import annotations

import asyncio
import json
import logging
import os
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twinbus.control.protocol import (
    REQUEST_BYTES_MAX,
    VERSION,
    ControlRefused,
    ControlRequest,
    HostCard,
    Verb,
    arguments_for,
    encode_refusal,
    encode_request,
    encode_result,
    parse_answer,
    parse_request,
    steering_verbs,
)
from twinbus.control.server import CLIENTS_MAX, ControlServer
from twinbus.control.sockets import PATH_BYTES_MAX, ask, find, sockets_in
from twinbus.errors import ControlError, PairingError
from twinbus.run_directory import VARIABLE
from twinbus.syphon.core.pacing import Rate
from twinbus.syphon.host import SyphonGroup


@pytest.fixture
def run_directory(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    # Pytest's own directories are too long for the address of a socket.
    directory = Path(tempfile.mkdtemp(prefix="tb-"))
    monkeypatch.setenv(VARIABLE, str(directory / "run"))
    yield directory / "run"
    shutil.rmtree(directory)


def refuse() -> None:
    raise PairingError("the pair was closed")


def stumble() -> None:
    raise KeyError("a mistake")


async def later() -> str:
    await asyncio.sleep(0)
    return "later"


VERBS = {
    "echo": Verb(lambda path: {"path": path}, takes=("path",)),
    "refuse": Verb(refuse),
    "stumble": Verb(stumble),
    "later": Verb(later),
    "large": Verb(lambda: "x" * 3_000_000),
}


def server(name: str = "contoso", **limits: float) -> ControlServer:
    return ControlServer("pair", name, VERBS, **limits)


async def said(path: Path, sent: bytes, *, close: bool = False) -> Any:
    """The answer to raw bytes."""
    reader, writer = await asyncio.open_unix_connection(str(path), limit=2**24)
    writer.write(sent)
    if close:
        writer.write_eof()
    line = await reader.readline()
    writer.close()
    return parse_answer(line) if line else None


async def asked(at: Path, verb: str, **arguments: str) -> Any:
    return await asyncio.to_thread(ask, at, verb, arguments)


async def test_a_socket_is_its_users_alone_and_goes_with_its_server(run_directory: Path) -> None:
    async with running() as (control, path):
        assert stat.S_IMODE(run_directory.stat().st_mode) == 0o700
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert path.name.startswith(f"contoso.{os.getpid()}.")
        hosts, silent = await asyncio.to_thread(find)
        assert [host.card.name for host in hosts] == ["contoso"]
        assert not silent
    assert list(run_directory.iterdir()) == []
    await control.close()


class running:  # noqa: N801
    """A server for the block, and its path."""

    def __init__(self, name: str = "contoso", **limits: float) -> None:
        self.server = server(name, **limits)

    async def __aenter__(self) -> tuple[ControlServer, Path]:
        await self.server.start()
        assert self.server.path is not None
        return self.server, self.server.path

    async def __aexit__(self, *_: object) -> None:
        await self.server.close()


async def test_verbs_are_carried_out_and_refused(
    run_directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with running() as (_, path):
        assert await asked(path, "echo", path="orders") == {"path": "orders"}
        assert await asked(path, "later") == "later"
        assert len(await asked(path, "large")) == 3_000_000
        with pytest.raises(ControlError, match="the pair was closed"):
            await asked(path, "refuse")
        with pytest.raises(ControlError, match="no verb 'fly'"):
            await asked(path, "fly")
        with pytest.raises(ControlError, match="internal error of Twinbus: KeyError"):
            await asked(path, "stumble")
        assert [record.exc_info is not None for record in caplog.records] == [True]
        # It goes on as if nothing had happened.
        assert await asked(path, "later") == "later"


async def test_nonsense_gets_an_answer_and_silence_gets_none(run_directory: Path) -> None:
    async with running() as (_, path):
        assert (await said(path, b"GET / HTTP/1.1\r\n\r\n")).error_kind == "bad-request"
        too_long = await said(path, b"x" * (REQUEST_BYTES_MAX * 2))
        assert str(REQUEST_BYTES_MAX) in too_long.error_text
        cut_short = await said(path, encode_request(ControlRequest("later"))[:-1], close=True)
        assert "newline" in cut_short.error_text
        assert await said(path, b"", close=True) is None


async def test_a_slow_client_holds_up_nobody_and_is_let_go(run_directory: Path) -> None:
    # The client in between has as long for its request, on a busy machine.
    async with running(request_s=2.0, answer_s=2.0) as (control, path):
        silent = await asyncio.open_unix_connection(str(path))
        deaf = await asyncio.open_unix_connection(str(path), limit=1)
        deaf[1].write(encode_request(ControlRequest("large")))
        assert await asked(path, "later") == "later"
        answer = parse_answer(await silent[0].readline())
        assert answer.error_kind == "timeout"
        async with asyncio.timeout(60):
            while control.clients:  # noqa: ASYNC110  # nothing tells of it
                await asyncio.sleep(0.01)
        for _, writer in (silent, deaf):
            writer.close()


async def test_there_is_a_bound_to_clients_and_past_it_an_answer(run_directory: Path) -> None:
    async with running() as (_, path):
        idle = [await asyncio.open_unix_connection(str(path)) for _ in range(CLIENTS_MAX)]
        answer = await said(path, encode_request(ControlRequest("later")))
        assert answer.error_kind == "busy"
        for _, writer in idle:
            writer.close()


async def test_closing_lets_every_client_go(run_directory: Path) -> None:
    async with running() as (_, path):
        reader, writer = await asyncio.open_unix_connection(str(path))
        await asyncio.sleep(0.05)
    assert await reader.read() == b""
    writer.close()


async def test_two_pairs_of_one_name_in_one_process(run_directory: Path) -> None:
    async with running() as (_, first), running() as (_, second):
        assert first != second
        hosts, _ = await asyncio.to_thread(find)
        assert len(hosts) == 2


async def test_what_the_dead_left_behind_is_removed_and_nothing_else(run_directory: Path) -> None:
    run_directory.mkdir(mode=0o700)
    stale, foreign = run_directory / "contoso.1.abc.sock", run_directory / "notes.txt"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(stale))
        left.listen()
    foreign.write_text("mine")
    hosts, silent = await asyncio.to_thread(find)
    assert (hosts, silent) == ([], [])
    assert not stale.exists()
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(stale))
        left.listen()
    async with running() as (_, path):
        assert sockets_in(run_directory) == [path]
    assert foreign.read_text() == "mine"


async def test_a_host_that_does_not_answer_is_told_of(
    run_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("twinbus.control.sockets.ANSWER_S", 0.2)
    run_directory.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX) as stuck:
        stuck.bind(str(run_directory / "stuck.1.abc.sock"))
        stuck.listen()
        hosts, silent = await asyncio.to_thread(find)
    assert hosts == []
    assert "event loop" in silent[0].why


@pytest.mark.parametrize("obstacle", ["file", "writable", "long", "unmakeable"])
async def test_an_unusable_directory_is_one_warning(
    run_directory: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    obstacle: str,
) -> None:
    if obstacle == "file":
        run_directory.write_text("mine")
    elif obstacle == "writable":
        run_directory.mkdir()
        run_directory.chmod(0o777)
    elif obstacle == "long":
        monkeypatch.setenv(VARIABLE, str(run_directory / ("x" * PATH_BYTES_MAX)))
    else:
        monkeypatch.setenv(VARIABLE, "/proc/twinbus")
    control = server()
    with caplog.at_level(logging.WARNING):
        await control.start()
    assert control.path is None
    assert len(caplog.records) == 1
    assert VARIABLE in caplog.records[0].getMessage()
    await control.close()


async def test_a_long_label_is_cut_in_the_path_only(
    run_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    label = "n" * 200
    monkeypatch.setenv(VARIABLE, str(run_directory) + "/" + "d" * 45)
    async with running(label) as (_, path):
        assert len(os.fsencode(path)) <= PATH_BYTES_MAX
        hosts, _ = await asyncio.to_thread(find)
        assert hosts[0].card.name == label
        assert hosts[0].is_called(label.upper())


FORKING = """
import asyncio, os
from twinbus.control.server import ControlServer

async def main():
    control = ControlServer("pair", "contoso", {})
    await control.start()
    control_path = control.path
    if os.fork() == 0:
        # It outlives its parent, until the test lets go of it.
        {in_child}
        os.write(1, f"{control_path}\\n".encode())
        os.read(0, 1)
        os._exit(0)
    os.write(1, f"{control_path}\\n".encode())
    await asyncio.sleep(60)

asyncio.run(main())
"""


@pytest.mark.parametrize("in_child", ["pass", "await control.close()"])
def test_a_child_of_a_fork_neither_serves_nor_removes_the_socket(
    run_directory: Path, in_child: str
) -> None:
    script = FORKING.replace("{in_child}", in_child)
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        paths = [parent.stdout.readline().strip() for _ in ("parent", "child")]
        path = Path(paths[0])
        assert paths == [str(path)] * 2
        hosts, silent = find()
        assert ([host.card.pid for host in hosts], silent) == ([parent.pid], [])
        parent.kill()
        parent.wait()
        # The child is alive, and yet nobody seems to be at the socket.
        assert path.exists()
        assert find() == ([], [])
        assert not path.exists()


async def test_a_command_asks_no_socket_in_a_directory_that_others_can_write_to(
    run_directory: Path,
) -> None:
    """A program of another user could stand there and answer for a host of this user."""
    running = server()
    await running.start()
    try:
        hosts, silent = await asyncio.to_thread(find)
        assert (len(hosts), silent) == (1, [])
        run_directory.chmod(0o777)
        hosts, silent = await asyncio.to_thread(find)
        assert hosts == []
        assert [one.path for one in silent] == [run_directory]
        assert "writable by other users" in silent[0].why
    finally:
        await running.close()


async def test_a_command_does_not_follow_a_link_at_the_predictable_place(
    run_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = server()
    await running.start()
    place = run_directory.parent / f"twinbus-{os.getuid()}"
    place.symlink_to(run_directory)
    monkeypatch.delenv(VARIABLE)
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    monkeypatch.setattr(tempfile, "tempdir", str(run_directory.parent))
    try:
        hosts, silent = await asyncio.to_thread(find)
        assert hosts == []
        assert "is not a directory" in silent[0].why
    finally:
        await running.close()


CARD = HostCard("pair", "contoso", 4711, "app.py", "2026-11-16T01:00:00+00:00")
SPOKEN = {"status": Verb(dict), "freeze": Verb(dict, takes=("path",))}


def test_a_request_and_its_answers_come_back_as_they_were_said() -> None:
    request = ControlRequest("freeze", {"path": "orders\nand more"})
    line = encode_request(request)
    assert line.count(b"\n") == 1
    assert parse_request(line) == request
    answer = parse_answer(encode_result(CARD, {"state": "healthy"}))
    assert (answer.host, answer.result, answer.error_kind) == (CARD, {"state": "healthy"}, None)
    refusal = parse_answer(encode_refusal(CARD, "busy", "later"))
    assert (refusal.error_kind, refusal.error_text, refusal.result) == ("busy", "later", None)


@pytest.mark.parametrize(
    ("line", "kind", "said"),
    [
        (b"status\n", "bad-request", "not a line of JSON"),
        (b"\xff\xfe\n", "bad-request", "not a line of JSON"),
        (b"[" * 100_000 + b"\n", "bad-request", "not a line of JSON"),
        (b"[]\n", "bad-request", "not an object"),
        (b'{"verb": "status"}\n', "bad-request", "version of the protocol"),
        (b'{"twinbus": true, "verb": "status"}\n', "bad-request", "version of the protocol"),
        (b'{"twinbus": 2, "verb": "status"}\n', "version", "the same release"),
        (b'{"twinbus": 1}\n', "bad-request", "a string in the field"),
        (b'{"twinbus": 1, "verb": "x", "arguments": []}\n', "bad-request", "an object"),
    ],
)
def test_a_line_that_asks_nothing_is_refused_with_a_reason(
    line: bytes, kind: str, said: str
) -> None:
    with pytest.raises(ControlRefused, match=said) as refused:
        parse_request(line)
    assert refused.value.kind == kind


@pytest.mark.parametrize(
    ("verb", "arguments", "said"),
    [
        ("drop", {}, "no verb 'drop'; it knows freeze, hello, status"),
        ("v" * 1_000, {}, "no verb 'vvv"),
        ("freeze", {}, "needs path"),
        ("freeze", {"path": 7}, "must be a text"),
        ("freeze", {"path": "  "}, "must be a text"),
        ("status", {"path": "orders"}, "takes no 'path'"),
    ],
)
def test_a_verb_gets_exactly_what_it_takes(verb: str, arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(ControlRefused, match=said) as refused:
        arguments_for(SPOKEN, ControlRequest(verb, arguments))
    assert len(str(refused.value)) < 200
    assert arguments_for(SPOKEN, ControlRequest("freeze", {"path": "orders"})) == {"path": "orders"}


@given(st.binary(max_size=200) | st.from_type(dict).map(lambda d: json.dumps(str(d)).encode()))
def test_no_bytes_get_past_the_parsers(line: bytes) -> None:
    for parse in (parse_request, parse_answer):
        with pytest.raises(ControlRefused):
            parse(line)


def test_an_answer_of_another_version_says_what_to_do() -> None:
    line = json.dumps({"twinbus": VERSION + 1, "ok": True}).encode()
    with pytest.raises(ControlRefused, match="the same release"):
        parse_answer(line)


def test_the_rate_of_a_syphon_is_set_and_taken_back() -> None:
    group = SyphonGroup(Rate())
    rate: Any = steering_verbs(group)["rate"].run
    assert rate("50") == {"rate": "50"}
    assert group.rate.governor.most_per_s == 50
    for wrong in ("fast", "-1", "nan", ""):
        with pytest.raises(ControlRefused, match="a rate is a number of messages a second"):
            rate(wrong)
    assert group.rate.governor.most_per_s == 50
    rate("adaptive")
    assert group.rate.governor.most_per_s is None
