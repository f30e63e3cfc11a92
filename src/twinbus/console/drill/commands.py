"""`twinbus drill`: an outage on purpose, and the proof of what became of every message."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import shlex
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Final

from azure.core.exceptions import AzureError
from rich.console import Console
from rich.table import Table

from twinbus.console.drill import page as report
from twinbus.console.drill import text as drill_words
from twinbus.console.drill.phases import Drill
from twinbus.console.drill.screen import DrillScreen
from twinbus.console.drill.spark import SparkThread, require_spark
from twinbus.console.drill.world import DrillError, World

if TYPE_CHECKING:
    from twinbus.console.drill.result import DrillPlan, DrillResult

__all__ = ["run"]

PUMP_VARIABLE: Final = "TWINBUS_DRILL_PUMP"
"""Names another pump, as module:attribute: tests plant a faulty one to see the drill fail."""

FAILED: Final = 1
STOPPED: Final = 130
"""As a shell reports a command that Ctrl-C ended."""


def run(plan: DrillPlan, directory: Path, *, as_json: bool) -> int:
    """Hold a drill, write its report to `directory` and to stdout; the exit status."""
    require_spark()
    _make(directory)
    _log_to(directory / "drill.log")
    try:
        result = asyncio.run(_hold(plan, directory))
    except (KeyboardInterrupt, asyncio.CancelledError):
        Console(stderr=True).print("drill: stopped")
        return STOPPED
    (directory / "drill.json").write_text(json.dumps(result.as_json(), indent=2) + "\n")
    (directory / "report.html").write_text(report.page(result))
    (directory / "outage.svg").write_text(report.picture(result))
    if as_json:
        print(json.dumps(result.as_json()))
    else:
        _print(result, directory)
    return 0 if result.passed else FAILED


async def _hold(plan: DrillPlan, directory: Path) -> DrillResult:
    """The drill itself; whatever ends it, no process and no file of its world is left."""
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    with World() as world, SparkThread() as spark, DrillScreen() as screen:
        drill = Drill(plan, world, spark, screen, os.environ.get(PUMP_VARIABLE))
        try:
            result = await drill.run()
        except BaseException as error:
            spark.stop()
            raise _reason(error) from error
        await asyncio.to_thread(world.keep_ledger, directory / "ledger")
        return result


def _reason(error: BaseException) -> BaseException:
    """The first error of several at once; one of the SDK as ours, for it is a single line too."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, AzureError):
        return DrillError(f"the drill could not go on: {' '.join(str(error).split())}")
    return error


def _make(directory: Path) -> None:
    try:
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "drill.json").unlink(missing_ok=True)
    except OSError as error:
        raise DrillError(
            f"the report cannot be written to {directory}: {error.strerror}; name another"
            " directory with --report"
        ) from error


def _log_to(path: Path) -> None:
    """Have the log beside the report: on the screen it would run through the live lines."""
    handler = logging.FileHandler(path, mode="w")
    handler.setFormatter(logging.Formatter("%(asctime)s %(name)s %(message)s"))
    logging.getLogger().addHandler(handler)
    logging.getLogger("twinbus").setLevel(logging.INFO)


def _print(result: DrillResult, directory: Path) -> None:
    console = Console(highlight=False)
    colour = "green" if result.passed else "red"
    console.print(f"\n[bold {colour}]{drill_words.headline(result)}.[/]")
    for sentence in drill_words.story(result):
        console.print(sentence)
    table = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
    table.add_column()
    table.add_column(justify="right")
    table.add_column(style="dim")
    for row in drill_words.rows(result):
        style = "bold red" if row.is_bad else None
        table.add_row(row.name, row.value, row.meaning, style=style)
    console.print()
    console.print(table)
    for line in drill_words.missing(result):
        console.print(line, style="red", markup=False, soft_wrap=True)
    console.print(
        f"\nreport: {directory / 'report.html'}, with drill.json and drill.log", soft_wrap=True
    )
    report_command = f"twinbus report reconciliation {shlex.quote(str(directory / 'ledger'))}"
    console.print(f"ledger: look further with, for example, {report_command}", soft_wrap=True)
