"""A sync credential that hangs does not keep another one from its tokens."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from twinbus.namespace.credentials import THREADS_MAX, AwaitableCredential

LIMIT_S = 20.0


class Waits:
    """A credential whose fetches last until `answers` is set."""

    def __init__(self) -> None:
        self.answers = threading.Event()

    def get_token(self, *scopes: str, **_: Any) -> str:
        self.answers.wait(LIMIT_S)
        return f"a token for {scopes[0]}"


async def test_a_credential_that_hangs_does_not_starve_another() -> None:
    loop = asyncio.get_running_loop()
    loop.set_default_executor(ThreadPoolExecutor(1))
    hangs, answers = Waits(), Waits()
    answers.answers.set()
    primary, secondary = AwaitableCredential(hangs), AwaitableCredential(answers)
    waiting = [asyncio.create_task(primary.get_token("a")) for _ in range(THREADS_MAX + 2)]
    try:
        await asyncio.sleep(0)
        async with asyncio.timeout(LIMIT_S / 2):
            assert await secondary.get_token("b") == "a token for b"
        # A fetch that waits for a thread may be cancelled.
        waiting.pop().cancel()
    finally:
        hangs.answers.set()
    assert await asyncio.gather(*waiting) == ["a token for a"] * (THREADS_MAX + 1)
    for thread in threading.enumerate():
        if thread.name.startswith("twinbus token"):
            thread.join(LIMIT_S)
            assert not thread.is_alive()
