"""The counts of a queue, asked of a server that does not always answer to the end."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from twinbus.client import administration
from twinbus.client.administration import CountsUnavailable, QueueCounts, counts_of
from twinbus.errors import SyphonError
from twinbus.namespace.endpoint import endpoint_of

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
    with pytest.raises(CountsUnavailable, match="closed in the middle"):
        asyncio.run(asked_of_one_that_answers("200 OK", COUNTS[:came], len(COUNTS)))


def test_a_namespace_that_throttles_is_asked_again_for_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(administration, "BUSY_WAITS_S", (0.0, 0.0))
    found = asyncio.run(asked_of_one_that_answers("200 OK", COUNTS, len(COUNTS), busy=2))
    assert found.total == 5
    with pytest.raises(CountsUnavailable, match="answers 503 for the counts of orders"):
        asyncio.run(asked_of_one_that_answers("200 OK", COUNTS, len(COUNTS), busy=3))


@pytest.mark.parametrize(
    ("sent_at", "answered_at", "error"),
    [
        (999.0, 1_001.0, (CountsUnavailable, "the token expired while the request was under way")),
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
