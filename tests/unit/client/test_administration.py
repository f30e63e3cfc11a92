"""Counts of queues over HTTP, from a server that does not always answer to the end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from types import SimpleNamespace
from typing import cast

import pytest

from twinbus.client import administration
from twinbus.client.administration import NotAnswered, QueueCounts, counts_of
from twinbus.client.peeking import BacklogMeter, QueueDepth
from twinbus.errors import SyphonError
from twinbus.namespace.access import Endpoint, endpoint_of

COUNTS = (
    b"<CountDetails><d2p1:ActiveMessageCount>3</d2p1:ActiveMessageCount></CountDetails>"
    b"<MessageCount>5</MessageCount>"
)


KEY = "SharedAccessKeyName=r;SharedAccessKey=k"
SIGNATURE = "SharedAccessSignature=SharedAccessSignature sr=x&sig=x&se=1000&skn=r"


async def asked_of_one_that_answers(
    status: str, body: bytes, announced: int, credential: str = KEY, *, busy: int = 0
) -> QueueCounts:
    """What comes of requests of which so many are throttled, and the next answered so."""
    refused = iter(range(busy))

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        if next(refused, None) is not None:
            writer.write(b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n")
            writer.close()
            return
        writer.write(f"HTTP/1.1 {status}\r\nContent-Length: {announced}\r\n\r\n".encode() + body)
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        text = f"Endpoint=sb://127.0.0.1:{port};{credential};UseDevelopmentEmulator=true;"
        return await counts_of(endpoint_of(text), "orders")


def test_a_whole_answer_is_read() -> None:
    counts = asyncio.run(asked_of_one_that_answers("200 OK", COUNTS, len(COUNTS)))
    assert (counts.active, counts.total, counts.waiting) == (3, 5, 5)


def test_an_answer_without_counts_says_that_the_queue_is_not_there() -> None:
    with pytest.raises(SyphonError, match="there is no queue orders"):
        asyncio.run(asked_of_one_that_answers("200 OK", b"<feed/>", 7))


@pytest.mark.parametrize("came", [0, 10, len(COUNTS) - 1])
def test_an_answer_that_is_cut_off_says_nothing_of_the_queue(came: int) -> None:
    with pytest.raises(NotAnswered, match="closed in the middle"):
        asyncio.run(asked_of_one_that_answers("200 OK", COUNTS[:came], len(COUNTS)))


def test_a_namespace_that_throttles_is_asked_again_for_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(administration, "BUSY_WAITS_S", (0.0, 0.0))
    found = asyncio.run(asked_of_one_that_answers("200 OK", COUNTS, len(COUNTS), busy=2))
    assert found.total == 5
    with pytest.raises(NotAnswered, match="answers 503 for the counts of orders"):
        asyncio.run(asked_of_one_that_answers("200 OK", COUNTS, len(COUNTS), busy=3))


@pytest.mark.parametrize(
    ("sent_at", "answered_at", "error"),
    [
        (999.0, 1_001.0, (NotAnswered, "the token expired while the request was under way")),
        (1_001.0, 1_002.0, (SyphonError, "needs the Manage right")),
        (998.0, 999.0, (SyphonError, "needs the Manage right")),
    ],
)
def test_a_token_that_expires_under_way_says_nothing_of_the_rights(
    monkeypatch: pytest.MonkeyPatch,
    sent_at: float,
    answered_at: float,
    error: tuple[type[Exception], str],
) -> None:
    # When the token is fetched, when the request is sent, when it is answered.
    times = iter((sent_at, sent_at, answered_at))
    clock = SimpleNamespace(time=lambda: next(times))
    monkeypatch.setattr(administration, "time", clock)
    with pytest.raises(error[0], match=error[1]):
        asyncio.run(asked_of_one_that_answers("401 Unauthorized", b"", 0, SIGNATURE))


NO_MESSAGE = {"a": QueueDepth(0, 0, None)}


def measured(
    monkeypatch: pytest.MonkeyPatch, *answers: Exception | Mapping[str, QueueCounts]
) -> list[Mapping[str, QueueDepth]]:
    """Return the depths after each measurement, made every 10 s, with counts as given."""
    left, seen, now = list(answers), list[Mapping[str, QueueDepth]](), 1_000.0
    sleep = asyncio.sleep

    async def scenario() -> None:
        ended = asyncio.Event()

        async def counts() -> Mapping[str, QueueCounts]:
            seen.append(meter.depths())
            if not left:
                ended.set()
                await sleep(3600)
            answer = left.pop(0)
            if isinstance(answer, Exception):
                raise answer
            return answer

        async def pause(length_s: float) -> None:
            nonlocal now
            now += length_s

        monkeypatch.setattr(asyncio, "sleep", pause)
        monkeypatch.setattr(time, "monotonic", lambda: now)
        meter = BacklogMeter(cast("Endpoint", None), counts, every_s=10.0)
        meter.start(asyncio.get_running_loop())
        await ended.wait()
        await meter.close()

    asyncio.run(scenario())
    return seen[1:]


def test_after_errors_measuring_goes_on_and_numbers_that_are_too_old_are_withdrawn(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert measured(
        monkeypatch,
        {"a": QueueCounts()},
        SyphonError("away"),
        ValueError("nonsense"),
        SyphonError("away"),
        {"a": QueueCounts(dead_lettered=2, total=2)},
    ) == [NO_MESSAGE, NO_MESSAGE, NO_MESSAGE, {}, {"a": QueueDepth(0, 2, None)}]
    # One warning for each time that it begins to fail.
    assert [record.getMessage() for record in caplog.records if record.levelname == "WARNING"] == [
        "the depth of the backlog is not known: away"
    ]


def test_a_meter_that_was_closed_before_it_began_measures_nothing() -> None:
    async def scenario() -> None:
        meter = BacklogMeter(cast("Endpoint", None), cast("type", None), every_s=1.0)
        meter.start(asyncio.get_running_loop())
        await meter.close()
        await asyncio.sleep(0)
        assert meter.depths() == {}

    asyncio.run(scenario())
