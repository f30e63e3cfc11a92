"""`twinbus serve --config`: reads the emulator's Config.json, and creates what it describes."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

from twinbus.broker.descriptions import Description
from twinbus.broker.embedded import NAME
from twinbus.broker.emulator.config import ConfiguredSubscription, EmulatorConfig, read_config
from twinbus.broker.emulator.values import ConfigMistakes
from twinbus.broker.engine.namespace import BrokerNamespace
from twinbus.broker.refusals import Refusal
from twinbus.broker.server import BrokerServer
from twinbus.console.output import WrongUse
from twinbus.errors import BrokerStartError
from twinbus.servicebus.names import subscription_path
from twinbus.wording import counted, visible

CONFIG_BYTES_MAX: Final = 4 * 1024 * 1024
"""The emulator takes 50 entities; a file of them has some kilobytes."""


def read_config_file(path: Path) -> EmulatorConfig:
    """Read the file; every mistake in it is a line on stderr, and then WrongUse."""
    try:
        with path.open("rb") as file:
            content = file.read(CONFIG_BYTES_MAX + 1)
        if len(content) > CONFIG_BYTES_MAX:
            raise WrongUse(f"--config {path} has more than {CONFIG_BYTES_MAX} bytes")
        config = read_config(content.decode("utf-8-sig"))
        if not NAME.fullmatch(config.namespace):
            at = "UserConfig.Namespaces[0].Name"
            raise ConfigMistakes([f"{at}: {config.namespace!r} cannot name a namespace here"])
    except (OSError, UnicodeDecodeError) as error:
        raise WrongUse(f"--config {path} cannot be read: {error}") from error
    except ConfigMistakes as error:
        for line in error.lines:
            print(f"{path}: {visible(line)}", file=sys.stderr)
        raise WrongUse(f"--config {path} has {counted(len(error.lines), 'mistake')}") from None
    for note in config.notes:
        print(f"{path}: {note}", file=sys.stderr, flush=True)
    return config


async def create_configured(server: BrokerServer, config: EmulatorConfig) -> None:
    """Create the entities that are missing; return when they are on disk.

    An entity that is there already, in a directory of an earlier run, stays as it is.
    """
    engine, now_ms = server.namespace, server.now_ms()
    try:
        for path, queue in config.queues.items():
            if not _is_there(engine, path, queue):
                engine.create_queue(path, queue, now_ms)
        for path, topic in config.topics.items():
            if not _is_there(engine, path, topic):
                engine.create_topic(path, topic, now_ms)
        for one in config.subscriptions:
            path = subscription_path(one.topic, one.name)
            if not _is_there(engine, path, one.description):
                _create_subscription(engine, one, now_ms)
    except Refusal as error:
        raise BrokerStartError(f"--config: {error}") from error
    await server.commit.durable()


def _is_there(engine: BrokerNamespace, path: str, wanted: Description) -> bool:
    found = engine.find(path)
    if found is not None and found.description != wanted:
        text = f"{path} is there already with other settings, and stays as it is"
        print(f"twinbus: --config: {text}", file=sys.stderr, flush=True)
    return found is not None


def _create_subscription(engine: BrokerNamespace, one: ConfiguredSubscription, now_ms: int) -> None:
    first = one.rules[0] if one.rules else None
    engine.create_subscription(one.topic, one.name, one.description, now_ms, rule=first)
    for rule in one.rules[1:]:
        engine.create_rule(one.topic, one.name, rule, now_ms)
