"""A broker that the network can reach: TLS only, and no metrics without a token."""

from __future__ import annotations

import json
import socket
import ssl
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tests.contract.certificates import client_context, server_context, write_server_files
from tests.processes import ANSWER_LIMIT_S, ServedBroker, run_twinbus
from twinbus.broker.embedded import EmbeddedBroker
from twinbus.broker.listener import AMQP_HEADER, TLS_HEADER
from twinbus.errors import BrokerStartError

pytestmark = pytest.mark.contract

EVERYWHERE = "0.0.0.0"
KEY = "a key of its own"
SCRAPER = "token of the scraper"


class SecuredBroker(ServedBroker):
    """A broker that answers /health inside TLS only."""

    def health(self, name: str | None = None) -> dict[str, Any]:
        url = f"https://localhost:{self.port(name)}/health"
        with urllib.request.urlopen(
            url, timeout=ANSWER_LIMIT_S, context=client_context()
        ) as response:
            answer: dict[str, Any] = json.load(response)
            return answer


def plain(port: int, said: bytes) -> bytes:
    """What the broker answers to the first bytes in plain text, up to 400 bytes."""
    with socket.create_connection(("127.0.0.1", port), 20) as peer:
        peer.sendall(said)
        return peer.recv(400)


def get(port: int, path: str, *, tls: bool, token: str | None = None) -> int:
    """The status of a request."""
    url = f"{'https' if tls else 'http'}://localhost:{port}{path}"
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    context: ssl.SSLContext | None = client_context() if tls else None
    request = urllib.request.Request(url, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=20, context=context) as response:
            return int(response.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code


def test_a_certificate_switches_plain_text_off_beyond_loopback(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with EmbeddedBroker(host=EVERYWHERE, key=KEY, tls=server_context()) as broker:
        port = broker.port()
        assert plain(port, AMQP_HEADER) == TLS_HEADER
        assert b"403 Forbidden" in plain(port, b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        assert get(port, "/health", tls=True) == 200
    assert caplog.text.count("--no-require-tls lets plain text in") == 2


def test_plain_text_can_be_let_in_and_kept_out_anywhere() -> None:
    tls = server_context()
    with EmbeddedBroker(host=EVERYWHERE, key=KEY, tls=tls, require_tls=False) as broker:
        assert plain(broker.port(), AMQP_HEADER) == AMQP_HEADER
    with EmbeddedBroker(tls=tls) as broker:
        assert plain(broker.port(), AMQP_HEADER) == AMQP_HEADER
    with EmbeddedBroker(tls=tls, require_tls=True) as broker:
        assert plain(broker.port(), AMQP_HEADER) == TLS_HEADER
    with EmbeddedBroker(host=EVERYWHERE, key=KEY, require_tls=False) as broker:
        assert plain(broker.port(), AMQP_HEADER) == AMQP_HEADER


def test_tls_without_a_certificate_is_refused_beyond_loopback_and_where_it_is_required() -> None:
    with pytest.raises(
        BrokerStartError, match=r"TLS is required on '0\.0\.0\.0'.*--no-require-tls"
    ):
        EmbeddedBroker(host=EVERYWHERE, key=KEY)
    with pytest.raises(BrokerStartError, match="there is no certificate"):
        EmbeddedBroker(require_tls=True)


@pytest.mark.parametrize("host", [EVERYWHERE, "localhost"])
def test_metrics_ask_for_their_token_and_health_for_none(host: str) -> None:
    with EmbeddedBroker(host=host, key=KEY, metrics_token=SCRAPER, require_tls=False) as broker:
        port = broker.port()
        assert get(port, "/metrics", tls=False) == 401
        assert get(port, "/metrics", tls=False, token="guessed") == 401
        assert get(port, "/metrics", tls=False, token=SCRAPER) == 200
        assert get(port, "/health", tls=False) == 200


def test_metrics_without_a_token_are_open_on_loopback_and_closed_beyond() -> None:
    with EmbeddedBroker() as broker:
        assert get(broker.port(), "/metrics", tls=False) == 200
    with EmbeddedBroker(host=EVERYWHERE, key=KEY, require_tls=False) as broker:
        assert get(broker.port(), "/metrics", tls=False) == 403
        assert get(broker.port(), "/metrics", tls=False, token="anything") == 403


def test_serve_takes_the_options(tmp_path: Path) -> None:
    certificate, key = write_server_files(tmp_path)
    token_file = tmp_path / "token"
    token_file.write_text(f"{SCRAPER}\n")
    options = ("--tls-cert", str(certificate), "--tls-key", str(key))
    more = ("--metrics-token-file", str(token_file), "--no-require-tls")
    with ServedBroker(tmp_path, ephemeral=True, options=(*options, *more)) as broker:
        assert get(broker.port(), "/metrics", tls=True) == 401
        assert get(broker.port(), "/metrics", tls=False, token=SCRAPER) == 200
        assert SCRAPER not in broker.log()


def test_serve_beyond_loopback_needs_a_certificate_and_then_speaks_tls_only(tmp_path: Path) -> None:
    beyond = ("--host", EVERYWHERE, "--key", KEY)
    refused = run_twinbus("serve", "contoso:0", "--ephemeral", *beyond)
    assert refused.returncode == 2
    assert "TLS is required on '0.0.0.0'" in refused.stderr
    certificate, key = write_server_files(tmp_path)
    options = (*beyond, "--tls-cert", str(certificate), "--tls-key", str(key))
    with SecuredBroker(tmp_path, ephemeral=True, options=options) as broker:
        assert plain(broker.port(), AMQP_HEADER) == TLS_HEADER
        assert get(broker.port(), "/health", tls=True) == 200
        assert get(broker.port(), "/metrics", tls=True) == 403
        assert KEY not in broker.log()
