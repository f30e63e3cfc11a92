"""Where a proxy leads to, and the strings that lead through it."""

from __future__ import annotations

import asyncio

import pytest

from twinbus.errors import BrokerStartError
from twinbus.proxy import host as proxy_host
from twinbus.proxy.connection import Upstream
from twinbus.proxy.host import FaultProxy, through, upstream_of


@pytest.mark.parametrize(
    ("text", "host", "port", "is_secure"),
    [
        ("sb://contoso.servicebus.windows.net", "contoso.servicebus.windows.net", 5671, True),
        ("Contoso.servicebus.windows.net/", "contoso.servicebus.windows.net", 5671, True),
        ("sb://10.0.0.1:5700", "10.0.0.1", 5700, True),
        ("sb://localhost", "localhost", 5672, False),
        ("sb://[::1]:5700", "::1", 5700, False),
    ],
)
def test_a_namespace_beyond_this_machine_is_reached_over_tls(
    text: str, host: str, port: int, is_secure: bool
) -> None:
    upstream = upstream_of(text)
    assert (upstream.host, upstream.port, upstream.tls is not None) == (host, port, is_secure)
    if upstream.tls is not None:
        assert upstream.tls.check_hostname


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("https://contoso", "sb://HOST or sb://HOST:PORT; got 'https://contoso'"),
        ("sb://", "a namespace is HOST or HOST:PORT"),
        ("sb://contoso:99999", "a namespace is HOST or HOST:PORT"),
        ("Endpoint=sb://contoso;SharedAccessKey=SECRET", "leave out key and options"),
    ],
)
def test_what_is_no_address_is_refused_and_no_key_is_repeated(text: str, why: str) -> None:
    with pytest.raises(BrokerStartError) as caught:
        upstream_of(text)
    assert why in str(caught.value)
    assert "SECRET" not in str(caught.value)


def test_a_string_through_the_proxy_differs_in_its_port_only() -> None:
    rest = "SharedAccessKeyName=Root;SharedAccessKey=a=;UseDevelopmentEmulator=true;"
    assert through(f"Endpoint=sb://localhost:5672/#contoso;{rest}", 4711) == (
        f"Endpoint=sb://localhost:4711/#contoso;{rest}"
    )


async def test_a_proxy_takes_so_many_connections_and_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(proxy_host, "CONNECTIONS_MAX", 2)
    async with await asyncio.start_server(lambda *_: None, "127.0.0.1") as service:
        port = service.sockets[0].getsockname()[1]
        proxy = FaultProxy(Upstream("127.0.0.1", port, None))
        await proxy.start()
        ends = [await asyncio.open_connection("127.0.0.1", proxy.port) for _ in range(2)]
        for _, writer in ends:
            writer.write(b"AMQP\x00\x01\x00\x00")
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        assert await reader.read() == b"", "one too many"
        assert len(proxy.connections) <= 2
        for _, each in (*ends, (reader, writer)):
            each.close()
        await proxy.close()
