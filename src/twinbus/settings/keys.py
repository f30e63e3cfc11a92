"""The keys of a `[pair.NAME]` table: what each means, and which values it takes. Pure.

A key is declared here once. The reader of the file, the option of the commands that the key stands
for, and `twinbus config check` are derived from it. Keys of the gateway's own options are in a
table `[pair.NAME.gateway]`. No error repeats a value: it may be a secret under a wrong key.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, get_args

from twinbus.cost.arithmetic import parse_duration, parse_rate
from twinbus.namespace.access import NamespaceAccess, require_source
from twinbus.namespace.address import namespace_label
from twinbus.options import (
    BACKLOG_QUEUE_COUNT_MAX,
    FAILOVER_INTERVAL_MAX_S,
    PING_INTERVAL_MAX_S,
    QUORUM_MAX,
    SYPHON_POLL_MAX_S,
    SYPHON_RATE_MAX,
    UNDELIVERABLE_GRACE_MAX_S,
)
from twinbus.servicebus.failures import DivertCause
from twinbus.servicebus.names import DETECTION_MAX_S

ENVIRONMENT: Final = "env:"
FILE: Final = "file:"
EMBEDDED: Final = "embedded:"
"""Before the directory of a secondary inside a gateway."""
HOME: Final = "~/"

ANY_CREDENTIAL: Final = "default"
"""Stands for the credential of a `sb://HOST` text while only the text is of interest."""

ATTEMPT_TIMEOUT_MAX_S: Final = 60.0
PATIENCE_MAX_S: Final = 3_600.0


class ValueKind(NamedTuple):
    """Values that a key takes."""

    metavar: str | None
    """Stands for the value in the help of a command; None: a flag, or the values themselves."""
    form: str
    """Completes an error text: `pair.eu.queues must be ...`."""
    read: Callable[[Any], object]
    """Returns a value of the file as the option takes it; ValueError or TypeError: it is wrong."""


@dataclass(frozen=True, slots=True)
class PairKey:
    """One key of a pair, and the option of the commands that it stands for."""

    name: str
    kind: ValueKind
    help: str
    variable: str | None = None
    """Environment variable of the option."""

    @property
    def is_side(self) -> bool:
        return self.name in {"primary", "secondary"}


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


def _that(fits: Callable[[Any], object]) -> Callable[[Any], Any]:
    """Return a reader of the values for which `fits` is true."""

    def read(value: Any) -> Any:
        if not fits(value):
            raise ValueError
        return value

    return read


def _whole(most: int) -> ValueKind:
    """The kind of whole numbers from 1 on."""
    return ValueKind(
        "N",
        f"a whole number from 1 to {most}",
        _that(lambda value: type(value) is int and 1 <= value <= most),
    )


_text: Final = _that(lambda value: isinstance(value, str) and value.strip() and value.isprintable())
_path: Final = _that(lambda value: _text(value).startswith(("/", HOME)))
"""A path that means the same in every working directory."""


def _place(value: Any) -> Any:
    return _text(value) if "://" in str(value) else _path(value)


def _side(value: object) -> str:
    text: str = _text(value)
    if is_reference(text):
        return _source(text)
    NamespaceAccess.parse(text, credential=ANY_CREDENTIAL)
    return text


def _secondary(value: object) -> str:
    text: str = _text(value)
    if not text.startswith(EMBEDDED):
        return _side(text)
    _path(text.removeprefix(EMBEDDED))
    return text


def _source(value: object) -> str:
    text: str = _text(value)
    require_source(text)
    if text.startswith(FILE):
        _place(text.removeprefix(FILE))
    return text


def _route(part: str) -> Callable[[object], str]:
    def read(value: object) -> str:
        NamespaceAccess.parse("sb://host", credential=ANY_CREDENTIAL, **{part: _text(value)})
        return str(value)

    return read


def _rate(value: object) -> str:
    if value != "standard":
        parse_rate(_quantity(value), most=int(SYPHON_RATE_MAX))
    return str(value)


def _quantity(value: object) -> str:
    return str(value) if type(value) in {int, float} else _text(value)


def _duration(form: str, least_s: float, most_s: float) -> ValueKind:
    def read(value: object) -> str:
        parse_duration(_quantity(value), least=least_s, most=most_s)
        return str(value)

    return ValueKind("TIME", f"a duration {form}", read)


_GATEWAY_ADDRESS: Final = re.compile(r"[A-Za-z][A-Za-z0-9-]{0,49}:[0-9]{1,5}", re.ASCII)

_SIDE: Final = ValueKind(
    "STRING", "env:NAME, file:/PATH, sb://HOST or a whole connection string", _side
)
_SECONDARY: Final = ValueKind("STRING", f"{_SIDE.form}, or embedded:/DIR for a gateway", _secondary)
_LABEL: Final = ValueKind(
    "LABEL",
    "1 to 200 letters, digits, '-', '.' or '_'",
    _that(lambda value: namespace_label("", 0, _text(value))),
)
_SOURCE: Final = ValueKind(
    "SOURCE",
    "default, managed-identity, managed-identity:CLIENT_ID, workload-identity, file:/PATH or"
    " env:NAME",
    _source,
)
_QUEUES: Final = _whole(BACKLOG_QUEUE_COUNT_MAX)
_QUORUM: Final = _whole(QUORUM_MAX)
_ENTITIES: Final = ValueKind(
    "ENTITY",
    'a list of names and patterns, like ["orders", "billing-*"]',
    _that(lambda value: isinstance(value, list) and value and all(map(_text, value))),
)
_CAUSES: Final = ValueKind(
    "CAUSE",
    f"a list of {', '.join(get_args(DivertCause))}",
    _that(lambda value: isinstance(value, list) and {*value} <= {*get_args(DivertCause)}),
)
_PLACE: Final = ValueKind("DIR", "a path that starts with / or ~/, or a URL", _place)
_RATE: Final = ValueKind(
    "RATE", "standard, or a rate up to a million a second, like 500 or '30000/min'", _rate
)
_SWITCH: Final = ValueKind(None, "true or false", _that(lambda value: isinstance(value, bool)))
_FILE: Final = ValueKind("FILE", "a path that starts with / or ~/", _path)

_DECLARED: Final = (
    PairKey(
        "primary",
        _SIDE,
        "Connection string of the primary, or sb://HOST. Its label is in the names of backlog"
        " queues.",
        "TWINBUS_PRIMARY",
    ),
    PairKey(
        "secondary",
        _SECONDARY,
        "Connection string of the secondary, or sb://HOST. It holds the backlog queues.",
        "TWINBUS_SECONDARY",
    ),
    PairKey("label", _LABEL, "The `name` the application gave its primary, if any."),
    PairKey(
        "credential",
        _SOURCE,
        "Credential of a namespace given as sb://HOST: default, managed-identity[:CLIENT_ID],"
        " workload-identity, file:PATH or env:NAME.",
        "TWINBUS_CREDENTIAL",
    ),
    PairKey(
        "transport",
        ValueKind("KIND", "amqp or websocket", _route("transport")),
        "amqp, or websocket, which needs port 443 only.",
        "TWINBUS_TRANSPORT",
    ),
    PairKey(
        "proxy",
        ValueKind("URL", "http://HOST:PORT or env:NAME", _route("proxy")),
        "HTTP proxy, http://HOST:PORT, or env:NAME for a variable with it. Uses WebSocket.",
        "TWINBUS_PROXY",
    ),
    PairKey(
        "endpoint",
        ValueKind("HOST:PORT", "HOST or HOST:PORT", _route("endpoint")),
        "Address to connect to in place of the namespaces' own, such as a gateway.",
        "TWINBUS_ENDPOINT",
    ),
    PairKey("queues", _QUEUES, "Backlog queues: the application's backlog_queue_count."),
    PairKey("board", _SWITCH, "Share evidence with other hosts over a queue in the secondary."),
    PairKey("quorum", _QUORUM, "Other hosts whose failover makes one failure enough, 1 to 100."),
    PairKey("twins", _ENTITIES, "Entities that have a twin: the application's option twins."),
    PairKey(
        "twins-with-sessions", _SWITCH, "Divert messages with a session id to the twin as well."
    ),
    PairKey("ledger", _PLACE, "Ledger to record into.", "TWINBUS_LEDGER"),
    PairKey(
        "rate",
        _RATE,
        "Rate limit over all queues, like 500/s (or just 500) or 30000/min. `standard` is"
        " 250/s, which leaves the application half of a Standard namespace's 1,000 credits.",
    ),
    PairKey("lease", _SWITCH, "Serve a queue only while holding its lease."),
    PairKey(
        "strict", _SWITCH, "Keep the order within sessions (session_order='strict'); uses leases."
    ),
    PairKey(
        "grace",
        _duration("up to 30d, like 6h", 0, UNDELIVERABLE_GRACE_MAX_S),
        "Dead-letter the messages of a destination that is missing for this long, at most 30d.",
    ),
    PairKey(
        "ttl-policy",
        ValueKind(None, "full or remaining", _that(("full", "remaining").__contains__)),
        "Restore the whole time to live, or what remains of it.",
    ),
    PairKey(
        "poll",
        _duration("from 1s to 15min", 1, SYPHON_POLL_MAX_S),
        "Length of one idle poll of the syphon, 1s to 15min.",
    ),
    PairKey(
        "detection-window",
        _duration("up to 7d, like 10min", 0, DETECTION_MAX_S),
        "Duplicate detection window of the destinations.",
    ),
    PairKey(
        "gateway.address",
        ValueKind("NAME:PORT", "NAME:PORT, like contoso:5672", _that(_GATEWAY_ADDRESS.fullmatch)),
        "Name of the gateway and its port; 0 picks a free one.",
    ),
    PairKey("gateway.host", ValueKind("TEXT", "a host name", _text), "Address to listen on."),
    PairKey(
        "gateway.failover-interval",
        _duration("up to 1h, like 10s", 0, FAILOVER_INTERVAL_MAX_S),
        "Failover interval of an entity; with --attempt-timeout shorter than --patience.",
    ),
    PairKey(
        "gateway.ping-interval",
        _duration("from 1s to 30min", 1, PING_INTERVAL_MAX_S),
        "Time between pings, 1s to 30min.",
    ),
    PairKey(
        "gateway.attempt-timeout",
        _duration("from 1s to 1min", 1, ATTEMPT_TIMEOUT_MAX_S),
        "Time of one attempt on a namespace, 1s to 1min.",
    ),
    PairKey(
        "gateway.patience",
        _duration("from 1s to 1h, like 55s", 1, PATIENCE_MAX_S),
        "How long a client's send may wait for a namespace. Shorter than the client's own timeout.",
    ),
    PairKey(
        "gateway.divert-on",
        _CAUSES,
        "Fail over an entity that is disabled, full or throttled as well: one of the three words."
        " Repeatable.",
    ),
    PairKey("gateway.syphon", _SWITCH, "Move the backlog to the primary from here."),
    PairKey("gateway.key-file", _FILE, "File with the key, instead of --key."),
    PairKey("gateway.rule-file", _FILE, "File with a rule on each line, besides --rule."),
    PairKey(
        "gateway.tokens",
        _FILE,
        "Bearer tokens to accept, NAME TOKEN RIGHTS EXPIRES a line; read on change.",
    ),
    PairKey(
        "gateway.require-token",
        _SWITCH,
        "Refuse shared access keys; accept bearer tokens only.",
    ),
    PairKey(
        "gateway.tls-cert",
        _FILE,
        "Certificate chain (PEM). The same port then also speaks TLS.",
    ),
    PairKey("gateway.tls-key", _FILE, "The certificate's private key (PEM)."),
    PairKey("gateway.require-tls", _SWITCH, "Refuse plain text. The default beyond loopback."),
    PairKey(
        "gateway.metrics-token-file",
        _FILE,
        "File with the bearer token for /metrics, which is closed beyond loopback.",
    ),
)

KEYS: Final = {key.name: key for key in _DECLARED}
"""Every key, in the order in which it is shown."""
