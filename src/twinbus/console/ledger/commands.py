"""`twinbus ledger`: one task on the tables of a ledger, run on Spark."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future

from twinbus.console.ledger.text import Document
from twinbus.console.namespaces import run_to_its_end
from twinbus.console.terminal.live_line import live_line
from twinbus.console.terminal.output import print_json
from twinbus.pipeline.spark import session
from twinbus.pipeline.spark.failure_text import spark_failures_in_one_line
from twinbus.pipeline.store import upkeep
from twinbus.pipeline.store.upkeep import TablesTask


def run(
    task: TablesTask,
    master: str | None,
    lines: Callable[[Document], list[str]],
    *,
    as_json: bool,
) -> int:
    """Perform the task and print its result; return the exit status."""

    async def work() -> int:
        result = await _perform(task, master)
        if as_json:
            print_json(result)
        else:
            print("\n".join(lines(result)), flush=True)
        return 0

    return run_to_its_end(work)


async def _perform(task: TablesTask, master: str | None) -> Document:
    """Perform the task on a thread, with a live line that shows its progress."""
    with live_line() as line:
        line.say("starting Spark")

        def work() -> Document:
            with (
                spark_failures_in_one_line(),
                session.spark_session(master=master or session.LOCAL_MASTER) as spark,
            ):
                line.say("reading the tables")
                return upkeep.perform(spark, task, line.say)

        return await asyncio.wrap_future(_started(work))


def _started(work: Callable[[], Document]) -> Future[Document]:
    """Start work on a daemon thread; return the future of its result.

    Ctrl-C then ends the command at once: a task that was not committed has no effect.
    """
    future: Future[Document] = Future()

    def do() -> None:
        future.set_running_or_notify_cancel()
        try:
            future.set_result(work())
        except BaseException as error:  # noqa: BLE001 - it goes to who waits for the future
            future.set_exception(error)

    threading.Thread(target=do, name="twinbus-spark", daemon=True).start()
    return future
