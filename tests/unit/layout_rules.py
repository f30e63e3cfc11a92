"""The rules of the house as functions: each takes a source tree and returns what breaks it.

A rule returns lines a person can act on; an empty list means that the tree obeys. What the rules
hold to (which modules may do I/O, which package may know which) are the tables at the top.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Set
    from pathlib import Path

PURE_FOLDERS = frozenset(
    """amqp broker.engine broker.filters broker.messages control cost namespace
    pipeline.tables planning servicebus status transfer""".split()
)
"""Folders whose modules are pure although they are not called `core`."""

PURE_MODULES = frozenset({"twinbus.errors", "twinbus.options", "twinbus.wording"})

SHELLS: Mapping[str, str] = {
    "twinbus.amqp.transport": "moves bytes between a socket and the sans-IO connection",
    "twinbus.amqp.websocket_client": "the same over a WebSocket",
    "twinbus.control.sockets": "makes, finds and asks sockets",
    "twinbus.control.server": "answers on a socket",
    "twinbus.namespace.administration_client": "administration calls over HTTP",
    "twinbus.namespace.credentials": "reads files and variables, fetches tokens",
    "twinbus.namespace.namespace": "makes clients of the SDK",
}
"""Modules of pure folders that do I/O, each with its reason."""

IMPURE_IMPORTS = frozenset(
    """asyncio azure lmdb os pyspark random secrets select selectors shutil signal socket ssl
    starlette structlog subprocess tempfile threading time uvicorn uvloop""".split()
)
TABLE_LIBRARIES = frozenset({"pyspark"})
"""What `pipeline.tables` may import: its functions go from DataFrame to DataFrame."""

IMPURE_CALLS = frozenset({"datetime.now", "datetime.utcnow", "date.today", "uuid.uuid4", "uuid4"})
"""Ways to ask for the time or for chance that an import alone does not show."""

ARROWS: Mapping[str, Set[str]] = {
    "errors": set(),
    "servicebus": set(),
    "exposition": set(),
    "extras": {"errors"},
    "loops": set(),
    "lookups": set(),
    "wording": set(),
    "status": {"errors", "wording"},
    "options": {"errors"},
    "amqp": {"lookups"},
    "ledger": {"errors"},
    "cost": {"errors"},
    "planning": {"cost", "errors", "options"},
    "transfer": {"amqp", "errors"},
    "broker": {"amqp", "errors", "exposition", "namespace"},
    "namespace": {"errors", "extras", "lookups"},
    "pairing": {
        *("client", "errors", "exposition", "extras", "namespace", "options", "status"),
        *("transfer", "wording"),
    },
    "client": {"amqp", "errors", "namespace", "transfer"},
    "syphon": {"amqp", "client", "errors", "namespace", "options", "status", "transfer"},
    "control": {"errors", "status"},
    "settings": {"cost", "errors", "namespace", "options"},
    "pair": {"client", "control", "errors", "namespace", "options", "pairing", "status", "syphon"},
    "gateway": {
        *("amqp", "broker", "client", "errors", "exposition", "namespace", "pair", "pairing"),
        *("status", "transfer", "wording"),
    },
    "blocking": {"errors", "namespace", "options", "pair", "pairing", "status"},
    "kombu": {"blocking", "errors", "extras", "namespace", "options", "pairing", "settings"},
    "verify": {"amqp", "broker", "client", "errors", "namespace", "pairing"},
    "pipeline": {
        "client",
        "cost",
        "errors",
        "extras",
        "ledger",
        "loops",
        "namespace",
        "options",
        "planning",
        "syphon",
    },
    "page": {"control", "cost", "errors", "ledger", "namespace", "status", "wording"},
    "testing": {
        *("amqp", "broker", "client", "errors", "extras", "ledger", "namespace", "options"),
        *("pair", "pairing"),
    },
}
"""Which unit may know which. `console` and the public door may know all; a shell may also write to
the ledger, and all may know the facts of Service Bus. Nothing points back: `broker` above all never
knows pairing."""

KNOWS_ALL = frozenset({"console", "__init__"})

FOREIGN_HOMES: Mapping[str, Set[str]] = {
    "azure": {
        "blocking",
        "console",
        "kombu",
        "namespace",
        "pair",
        "pairing",
        "testing",
        "transfer",
        "verify",
    },
    "kombu": {"kombu"},
    "lmdb": {"broker"},
    "numpy": {"pipeline", "planning"},
    "opentelemetry": {"pairing"},
    "prometheus_client": {"exposition", "pairing"},
    "pyspark": {"console", "pipeline"},
    "starlette": {"broker", "console", "gateway", "page"},
    "uvicorn": {"broker", "console"},
}
"""Units that may import a heavy or foreign library at all."""

CLASSIC_HOME = "twinbus.pipeline.spark.classic"
"""The only module that may use a SparkContext, an RDD or the JVM: Spark Connect has none."""

CLASSIC_NAMES = frozenset(
    """SparkContext sparkContext rdd toJavaRDD _active_spark_context _gateway _jconf _jdf _jsc
    _jsparkSession _jvm _sc""".split()
)

SDK_HOME = "pairing.sdk"
"""The only folder that may use private parts of the SDK: one place to repair after an update."""

TUPLE_METHODS = frozenset({"_asdict", "_fields", "_make", "_replace"})
"""Public methods of named tuples, in spite of their names."""

LINES_MAX = 500
FILES_MAX = 20
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
    def folder(self) -> str:
        """The package that holds the module, as `broker.engine`."""
        parts = self.name.split(".")[1:]
        return ".".join(parts if self.path.name == "__init__.py" else parts[:-1])

    @property
    def is_pure(self) -> bool:
        """Whether the path says that the module decides and does no I/O."""
        if self.name in SHELLS:
            return False
        in_core = "core" in self.folder.split(".")
        return in_core or self.folder in PURE_FOLDERS or self.name in PURE_MODULES

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
    """Pure modules that reach for I/O, time or chance, or import a module that does."""
    found = {module.name: module for module in modules(source)}
    shells = _impure_modules(found)
    broken = []
    for module in found.values():
        if not module.is_pure:
            continue
        broken += _impurities(module)
        broken += [
            f"{module.name} is pure and must not lean on {name}"
            for name in sorted(_imported(module, found.keys()) & shells)
        ]
    return broken


def _impurities(module: Module) -> list[str]:
    """What the module itself does that a pure one must not."""
    allowed = TABLE_LIBRARIES if module.folder == "pipeline.tables" else frozenset()
    imports = [
        f"{module.name}:{line} is pure and must not import {name}"
        for line, name in module.imports()
        if name.split(".")[0] in IMPURE_IMPORTS - allowed
    ]
    return imports + [
        f"{module.name}:{node.lineno} is pure and must not call {called}"
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Call)
        if (called := ast.unparse(node.func)).removeprefix("datetime.") in IMPURE_CALLS
        or called in IMPURE_CALLS
    ]


def _impure_modules(found: Mapping[str, Module]) -> set[str]:
    """Modules outside the core that do I/O, and those that import one of them."""
    others = [module for module in found.values() if not module.is_pure]
    impure = {module.name for module in others if _impurities(module)}
    while True:
        more = {one.name for one in others if _imported(one, found.keys()) & impure} - impure
        if not more:
            return impure
        impure |= more


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
            if target in {module.unit, "servicebus"} or target in allowed:
                continue
            if not (target == "ledger" and not module.is_pure):
                broken.append(f"{module.name}:{line} must not know {name}")
    return broken


def import_circles(source: Path) -> list[str]:
    """Files that import each other, directly or through others; type-only imports count too."""
    found = {module.name: module for module in modules(source)}
    arrows = {name: _imported(module, found.keys()) for name, module in found.items()}
    return [" -> ".join([*circle, circle[0]]) for circle in _circles(arrows)]


def _imported(module: Module, known: Set[str]) -> set[str]:
    targets = set()
    for _, name in module.imports():
        while name and name not in known:
            name = name.rpartition(".")[0]  # noqa: PLW2901
        if name and name != module.name:
            targets.add(name)
    return targets


def _circles(arrows: Mapping[str, Set[str]]) -> Iterator[list[str]]:
    """One way round for each module that can reach itself, each circle once."""
    seen: set[frozenset[str]] = set()
    for start in sorted(arrows):
        road = _road_back(start, arrows)
        if road and not seen & {frozenset(road)}:
            seen.add(frozenset(road))
            yield road


def _road_back(start: str, arrows: Mapping[str, Set[str]]) -> list[str]:
    """The shortest way from a module to itself; empty: there is none."""
    came_from: dict[str, str] = {}
    waiting = [start]
    for here in waiting:
        for target in sorted(arrows[here]):
            if target == start:
                road = [here]
                while road[-1] != start:
                    road.append(came_from[road[-1]])
                return road[::-1]
            if target not in came_from:
                came_from[target] = here
                waiting.append(target)
    return []


def doubled_classes(source: Path) -> list[str]:
    """Class names with two meanings; `blocking` has the same names as the pair, on purpose."""
    homes: dict[str, list[str]] = {}
    for module in modules(source):
        for node in module.tree.body:
            if isinstance(node, ast.ClassDef) and module.unit != "blocking":
                homes.setdefault(node.name, []).append(module.name)
    return [
        f"class {name} is in {' and in '.join(found)}"
        for name, found in sorted(homes.items())
        if len(found) > 1
    ]


def crowded_folders(source: Path) -> list[str]:
    """Folders with more files than a reader takes in."""
    counts = Counter(path.parent for path in source.rglob("*.py"))
    return [
        f"{folder} has {count} files, at most {FILES_MAX}"
        for folder, count in sorted(counts.items())
        if count > FILES_MAX
    ]


def strayed_libraries(source: Path) -> list[str]:
    """Heavy libraries imported by a unit that has no business with them."""
    return [
        f"{module.name}:{line} must not import {name}"
        for module in modules(source)
        for line, name in module.imports()
        if module.unit not in FOREIGN_HOMES.get(name.split(".")[0], {module.unit})
    ]


def strayed_contexts(source: Path) -> list[str]:
    """Uses of a SparkContext, an RDD or the JVM outside their one module."""
    broken = []
    for module in modules(source):
        if module.name == CLASSIC_HOME:
            continue
        broken += [
            f"{module.name}:{line} must not import {name}: {CLASSIC_HOME} may"
            for line, name in module.imports()
            if name.split(".")[0] == "py4j" or name.split(".")[-1] in CLASSIC_NAMES
        ]
        broken += [
            f"{module.name}:{node.lineno} must not use {node.attr}: {CLASSIC_HOME} may"
            for node in ast.walk(module.tree)
            if isinstance(node, ast.Attribute) and node.attr in CLASSIC_NAMES
        ]
    return broken


def strayed_private_parts(source: Path) -> list[str]:
    """Private parts of the SDK, and of other foreign objects, used outside their one folder.

    Looked for in units that know the SDK. A private name that the module itself defines is its own.
    """
    broken = []
    for module in modules(source):
        if module.folder == SDK_HOME or module.unit not in FOREIGN_HOMES["azure"]:
            continue
        own = TUPLE_METHODS | _names_defined_by(module.tree)
        broken += [
            f"{module.name}:{node.lineno} must not use {name}: {SDK_HOME} may"
            for node in ast.walk(module.tree)
            if isinstance(node, ast.expr)
            and (name := _private_part(node)) is not None
            and name not in own
        ]
    return broken


def _private_part(node: ast.expr) -> str | None:
    """The private attribute of another object that an expression names, also as a text."""
    name: object = None
    if isinstance(node, ast.Attribute):
        is_own = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
        name = None if is_own else node.attr
    elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("getattr", "hasattr", "setattr"):
        name = node.args[1].value if isinstance(node.args[1], ast.Constant) else None
    is_private = isinstance(name, str) and name.startswith("_") and not name.startswith("__")
    return str(name) if is_private else None


def _names_defined_by(tree: ast.Module) -> set[str]:
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            names |= {node.attr} if ast.unparse(node.value) in ("self", "cls") else set()
    return names


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
