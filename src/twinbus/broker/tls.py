"""TLS on the broker's one port: the certificate, and who is spoken to once the handshake is done.

The listener recognises TLS by its first byte. The protocol inside is recognised as outside, by the
first bytes: AMQP, or HTTP with the administration API and AMQP over WebSocket.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import cast

from twinbus.errors import BrokerStartError

_log = logging.getLogger(__name__)

RELOAD_CHECK_S = 2.0
"""Time between two looks at the files of a certificate."""


def server_context(certificate: Path, key: Path) -> ssl.SSLContext:
    """The broker's certificate from two PEM files; BrokerStartError if it cannot be loaded.

    The certificate file holds the broker's own certificate first, then those that lead to a root.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    for option, file in (("--tls-cert", certificate), ("--tls-key", key)):
        try:
            file.read_bytes()
        except OSError as error:
            raise BrokerStartError(
                f"{option} {file} cannot be read: {error.strerror}; give a PEM file"
            ) from error
    try:
        # Without a password of its own, OpenSSL would stop and ask for one on the terminal.
        context.load_cert_chain(certificate, key, password=_no_password)
    except (ssl.SSLError, ValueError) as error:
        raise BrokerStartError(
            f"the certificate {certificate} and the key {key} cannot be used: {_reason(error)};"
            " give a certificate and its own key, both PEM, the key without a password"
        ) from error
    return context


async def reload_on_change(context: ssl.SSLContext, certificate: Path, key: Path) -> None:
    """Load the certificate again whenever its files change, until cancelled.

    New handshakes get the new one; connections go on. Files that cannot be used, such as a
    certificate without its new key yet, change nothing and are tried again.
    """
    loaded = _state_of(certificate, key)
    while True:
        await asyncio.sleep(RELOAD_CHECK_S)
        found = _state_of(certificate, key)
        if found == loaded:
            continue
        try:
            # Into a context of its own first: half a change must not reach the live one.
            server_context(certificate, key)
            context.load_cert_chain(certificate, key, password=_no_password)
        except (BrokerStartError, OSError, ValueError) as error:
            _log.warning("the certificate is not loaded again: %s", error)
            continue
        loaded = found
        _log.warning("the certificate %s was loaded again", certificate)


def _state_of(*files: Path) -> list[tuple[int, int, int]]:
    """What changes when a file is written or replaced."""
    try:
        return [(it.st_mtime_ns, it.st_ino, it.st_size) for it in map(Path.stat, files)]
    except OSError:
        return []


def _no_password() -> str:
    raise ValueError("the key is locked with a password")


def _reason(error: Exception) -> str:
    known = {
        "KEY_VALUES_MISMATCH": "the key is not the certificate's",
        "NO_START_LINE": "one of them is no PEM file",
    }
    reason = str(getattr(error, "reason", "") or "")
    # OpenSSL's own words for a file that is no PEM at all are "PEM lib".
    return known.get(reason) or ("one is no PEM file" if "PEM" in str(error) else str(error))


class Sniffer(asyncio.Protocol):
    """The first protocol inside TLS: waits for the first bytes, then gives the connection away."""

    def __init__(
        self,
        choose: Callable[[bytes], asyncio.Protocol | None],
        limit_s: float,
        done: Callable[[Sniffer], None],
    ) -> None:
        """`choose` names who speaks what begins so; `done` is called once, whatever happens."""
        self._choose = choose
        self._limit_s = limit_s
        self._done = done
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None

    def close(self) -> None:
        """Hang up: the client has said nothing that would choose a protocol."""
        if self._transport is not None:
            self._transport.abort()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The handshake is done; the client speaks first."""
        self._transport = cast(asyncio.Transport, transport)
        self._timer = asyncio.get_running_loop().call_later(self._limit_s, self.close)

    def data_received(self, data: bytes) -> None:
        """Hand the connection over, first bytes included."""
        assert self._transport is not None
        transport = self._transport
        protocol = self._choose(data)
        self._end()
        if protocol is None:
            transport.abort()
            return
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
        protocol.data_received(data)

    def connection_lost(self, exc: Exception | None) -> None:
        """Opened and closed again, or silent for too long."""
        self._end()

    def _end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._transport = None
        self._done(self)
