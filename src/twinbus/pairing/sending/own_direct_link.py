"""Direct links of a blocking sender over our own client: on its caller's thread, without a loop."""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final

from twinbus.client.sending.blocking_link import BlockingLink
from twinbus.namespace.access import endpoint_of
from twinbus.pairing.sdk.encoding import message_writer
from twinbus.pairing.sdk.failures import sdk_error
from twinbus.pairing.sdk.sender_pool import IDLE_MAX_S
from twinbus.pairing.sending.own_links import SETTINGS_S
from twinbus.servicebus.failures import NamespaceFailure

if TYPE_CHECKING:
    from azure.servicebus import ServiceBusMessage

    from twinbus.namespace.namespace import Namespace
    from twinbus.namespace.tokens import NamespaceToken

    Run = Callable[[Callable[[], Coroutine[Any, Any, NamespaceToken]]], NamespaceToken]
    """Runs work on the pair's loop, which the credential belongs to."""

OWN_DIRECT_BYTES: Final = 64 * 1_024
"""The largest body for these links: of a larger one the send itself is the most work."""


class OwnDirectLink:
    """One open link of our own client; a `DirectLink`."""

    def __init__(self, link: BlockingLink, path: str) -> None:
        self.idle_since = time.monotonic()
        self._link = link
        self._path = path
        self._write = message_writer()
        self._ask_again_at = self.idle_since + SETTINGS_S

    def send(self, message: ServiceBusMessage, timeout_s: float) -> None:
        try:
            self._link.send(self._write(message), timeout_s)
        except NamespaceFailure as error:
            raise sdk_error(error, self._path) from error

    def is_usable(self, now: float) -> bool:
        if now >= self._ask_again_at:
            self._ask_again_at, self._write = now + SETTINGS_S, message_writer()
        return now - self.idle_since < IDLE_MAX_S and self._link.is_usable()

    def cut_off(self) -> None:
        self._link.cut_off()

    def abort(self, *, politely: bool = False) -> None:
        self._link.close(politely=politely)


def open_direct_link(
    namespace: Namespace, path: str, run: Run, limit_s: float
) -> OwnDirectLink | None:
    """Open a link; None: the namespace is reached over a WebSocket, and these links have none."""
    endpoint = endpoint_of(namespace)
    if endpoint.route.websocket:
        return None
    token = run(lambda: endpoint.token(path, time.time()))
    return OwnDirectLink(BlockingLink(endpoint, path, token, limit_s=limit_s), path)
