"""Opens a sender of the SDK without the naps that the SDK takes meanwhile.

While a link opens, the SDK reads one frame and then sleeps for 50 ms, nine times: 0.45 s of the
half second that opening takes with a peer nearby. `client_ready_async` waits for a frame itself, so
the sleep serves no purpose. Here it is called again until the link is ready, and the SDK's own loop
finds it ready at the first call.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

NAP_S: Final = 0.001
"""Pause between two frames. It lets other tasks run, should a frame not be waited for."""


def open_quickly(sdk: Any) -> None:
    """Have the sender open its link without naps, now and whenever it opens it again.

    The methods are private: where one is missing, the SDK opens the link in its own way.
    """
    create = getattr(sdk, "_create_handler", None)
    if create is None:
        return

    def create_handler(auth: Any) -> None:
        create(auth)
        handler = sdk._handler
        ready = getattr(handler, "client_ready_async", None)
        if ready is not None:
            handler.client_ready_async = _until_ready(handler, ready)

    sdk._create_handler = create_handler


def _until_ready(handler: Any, ready: Callable[[], Awaitable[bool]]) -> Callable[[], Any]:
    async def until_ready() -> bool:
        is_ready = await ready()
        while not is_ready:
            await asyncio.sleep(NAP_S)
            is_ready = await ready()
        # Every send asks again; from now on the SDK's own method answers.
        vars(handler).pop("client_ready_async", None)
        return True

    return until_ready
