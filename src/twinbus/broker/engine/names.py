"""Names of entities: what may be one, and how an address names an entity or a part of it."""

from __future__ import annotations

import re
from urllib.parse import unquote, urlsplit

from twinbus.broker.refusals import ArgumentInvalid, ArgumentOutOfRange

PATH_LENGTH_MAX = 260
NAME_LENGTH_MAX = 50
"""Of a subscription or a rule. Both limits are Azure's."""

SUBSCRIPTIONS = "Subscriptions"
DEAD_LETTER = "$DeadLetterQueue"
TRANSFER_DEAD_LETTER = "$Transfer/$DeadLetterQueue"
MANAGEMENT_SUFFIX = "/$management"
"""Ends the address of an entity's node for requests."""

# Azure names these characters when it refuses a path, and no rule for the first and the last:
# MassTransit has topics there that end in '--'.
_PATH = re.compile(r"[A-Za-z0-9._~/-]+")
_NAME = re.compile(r"[A-Za-z0-9._-]+")
_RULE_NAME = re.compile(r"[A-Za-z0-9._$-]+")

_NO_PARTS = {"", ".", ".."}
"""Parts that an address over HTTP cannot have: a URL with one of them means another path."""


def check_path(kind: str, path: str) -> None:
    """Refuse a path that no queue or topic can have."""
    _check_length(f"path of the {kind}", path, PATH_LENGTH_MAX)
    parts = path.lower().split("/")
    is_wrong = not _NO_PARTS.isdisjoint(parts) or SUBSCRIPTIONS.lower() in parts[1:]
    if is_wrong or not _PATH.fullmatch(path):
        raise ArgumentInvalid(
            f"{path!r} cannot be the path of a {kind}: use letters, digits, '.', '-', '_', '~' and "
            f"single '/' between parts, no part '.' or '..', and no part {SUBSCRIPTIONS!r} after "
            "the first"
        )


def check_name(kind: str, name: str) -> None:
    """Refuse a name that no subscription or rule can have."""
    _check_length(f"name of the {kind}", name, NAME_LENGTH_MAX)
    pattern = _RULE_NAME if kind == "rule" else _NAME
    if name in _NO_PARTS or not pattern.fullmatch(name):
        raise ArgumentInvalid(
            f"{name!r} cannot be the name of a {kind}: use letters, digits, '.', '-' and '_', and "
            "not '.' or '..' alone"
        )


def _check_length(what: str, text: str, limit: int) -> None:
    if not 0 < len(text) <= limit:
        raise ArgumentOutOfRange(f"the {what} has {len(text)} characters, not 1 to {limit}")


def subscription_path(topic: str, name: str) -> str:
    return f"{topic}/{SUBSCRIPTIONS}/{name}"


def dead_letter_path(path: str) -> str:
    return f"{path}/{DEAD_LETTER}"


def transfer_dead_letter_path(path: str) -> str:
    """The path under which Azure keeps what an entity could not forward."""
    return f"{path}/{TRANSFER_DEAD_LETTER}"


def entity_address(address: str) -> str:
    """The path of an AMQP address: `amqps://host:5672/orders`, `/orders` and `orders` are one."""
    if "://" in address:
        try:
            address = unquote(urlsplit(address).path)
        except ValueError:
            return address  # Not an address at all, such as amqps://[x; no entity is found by it.
    return address.strip("/")


def address_key(address: str) -> str:
    """The lookup key of an address, in any letter case."""
    return entity_address(address).lower()
