"""Jobs for `spark-submit`, or alone as `python -m twinbus.pipeline.submit`.

    spark-submit --master URL "$(python -m twinbus.pipeline.submit --where)" update LEDGER

    drain      move the messages of backlog queues home; TWINBUS_PRIMARY and TWINBUS_SECONDARY
               hold connection strings, because others can see a command line, or sb://HOST texts
               whose credential is in them or in TWINBUS_CREDENTIAL
    update     add the ledger's files that were closed since the last update to the tables
    follow     keep updating until stopped
    rebuild    make the tables again from the ledger's files
    compact    merge many small files into few
    retain     remove what is older than --days
    erase      remove everything that names --message-id
    status     print what the tables hold

A ledger and its tables are directories that all executors reach, or Hadoop URLs. Each job prints
one line of JSON on stdout; progress goes to stderr. Ctrl-C and SIGTERM let the tasks of a drain
settle what is in flight.
"""

from __future__ import annotations

import sys
from pathlib import Path

# Spark runs this file as a script, and then its directory is the first to be searched for modules.
if __name__ == "__main__" and sys.path and Path(sys.path[0]) == Path(__file__).resolve().parent:
    del sys.path[0]

import argparse
import contextlib
import json
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Final, NoReturn

if TYPE_CHECKING:
    from twinbus.namespace.access import NamespaceAccess
    from twinbus.syphon.host import DrainProgress

PROGRESS_INTERVAL_S: Final = 5.0

FAILED: Final = 1
WRONG_USE: Final = 2
ATTENTION: Final = 3
"""The queues are drained, and messages were dead-lettered on the way."""
STOPPED: Final = 130


class WrongArguments(Exception):
    """The command line is not one of a job; nothing was done."""


class _SubmitParser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise WrongArguments(f"{message}; --help shows all")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the job that the command line names; return the exit status."""
    from twinbus.errors import TwinbusError

    try:
        asked = _parser().parse_args(arguments)
        if asked.where:
            print(Path(__file__).resolve())
            return 0
        if asked.job is None:
            raise WrongArguments("name a job, for example: update LEDGER; --help shows all")
        status: int = asked.run(asked)
        return status
    except WrongArguments as error:
        _say(str(error))
        return WRONG_USE
    except TwinbusError as error:
        _say(str(error))
        return FAILED
    except KeyboardInterrupt:
        return STOPPED


def _keep_tables(asked: argparse.Namespace) -> int:
    """Run one job of the tables."""
    from twinbus.pipeline.spark.session import LOCAL_MASTER, spark_session
    from twinbus.pipeline.store import upkeep

    if asked.days is not None and asked.days < 1:
        raise WrongArguments(f"--days is {asked.days}, at least 1: today is always kept")
    if asked.message_id == "":
        raise WrongArguments("--message-id is empty: name the message to forget")
    task = upkeep.TablesTask(
        verb=asked.job,
        ledger=asked.ledger,
        tables=asked.tables,
        days=asked.days,
        remove_raw=asked.remove_raw,
        message_id=asked.message_id,
        shared=asked.shared,
    )
    if task.verb == "status":
        print(json.dumps(upkeep.status(task.ledger, task.tables)), flush=True)
        return 0
    with spark_session(master=asked.master or LOCAL_MASTER, announce=_say) as spark:
        print(json.dumps(upkeep.perform(spark, task, _say)), flush=True)
    return 0


def _drain(asked: argparse.Namespace) -> int:
    """Drain the queues and print what the ledger says of it."""
    from twinbus.cost.quantities import QuantityError
    from twinbus.options import SendAvailabilityOptions
    from twinbus.pipeline.drain.rate_text import parse_drain_rate
    from twinbus.pipeline.spark.session import LOCAL_MASTER, spark_session

    if not asked.queues:
        raise WrongArguments("name at least one backlog queue")
    primary, secondary = _side("PRIMARY"), _side("SECONDARY")
    try:
        rate_per_s = None if asked.rate is None else parse_drain_rate(asked.rate, "--rate")
    except QuantityError as error:
        raise WrongArguments(str(error)) from None
    logging.basicConfig(level=logging.WARNING, format="twinbus: %(message)s")
    stop = threading.Event()
    with (
        _stopped_by_sigterm(stop),
        spark_session(
            master=asked.master or LOCAL_MASTER,
            announce=_say,
            settings={"spark.speculation": "false"},
        ) as spark,
    ):
        from twinbus.pipeline.drain.drain import drain

        done = drain(
            spark,
            primary,
            secondary,
            asked.queues,
            ledger_directory=asked.ledger,
            tasks=asked.tasks,
            options=SendAvailabilityOptions(session_order="strict" if asked.strict else "relaxed"),
            lease=True if asked.lease else None,
            rate_per_s=rate_per_s,
            only=asked.only,
            continuous=asked.continuous,
            on_progress=_progress_printer(),
            stop=stop,
            shared=asked.shared,
        )
        statistics = done.statistics()
        if statistics is not None:
            print(json.dumps(asdict(statistics)), flush=True)
    if stop.is_set() and not asked.continuous:
        # Stopped before the queues were empty: a scheduler must not take it for drained.
        return STOPPED
    return ATTENTION if statistics is not None and statistics.dead_lettered else 0


def _side(role: str) -> NamespaceAccess:
    """Return a side of the pair, as the environment has it."""
    from twinbus.namespace.access import NamespaceAccess

    text = os.environ.get(f"TWINBUS_{role}", "")
    if not text:
        raise WrongArguments(
            "put the connection strings into TWINBUS_PRIMARY and TWINBUS_SECONDARY"
        )
    names = ("credential", "transport", "proxy", "endpoint")
    given = {name: os.environ.get(f"TWINBUS_{name.upper()}", "") for name in names}
    try:
        return NamespaceAccess.parse(text, **given)
    except ValueError as error:
        raise WrongArguments(f"TWINBUS_{role}: {error}") from None


def _parser() -> argparse.ArgumentParser:
    parser = _SubmitParser(
        prog="submit",
        description="Run a Twinbus job on Spark.",
        epilog="Example: submit retain hdfs://host/ledger --days 90",
        allow_abbrev=False,
    )
    parser.add_argument("--where", action="store_true", help="print the path of this script")
    jobs = parser.add_subparsers(dest="job", metavar="JOB", parser_class=_SubmitParser)
    _add_drain(jobs.add_parser("drain", help="drain backlog queues", allow_abbrev=False))
    for verb, help_text in (
        ("update", "add the ledger's closed files to the tables"),
        ("follow", "keep updating until stopped"),
        ("rebuild", "make the tables again from the ledger's files"),
        ("compact", "merge many small files into few"),
        ("retain", "remove what is older than --days"),
        ("erase", "remove everything that names --message-id"),
        ("status", "print what the tables hold"),
    ):
        _add_tables(jobs.add_parser(verb, help=help_text, allow_abbrev=False), verb)
    return parser


def _add_drain(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(run=_drain)
    parser.add_argument("queues", nargs="*", metavar="QUEUE", help="path of a backlog queue")
    _add_master(parser)
    parser.add_argument(
        "--ledger", metavar="PLACE", help="directory that all executors reach, or a URL"
    )
    parser.add_argument("--tasks", type=int, help="number of tasks that share the queues")
    parser.add_argument("--continuous", action="store_true", help="go on until stopped")
    parser.add_argument(
        "--strict", action="store_true", help="keep the order within sessions; takes leases"
    )
    parser.add_argument("--lease", action="store_true", help="pump a queue only under its lease")
    parser.add_argument("--rate", help="maximum rate, like 500/s; or standard: 250/s")
    parser.add_argument(
        "--only",
        action="append",
        metavar="ENTITY",
        help="serve only this queue or topic; repeatable",
    )


def _add_tables(parser: argparse.ArgumentParser, verb: str) -> None:
    parser.set_defaults(run=_keep_tables, days=None, remove_raw=False, message_id=None)
    parser.add_argument("ledger", metavar="LEDGER", help="directory or Hadoop URL")
    parser.add_argument(
        "--tables", metavar="PLACE", help="location of the tables; default: LEDGER/_tables"
    )
    _add_master(parser)
    if verb == "retain":
        parser.add_argument("--days", type=int, metavar="N", required=True, help="days to keep")
    if verb == "erase":
        parser.add_argument(
            "--message-id", metavar="ID", required=True, help="the message to forget"
        )
    if verb == "compact":
        parser.add_argument(
            "--remove-raw",
            action="store_true",
            help="remove the ledger's files whose records the tables hold",
        )


def _add_master(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--master", help="Spark's master, without spark-submit; default: local")
    parser.add_argument(
        "--shared", action="store_true", help="local paths are mounted by all machines of a cluster"
    )


def _progress_printer() -> Callable[[DrainProgress], None]:
    printed_at = float("-inf")
    problems: tuple[str, ...] = ()

    def show(progress: DrainProgress) -> None:
        nonlocal printed_at, problems
        now = time.monotonic()
        if now - printed_at >= PROGRESS_INTERVAL_S or progress.waiting == 0:
            printed_at = now
            _say(f"{progress.forwarded:,} moved, {progress.waiting:,} left")
        if progress.problems and progress.problems != problems:
            _say("; ".join(progress.problems))
        problems = progress.problems

    return show


def _say(line: str) -> None:
    print(f"twinbus: {line}", file=sys.stderr, flush=True)


@contextlib.contextmanager
def _stopped_by_sigterm(stop: threading.Event) -> Iterator[None]:
    before = signal.signal(signal.SIGTERM, lambda number, frame: stop.set())
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


if __name__ == "__main__":
    sys.exit(main())
