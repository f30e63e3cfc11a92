"""`twinbus drill`: an outage on purpose, and the proof of what happened to every message."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import shlex
from pathlib import Path
from typing import Final

from azure.core.exceptions import AzureError

from twinbus.console.drill.phases import Drill
from twinbus.console.drill.result import DrillPlan, DrillResult
from twinbus.console.drill.screen import DrillScreen
from twinbus.console.drill.sheet import drill_sheet, outage_picture
from twinbus.console.drill.world import DrillError, World
from twinbus.console.namespaces import runs_to_its_end
from twinbus.console.sheet.page import page_of
from twinbus.console.sheet.text import text_of
from twinbus.console.spark_thread import SparkThread, require_spark
from twinbus.console.terminal.output import COULD_NOT, Output
from twinbus.syphon.connection.counts import CountsUnavailable

PUMP_VARIABLE: Final = "TWINBUS_DRILL_PUMP"
"""Names another pump as module:attribute: tests use a faulty one to see the drill fail."""


@runs_to_its_end
async def run(plan: DrillPlan, directory: Path, output: Output) -> int:
    """Run a drill, write its report to `directory` and to stdout; return the exit status."""
    require_spark()
    _make_directory(directory)
    _log_to(directory / "drill.log")
    # However the drill ends, no process and no file of its world is left.
    with World(plan.like) as world, SparkThread() as spark, DrillScreen() as screen:
        drill = Drill(plan, world, spark, screen, os.environ.get(PUMP_VARIABLE))
        try:
            result = await drill.run()
        except BaseException as error:
            raise _reason(error) from error
        await asyncio.to_thread(world.keep_ledger, directory / "ledger")
    (directory / "drill.json").write_text(json.dumps(result.as_json(), indent=2) + "\n")
    (directory / "report.html").write_text(page_of(drill_sheet(result)))
    (directory / "outage.svg").write_text(outage_picture(result))
    if output is Output.JSON:
        print(json.dumps(result.as_json()))
    else:
        _print(result, directory)
    return 0 if result.passed else COULD_NOT


def _reason(error: BaseException) -> BaseException:
    """The first error of a group; one of a namespace as ours, in a single line."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, AzureError | CountsUnavailable):
        return DrillError(f"the drill could not go on: {' '.join(str(error).split())}")
    return error


def _make_directory(directory: Path) -> None:
    try:
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "drill.json").unlink(missing_ok=True)
    except OSError as error:
        raise DrillError(
            f"the report cannot be written to {directory}: {error.strerror}; name another"
            " directory with --report"
        ) from error


def _log_to(path: Path) -> None:
    """Log to a file beside the report: on the screen it would run through the live lines."""
    handler = logging.FileHandler(path, mode="w")
    handler.setFormatter(logging.Formatter("%(asctime)s %(name)s %(message)s"))
    logging.getLogger().addHandler(handler)
    logging.getLogger("twinbus").setLevel(logging.INFO)


def _print(result: DrillResult, directory: Path) -> None:
    ledger = shlex.quote(str(directory / "ledger"))
    print()
    print(text_of(drill_sheet(result)))
    print(f"report: {directory / 'report.html'}, with drill.json and drill.log")
    print(f"ledger: more with, for example, twinbus report reconciliation {ledger}")
