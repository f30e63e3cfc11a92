"""`twinbus ledger` without Spark: how it ends when something goes wrong, and its help."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import pytest
from py4j.protocol import Py4JError  # type: ignore[import-untyped]

from tests.unit.console.commands import run
from twinbus.console import spark_thread
from twinbus.console.terminal.output import COULD_NOT, STOPPED
from twinbus.ledger.record import LedgerError
from twinbus.pipeline.store import upkeep

VERBS = (
    *(["status"], ["update"], ["rebuild"], ["compact"]),
    *(["retain", "--days", "9"], ["erase", "--message-id", "x"]),
)


@pytest.fixture
def perform(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], Any]], None]:
    """Have something done in place of what Spark would do."""

    @contextmanager
    def no_session(**settings: Any) -> Iterator[Any]:
        yield mock.Mock()

    def patch(work: Callable[[], Any]) -> None:
        monkeypatch.setattr(spark_thread, "spark_session", no_session)
        monkeypatch.setattr(upkeep, "perform", lambda *given: work())

    return patch


@pytest.mark.parametrize(("verb", "more"), [(verb, more) for verb, *more in VERBS])
@pytest.mark.parametrize(
    ("error", "line"),
    [
        (
            Py4JError("An error occurred.\n: java.net.UnknownHostException: nohost\n\tat x"),
            "Spark could not work it out: java.net.UnknownHostException: nohost",
        ),
        (LedgerError("there is no ledger at x"), "there is no ledger at x"),
    ],
)
def test_what_goes_wrong_is_one_line(
    verb: str,
    more: list[str],
    error: Exception,
    line: str,
    perform: Callable[[Callable[[], Any]], None],
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail() -> None:
        raise error

    perform(fail)
    ran = run(capsys, "ledger", verb, "hdfs://nohost/x", *more)
    assert ran == (COULD_NOT, "", f"twinbus: {line}\n")


def test_ctrl_c_does_not_wait_for_spark(
    perform: Callable[[Callable[[], Any]], None], capsys: pytest.CaptureFixture[str]
) -> None:
    over = threading.Event()
    waited = []

    def last() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        waited.append(over.wait(20))

    perform(last)
    try:
        assert run(capsys, "ledger", "compact", "x") == (STOPPED, "", "twinbus: stopped\n")
        assert waited == []
    finally:
        over.set()


@pytest.mark.parametrize("verb", [verb for verb, *_ in VERBS])
def test_the_commands_have_help_with_an_example(
    verb: str, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = run(capsys, "ledger", verb, "--help")
    assert shown.status == 0
    assert f"Example: twinbus ledger {verb}" in shown.out
