"""What senders of the SDK leave behind when they are closed or broken off, and how it is ended."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

from twinbus.pairing.sdk.watchdog import CANCEL_AGAIN_S

__all__ = ["CLOSE_LIMIT_S", "SdkCleanup", "end_task"]

CLOSE_LIMIT_S: Final = 3.0
"""A goodbye takes milliseconds. A peer that hangs gets this long, then its socket is cut."""


class SdkCleanup:
    """What an SDK sender may leave behind: its keep-alive task and its sockets.

    The SDK cannot close without talking to the peer, and when opening is broken off it forgets the
    connection and leaves its socket open. So its private parts are looked at before and after;
    where a later version has others, nothing is found, and its own `close` must do.
    """

    def __init__(self, sdk: object) -> None:
        self._sdk = sdk
        self._handlers: list[object] = []
        self._transports: list[object] = []
        self._writers: list[object] = []
        self._look_when_made()

    def _look_when_made(self) -> None:
        """Note each handler as it is made: one whose opening fails is forgotten before we look.

        Its socket would stay open, for it is closed only once there is a session: a proxy that
        answers in HTTP would cost one with each attempt.
        """
        make = getattr(self._sdk, "_create_handler", None)
        if not callable(make):
            return

        def made(*args: object) -> None:
            make(*args)
            self.look()

        setattr(self._sdk, "_create_handler", made)  # noqa: B010

    def look(self) -> None:
        """Note what the sender holds now."""
        _note(self._handlers, getattr(self._sdk, "_handler", None))
        for handler in self._handlers:
            connection = getattr(handler, "_connection", None)
            _note(self._transports, getattr(connection, "_transport", None))
        for transport in self._transports:
            _note(self._writers, getattr(transport, "writer", None))

    async def stop_keep_alive(self) -> None:
        """End the task that wakes every second; `close` would wait for its next turn."""
        for handler in self._handlers:
            task = getattr(handler, "_keep_alive_thread", None)
            if isinstance(task, asyncio.Task):
                await end_task(task)
                setattr(handler, "_keep_alive_thread", None)  # noqa: B010

    def reader(self) -> object:
        """What the connection in use is read from; None: that is not to be found here."""
        connection = getattr(getattr(self._sdk, "_handler", None), "_connection", None)
        reader = getattr(getattr(connection, "_transport", None), "reader", None)
        return reader if hasattr(reader, "_eof") and hasattr(reader, "_exception") else None

    def cut(self) -> None:
        """Close the sockets without another word."""
        self.look()
        for writer in self._writers:
            transport = getattr(writer, "transport", None)
            if transport is not None:
                transport.abort()


def _note(known: list[object], found: object) -> None:
    if found is not None and all(found is not one for one in known):
        known.append(found)


async def end_task(task: asyncio.Task[Any], before: Callable[[], None] | None = None) -> None:
    """Cancel a task of the SDK until it ends, for it may miss a cancellation."""
    for _ in range(round(CLOSE_LIMIT_S / CANCEL_AGAIN_S)):
        if before is not None:
            before()
        task.cancel()
        done, _ = await asyncio.wait({task}, timeout=CANCEL_AGAIN_S)
        if done:
            return
