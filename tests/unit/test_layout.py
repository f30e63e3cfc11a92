"""The house obeys its rules, and each rule is able to catch a breach."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import twinbus
from tests.unit import layout_rules as rules

if TYPE_CHECKING:
    from collections.abc import Callable

# In one process: they share the parsed files.
pytestmark = pytest.mark.xdist_group("layout")

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src"
TREES = (SOURCE, ROOT / "tests", ROOT / "bench", ROOT / ".ci")

IMPORT_LIMIT_MS = 150
"""Processor time, which does not depend on what else the machine does."""

PUBLIC_NAMES = [
    "AliasTypeError",
    "AliasValueError",
    "BacklogFormatError",
    "BacklogGuardError",
    "BacklogMessageTooLargeError",
    "BacklogQueueFound",
    "BacklogQueueLeftOut",
    "BacklogQueuePulled",
    "BacklogQueueReturned",
    "BacklogUnavailableError",
    "BrokerError",
    "BrokerStartError",
    "CredentialError",
    "EmbeddedBroker",
    "EntityChanged",
    "EntityHeld",
    "EntityUnusableError",
    "EventStream",
    "EventsDropped",
    "Fault",
    "GuardWarned",
    "InvalidDestinationError",
    "ListenError",
    "MessageSender",
    "MissingDestinationError",
    "MissingPackageError",
    "MissingRightError",
    "Namespace",
    "NamespaceInUseError",
    "Pair",
    "PairClosedError",
    "PairEvent",
    "PairFaultedError",
    "PairNotStartedError",
    "PairSide",
    "PairStatus",
    "PairedSender",
    "PairingError",
    "PartialDivertError",
    "PingEnded",
    "ProtectionChanged",
    "ReservedPropertyError",
    "RightMissing",
    "SameNamespaceError",
    "ScheduleUnavailableError",
    "ScheduleUnknownError",
    "SendAvailabilityOptions",
    "SideChanged",
    "StoreError",
    "StoreFull",
    "TransferError",
    "TwinbusError",
    "Verdict",
    "WrongKeyError",
    "classify",
    "pair_namespaces",
]


@pytest.mark.parametrize(
    "rule",
    [
        rules.impure_cores,
        rules.missing_shells,
        rules.backward_arrows,
        rules.import_circles,
        rules.doubled_classes,
        rules.crowded_folders,
        rules.strayed_libraries,
        rules.strayed_contexts,
        rules.strayed_private_parts,
    ],
)
def test_the_package_keeps_its_shape(rule: Callable[[Path], list[str]]) -> None:
    assert rule(SOURCE) == []


@pytest.mark.parametrize("rule", [rules.long_files, rules.nameless_things, rules.undocumented])
def test_every_file_keeps_the_style(rule: Callable[..., list[str]]) -> None:
    assert rule(*TREES) == []


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
    visible = [
        module.name
        for module in rules.modules(SOURCE)
        for node in module.tree.body
        if isinstance(node, ast.FunctionDef) and node.name == "__getattr__"
    ]
    assert visible == []


def test_every_error_is_a_twinbus_error_and_is_drawn_in_the_tree() -> None:
    from twinbus import errors

    classes = [
        node.name
        for node in ast.parse(Path(errors.__file__).read_text()).body
        if isinstance(node, ast.ClassDef)
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


def made_up(root: Path, **files: str) -> Path:
    """A source tree of a few files; `__` in a name is a directory."""
    for name, text in files.items():
        path = root / "twinbus" / (name.replace("__", "/") + ".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


@pytest.mark.parametrize(
    ("name", "text", "complaint"),
    [
        ("pairing__core__pump", "import asyncio", "asyncio"),
        ("pairing__core__deep__er", "import socket", "socket"),
        ("gateway__core__routes", "open_file = __import__\nimport os", "os"),
        ("broker__engine__queue", "def f():\n    from time import time", "time.time"),
        ("amqp__types", "import os.path", "os.path"),
        ("broker__engine__queue", "from twinbus.broker.server import x", "twinbus.broker.server"),
        ("broker__engine__queue", "from .. import server", "twinbus.broker.server"),
        ("broker__engine__queue", "from ..server import x", "twinbus.broker.server"),
        ("broker__engine__queue", "import datetime\ndatetime.datetime.now()", "datetime.now"),
        ("broker__engine__queue", "import uuid\nuuid.uuid4()", "uuid4"),
        ("pipeline__tables__gold", "import subprocess", "subprocess"),
        ("errors", "import azure.servicebus", "azure"),
    ],
)
def test_an_impure_core_is_found(tmp_path: Path, name: str, text: str, complaint: str) -> None:
    found = rules.impure_cores(made_up(tmp_path, broker__server="import asyncio", **{name: text}))
    assert len(found) == 1
    assert complaint in found[0]


def test_shells_and_other_imports_are_left_alone(tmp_path: Path) -> None:
    tree = made_up(
        tmp_path,
        amqp__transport="import asyncio, time",
        broker__server="import asyncio, time",
        broker__engine__lane="",
        broker__engine__queue=(
            "from twinbus.broker.engine.lane import Lane\nimport heapq\nfrom uuid import UUID"
        ),
        pipeline__tables__gold="import pyspark",
    )
    assert rules.impure_cores(tree) == []


def test_a_shell_that_is_gone_is_found(tmp_path: Path) -> None:
    found = rules.missing_shells(made_up(tmp_path, amqp__transport="x = 1"))
    assert len(found) == len(rules.SHELLS) - 1
    assert not any("amqp.transport " in line for line in found)


@pytest.mark.parametrize(
    ("files", "circle"),
    [
        (
            {"a__one": "from twinbus.a.two import x", "a__two": "import twinbus.a.one"},
            "twinbus.a.one -> twinbus.a.two -> twinbus.a.one",
        ),
        (
            {
                "a__one": "from twinbus.a import two",
                "a__two": "def f():\n    from twinbus.b.three import x",
                "b__three": (
                    "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n"
                    "    from twinbus.a.one import y"
                ),
            },
            "twinbus.a.one -> twinbus.a.two -> twinbus.b.three -> twinbus.a.one",
        ),
    ],
)
def test_an_import_circle_is_found(tmp_path: Path, files: dict[str, str], circle: str) -> None:
    assert rules.import_circles(made_up(tmp_path, **files)) == [circle]


def test_files_that_import_no_way_back_are_no_circle(tmp_path: Path) -> None:
    tree = made_up(
        tmp_path,
        a__one="from twinbus.a.two import x\nfrom twinbus.a import three",
        a__two="from twinbus.a.three import x",
        a__three="import os",
    )
    assert rules.import_circles(tree) == []


def test_a_class_name_with_two_meanings_is_found(tmp_path: Path) -> None:
    tree = made_up(
        tmp_path,
        pairing__core__lane="class Lane: pass\nclass Other: pass",
        syphon__lanes="class Lane: pass",
        blocking__lanes="class Other: pass",
    )
    assert rules.doubled_classes(tree) == [
        "class Lane is in twinbus.pairing.core.lane and in twinbus.syphon.lanes"
    ]


def test_a_crowded_folder_is_found(tmp_path: Path) -> None:
    files = {f"attic__box_{number}": "" for number in range(rules.FILES_MAX)}
    assert rules.crowded_folders(made_up(tmp_path, **files)) == []
    found = rules.crowded_folders(made_up(tmp_path, attic__one_more=""))
    assert [line.split("/")[-1] for line in found] == ["attic has 21 files, at most 20"]


@pytest.mark.parametrize(
    ("name", "text", "complaint"),
    [
        ("broker__server", "from twinbus.pairing import ping", "must not know twinbus.pairing"),
        ("amqp__types", "from twinbus import broker", "must not know twinbus.broker"),
        ("amqp__types", "from .. import broker", "must not know twinbus.broker"),
        ("broker__engine__queue", "import twinbus.ledger", "must not know twinbus.ledger"),
        ("broker__queue", "from twinbus import EmbeddedBroker", "twinbus.EmbeddedBroker"),
        ("attic__chest", "x = 1", "does not draw"),
    ],
)
def test_an_arrow_that_points_back_is_found(
    tmp_path: Path, name: str, text: str, complaint: str
) -> None:
    tree = made_up(tmp_path, broker__lane="", pairing__ping="", ledger__writer="", **{name: text})
    found = rules.backward_arrows(tree)
    assert len(found) == 1
    assert complaint in found[0]


def test_drawn_arrows_are_left_alone(tmp_path: Path) -> None:
    tree = made_up(
        tmp_path,
        amqp__types="from twinbus.amqp import performatives",
        broker__server="from twinbus.amqp.types import encode\nimport twinbus.ledger.writer",
        ledger__writer="from twinbus.errors import TwinbusError",
        console__cli="from twinbus.broker.server import x",
        errors="",
    )
    assert rules.backward_arrows(tree) == []


def test_a_strayed_library_is_found(tmp_path: Path) -> None:
    tree = made_up(
        tmp_path, broker__server="import azure.servicebus", pairing__client="import azure"
    )
    assert rules.strayed_libraries(tree) == [
        "twinbus.broker.server:1 must not import azure.servicebus"
    ]


@pytest.mark.parametrize(
    ("name", "text", "complaint"),
    [
        ("pipeline__store__store", "def f(spark):\n    spark.sparkContext.master", "sparkContext"),
        ("pipeline__store__store", "count = frame.rdd.getNumPartitions()", "rdd"),
        ("pipeline__planner", "from pyspark import SparkContext", "pyspark.SparkContext"),
        ("console__scan", "from py4j.protocol import Py4JError", "py4j.protocol.Py4JError"),
    ],
)
def test_a_context_outside_its_module_is_found(
    tmp_path: Path, name: str, text: str, complaint: str
) -> None:
    tree = made_up(tmp_path, pipeline__spark__classic=text, **{name: text})
    [found] = rules.strayed_contexts(tree)
    assert complaint in found


def test_a_private_part_of_the_sdk_outside_its_folder_is_found(tmp_path: Path) -> None:
    text = "def f(sdk):\n    return sdk._handler, getattr(sdk, '_link'), sdk.name, sdk._replace()"
    own = "class A:\n    def f(self, other):\n        self._x = other._x, self._y"
    tree = made_up(tmp_path, pairing__sdk__pool=text, blocking__links=text, pairing__core__a=own)
    assert rules.strayed_private_parts(tree) == [
        f"twinbus.blocking.links:2 must not use {name}: pairing.sdk may"
        for name in ("_handler", "_link")
    ]


def test_a_long_file_a_nameless_thing_and_a_silent_module_are_found(tmp_path: Path) -> None:
    tree = made_up(
        tmp_path,
        long='"""Long."""\n' + "x = 1\n" * rules.LINES_MAX,
        just='"""Short enough."""\n' + "x = 1\n" * (rules.LINES_MAX - 1),
        queue_utils='"""Nameless."""',
        locks='"""Named well."""\nclass LockManager: pass\nclass Database: pass',
        silent="x = 1",
    )
    assert [line.split("/")[-1] for line in rules.long_files(tree)] == [
        "long.py has 501 lines, at most 500"
    ]
    assert [line.split("/")[-1] for line in rules.nameless_things(tree)] == [
        "locks.py:2 class LockManager",
        "queue_utils.py is named 'queue_utils'",
    ]
    assert [line.split("/")[-1] for line in rules.undocumented(tree)] == [
        "silent.py has no docstring"
    ]
