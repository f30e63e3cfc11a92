"""The poller on real control sockets: every host at once, one that hangs delays no other."""

from __future__ import annotations

import asyncio
import shutil
import socket
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.unit.status.statuses import QUEUE, entity, status
from twinbus.control.protocol import Verb, steering_verbs
from twinbus.control.server import ControlServer
from twinbus.control.sockets import VARIABLE, open_socket
from twinbus.page.core.view import HostAnswer
from twinbus.page.pollers import HostPoller
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
