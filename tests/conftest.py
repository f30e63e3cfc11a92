"""Settings that all tests share."""

from __future__ import annotations

import asyncio
import gc
import inspect
import logging
import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from tests.processes import short_directory
from twinbus.testing import run_virtual

# No deadline: it measures the machine's mood, not the code; a hang meets pytest's timeout.
# The same examples each time: whether a change lands must not hang on chance.
settings.register_profile("test", deadline=None, derandomize=True, max_examples=60)
# `make soak` asks the same questions far more often, and new ones each time.
settings.register_profile("soak", deadline=None, max_examples=5_000)
settings.load_profile("test")

# A shell starts what it puts into the background with SIGINT ignored, and programs inherit that:
# those that the tests stop with it would never hear it.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Files of secrets that others can read are refused.
os.umask(0o077)

# Until all tests are collected: what collecting makes stays, and to look through it again and again
# takes a fifth of the time.
gc.disable()

SPARK_PROGRAMS = (
    "tests/spark/test_cluster.py",
    "tests/spark/test_drain_tokens.py",
    "tests/end_to_end/test_drill.py",
)
"""They start Sparks of their own, one after the other: a third at once would slow all down."""

SPARK_COMMANDS = tuple(
    f"tests/spark/test_{name}.py"
    for name in ("drain", "inspection", "ledger_commands", "missing_records", "session")
)
SPARK_TESTS = "tests/spark/"
"""The commands share one session, the others another: about as long as each other."""

TOURS = "tests/other_languages/"
"""One after the other: each builds a program, and three builds at once would starve the rest."""

LEFT_BY_OTHERS = (
    "Task exception was never retrieved",
    "Future exception was never retrieved",
    "Task was destroyed but it is pending",
    "Unclosed ",
)

SHARING = ("contract", "end_to_end")
"""Marks of tests that share a broker with the others of their file."""


@pytest.fixture(autouse=True)
def python_takes_ctrl_c() -> None:
    """Give SIGINT back to Python: a Spark that a test before started here took it for itself."""
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def caplog(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    """Leave out what asyncio logs about garbage.

    It tells of what an earlier test left, in whatever test that is collected.
    """

    def is_told(record: logging.LogRecord) -> bool:
        return record.name != "asyncio" or not record.getMessage().startswith(LEFT_BY_OTHERS)

    caplog.handler.addFilter(is_told)
    yield caplog
    caplog.handler.removeFilter(is_told)


@pytest.fixture(autouse=True, scope="session")
def _run_directory() -> Iterator[None]:
    """Keep the control sockets of pairs in tests away from those of this machine's user."""
    with tempfile.TemporaryDirectory(prefix="twinbus-test-") as directory:
        os.environ["TWINBUS_RUN_DIR"] = directory
        # Nor may a settings file of the user have a say.
        os.environ["TWINBUS_CONFIG"] = ""
        yield


@pytest.fixture
def short_searches(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pair looks for missing backlog queues at a sixtieth of the true intervals."""
    for name, interval_s in (("SEARCH_S", 1.0), ("SEARCH_UNREACHABLE_S", 0.1)):
        monkeypatch.setattr(f"twinbus.pairing.core.secondary.{name}", interval_s)


@pytest.fixture
def run_directory() -> Iterator[Path]:
    """A directory for the control sockets of one test."""
    with short_directory() as directory:
        yield directory


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a coroutine test on a loop of its own.

    With the mark `virtual_time` that is a VirtualLoop, and no task may be left at its end. A
    fixture `runner` (an asyncio.Runner) brings another loop, or one that tests share.
    """
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = inspect.signature(pyfuncitem.obj).parameters
    work = pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names})
    if pyfuncitem.get_closest_marker("virtual_time"):
        run_virtual(work)
    elif "runner" in pyfuncitem.funcargs:
        runner: Any = pyfuncitem.funcargs["runner"]
        runner.run(work)
    else:
        asyncio.run(work)
    return True


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep together what shares a broker or a Spark session; first, so that xdist sees it.

    The longest chains come first: what starts last would run alone at the end.
    """
    names = ("spark", "spark commands", "spark programs", "tours")
    chains: dict[str, list[pytest.Item]] = {name: [] for name in names}
    others: list[pytest.Item] = []
    for item in items:
        if item.nodeid.startswith(SPARK_PROGRAMS):
            chains["spark programs"].append(item)
        elif item.nodeid.startswith(SPARK_COMMANDS):
            chains["spark commands"].append(item)
        elif item.nodeid.startswith(SPARK_TESTS):
            chains["spark"].append(item)
        elif item.nodeid.startswith(TOURS):
            chains["tours"].append(item)
        else:
            others.append(item)
            if any(item.get_closest_marker(mark) for mark in SHARING):
                item.add_marker(pytest.mark.xdist_group(item.nodeid.partition("::")[0]))
    for name, chain in chains.items():
        for item in chain:
            item.add_marker(pytest.mark.xdist_group(name))
    items[:] = [item for chain in chains.values() for item in chain] + others
