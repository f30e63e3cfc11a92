"""A peer that falls silent: how long a socket waits for it, and an attempt to connect."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest

from twinbus.amqp.transport import SILENT_S, UNANSWERED_S, limit_silence
from twinbus.client import connection
from twinbus.client.connection import CONNECT_S, NamespaceConnection
from twinbus.client.request_node import ConnectionLost
from twinbus.namespace.endpoint import endpoint_of
from twinbus.syphon.core.pacing import FIRST_RECONNECT_S, ReconnectBackoff

PEER = "Endpoint=sb://127.0.0.1:5672;SharedAccessKeyName=r;SharedAccessKey=k;UseDevelopmentEmulator=true;"

SYN_TIMES_S = (0.0, 1.0, 3.0, 7.0, 15.0)
"""When TCP asks for a connection in one attempt."""


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="an option of Linux")
def test_the_kernel_ends_a_connection_whose_peer_acknowledges_nothing() -> None:
    with socket.socket() as opened:
        limit_silence(opened)
        tcp = [socket.TCP_USER_TIMEOUT, socket.TCP_KEEPIDLE]
        found = [opened.getsockopt(socket.IPPROTO_TCP, option) for option in tcp]
        assert found == [UNANSWERED_S * 1_000, SILENT_S]
        assert opened.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    # A socket that is closed, or not known (a WebSocket through a proxy), changes nothing.
    limit_silence(opened)
    limit_silence(None)


@pytest.mark.virtual_time
async def test_an_attempt_in_a_black_hole_is_given_up_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    async def hangs(*_: Any, **__: Any) -> None:
        await asyncio.sleep(3_600)

    monkeypatch.setattr(connection, "connect", hangs)
    loop = asyncio.get_running_loop()
    began = loop.time()
    with pytest.raises(ConnectionLost, match="cannot be reached: no answer"):
        await NamespaceConnection(endpoint_of(PEER), lambda _: None).open()
    assert loop.time() - began == pytest.approx(CONNECT_S)


def test_a_namespace_that_is_back_waits_less_than_5_s_for_the_next_attempt() -> None:
    pause_s = ReconnectBackoff(lambda: 0.0).after(CONNECT_S + 0.001)
    assert pause_s == FIRST_RECONNECT_S
    last_syn_s = max(at for at in SYN_TIMES_S if at < CONNECT_S)
    assert CONNECT_S - last_syn_s + pause_s < 5.0
