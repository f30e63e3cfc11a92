"""Ends what clients opened with bearer tokens that have left the file of `--tokens`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Final

from twinbus.broker.links.peer import PeerServer
from twinbus.broker.sas import AcceptedToken
from twinbus.servicebus import conditions

log = logging.getLogger("twinbus.broker")

TOKENS_CHECK_S: Final = 2.0
"""Time between two looks at the accepted tokens."""


class TokenWatch:
    def __init__(self, server: PeerServer, accepted: Callable[[], Iterable[AcceptedToken]]) -> None:
        self._server = server
        self._accepted = accepted
        self._tokens = frozenset(accepted())
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Look again after `TOKENS_CHECK_S`, and so on until `close`."""
        self._timer = self._server.loop.call_later(TOKENS_CHECK_S, self._check)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _check(self) -> None:
        self.start()
        accepted = frozenset(self._accepted())
        removed = self._tokens - accepted
        self._tokens = accepted
        now_s = self._server.now_ms() / 1000
        for peer in list(self._server.peers) if removed else ():
            # Not by name: a client may have put the next token of that name already. A lapsed token
            # holds nothing open, so its client is left in peace to put the next.
            names = {
                grant.rule_name
                for grant in peer.grants
                if grant.token is not None
                and grant.token not in accepted
                and not grant.is_expired(now_s)
            }
            if names:
                text = f"the token {min(names)!r} is not accepted any more; put another one"
                peer.expel(conditions.UNAUTHORIZED, text)
                log.warning("%s: closed %s: %s", self._server.name, peer.address, text)
