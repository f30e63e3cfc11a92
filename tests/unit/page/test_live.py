"""Polls of real control sockets and of peers: one that hangs, lies or drips harms no other."""

from __future__ import annotations

import asyncio
import json
import shutil
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.unit.page.asgi import answer
from tests.unit.status.statuses import QUEUE, entity, status
from twinbus.control.protocol import Verb, steering_verbs
from twinbus.control.server import ControlServer
from twinbus.control.sockets import open_socket
from twinbus.page.core.model import PAIRS_MAX, PairTable, as_json, foreign_pairs
from twinbus.page.core.view import Board, HostAnswer
from twinbus.page.live import HostPoller, PeerAddress, PeerPoller, PeerRefused, read_peer
from twinbus.run_directory import VARIABLE
from twinbus.status.document import SyphonQueueStatus, SyphonStatus


@pytest.fixture
def run_directory(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    # Pytest's own directories are too long for the address of a socket.
    directory = Path(tempfile.mkdtemp(prefix="tb-"))
    monkeypatch.setenv(VARIABLE, str(directory))
    yield directory
    shutil.rmtree(directory)


@pytest.fixture
def poller() -> Iterator[HostPoller]:
    one = HostPoller()
    yield one
    one.close()


class FakeSyphon:
    is_paused = False
    in_flight = 0

    def pause(self) -> None:
        self.is_paused = True

    def resume(self) -> None:
        self.is_paused = False

    def limit_rate(self, most_per_s: float | None) -> None:
        pass

    def status(self) -> dict[str, SyphonQueueStatus]:
        return {QUEUE: SyphonQueueStatus(completed=3)}


async def polled(poller: HostPoller) -> dict[str, HostAnswer]:
    answers = await asyncio.to_thread(poller.poll)
    return {answer.id.partition(".")[0]: answer for answer in answers}


async def test_an_answer_that_is_the_same_is_not_read_again(
    run_directory: Path, poller: HostPoller
) -> None:
    found = {"one": status(entity(sent=1)).as_dict()}
    control = ControlServer("pair", "contoso", {"status": Verb(lambda: found["one"])})
    await control.start()
    first = (await polled(poller))["contoso"]
    assert (await polled(poller))["contoso"] is first
    found["one"] = status(entity(sent=2)).as_dict()
    second = (await polled(poller))["contoso"]
    assert second.status == status(entity(sent=2))
    assert second.number != first.number
    assert poller.path_of(first.id) == control.path
    await control.close()
    assert await polled(poller) == {}
    assert poller.path_of(first.id) is None


async def test_a_host_that_hangs_delays_no_other_and_is_shown(
    run_directory: Path, poller: HostPoller
) -> None:
    control = ControlServer("pair", "contoso", {"status": Verb(status().as_dict)})
    await control.start()
    hanging, _ = open_socket(run_directory, "hanging", 1)
    try:
        assert (await polled(poller))["contoso"].status == status()
        limit = time.monotonic() + 60
        while "hanging" not in (found := await polled(poller)):
            assert found["contoso"].status is not None
            assert time.monotonic() < limit
        assert found["hanging"].status is None
        assert "no answer within" in found["hanging"].why
    finally:
        hanging.close()
        await control.close()


async def test_a_killed_process_leaves_nothing_to_show(
    run_directory: Path, poller: HostPoller
) -> None:
    left, path = open_socket(run_directory, "killed", 1)
    left.close()
    assert path.exists()
    assert await polled(poller) == {}
    assert not path.exists()


async def test_a_syphon_is_counted_once_and_its_progress_is_asked_each_time(
    run_directory: Path, poller: HostPoller
) -> None:
    asked = []

    def counted() -> dict[str, Any]:
        asked.append("status")
        return SyphonStatus(queues={}, waiting=12).as_dict()

    syphon = FakeSyphon()
    verbs = {"status": Verb(counted), **steering_verbs(syphon)}
    control = ControlServer("syphon", "contoso", verbs)
    await control.start()
    await polled(poller)
    syphon.pause()
    answer = (await polled(poller))["contoso"]
    assert asked == ["status"]
    assert answer.status == SyphonStatus(queues=syphon.status(), paused=True, waiting=12)
    await control.close()


@pytest.mark.parametrize(
    ("answer", "why"),
    [(["a", "list"], "its answer is no status"), ({"entities": [1, 2]}, "use the same release")],
)
async def test_an_answer_that_is_no_status_is_a_reason(
    run_directory: Path, poller: HostPoller, answer: object, why: str
) -> None:
    control = ControlServer("pair", "contoso", {"status": Verb(lambda: answer)})
    await control.start()
    assert why in (await polled(poller))["contoso"].why
    await control.close()


def test_a_directory_that_others_can_write_to_is_shown_and_not_used(
    run_directory: Path, poller: HostPoller
) -> None:
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(run_directory / "evil.1.abc.sock"))
    run_directory.chmod(0o777)
    (answer,) = poller.poll()
    listening.close()
    assert answer.status is None
    assert "writable by other users" in answer.why


OK = b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n"
Answering = Callable[[socket.socket], None]


@contextmanager
def peer(answering: Answering) -> Iterator[PeerAddress]:
    """A server that answers each connection with a function, and its address."""
    listening = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with suppress(OSError):
            while True:
                line, _ = listening.accept()
                with line, suppress(OSError):
                    line.recv(65_536)
                    answering(line)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield PeerAddress("127.0.0.1", listening.getsockname()[1], False, "s3cret")
    finally:
        listening.shutdown(socket.SHUT_RDWR)
        listening.close()
        thread.join(10)


def says(document: Any) -> Answering:
    text = json.dumps(document).encode()
    return lambda line: line.sendall(OK + text)


def real_view() -> dict[str, Any]:
    board = Board("web-2")
    board.observe([answer(status(entity(state="failed over", since_s=5.0)))], 1_000.0)
    pairs = list(board.table.pairs.values())
    found: dict[str, Any] = json.loads(json.dumps({"pairs": pairs}, default=as_json))
    return found


def test_a_peers_pairs_are_shown_read_only_and_unchanged_otherwise() -> None:
    view = real_view()
    with peer(says(view)) as address:
        [pair], left_out = read_peer(address)
    assert left_out == ""
    assert pair.id == f"{address.place}/contoso.7.abc"
    assert pair.read_only is True
    shown = json.loads(json.dumps(pair, default=as_json))
    assert {**shown, "id": "", "read_only": False} == {**view["pairs"][0], "id": ""}


def test_pairs_of_a_peers_peers_are_left_out() -> None:
    view = real_view()
    view["pairs"][0]["read_only"] = True
    assert foreign_pairs(view, "x") == ([], "")


@pytest.mark.parametrize(
    "lie",
    [
        {}, [], None, "view", {"pairs": None}, {"pairs": {}},
    ],
)  # fmt: skip
def test_an_answer_that_is_no_view_is_refused(lie: Any) -> None:
    with peer(says(lie)) as address, pytest.raises(PeerRefused, match="no view"):
        read_peer(address)


@pytest.mark.parametrize(
    "lie",
    [
        {"entities": [{"path": 5, "diverted": "many", "spans": [[1], "x", [1, None, {}]]}, 7]},
        {"entities": [{"diverted": 10**400, "since": float("inf"), "raised": -(10**20)}]},
        {"syphon": "yes", "sends": [["a", 1, 2, 3], 4], "queues": [[]], "protected": "no"},
        {"state": None, "kind": "pair"},
        {"state": "running", "kind": "<b>"},
    ],
)
def test_a_pair_that_does_not_fit_is_left_out_and_hides_no_other(lie: dict[str, Any]) -> None:
    honest, lying = real_view()["pairs"][0], {**real_view()["pairs"][0], **lie}
    [pair], left_out = foreign_pairs({"pairs": [lying, honest]}, "x")
    assert pair.id == f"x/{honest['id']}"
    assert left_out.startswith("1 pair not shown: its status cannot be read (")


def test_a_peer_with_very_many_pairs_is_cut() -> None:
    view = real_view()
    view["pairs"] *= PAIRS_MAX * 3
    pairs, left_out = foreign_pairs(view, "x")
    assert len(pairs) == PAIRS_MAX
    assert left_out == f"only the first {PAIRS_MAX} of {PAIRS_MAX * 3} pairs are shown"


def endless(line: socket.socket) -> None:
    line.sendall(OK)
    while True:
        line.sendall(b"[" * 1_000_000)


def drip(line: socket.socket) -> None:
    line.sendall(OK)
    while True:
        line.sendall(b" ")
        time.sleep(0.02)


def drip_headers(line: socket.socket) -> None:
    line.sendall(b"HTTP/1.1 200 OK\r\n")
    while True:
        line.sendall(b"X-Slow: 1\r\n")
        time.sleep(0.02)


def hang(line: socket.socket) -> None:
    line.recv(1)


SHORT_S: dict[Answering, dict[str, float]] = {
    drip: {"answer_s": 0.5},
    drip_headers: {"answer_s": 0.5},
    hang: {"read_s": 0.3},
}
"""The limit that ends each. The others end by themselves, however slow the machine is."""


@pytest.mark.parametrize(
    ("answering", "why"),
    [
        (endless, "more than 8,388,608 bytes"),
        (drip, "takes longer than"),
        (drip_headers, "takes longer than"),
        (hang, "timed out"),
        (lambda line: line.sendall(OK + b"[" * 100_000), "not JSON"),
        (lambda line: line.sendall(OK + b"\xff\xfe"), "not JSON"),
        (lambda line: line.sendall(b"garbage\r\n\r\n"), "garbage"),
        (lambda line: line.sendall(b"HTTP/1.1 302 x\r\nLocation: http://evil/\r\n\r\n"), "302"),
        (lambda line: None, "closed connection"),
    ],
)
def test_a_peer_that_misbehaves_is_refused_in_bounded_time(answering: Answering, why: str) -> None:
    limits = {"read_s": 60.0, "answer_s": 60.0, **SHORT_S.get(answering, {})}
    with peer(answering) as address, pytest.raises(PeerRefused, match=why) as refused:
        read_peer(address, **limits)
    assert "s3cret" not in str(refused.value)


def test_a_peer_that_hangs_delays_and_hides_no_other() -> None:
    table = PairTable()
    with peer(hang) as hanging, peer(says(real_view())) as honest:
        poller = PeerPoller([hanging, honest], table, read_s=1.0)
        limit = time.monotonic() + 60
        # On a busy machine the honest one may be late once, too.
        while (
            not table.pairs
            or "timed out" not in poller.states[0]["why"]
            or [one["state"] for one in poller.states] != ["unreachable", "ok"]
        ):
            poller.poll(time.time())
            time.sleep(0.02)
            assert time.monotonic() < limit, poller.states
        poller.close()
    assert "s3cret" not in json.dumps(poller.states)


def test_a_peer_whose_request_is_kept_by_whatever_is_not_shown_as_it_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    table, answers, go_on = PairTable(), iter([real_view()]), threading.Event()

    def read(*_: Any) -> Any:
        view = next(answers, None)
        if view is None:
            # As a name that is not resolved, which no deadline of a socket ends.
            go_on.wait(60)
        return foreign_pairs(view or real_view(), "x")

    monkeypatch.setattr("twinbus.page.live.read_peer", read)
    poller = PeerPoller([PeerAddress("localhost", 1, is_tls=False, token="s3cret")], table)
    limit, now = time.monotonic() + 60, 1_000.0
    while poller.states[0]["state"] != "ok":
        poller.poll(now)
        time.sleep(0.01)
        assert time.monotonic() < limit
    poller.poll(now + 10)
    poller.poll(now + 12)
    assert poller.states[0]["state"] == "ok"
    poller.poll(now + 17)
    assert poller.states[0]["state"] == "unreachable"
    assert poller.states[0]["why"] == "no answer for more than 6 s"
    assert {one.state for one in table.pairs.values()} == {"silent"}
    go_on.set()
    while poller.states[0]["state"] != "ok":
        poller.poll(now + 18)
        time.sleep(0.01)
        assert time.monotonic() < limit
    poller.close()


def test_a_peer_that_is_gone_leaves_its_pairs_as_silent() -> None:
    table = PairTable()
    with peer(says(real_view())) as address:
        poller = PeerPoller([address], table)
        limit = time.monotonic() + 60
        while not table.pairs:
            poller.poll(time.time())
            assert time.monotonic() < limit
            time.sleep(0.01)
    later = time.time()
    while next(iter(table.pairs.values())).state != "silent":
        later += 5
        poller.poll(later)
        time.sleep(0.01)
        assert time.monotonic() < limit
    assert "cannot be read" in next(iter(table.pairs.values())).why
    poller.close()
