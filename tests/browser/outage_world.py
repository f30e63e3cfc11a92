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

from tests.browser import many_pairs, sending_program, steered_pair
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
    ledger: str
    environment: Mapping[str, str]
    """Of every command about this world."""


@contextmanager
def outage_world(directory: Path, *, has_syphon: bool = True) -> Iterator[OutageWorld]:
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
            **({} if has_syphon else {"NO_SYPHON": "1"}),
        }
        program = stack.enter_context(
            _process([sending_program.__file__, *sides, ledger, *ENTITIES], environment)
        )
        assert _first_line(program, "ready")
        command = ["page", "--port", "0", "--ledger", ledger]
        page = stack.enter_context(_process(["-c", ENTRY, *command], environment))
        address = _first_line(page, ADDRESS)
        yield OutageWorld(primary, secondary, program, address, ledger, environment)


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


@dataclass(frozen=True, slots=True)
class Shown:
    """A page over the sockets of `steered_pair`."""

    program: subprocess.Popen[str]
    page: subprocess.Popen[str]
    address: str
    """Of the page, without a token."""
    environment: Mapping[str, str]

    @contextmanager
    def another_page(self, *options: str) -> Iterator[str]:
        """Start one more page over the same sockets; yields its address with its token."""
        with _process(["-c", ENTRY, "page", *options], self.environment) as page:
            yield _first_line(page, ADDRESS)


@contextmanager
def shown_pairs(*options: str) -> Iterator[Shown]:
    """Start `steered_pair` and a page with these options, whose tokens come from files."""
    with ExitStack() as stack:
        sockets = stack.enter_context(_short_directory())
        paths = os.pathsep.join(sys.path)
        environment = {**os.environ, "TWINBUS_RUN_DIR": str(sockets), "PYTHONPATH": paths}
        program = stack.enter_context(_process([steered_pair.__file__], environment))
        assert _first_line(program, "ready")
        page = stack.enter_context(_process(["-c", ENTRY, "page", *options], environment))
        yield Shown(program, page, _first_line(page, r"https?://\S+"), environment)


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
