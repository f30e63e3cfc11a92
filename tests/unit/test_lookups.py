"""A resolver that hangs for one host does not delay the lookups of another."""

from __future__ import annotations

import asyncio
import socket
import threading
from typing import Any

import pytest

from twinbus import lookups
from twinbus.lookups import LOOKUPS_MAX, HostLookups, needs_lookup

LIMIT_S = 20.0


class Resolver:
    """In place of `socket.getaddrinfo`: hosts that begin with "hangs" wait for `answers`."""

    def __init__(self) -> None:
        self.answers = threading.Event()
        self.asked: list[str] = []

    def __call__(self, host: str, *_: Any, **__: Any) -> list[Any]:
        self.asked.append(host)
        if host.startswith("hangs"):
            self.answers.wait(LIMIT_S)
        if host.startswith("unknown"):
            raise socket.gaierror(socket.EAI_NONAME, "unknown")
        if ".." in host:
            raise UnicodeError("label empty")
        return []


@pytest.fixture
def resolver(monkeypatch: pytest.MonkeyPatch) -> Resolver:
    made = Resolver()
    monkeypatch.setattr(socket, "getaddrinfo", made)
    return made


async def test_lookups_that_hang_leave_other_hosts_alone_and_are_few(
    resolver: Resolver, monkeypatch: pytest.MonkeyPatch
) -> None:
    of_process = HostLookups()
    joined = [asyncio.create_task(of_process.resolved("hangs.example")) for _ in range(20)]
    await asyncio.sleep(0)
    assert resolver.asked.count("hangs.example") <= 1
    # One that takes long is not joined, up to the limit.
    monkeypatch.setattr(lookups, "JOINED_S", 0.0)
    joined += [asyncio.create_task(of_process.resolved("hangs.example")) for _ in range(20)]
    try:
        async with asyncio.timeout(LIMIT_S / 2):
            await of_process.resolved("answers.example")
            with pytest.raises(socket.gaierror):
                await of_process.resolved("unknown.example")
            await of_process.resolved("no..name")  # Who connects to it says what is wrong.
        # A caller that gives up takes the lookup from no other.
        joined.pop().cancel()
    finally:
        resolver.answers.set()
    await asyncio.gather(*joined)
    assert resolver.asked.count("hangs.example") == LOOKUPS_MAX
    assert of_process._under_way == {}


async def test_without_a_thread_the_lookup_fails(
    resolver: Resolver, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(OSError, match=r"a\.example was not looked up: can't start new thread"):
        await HostLookups().resolved("a.example")
    assert resolver.asked == []


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "[::1]", "LocalHost"])
def test_addresses_need_no_lookup(host: str) -> None:
    assert not needs_lookup(host)
