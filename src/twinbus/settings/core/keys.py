"""The keys of a `[pair.NAME]` table: what each means, and which values it takes. Pure.

Each key is called as the option of the commands that it stands for; those of the gateway's own
options are in a table `[pair.NAME.gateway]`. No check repeats a value: it
may be a secret under a wrong key.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from twinbus.cost.quantities import DAY_S, parse_duration, parse_rate
from twinbus.namespace.access import NamespaceAccess, require_source
from twinbus.namespace.address import namespace_label
from twinbus.options import (
    BACKLOG_QUEUE_COUNT_MAX,
    FAILOVER_INTERVAL_MAX_S,
    PING_INTERVAL_MAX_S,
    SYPHON_POLL_MAX_S,
    SYPHON_RATE_MAX,
    UNDELIVERABLE_GRACE_MAX_S,
)

ENVIRONMENT: Final = "env:"
FILE: Final = "file:"
EMBEDDED: Final = "embedded:"
"""Before the directory of a secondary inside a gateway."""
HOME: Final = "~/"

ANY_CREDENTIAL: Final = "default"
"""Stands for the credential of a `sb://HOST` text while only the text is of interest."""

DETECTION_MAX_S: Final = 7 * DAY_S
ATTEMPT_TIMEOUT_MAX_S: Final = 60.0
PATIENCE_MAX_S: Final = 3_600.0


@dataclass(frozen=True, slots=True)
class PairKey:
    """One key of a pair."""

    name: str
    meaning: str
    form: str
    """The values it takes, for error texts: `queues must be ...`."""
    check: Callable[[object], bool]

    @property
    def is_side(self) -> bool:
        return self.name in {"primary", "secondary"}

    def accepts(self, value: object) -> bool:
        """Return whether the value is one of its form."""
        try:
            return self.check(value)
        except (TypeError, ValueError):
            return False


def is_reference(text: str) -> bool:
    """Return whether the text of a side only names its variable or its file."""
    return text.startswith((ENVIRONMENT, FILE))


def holds_secret(key: str, value: object) -> bool:
    """Return whether a valid value has a key, a signature or a password in it."""
    text = str(value)
    if key == "proxy":
        return "@" in text
    if not KEYS[key].is_side or is_reference(text) or text.startswith(EMBEDDED):
        return False
    access = NamespaceAccess.parse(text, credential=ANY_CREDENTIAL)
    return bool(access.connection_string) or "@" in access.proxy


def at_home(text: str, home: str) -> str:
    """Return a path, also after `file:` or `embedded:`, with the home directory for its `~/`."""
    prefix = next((one for one in (FILE, EMBEDDED) if text.startswith(one)), "")
    path = text.removeprefix(prefix)
    return f"{prefix}{home}/{path.removeprefix(HOME)}" if path.startswith(HOME) else text


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value.strip()) and value.isprintable()


def _is_switch(value: object) -> bool:
    return isinstance(value, bool)


def _is_queue_count(value: object) -> bool:
    return type(value) is int and 1 <= value <= BACKLOG_QUEUE_COUNT_MAX


def _is_path(value: object) -> bool:
    """Whether it means the same in every working directory."""
    return _is_text(value) and str(value).startswith(("/", HOME))


def _is_place(value: object) -> bool:
    return _is_path(value) or (_is_text(value) and "://" in str(value))


def _is_gateway_address(value: object) -> bool:
    return isinstance(value, str) and bool(_GATEWAY_ADDRESS.fullmatch(value))


def _is_side(value: object) -> bool:
    if not _is_text(value):
        return False
    text = str(value)
    if is_reference(text):
        return _is_source(text)
    NamespaceAccess.parse(text, credential=ANY_CREDENTIAL)
    return True


def _is_secondary(value: object) -> bool:
    if _is_text(value) and str(value).startswith(EMBEDDED):
        return _is_path(str(value).removeprefix(EMBEDDED))
    return _is_side(value)


def _is_source(value: object) -> bool:
    if not _is_text(value):
        return False
    require_source(str(value))
    return not str(value).startswith(FILE) or _is_place(str(value).removeprefix(FILE))


def _is_route(part: str) -> Callable[[object], bool]:
    def check(value: object) -> bool:
        if not _is_text(value):
            return False
        NamespaceAccess.parse("sb://host", credential=ANY_CREDENTIAL, **{part: str(value)})
        return True

    return check


def _is_label(value: object) -> bool:
    return _is_text(value) and bool(namespace_label("", 0, str(value)))


def _is_rate(value: object) -> bool:
    if value == "standard":
        return True
    return _is_quantity(value) and bool(parse_rate(str(value), most=int(SYPHON_RATE_MAX)))


def _is_duration(least_s: float, most_s: float) -> Callable[[object], bool]:
    return lambda value: (
        _is_quantity(value) and least_s <= parse_duration(str(value), most=int(most_s)) <= most_s
    )


def _is_quantity(value: object) -> bool:
    return _is_text(value) or type(value) in {int, float}


_GATEWAY_ADDRESS: Final = re.compile(r"[A-Za-z][A-Za-z0-9-]{0,49}:[0-9]{1,5}", re.ASCII)

_SIDE: Final = "env:NAME, file:/PATH, sb://HOST or a whole connection string"
_SWITCH: Final = "true or false"
_PATH: Final = "a path that starts with / or ~/"

_GATEWAY: Final = (
    PairKey(
        "gateway.address",
        "name and port of the gateway",
        "NAME:PORT, like contoso:5672",
        _is_gateway_address,
    ),
    PairKey("gateway.host", "address that the gateway listens on", "a host name", _is_text),
    PairKey(
        "gateway.failover-interval",
        "time until an entity fails over",
        "a duration up to 1h, like 10s",
        _is_duration(0, FAILOVER_INTERVAL_MAX_S),
    ),
    PairKey(
        "gateway.ping-interval",
        "time between pings",
        "a duration from 1s to 30min",
        _is_duration(1, PING_INTERVAL_MAX_S),
    ),
    PairKey(
        "gateway.attempt-timeout",
        "time of one attempt on a namespace",
        "a duration from 1s to 1min",
        _is_duration(1, ATTEMPT_TIMEOUT_MAX_S),
    ),
    PairKey(
        "gateway.patience",
        "how long a client's send may wait for a namespace",
        "a duration from 1s to 1h, like 55s",
        _is_duration(1, PATIENCE_MAX_S),
    ),
    PairKey("gateway.syphon", "the gateway moves the backlog home", _SWITCH, _is_switch),
    PairKey("gateway.key-file", "file with the key of the gateway", _PATH, _is_path),
    PairKey("gateway.rule-file", "file with further rules of the gateway", _PATH, _is_path),
    PairKey("gateway.tokens", "file with bearer tokens to accept", _PATH, _is_path),
    PairKey("gateway.require-token", "only bearer tokens are accepted", _SWITCH, _is_switch),
    PairKey("gateway.tls-cert", "certificate chain of the gateway", _PATH, _is_path),
    PairKey("gateway.tls-key", "private key of the certificate", _PATH, _is_path),
    PairKey("gateway.require-tls", "plain text is refused", _SWITCH, _is_switch),
    PairKey("gateway.metrics-token-file", "file with the token of /metrics", _PATH, _is_path),
)

KEYS: Final = {
    key.name: key
    for key in (
        PairKey("primary", "namespace that the application sends to", _SIDE, _is_side),
        PairKey(
            "secondary",
            "namespace that holds the backlog queues",
            f"{_SIDE}, or embedded:/DIR for a gateway",
            _is_secondary,
        ),
        PairKey(
            "label",
            "`name` that the application gave its primary; backlog queues start with it",
            "1 to 200 letters, digits, '-', '.' or '_'",
            _is_label,
        ),
        PairKey(
            "credential",
            "credential of a namespace given as sb://HOST",
            "default, managed-identity, managed-identity:CLIENT_ID, workload-identity, file:/PATH"
            " or env:NAME",
            _is_source,
        ),
        PairKey("transport", "network transport", "amqp or websocket", _is_route("transport")),
        PairKey(
            "proxy", "HTTP proxy to both sides", "http://HOST:PORT or env:NAME", _is_route("proxy")
        ),
        PairKey(
            "endpoint",
            "address to connect to in place of the namespaces' own",
            "HOST or HOST:PORT",
            _is_route("endpoint"),
        ),
        PairKey(
            "queues",
            "backlog_queue_count of the application",
            f"a whole number from 1 to {BACKLOG_QUEUE_COUNT_MAX}",
            _is_queue_count,
        ),
        PairKey(
            "ledger",
            "directory or URL of the ledger",
            "a path that starts with / or ~/, or a URL",
            _is_place,
        ),
        PairKey(
            "rate",
            "rate limit of the syphon",
            "standard, or a rate up to a million a second, like 500 or '30000/min'",
            _is_rate,
        ),
        PairKey("lease", "the syphon holds a lease on each queue", _SWITCH, _is_switch),
        PairKey("strict", "syphon and gateway keep the order within sessions", _SWITCH, _is_switch),
        PairKey(
            "grace",
            "undeliverable_grace of the application",
            "a duration up to 30d, like 6h",
            _is_duration(0, UNDELIVERABLE_GRACE_MAX_S),
        ),
        PairKey(
            "ttl-policy",
            "what the syphon restores of a time to live",
            "full or remaining",
            {"full", "remaining"}.__contains__,
        ),
        PairKey(
            "poll",
            "length of one idle poll of the syphon",
            "a duration from 1s to 15min",
            _is_duration(1, SYPHON_POLL_MAX_S),
        ),
        PairKey(
            "detection-window",
            "duplicate detection window of the destinations",
            "a duration up to 7d, like 10min",
            _is_duration(0, DETECTION_MAX_S),
        ),
        *_GATEWAY,
    )
}
"""Every key, in the order in which it is shown."""
