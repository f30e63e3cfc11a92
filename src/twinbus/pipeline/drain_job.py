"""A drain for `spark-submit`, or by itself as `python -m twinbus.pipeline.drain_job`.

    export TWINBUS_PRIMARY=... TWINBUS_SECONDARY=...
    spark-submit --master URL "$(python -m twinbus.pipeline.drain_job --where)" QUEUE ...

The connection strings come from the environment: others can see a command line. SIGTERM and Ctrl-C
let the tasks settle what is in flight before they end.
"""

from __future__ import annotations

import sys
from pathlib import Path

# Spark runs this file as a script, and then its directory is the first to be searched for modules.
if __name__ == "__main__" and sys.path and Path(sys.path[0]) == Path(__file__).resolve().parent:
    del sys.path[0]

import argparse
import contextlib
import importlib
import json
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from twinbus.syphon.host import DrainProgress

__all__ = ["main"]

TELL_S: Final = 5.0
"""Between two lines on how far it is."""

WRONG_USE: Final = 2
ATTENTION: Final = 3
"""It is drained, and messages were dead-lettered on the way."""
STOPPED: Final = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Drain the queues that the command line names; the exit status."""
    asked = _parser().parse_args(arguments)
    if asked.where:
        print(Path(__file__).resolve())
        return 0
    sides = [os.environ.get(f"TWINBUS_{side}", "") for side in ("PRIMARY", "SECONDARY")]
    if not all(sides):
        return _wrong("put the connection strings into TWINBUS_PRIMARY and TWINBUS_SECONDARY")
    if not asked.queues:
        return _wrong("name at least one backlog queue")
    from twinbus.cost.quantities import QuantityError
    from twinbus.errors import TwinbusError
    from twinbus.pipeline.drain.rate_text import parse_drain_rate

    try:
        rate_per_s = None if asked.rate is None else parse_drain_rate(asked.rate, "--rate")
    except QuantityError as error:
        return _wrong(str(error))
    logging.basicConfig(level=logging.WARNING, format="twinbus: %(message)s")
    try:
        return _drain(asked, *sides, rate_per_s=rate_per_s)
    except TwinbusError as error:
        print(f"twinbus: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return STOPPED


def _drain(
    asked: argparse.Namespace, primary: str, secondary: str, *, rate_per_s: float | None
) -> int:
    """Drain; print what the ledger says of it; the exit status."""
    from twinbus.options import SendAvailabilityOptions
    from twinbus.pipeline.spark.session import LOCAL_MASTER, spark_session

    stop = threading.Event()
    with (
        _stopped_by_sigterm(stop),
        spark_session(
            master=asked.master or LOCAL_MASTER,
            announce=_say,
            settings={"spark.speculation": "false"},
        ) as spark,
    ):
        drain = importlib.import_module("twinbus.pipeline.drain.drain").drain
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
            on_progress=_teller(),
            stop=stop,
        )
        statistics = done.statistics()
        if statistics is not None:
            print(
                json.dumps(
                    {
                        "forwarded": statistics.forwarded,
                        "completed": statistics.completed,
                        "dead_lettered": statistics.dead_lettered,
                    }
                ),
                flush=True,
            )
    if stop.is_set() and not asked.continuous:
        # Told to end before it was done: whoever scheduled it must not take it for drained.
        return STOPPED
    return ATTENTION if statistics is not None and statistics.dead_lettered else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="drain_job", description="Drain backlog queues with Spark.", allow_abbrev=False
    )
    parser.add_argument("queues", nargs="*", metavar="QUEUE", help="path of a backlog queue")
    parser.add_argument("--master", help="Spark's master, without spark-submit; default: local")
    parser.add_argument(
        "--ledger", metavar="PLACE", help="directory that all executors reach, or a URL"
    )
    parser.add_argument("--tasks", type=int, help="how many tasks share the queues")
    parser.add_argument("--continuous", action="store_true", help="go on until stopped")
    parser.add_argument(
        "--strict", action="store_true", help="keep the order within sessions; takes leases"
    )
    parser.add_argument("--lease", action="store_true", help="pump a queue under its lease only")
    parser.add_argument("--rate", help="at most so many messages, like 500/s; or standard: 250/s")
    parser.add_argument(
        "--only", action="append", metavar="ENTITY", help="serve this queue or topic only; again"
    )
    parser.add_argument("--where", action="store_true", help="print the path of this script")
    return parser


def _teller() -> Callable[[DrainProgress], None]:
    told_at = float("-inf")
    problems: tuple[str, ...] = ()

    def tell(progress: DrainProgress) -> None:
        nonlocal told_at, problems
        now = time.monotonic()
        if now - told_at >= TELL_S or progress.waiting == 0:
            told_at = now
            _say(f"{progress.forwarded:,} moved, {progress.waiting:,} left")
        if progress.problems and progress.problems != problems:
            _say("; ".join(progress.problems))
        problems = progress.problems

    return tell


def _say(line: str) -> None:
    print(f"twinbus: {line}", file=sys.stderr, flush=True)


def _wrong(line: str) -> int:
    _say(line)
    return WRONG_USE


@contextlib.contextmanager
def _stopped_by_sigterm(stop: threading.Event) -> Iterator[None]:
    before = signal.signal(signal.SIGTERM, lambda number, frame: stop.set())
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


if __name__ == "__main__":
    sys.exit(main())
