"""`twinbus serve`: run the broker in the foreground until a signal."""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
import sys
from contextlib import suppress
from dataclasses import replace
from typing import Final

from twinbus.broker.descriptions import (
    QueueDescription,
    SubscriptionDescription,
    TopicDescription,
)
from twinbus.broker.front import Front
from twinbus.broker.host import BrokerHost, NamespaceAt
from twinbus.broker.profile import LAPTOP, PROFILES, ServiceProfile
from twinbus.broker.refusals import EntityAlreadyExists, Refusal
from twinbus.broker.server import BrokerServer
from twinbus.console.front import certificate_reloaded, front_of
from twinbus.console.options import ServeOptions
from twinbus.console.terminal.times import seconds_of
from twinbus.errors import BrokerStartError, StoreError
from twinbus.loops import run_alone

PLAIN: Final = "UseDevelopmentEmulator=true;"
"""The part of a connection string that makes a client speak without TLS."""


def run(given: ServeOptions) -> int:
    """Serve until SIGTERM or Ctrl-C; connection strings go to stdout, the log to stderr."""
    if (given.data is None) == (not given.ephemeral):
        raise BrokerStartError(
            "where to keep messages? Give --data DIR, or --ephemeral to keep them in memory only"
        )
    front = front_of(given)
    broker = BrokerHost(
        [NamespaceAt.parse(text) for text in given.namespaces],
        data=given.data,
        front=front,
        fault_seed=given.fault_seed,
        ledger=given.ledger,
        profile=_profile(given.like, given.idle_detach),
    )
    logging.basicConfig(
        stream=sys.stderr,
        level=logging.ERROR if given.quiet else logging.INFO,
        format="%(asctime)s %(message)s",
        datefmt="%H:%M:%S",
    )
    run_alone(_serve(broker, front, given))
    return 0


def _profile(like: str | None, idle_detach: str | None) -> ServiceProfile:
    profile = PROFILES.get(like or LAPTOP.name)
    if profile is None:
        raise BrokerStartError(f"--like {like!r} is unknown; give {', '.join(PROFILES)}")
    if idle_detach is None:
        return profile
    return replace(profile, link_idle_s=seconds_of(idle_detach, "--idle-detach", least=1))


async def _create_entities(server: BrokerServer, given: ServeOptions) -> None:
    """Create the entities of --queue and --topic that are missing; return when they are on disk."""
    engine, now_ms = server.namespace, server.now_ms()
    try:
        for path in given.queue or ():
            with suppress(EntityAlreadyExists):
                engine.create_queue(path, QueueDescription(), now_ms)
            engine.get_queue(path)
        for text in given.topic or ():
            path, _, subscription = text.partition("/")
            with suppress(EntityAlreadyExists):
                engine.create_topic(path, TopicDescription(), now_ms)
            engine.get_topic(path)
            if subscription:
                with suppress(EntityAlreadyExists):
                    engine.create_subscription(
                        path, subscription, SubscriptionDescription(), now_ms
                    )
    except Refusal as error:
        raise BrokerStartError(f"--queue or --topic: {error}") from error
    await server.commit.durable()


async def _serve(broker: BrokerHost, front: Front, given: ServeOptions) -> None:
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    broker.on_gone = stopping.set
    # A start with a deep queue makes millions of objects, and they stay: no collection need visit
    # them, now or later.
    gc.disable()
    await broker.start()
    gc.freeze()
    gc.enable()
    try:
        await _create_entities(broker.server(), given)
    except BaseException:
        await broker.close()
        raise
    for name in broker.names:
        text = broker.printable_connection_string(name)
        print(f"{name}  {text}", flush=True)
        if given.tls_cert is not None and text.endswith(PLAIN):
            print(f"{name} over TLS  {text.removesuffix(PLAIN)}", flush=True)
    stores = (broker.server(name).store for name in broker.names)
    for why in filter(None, (store.low_on_space() for store in stores)):
        print(f"twinbus: sends are refused: {why}", file=sys.stderr, flush=True)
    storage = f"kept in {given.data}" if given.data else "kept in memory only"
    print(f"ready; messages are {storage}; stop with Ctrl-C", flush=True)
    async with certificate_reloaded(front, given):
        await stopping.wait()
    gone = broker.gone
    await broker.close()
    if gone is not None:
        raise StoreError(f"the store is gone: {gone}; put it back, or start with another one")
    print("stopped", flush=True)
