"""Two brokers, a program that sends, and `twinbus page`: all in processes of their own."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.browser import many_pairs, sending_program
from tests.official_sdk import administration
from tests.processes import ENTRY, ServedBroker

ENTITIES = ("invoices", "orders", "payments", "returns")
ADDRESS = re.compile(r"https?://\S+token=\S+")


@dataclass(frozen=True, slots=True)
class OutageWorld:
    """What the test needs to break, mend and open."""

    primary: ServedBroker
    secondary: ServedBroker
    program: subprocess.Popen[str]
    address: str
    """The page's address with its token."""


@contextmanager
def outage_world(directory: Path) -> Iterator[OutageWorld]:
    """Start everything; the program sends and the page answers when the block begins."""
    with ExitStack() as stack:
        for name in ("primary", "secondary"):
            (directory / name).mkdir()
        primary = stack.enter_context(ServedBroker(directory / "primary", "contoso"))
        secondary = stack.enter_context(ServedBroker(directory / "secondary", "contoso-dr"))
        with administration(primary.connection_string()) as admin:
            for entity in ENTITIES:
                admin.create_queue(entity)
        # Pytest's own directories are too long for the address of a socket.
        sockets = stack.enter_context(_short_directory())
        sides = primary.connection_string(), secondary.connection_string()
        ledger = str(directory / "ledger")
        environment = {
            **os.environ,
            "TWINBUS_RUN_DIR": str(sockets),
            "TWINBUS_PRIMARY": sides[0],
            "TWINBUS_SECONDARY": sides[1],
        }
        program = stack.enter_context(
            _process([sending_program.__file__, *sides, ledger, *ENTITIES], environment)
        )
        assert _first_line(program, "ready")
        command = ["page", "--port", "0", "--ledger", ledger]
        page = stack.enter_context(_process(["-c", ENTRY, *command], environment))
        yield OutageWorld(primary, secondary, program, _first_line(page, ADDRESS))


@dataclass(frozen=True, slots=True)
class Watched:
    """The page of many pairs."""

    address: str
    pid: int


@contextmanager
def watched_pairs(pairs: int, entities: int, changes_per_s: int) -> Iterator[Watched]:
    """Start `many_pairs` and a page that shows them."""
    with ExitStack() as stack:
        sockets = stack.enter_context(_short_directory())
        environment = {**os.environ, "TWINBUS_RUN_DIR": str(sockets)}
        numbers = [str(number) for number in (pairs, entities, changes_per_s)]
        program = stack.enter_context(_process([many_pairs.__file__, *numbers], environment))
        assert _first_line(program, "ready")
        page = stack.enter_context(_process(["-c", ENTRY, "page", "--port", "0"], environment))
        yield Watched(_first_line(page, ADDRESS), page.pid)


@contextmanager
def _short_directory() -> Iterator[Path]:
    directory = Path(tempfile.mkdtemp(prefix="tb-"))
    try:
        yield directory
    finally:
        shutil.rmtree(directory)


@contextmanager
def _process(
    arguments: list[str], environment: Mapping[str, str]
) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, *arguments], env=environment, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def _first_line(process: subprocess.Popen[str], wanted: str | re.Pattern[str]) -> str:
    """Return the first match in what a process prints."""
    assert process.stdout is not None
    for line in process.stdout:
        if match := re.search(wanted, line):
            return match.group()
    raise RuntimeError(f"the process ended before it printed {wanted}")
