"""Marks of twins over HTTP, from a server with answers of every kind."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar
from urllib.parse import parse_qs, urlsplit

import pytest

from twinbus.client.administration import LIST_PAGE, NotAnswered
from twinbus.client.twins import is_marked, marked_paths, metadata_in
from twinbus.errors import SyphonError
from twinbus.namespace.access import Endpoint, endpoint_of

T = TypeVar("T")
Answer = tuple[int, str]


def entry(path: str, metadata: str | None) -> str:
    said = "" if metadata is None else f"<UserMetadata>{metadata}</UserMetadata>"
    return f'<entry xmlns="a"><title type="text">{path}</title><Q>{said}</Q></entry>'


async def asked(answers: Callable[[str], Answer], ask: Callable[[Endpoint], Awaitable[T]]) -> T:
    """Return what `ask` returns from a namespace that answers each target so."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = (await reader.readuntil(b"\r\n\r\n")).decode()
        status, text = answers(request.split(" ")[1])
        head = f"HTTP/1.1 {status} x\r\nContent-Length: {len(text.encode())}\r\n\r\n"
        writer.write((head + text).encode())
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        text = f"Endpoint=sb://127.0.0.1:{port};SharedAccessKeyName=r;SharedAccessKey=k;"
        return await ask(endpoint_of(f"{text}UseDevelopmentEmulator=true;"))


@pytest.mark.parametrize(
    ("status", "text", "expected"),
    [
        (200, entry("orders", "twinbus-twin-of:contoso"), True),
        (200, entry("orders", "twinbus-twin-of:contoso &amp; more"), True),
        (200, entry("orders", "twinbus-twin-of:contoso2"), False),
        (200, entry("orders", "twinbus-unfinished-twin-of:contoso"), False),
        (200, entry("orders", None), False),
        # Azure's answer for an entity that does not exist.
        (200, "<feed/>", False),
        (404, "", False),
        (401, "", None),
        (403, "", None),
    ],
)
def test_whether_an_entity_is_marked(status: int, text: str, expected: bool | None) -> None:
    found = asyncio.run(asked(lambda _: (status, text), lambda at: is_marked(at, "o/1", "contoso")))
    assert found is expected


@pytest.mark.parametrize("status", [429, 500, 503])
def test_an_answer_that_says_nothing_is_not_taken_for_a_mark(status: int) -> None:
    with pytest.raises(NotAnswered, match=str(status)):
        asyncio.run(asked(lambda _: (status, ""), lambda at: is_marked(at, "o", "contoso")))
    with pytest.raises(SyphonError, match=str(status)):
        asyncio.run(asked(lambda _: (status, ""), lambda at: marked_paths(at, "contoso")))


def test_marked_entities_are_listed_page_by_page() -> None:
    queues = [entry(f"live-{number}", "theirs") for number in range(LIST_PAGE)]
    queues.append(entry("Zulu &amp; co", "twinbus-twin-of:contoso"))
    topics = [entry("events", "twinbus-twin-of:contoso"), entry("x", "twinbus-twin-of:other")]

    def answers(target: str) -> Answer:
        skip = int(parse_qs(urlsplit(target).query)["$skip"][0])
        listed = queues if "queues" in target else topics
        return 200, f"<feed>{''.join(listed[skip : skip + LIST_PAGE])}</feed>"

    found = asyncio.run(asked(answers, lambda at: marked_paths(at, "contoso")))
    assert found == frozenset({"events", "zulu & co"})


def test_a_refused_listing_is_not_an_empty_one() -> None:
    assert asyncio.run(asked(lambda _: (403, ""), lambda at: marked_paths(at, "contoso"))) is None


def test_metadata_is_read_with_or_without_a_prefix() -> None:
    assert metadata_in("<d:UserMetadata i:x='1'>a &lt;b&gt; &quot;c&quot;</d:UserMetadata>") == (
        'a <b> "c"'
    )
    assert metadata_in("<UserMetadata/>") is None
