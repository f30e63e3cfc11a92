"""Ends what senders of the SDK leave behind when they are closed or broken off."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from azure.servicebus.aio import ServiceBusClient

log = logging.getLogger("twinbus.pairing")

CANCEL_AGAIN_S: Final = 0.05
"""Time between two cancellations of a call of the SDK that has missed the first."""

CLOSE_LIMIT_S: Final = 3.0
"""Closing takes milliseconds. A peer that hangs gets this long, then its socket is aborted."""


class SdkCleanup:
    """What an SDK sender may leave behind: its keep-alive task and its sockets.

    The SDK cannot close without talking to the peer, and when opening is broken off it forgets the
    connection and leaves its socket open. So this collects its private parts before and after;
    where a later version has others, it finds nothing, and the SDK's own `close` must do.
    """

    def __init__(self, sdk: object, on_made: Callable[[Any], None] | None = None) -> None:
        """`on_made` is called with each handler that the sender makes, before it opens."""
        self._sdk = sdk
        self._on_made = on_made
        self._handlers: list[object] = []
        self._transports: list[object] = []
        self._writers: list[object] = []
        self._collect_when_made()

    def _collect_when_made(self) -> None:
        """Collect each handler as it is made: the SDK forgets one whose opening fails.

        Its socket would stay open, because the SDK closes it only once there is a session: a proxy
        that answers in HTTP would cost a socket with each attempt.
        """
        make = getattr(self._sdk, "_create_handler", None)
        if not callable(make):
            return

        def made(*args: object) -> None:
            make(*args)
            handler = getattr(self._sdk, "_handler", None)
            self._collect_before_close(handler)
            if self._on_made is not None:
                self._on_made(handler)

        setattr(self._sdk, "_create_handler", made)  # noqa: B010

    def _collect_before_close(self, handler: object) -> None:
        """Collect the connection of a handler before the SDK closes and forgets it.

        A connection whose CLOSE cannot be written, because the peer has gone, is marked as ended
        and forgotten with its socket open.
        """
        _remember(self._handlers, handler)
        close = getattr(handler, "close_async", None)
        if not callable(close):
            return

        async def collect_and_close() -> None:
            self.collect()
            await close()

        setattr(handler, "close_async", collect_and_close)  # noqa: B010

    def collect(self) -> None:
        _remember(self._handlers, getattr(self._sdk, "_handler", None))
        for handler in self._handlers:
            connection = getattr(handler, "_connection", None)
            _remember(self._transports, getattr(connection, "_transport", None))
        for transport in self._transports:
            _remember(self._writers, getattr(transport, "writer", None))

    async def stop_keep_alive(self) -> None:
        """End the task that wakes every second; `close` would wait for its next turn."""
        for handler in self._handlers:
            task = getattr(handler, "_keep_alive_thread", None)
            if isinstance(task, asyncio.Task):
                await cancel_until_done(task)
                setattr(handler, "_keep_alive_thread", None)  # noqa: B010

    def reader(self) -> object:
        """The stream that the connection in use is read from; None: this SDK has no such part."""
        connection = getattr(getattr(self._sdk, "_handler", None), "_connection", None)
        reader = getattr(getattr(connection, "_transport", None), "reader", None)
        return reader if hasattr(reader, "_eof") and hasattr(reader, "_exception") else None

    def abort_sockets(self) -> None:
        """Close the sockets without telling the peer."""
        self.collect()
        for writer in self._writers:
            transport = getattr(writer, "transport", None)
            if transport is not None:
                transport.abort()


def _remember(known: list[object], found: object) -> None:
    if found is not None and all(found is not one for one in known):
        known.append(found)


async def cancel_until_done(
    task: asyncio.Task[Any], before_each: Callable[[], None] | None = None
) -> None:
    """Cancel a task of the SDK until it ends, because it may miss a cancellation."""
    for _ in range(round(CLOSE_LIMIT_S / CANCEL_AGAIN_S)):
        if before_each is not None:
            before_each()
        task.cancel()
        done, _ = await asyncio.wait({task}, timeout=CANCEL_AGAIN_S)
        if done:
            return


async def close_sdk_client(sdk: ServiceBusClient) -> None:
    """Close a client of the SDK, whatever its peer does, and what its links left behind."""
    # Receivers are the application's own. One that is cancelled while it closes considers itself
    # closed, and leaves its socket open.
    cleanups = [SdkCleanup(handler) for handler in getattr(sdk, "_handlers", ())]
    for cleanup in cleanups:
        cleanup.collect()
    try:
        async with asyncio.timeout(CLOSE_LIMIT_S):
            await sdk.close()
    except Exception as error:  # noqa: BLE001  # whatever it is, the sockets are aborted next
        log.debug("a client of the SDK did not close: %r", error)
    for cleanup in cleanups:
        await cleanup.stop_keep_alive()
        cleanup.abort_sockets()
