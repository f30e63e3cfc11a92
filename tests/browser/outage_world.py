"""Two brokers, a program that sends, and `twinbus page`: all in processes of their own."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.browser import many_pairs, steered_pair
from tests.end_to_end import paired_program
from tests.official_sdk import administration
from tests.processes import ENTRY, ServedBroker, short_directory, started

LABEL = "contoso"
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
        primary = stack.enter_context(ServedBroker(directory / "primary", "contoso"))
        secondary = stack.enter_context(ServedBroker(directory / "secondary", "contoso-dr"))
        with administration(primary.connection_string()) as admin:
            for entity in ENTITIES:
                admin.create_queue(entity)
        sockets = stack.enter_context(short_directory())
        sides = primary.connection_string(), secondary.connection_string()
        ledger = str(directory / "ledger")
        environment = {
            "TWINBUS_RUN_DIR": str(sockets),
            "TWINBUS_PRIMARY": sides[0],
            "TWINBUS_SECONDARY": sides[1],
        }
        running = paired_program.running(
            sockets, *sides, LABEL, *ENTITIES, environment={"SEND_EVERY_S": "0.2"},
            failover_interval=2, ping_primary_interval=2, undeliverable_grace=0, ledger=ledger,
            enable_syphon=has_syphon,
        )  # fmt: skip
        program = stack.enter_context(running)
        page = _page(stack, environment, "--port", "0", "--ledger", ledger)
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
        environment = {"TWINBUS_RUN_DIR": str(stack.enter_context(short_directory()))}
        numbers = [str(number) for number in (pairs, entities, changes_per_s)]
        _program(stack, environment, many_pairs.__file__, *numbers)
        page = _page(stack, environment, "--port", "0")
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
        with started("-c", ENTRY, "page", *options, environment=self.environment) as page:
            yield _first_line(page, ADDRESS)


@contextmanager
def shown_pairs(*options: str) -> Iterator[Shown]:
    """Start `steered_pair` and a page with these options, whose tokens come from files."""
    with ExitStack() as stack:
        environment = {"TWINBUS_RUN_DIR": str(stack.enter_context(short_directory()))}
        program = _program(stack, environment, steered_pair.__file__)
        page = _page(stack, environment, *options)
        yield Shown(program, page, _first_line(page, r"https?://\S+"), environment)


def _program(
    stack: ExitStack, environment: Mapping[str, str], *arguments: str
) -> subprocess.Popen[str]:
    """Start a program that prints "ready", and wait for that."""
    program = stack.enter_context(started(*arguments, environment=environment))
    assert _first_line(program, "ready")
    return program


def _page(stack: ExitStack, environment: Mapping[str, str], *options: str) -> subprocess.Popen[str]:
    return stack.enter_context(started("-c", ENTRY, "page", *options, environment=environment))


def _first_line(process: subprocess.Popen[str], wanted: str | re.Pattern[str]) -> str:
    """Return the first match in what a process prints."""
    assert process.stdout is not None
    for line in process.stdout:
        if match := re.search(wanted, line):
            return match.group()
    raise RuntimeError(f"the process ended before it printed {wanted}")
