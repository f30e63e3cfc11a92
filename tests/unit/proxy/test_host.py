"""Where a proxy leads to, and the strings that lead through it."""

from __future__ import annotations

import pytest

from twinbus.errors import BrokerStartError
from twinbus.proxy.host import through, upstream_of


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
