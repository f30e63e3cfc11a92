"""The package obeys the rules of docs/architecture.md: imports, pure cores, names, folders."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections import Counter
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path
from typing import TYPE_CHECKING

import grimp
import pytest
from importlinter.cli import lint_imports

import twinbus

if TYPE_CHECKING:
    from collections.abc import Iterator

# In one process: they share the parsed files and the graph of imports.
pytestmark = pytest.mark.xdist_group("layout")

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "twinbus"
TREES = (PACKAGE, ROOT / "tests", ROOT / "bench", ROOT / ".ci")

PURE_FOLDERS = """amqp broker.engine broker.filters broker.messages control cost namespace
    pipeline.tables planning servicebus status transfer""".split()
"""Folders whose modules are pure although they are not called `core`."""

PURE_MODULES = {"twinbus.errors", "twinbus.options", "twinbus.wording"}

SHELLS = {
    "twinbus.amqp.transport": "moves bytes between a socket and the sans-IO connection",
    "twinbus.amqp.websocket_client": "the same over a WebSocket",
    "twinbus.control.server": "answers on a socket",
    "twinbus.control.sockets": "makes, finds and asks sockets",
    "twinbus.namespace.administration_client": "administration calls over HTTP",
    "twinbus.namespace.credentials": "reads files and variables, fetches tokens",
    "twinbus.namespace.namespace": "makes clients of the SDK",
}
"""Modules of pure folders that do I/O, each with its reason."""

IMPURE_IMPORTS = set(
    """asyncio azure lmdb os pyspark random secrets select selectors shutil signal socket ssl
    starlette structlog subprocess tempfile threading time uvicorn uvloop""".split()
)
IMPURE_CALLS = re.compile(r"\b(datetime\.(utc)?now|date\.today|uuid4)\(")
"""Calls for the time or for a random id, which an import alone does not show."""

CLASSIC_HOME = PACKAGE / "pipeline" / "spark" / "classic.py"
"""The only module that may use a SparkContext, an RDD or the JVM: Spark Connect has none."""

CLASSIC_NAMES = set(
    """SparkContext sparkContext py4j rdd toJavaRDD _active_spark_context _gateway _jconf _jdf _jsc
    _jsparkSession _jvm _sc""".split()
)

SDK_UNITS = "blocking console kombu namespace pair pairing testing transfer verify".split()
SDK_HOME = PACKAGE / "pairing" / "sdk"
"""The only folder that may use private parts of the SDK: one place to repair after an update."""

FILES_MAX = 20
FORBIDDEN_WORDS = {"base", "common", "helper", "helpers", "manager", "util", "utils"}

IMPORT_LIMIT_MS = 150
"""Processor time, which does not depend on what else the machine does."""

PUBLIC_NAMES = """
    AliasTypeError AliasValueError BacklogFormatError BacklogGuardError
    BacklogMessageTooLargeError BacklogQueueFound BacklogQueueLeftOut BacklogQueuePulled
    BacklogQueueReturned BacklogUnavailableError BrokerError BrokerStartError CredentialError
    DeadLetterError EmbeddedBroker EntityChanged EntityHeld EntityUnusableError EventStream
    EventsDropped Fault
    GuardWarned InvalidDestinationError ListenError MessageSender MissingDestinationError
    MissingPackageError MissingRightError Namespace NamespaceInUseError Pair PairClosedError
    PairEvent PairFaultedError PairNotStartedError PairSide PairStatus PairedSender
    PairingError PartialDivertError PingEnded PrimarySide Processor ProtectionChanged
    ReservedPropertyError
    RightMissing SameNamespaceError ScheduleUnavailableError ScheduleUnknownError
    SendAvailabilityOptions SideChanged StoreDamaged StoreError StoreFull Transaction
    TransactionError TransactionRolledBackError TransactionUnavailableError
    TransactionUnknownError Transactions TransferError TwinChanged TwinbusError
    Verdict WrongKeyError classify pair_namespaces process transactions
""".split()


def test_packages_import_only_what_pyproject_allows(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # It would disable the loggers of this process, which later tests read.
    monkeypatch.setattr("importlinter.cli._configure_logging", lambda verbose: None)
    broken = lint_imports(str(ROOT / "pyproject.toml"), no_cache=True)
    assert not broken, capsys.readouterr().out


def test_no_files_import_each_other() -> None:
    """Directly or through others; imports for types count too."""
    graph = imports()
    arrows = {name: graph.find_modules_directly_imported_by(name) for name in graph.modules}
    TopologicalSorter(arrows).prepare()  # raises CycleError with the circle


def test_a_core_does_no_io_and_imports_nothing_that_does() -> None:
    graph = imports()
    assert SHELLS.keys() <= graph.modules
    for name, text in sources():
        if not is_pure(name):
            continue
        allowed = {"pyspark"} if name.startswith("twinbus.pipeline.tables.") else set()
        for library in graph.find_upstream_modules(name) & IMPURE_IMPORTS - allowed:
            pytest.fail(f"pure, but imports: {graph.find_shortest_chain(name, library)}")
        assert not IMPURE_CALLS.search(text), f"{name} is pure and must not ask for time or chance"


def is_pure(name: str) -> bool:
    """Whether the place of a module says that it decides and does no I/O."""
    if name in SHELLS:
        return False
    folder = f"{name.removeprefix('twinbus.')}."
    return (
        ".core." in folder
        or folder.startswith(tuple(f"{pure}." for pure in PURE_FOLDERS))
        or name in PURE_MODULES
    )


def test_a_class_name_has_one_meaning() -> None:
    """`blocking` has the names of the pair on purpose."""
    counts = Counter(
        name
        for path in python_files(PACKAGE)
        if PACKAGE / "blocking" not in path.parents
        for name in re.findall(r"^class (\w+)", path.read_text(), re.MULTILINE)
    )
    assert [name for name, count in counts.items() if count > 1] == []


def test_no_folder_has_more_files_than_a_reader_takes_in() -> None:
    counts = Counter(path.parent for path in python_files(PACKAGE))
    assert {folder: count for folder, count in counts.items() if count > FILES_MAX} == {}


def test_one_module_uses_a_spark_context() -> None:
    users = {
        path
        for path in python_files(PACKAGE / "console", PACKAGE / "pipeline")
        for node in ast.walk(parsed(path))
        for field in ("attr", "id", "name", "module")
        if CLASSIC_NAMES & set(str(getattr(node, field, "")).split("."))
    }
    assert users == {CLASSIC_HOME}


def test_one_folder_uses_private_parts_of_the_sdk() -> None:
    """Checks the packages that know the SDK; a name that a module itself defines is its own."""
    broken = []
    for path in python_files(PACKAGE):
        unit = path.relative_to(PACKAGE).with_suffix("").parts[0]
        if unit in SDK_UNITS and path.parent != SDK_HOME:
            used = dict(private_parts(parsed(path)))
            broken += [f"{path}:{used[name]} {name}" for name in used if not defines(path, name)]
    assert broken == []


def private_parts(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Private attributes of other objects and their lines, also those named by a text."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) not in ("self", "cls"):
            name: object = node.attr
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("getattr", "setattr"):
            name = node.args[1].value if isinstance(node.args[1], ast.Constant) else None
        else:
            continue
        # Methods of a named tuple are public in spite of their names.
        if isinstance(name, str) and re.match(r"_(?!_|asdict|fields|make|replace)", name):
            yield name, node.lineno


def defines(path: Path, name: str) -> bool:
    return bool(re.search(rf"\b(def|class) {name}\b|\bself\.{name}\b", path.read_text()))


def test_every_name_says_what_the_thing_is() -> None:
    for tree in TREES:
        for path in python_files(tree):
            names = [*path.relative_to(tree).with_suffix("").parts]
            names += re.findall(r"^ *class (\w+)", path.read_text(), re.MULTILINE)
            words = {word.lower() for name in names for word in re.findall("[A-Z]?[a-z]+", name)}
            assert not words & FORBIDDEN_WORDS, path


def test_the_public_names_are_these_and_all_of_them_load() -> None:
    assert sorted(twinbus.__all__) == PUBLIC_NAMES
    assert set(twinbus._HOMES) == set(twinbus.__all__)
    for name in twinbus.__all__:
        assert getattr(twinbus, name).__name__ == name
    assert set(twinbus.__all__) <= set(dir(twinbus))
    with pytest.raises(AttributeError, match="no attribute 'pair_of_shoes'"):
        twinbus.pair_of_shoes  # type: ignore[attr-defined]  # noqa: B018


def test_no_type_checker_sees_the_functions_that_load_names_on_first_use() -> None:
    """A checker that sees `__getattr__` of a module accepts every misspelt name of it."""
    assert [name for name, text in sources() if "\ndef __getattr__(" in text] == []


def test_every_error_is_a_twinbus_error_and_is_drawn_in_the_tree() -> None:
    from twinbus import errors

    classes = [
        node.name for node in parsed(Path(errors.__file__)).body if isinstance(node, ast.ClassDef)
    ]
    assert errors.__doc__ is not None
    for name in classes:
        assert issubclass(getattr(errors, name), errors.TwinbusError)
        assert name in errors.__doc__


def test_importing_twinbus_is_quick_and_loads_no_library() -> None:
    script = (
        "import json, sys, time\n"
        "before, began = set(sys.modules), time.process_time()\n"
        "import twinbus\n"
        "took = time.process_time() - began\n"
        "print(json.dumps([took * 1000, sorted(set(sys.modules) - before)]))\n"
    )

    def import_it() -> str:
        return subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, check=True
        ).stdout

    import_it()  # compiles what was not compiled yet
    took_ms, loaded = json.loads(import_it())
    roots = {name.split(".")[0] for name in loaded}
    assert "twinbus" in roots
    assert roots - sys.stdlib_module_names - {"twinbus"} == set()
    assert took_ms < IMPORT_LIMIT_MS


@cache
def imports() -> grimp.ImportGraph:
    return grimp.build_graph("twinbus", include_external_packages=True, cache_dir=None)


def sources() -> Iterator[tuple[str, str]]:
    """Name and text of every module of the package."""
    for path in python_files(PACKAGE):
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        yield ".".join(parts).removesuffix(".__init__"), path.read_text()


def python_files(*trees: Path) -> Iterator[Path]:
    for tree in trees:
        yield from sorted(tree.rglob("*.py"))


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), str(path))
