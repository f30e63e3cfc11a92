"""`twinbus serve` and `twinbus gateway`: run a server in the foreground until a signal."""

from __future__ import annotations

import asyncio
import gc
import logging
import secrets
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Final, get_args

from twinbus.broker.access import ConnectionLimits
from twinbus.broker.descriptions import QueueDescription, SubscriptionDescription, TopicDescription
from twinbus.broker.embedded import BrokerHost, NamespaceAt, parse_rule, parse_token
from twinbus.broker.emulator.config import ADMINISTRATION_PORT, AMQP_PORT, EmulatorConfig
from twinbus.broker.port_access import DEFAULT_KEY, PortAccess, reload_on_change
from twinbus.broker.profile import LAPTOP, PROFILES, ServiceProfile
from twinbus.broker.refusals import EntityAlreadyExists, Refusal
from twinbus.broker.server import BrokerServer
from twinbus.console.options import (
    GatewayOptions,
    PortOptions,
    ServeOptions,
    SidesOptions,
    require_private,
    secret_in,
    secret_lines,
    tls_of,
)
from twinbus.console.output import WrongUse
from twinbus.console.serve.emulator import create_configured, read_config_file
from twinbus.console.times import seconds_of
from twinbus.errors import BrokerStartError, StoreError
from twinbus.loops import run_alone
from twinbus.options import FAILOVER_INTERVAL_MAX_S, PING_INTERVAL_MAX_S, SendAvailabilityOptions
from twinbus.servicebus.failures import DivertCause
from twinbus.settings.keys import ATTEMPT_TIMEOUT_MAX_S, EMBEDDED, PATIENCE_MAX_S

PLAIN: Final = "UseDevelopmentEmulator=true;"
"""The part of a connection string that makes a client speak without TLS."""

EMBEDDED_NAME: Final = "backlog"
"""The namespace inside the gateway, and its directory under DIR."""


def serve(given: ServeOptions) -> int:
    """Serve until SIGTERM or Ctrl-C; connection strings go to stdout, the log to stderr."""
    is_said = given.data is not None or given.ephemeral or given.config is not None
    if not is_said or (given.data is not None and given.ephemeral):
        raise BrokerStartError(
            "where to keep messages? Give --data DIR, or --ephemeral to keep them in memory only"
        )
    config = None if given.config is None else read_config_file(given.config)
    access = port_access_of(given)
    broker = BrokerHost(
        _namespaces(given, config),
        data=given.data,
        access=access,
        fault_seed=given.fault_seed,
        ledger=given.ledger,
        profile=_profile(given.like, given.idle_detach),
        test_clock=given.test_clock,
    )
    log_to_stderr(is_quiet=given.quiet)
    run_alone(_serve_broker(broker, access, given, config))
    return 0


def _namespaces(given: ServeOptions, config: EmulatorConfig | None) -> list[NamespaceAt]:
    found = [NamespaceAt.parse(text) for text in given.namespaces or ()]
    second = given.second_port
    if config is None and not found:
        raise WrongUse("which namespace? Give NAME:PORT, as in contoso:5672, or --config FILE")
    if config is not None:
        if not found:
            second = ADMINISTRATION_PORT if second is None else second
            found = [NamespaceAt(config.namespace, AMQP_PORT)]
        if [one.name for one in found] != [config.namespace]:
            raise WrongUse(
                f"--config is of the namespace {config.namespace!r}; give {config.namespace}:PORT"
                " alone, or no namespace"
            )
    return [replace(found[0], second_port=second), *found[1:]]


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


async def _serve_broker(
    broker: BrokerHost, access: PortAccess, given: ServeOptions, config: EmulatorConfig | None
) -> None:
    stopping = stop_signal()
    broker.on_gone = stopping.set
    # A start with a deep queue makes millions of objects, and they stay: no collection need visit
    # them, now or later.
    gc.disable()
    await broker.start()
    gc.freeze()
    gc.enable()
    try:
        if config is not None:
            await create_configured(broker.server(), config)
        await _create_entities(broker.server(), given)
    except BaseException:
        await broker.close()
        raise
    for name in broker.names:
        text = broker.printable_connection_string(name)
        print(f"{name}  {text}", flush=True)
        if given.tls_cert is not None and text.endswith(PLAIN):
            print(f"{name} over TLS  {text.removesuffix(PLAIN)}", flush=True)
    if (second := broker.second_port()) is not None:
        text = access.printable_connection_string(second, broker.names[0])
        print(f"{broker.names[0]} for administration  {text}", flush=True)
    stores = (broker.server(name).store for name in broker.names)
    for why in filter(None, (store.low_on_space() for store in stores)):
        print(f"twinbus: sends are refused: {why}", file=sys.stderr, flush=True)
    storage = f"kept in {given.data}" if given.data else "kept in memory only"
    print(f"ready; messages are {storage}; stop with Ctrl-C", flush=True)
    async with certificate_reloaded(access, given):
        await stopping.wait()
    gone = broker.gone
    await broker.close()
    if gone is not None:
        raise StoreError(f"the store is gone: {gone}; put it back, or start with another one")
    print("stopped", flush=True)


def serve_gateway(given: GatewayOptions, sides: SidesOptions, access: PortOptions) -> int:
    """Serve until SIGTERM or Ctrl-C; the connection string goes to stdout, the log to stderr."""
    # Imported late: `serve` needs none of the SDK.
    from twinbus.gateway import GatewayHost
    from twinbus.namespace.namespace import Namespace
    from twinbus.pair import pair_namespaces

    name = NamespaceAt.parse(given.namespace)
    port = port_access_of(access)
    interval_s = seconds_of(
        given.failover_interval, "--failover-interval", least=0, most=FAILOVER_INTERVAL_MAX_S
    )
    options = _options(given, interval_s)
    patience_s = seconds_of(given.patience, "--patience", least=1, most=PATIENCE_MAX_S)
    # The interval begins when the first attempt on a primary that hangs has ended.
    if interval_s + options.attempt_timeout_s >= patience_s:
        raise WrongUse(
            f"--failover-interval ({given.failover_interval}) and --attempt-timeout"
            f" ({given.attempt_timeout}) together must be shorter than --patience"
            f" ({given.patience}): else clients get errors before an entity fails over"
        )
    primary = sides.side(sides.primary, "primary", sides.label)
    directory = embedded_directory(sides.secondary)
    secondary = None if directory is not None else sides.secondary_side
    log_to_stderr(is_quiet=given.quiet)
    for noisy in ("azure", "uamqp"):
        logging.getLogger(noisy).setLevel(logging.ERROR)

    async def serve_pair() -> None:
        async with AsyncExitStack() as stack:
            side = secondary
            if side is None:
                assert directory is not None
                broker = BrokerHost(
                    [NamespaceAt(EMBEDDED_NAME)],
                    data=directory,
                    access=PortAccess(key=secrets.token_urlsafe(32)),
                )
                await broker.start()
                stack.push_async_callback(broker.close)
                side = Namespace.from_connection_string(
                    broker.connection_string(), name=EMBEDDED_NAME
                )
            pair = pair_namespaces(primary, side, options)
            gateway = GatewayHost(name, pair, port, patience_s=patience_s)
            await stack.enter_async_context(certificate_reloaded(port, access))
            stopping = stop_signal()
            await gateway.start()
            stack.push_async_callback(gateway.close)
            print(f"{gateway.name}  {gateway.printable_connection_string()}", flush=True)
            print(f"ready; {gateway.pair!r}; stop with Ctrl-C", flush=True)
            await stopping.wait()
        print("stopped", flush=True)

    run_alone(serve_pair())
    return 0


def embedded_directory(secondary: str | None) -> Path | None:
    """The directory of a secondary inside the gateway; None: it is a namespace of its own."""
    if secondary is None or not secondary.startswith(EMBEDDED):
        return None
    text = secondary.removeprefix(EMBEDDED)
    if not text:
        raise WrongUse("--secondary embedded: needs a directory, as in embedded:/var/lib/twinbus")
    return Path(text)


def _options(given: GatewayOptions, interval_s: float) -> SendAvailabilityOptions:
    if given.twins and given.strict:
        raise WrongUse("--twin and --strict exclude each other; leave out one of them")
    return SendAvailabilityOptions(
        backlog_queue_count=given.queues,
        failover_interval=interval_s,
        ping_primary_interval=seconds_of(
            given.ping_interval, "--ping-interval", least=1, most=PING_INTERVAL_MAX_S
        ),
        attempt_timeout=seconds_of(
            given.attempt_timeout, "--attempt-timeout", least=1, most=ATTEMPT_TIMEOUT_MAX_S
        ),
        divert_on=_causes(given.divert_on or ()),
        board=given.board,
        quorum=given.quorum,
        twins=given.twins or None,
        twins_with_sessions=given.twins_with_sessions,
        session_order="strict" if given.strict else "relaxed",
        enable_syphon=given.syphon,
        ledger=given.ledger,
    )


def _causes(given: Sequence[str]) -> frozenset[DivertCause]:
    found = frozenset(cause for cause in get_args(DivertCause) if cause in given)
    if unknown := {*given} - found:
        raise WrongUse(
            f"--divert-on must be {' or '.join(get_args(DivertCause))}; got {min(unknown)!r:.60}"
        )
    return found


def port_access_of(given: PortOptions) -> PortAccess:
    """The checked options; BrokerStartError if one is not valid."""
    require_private(given.tokens)
    return PortAccess(
        host=given.host,
        key=_key(given.key, given.key_file),
        rules=[parse_rule(text) for text in [*(given.rule or ()), *secret_lines(given.rule_file)]],
        tokens=[parse_token(text) for text in given.token or ()],
        token_file=given.tokens,
        require_token=given.require_token,
        tls=tls_of(given.tls_cert, given.tls_key),
        require_tls=given.require_tls,
        metrics_token=secret_in(given.metrics_token_file),
        limits=ConnectionLimits(
            connections=given.connections_max,
            strangers_per_address=given.strangers_max,
            open_s=given.open_limit,
            token_s=given.token_limit,
        ),
    )


@asynccontextmanager
async def certificate_reloaded(access: PortAccess, given: PortOptions) -> AsyncIterator[None]:
    """Load the certificate of the port again whenever its files change, in the block."""
    if access.tls is None or given.tls_cert is None or given.tls_key is None:
        yield
        return
    watching = asyncio.create_task(reload_on_change(access.tls, given.tls_cert, given.tls_key))
    try:
        yield
    finally:
        watching.cancel()
        await asyncio.wait({watching})


def _key(key: str | None, file: Path | None) -> str:
    if key is not None and file is not None:
        raise BrokerStartError("the key is given twice; give --key (TWINBUS_KEY) or --key-file")
    return secret_in(file) or key or DEFAULT_KEY


def log_to_stderr(*, is_quiet: bool) -> None:
    logging.basicConfig(
        stream=sys.stderr,
        level=logging.ERROR if is_quiet else logging.INFO,
        format="%(asctime)s %(message)s",
        datefmt="%H:%M:%S",
    )


def stop_signal() -> asyncio.Event:
    """Return an event that SIGTERM and Ctrl-C set."""
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    return stopping
