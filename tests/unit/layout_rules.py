"""The rules of the house as functions: each takes a source tree and returns what breaks it.

A rule returns lines a person can act on; an empty list means that the tree obeys. What the rules
hold to (which modules may do I/O, which package may know which) are the tables at the top.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Set
    from pathlib import Path

PURE_UNITS = frozenset(
    """amqp broker control cost errors options pairing planning syphon transfer""".split()
)
"""Units whose modules decide and do nothing else, except those in SHELLS."""

SHELLS: Mapping[str, str] = {
    "twinbus.amqp.transport": "moves bytes between a socket and the sans-IO connection",
    "twinbus.broker.admin.api": "answers HTTP requests",
    "twinbus.broker.storage.commit": "owns the writer thread",
    "twinbus.broker.storage.data_directory": "makes and locks directories, asks for free space",
    "twinbus.broker.links.dispatch": "hands what a connection says to the link it is for",
    "twinbus.broker.embedded": "runs the broker inside a program",
    "twinbus.broker.host": "starts and stops the namespaces of one process",
    "twinbus.broker.http": "hosts the HTTP application on a connection",
    "twinbus.broker.listener": "accepts and sniffs sockets",
    "twinbus.broker.storage.lmdb_environment": "opens the disk",
    "twinbus.broker.storage.lmdb_store": "the disk",
    "twinbus.broker.ledger_view": "writes the broker's view into the ledger",
    "twinbus.broker.links.peer": "one client's connection on the loop",
    "twinbus.broker.links.receiving": "writes deliveries as a receiver's credit allows",
    "twinbus.broker.links.requests": "answers $cbs and $management on a connection",
    "twinbus.broker.links.sending": "stores what a sender's link brings",
    "twinbus.broker.server": "one namespace on its loop: clock, timers, connections",
    "twinbus.broker.storage.store": "what the disk must do, and the store in memory",
    "twinbus.broker.tls": "reads certificates, and gives connections inside TLS away",
    "twinbus.broker.tokens": "draws lock tokens and message ids",
    "twinbus.broker.websocket": "AMQP inside a WebSocket",
    "twinbus.control.client": "asks running pairs over their sockets",
    "twinbus.control.run_directory": "makes directories and sockets",
    "twinbus.control.server": "answers on a socket",
    "twinbus.pairing.lifecycle.administration": "administration calls over HTTP",
    "twinbus.namespace.administration_client": "administration calls over HTTP",
    "twinbus.pairing.sdk.batches": "a batch of the SDK, filled by applications",
    "twinbus.pairing.sending.calls": "performs one call with senders of the SDK",
    "twinbus.pairing.sending.session_scan": "peeks into backlog queues, also in the background",
    "twinbus.pairing.sending.client": "makes the senders of a pair and closes them",
    "twinbus.pairing.sending.pinger": "pings entities with senders of the SDK",
    "twinbus.pairing.sending.send_calls": "performs one send with senders of the SDK",
    "twinbus.pairing.sending.shared_state": "what the senders of a pair share, with timers",
    "twinbus.pairing.lifecycle.closing": "the timer of two sides, and the tasks that close them",
    "twinbus.namespace.credentials": "fetches tokens, on a thread where it must",
    "twinbus.pairing.lifecycle.discovery": "looks for backlog queues, also in the background",
    "twinbus.pairing.sending.watched_entity": "an entity's timer and ping task",
    "twinbus.pairing.sdk.guards": "looks at message objects of the SDK",
    "twinbus.pairing.observing.listeners": "streams of events, on the loop",
    "twinbus.pairing.observing.metrics": "numbers for Prometheus, whose ages need the time",
    "twinbus.namespace.namespace": "makes clients of the SDK",
    "twinbus.pairing.sdk.outgoing": "message objects of the SDK; draws message ids",
    "twinbus.pairing.sdk.sender_pool": "keeps senders of the SDK open, and closes them",
    "twinbus.pairing.sending.recording": "writes to the ledger",
    "twinbus.pairing.sdk.sdk_cleanup": "ends tasks and sockets that the SDK leaves behind",
    "twinbus.pairing.sending.schedule_calls": "performs calls that need sequence numbers",
    "twinbus.pairing.sending.sender": "the sender that applications use",
    "twinbus.pairing.observing.backlog_depth": "asks how deep the backlog is",
    "twinbus.pairing.observing.tracing": "spans, where the application set up traces",
    "twinbus.pairing.sending.session_routing": "routes a call by its sessions, waits for one",
    "twinbus.pairing.sdk.warming": "opens links to backlog queues ahead of time",
    "twinbus.pairing.sdk.watchdog": "the timer that bounds attempts",
    "twinbus.syphon.connection.counts": "asks the administration API",
    "twinbus.syphon.connection.administration_request": "asks over HTTP",
    "twinbus.syphon.relay.queue_answers": "waits for a backlog queue's answers",
    "twinbus.syphon.relay.outbound": "attaches links to the primary",
    "twinbus.syphon.host": "starts and stops the relays",
    "twinbus.syphon.relay.lease": "holds session locks on a connection of its own",
    "twinbus.syphon.connection.line": "one signed-in connection",
    "twinbus.syphon.connection.peeking": "asks queues what they hold",
    "twinbus.syphon.replaying": "moves dead letters back, on a connection",
    "twinbus.syphon.connection.node": "requests on a connection and their answers",
    "twinbus.syphon.relay.relay": "moves messages between two connections",
    "twinbus.syphon.connection.selection": "peeks for messages of some destinations",
    "twinbus.syphon.relay.queue_requests": "requests to a backlog queue",
}
"""Modules of pure units that may do I/O, each with its reason. Any other module there is pure."""

IMPURE_IMPORTS = frozenset(
    """asyncio azure lmdb os pyspark random secrets select selectors shutil signal socket ssl
    starlette structlog subprocess tempfile threading time uvicorn uvloop""".split()
)
IMPURE_CALLS = frozenset({"datetime.now", "datetime.utcnow", "date.today", "uuid.uuid4", "uuid4"})
"""Ways to ask for the time or for chance that an import alone does not show."""

ARROWS: Mapping[str, Set[str]] = {
    "errors": set(),
    "clock": set(),
    "loops": set(),
    "options": {"errors"},
    "amqp": set(),
    "ledger": {"errors"},
    "cost": {"errors"},
    "planning": {"cost", "errors", "options"},
    "transfer": {"amqp", "errors"},
    "broker": {"amqp", "errors"},
    "namespace": {"errors", "pairing"},
    "pairing": {"clock", "errors", "namespace", "options", "transfer"},
    "syphon": {"amqp", "clock", "errors", "namespace", "options", "transfer"},
    "control": {"errors"},
    "pair": {"clock", "control", "errors", "namespace", "options", "pairing", "syphon"},
    "blocking": {"errors", "namespace", "options", "pair", "pairing"},
    "pipeline": {"cost", "errors", "ledger", "loops", "namespace", "options", "planning", "syphon"},
    "testing": {
        "broker",
        "clock",
        "errors",
        "ledger",
        "namespace",
        "options",
        "pair",
        "pairing",
    },  # fmt: skip
}
"""Which unit may know which. `console` and the public door may know all; a shell may also write to
the ledger. Nothing points back: `broker` above all never knows pairing."""

KNOWS_ALL = frozenset({"console", "__init__"})

FOREIGN_HOMES: Mapping[str, Set[str]] = {
    "azure": {"blocking", "console", "namespace", "pair", "pairing", "testing", "transfer"},
    "lmdb": {"broker"},
    "opentelemetry": {"pairing"},
    "prometheus_client": {"pairing"},
    "pyspark": {"console", "pipeline"},
    "starlette": {"broker", "console"},
    "uvicorn": {"broker", "console"},
}
"""Units that may import a heavy or foreign library at all."""

LINES_MAX = 500
FORBIDDEN_WORDS = frozenset({"base", "common", "helper", "helpers", "manager", "util", "utils"})


@dataclass(frozen=True, slots=True)
class Module:
    """One source file, parsed."""

    name: str
    path: Path
    tree: ast.Module

    @property
    def unit(self) -> str:
        """The package or module right under `twinbus`."""
        parts = self.name.split(".")
        return parts[1] if len(parts) > 1 else "__init__"

    @property
    def is_shell(self) -> bool:
        return self.name in SHELLS

    def imports(self) -> Iterator[tuple[int, str]]:
        """Line and full name of every import, wherever it stands; type-only ones count too."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                yield from ((node.lineno, alias.name) for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                home = self._home(node)
                yield from ((node.lineno, f"{home}.{alias.name}") for alias in node.names)

    def _home(self, node: ast.ImportFrom) -> str:
        if not node.level:
            return node.module or ""
        package = self.name.split(".")
        if self.path.name != "__init__.py":
            package = package[:-1]
        package = package[: len(package) - node.level + 1]
        return ".".join([*package, node.module] if node.module else package)


def modules(source: Path) -> list[Module]:
    """Every module of the package under `source` (the directory that holds `twinbus`)."""
    found = []
    for path in sorted(source.rglob("*.py")):
        parts = path.relative_to(source).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        found.append(Module(name, path, _parsed(path, path.read_text())))
    return found


def impure_cores(source: Path) -> list[str]:
    """Pure modules that reach for I/O, time or chance, or lean on a shell that does."""
    broken = []
    for module in modules(source):
        if module.unit not in PURE_UNITS or module.is_shell:
            continue
        for line, name in module.imports():
            if name.split(".")[0] in IMPURE_IMPORTS:
                broken.append(f"{module.name}:{line} is pure and must not import {name}")
            if any(name == shell or name.startswith(f"{shell}.") for shell in SHELLS):
                broken.append(f"{module.name}:{line} is pure and must not lean on the shell {name}")
        broken += [
            f"{module.name}:{node.lineno} is pure and must not call {called}"
            for node in ast.walk(module.tree)
            if isinstance(node, ast.Call)
            if (called := ast.unparse(node.func)).removeprefix("datetime.") in IMPURE_CALLS
            or called in IMPURE_CALLS
        ]
    return broken


def missing_shells(source: Path) -> list[str]:
    """Entries of SHELLS that no longer name a module: an exception nobody needs."""
    present = {module.name for module in modules(source)}
    return [f"{name} is listed as a shell but is not there" for name in SHELLS.keys() - present]


def backward_arrows(source: Path) -> list[str]:
    """Imports from one unit to another that the map of the house does not draw."""
    units = {module.unit for module in modules(source)}
    broken = []
    for module in modules(source):
        if module.unit in KNOWS_ALL:
            continue
        allowed = ARROWS.get(module.unit)
        if allowed is None:
            broken.append(f"{module.name} is in {module.unit}, which ARROWS does not draw yet")
            continue
        for line, name in module.imports():
            parts = name.split(".")
            if parts[0] != "twinbus":
                continue
            target = parts[1] if len(parts) > 1 and parts[1] in units else "__init__"
            if target == module.unit or target in allowed:
                continue
            if not (target == "ledger" and module.is_shell):
                broken.append(f"{module.name}:{line} must not know {name}")
    return broken


def strayed_libraries(source: Path) -> list[str]:
    """Heavy libraries imported by a unit that has no business with them."""
    return [
        f"{module.name}:{line} must not import {name}"
        for module in modules(source)
        for line, name in module.imports()
        if module.unit not in FOREIGN_HOMES.get(name.split(".")[0], {module.unit})
    ]


def long_files(*trees: Path) -> list[str]:
    """Files past the limit: they hold two things that want two names."""
    return [
        f"{path} has {count} lines, at most {LINES_MAX}"
        for path in _python_files(*trees)
        if (count := len(path.read_text().splitlines())) > LINES_MAX
    ]


def nameless_things(*trees: Path) -> list[str]:
    """Files, packages and classes named by a word that says nothing about what they are."""
    broken = []
    for tree in trees:
        for path in _python_files(tree):
            parts = path.relative_to(tree).with_suffix("").parts
            broken += [f"{path} is named {part!r}" for part in parts if _says_nothing(part)]
            broken += [
                f"{path}:{node.lineno} class {node.name}"
                for node in ast.walk(_parsed(path, path.read_text()))
                if isinstance(node, ast.ClassDef) and _says_nothing(node.name)
            ]
    return broken


def undocumented(*trees: Path) -> list[str]:
    """Modules without a docstring."""
    return [
        f"{path} has no docstring"
        for path in _python_files(*trees)
        if ast.get_docstring(_parsed(path, path.read_text())) is None
    ]


@cache
def _parsed(path: Path, text: str) -> ast.Module:
    """Every rule reads every file: parsing it is most of what that costs."""
    return ast.parse(text, str(path))


def _python_files(*trees: Path) -> Iterator[Path]:
    for tree in trees:
        yield from sorted(tree.rglob("*.py"))


def _says_nothing(name: str) -> bool:
    words = re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)
    return any(word.lower() in FORBIDDEN_WORDS for word in words)
