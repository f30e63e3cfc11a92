"""`twinbus drill`: an outage on purpose, and the proof of what happened to every message."""

from __future__ import annotations

import asyncio
import json
import logging
import shlex
import sys
from contextlib import ExitStack, suppress
from pathlib import Path

from azure.core.exceptions import AzureError

from twinbus.client.administration import NotAnswered
from twinbus.console import COULD_NOT
from twinbus.console.declaration import runs_to_its_end
from twinbus.console.drill.phases import Drill
from twinbus.console.drill.progress import DrillPage, DrillScreen
from twinbus.console.drill.result import DrillPlan
from twinbus.console.drill.sheet import drill_sheet
from twinbus.console.drill.world import DrillError, World
from twinbus.console.output import Output, show
from twinbus.console.sheet import page_of, text_of
from twinbus.console.spark_thread import SparkThread, require_spark


@runs_to_its_end
async def run(
    plan: DrillPlan, directory: Path, output: Output, *, is_page_wanted: bool = False
) -> int:
    """Run a drill, write its report to `directory` and to stdout; return the exit status."""
    require_spark()
    _make_directory(directory)
    _log_to(directory / "drill.log")
    # However the drill ends, no process and no file of its world is left.
    with World(plan.like) as world, ExitStack() as stack:
        page = stack.enter_context(DrillPage(world)) if is_page_wanted else None
        with SparkThread() as spark, DrillScreen() as screen:
            if page is not None:
                screen.on_line = page.say
            drill = Drill(plan, world, spark, screen, page)
            try:
                result = await drill.run()
            except BaseException as error:
                raise _reason(error) from error
        document, sheet = result.as_json(), drill_sheet(result)
        (directory / "drill.json").write_text(json.dumps(document, indent=2) + "\n")
        (directory / "report.html").write_text(page_of(sheet))
        show(output, document, [f"\n{text_of(sheet)}"])
        if page is not None:
            page.prove(result, sheet.headline)
            await _until_closed(page)
        await asyncio.to_thread(world.keep_ledger, directory / "ledger")
    if output is Output.TEXT:
        ledger = shlex.quote(str(directory / "ledger"))
        print(f"report: {directory / 'report.html'}, with drill.json and drill.log")
        print(f"ledger: more with, for example, twinbus report reconciliation {ledger}")
    return 0 if result.passed else COULD_NOT


async def _until_closed(page: DrillPage) -> None:
    """Keep the page for the person at the terminal until Enter or Ctrl-C; without one, end."""
    if not sys.stdin.isatty():
        return
    print(f"the page stays open at {page.address} until you press Enter", file=sys.stderr)
    pressed, loop = asyncio.Event(), asyncio.get_running_loop()
    loop.add_reader(sys.stdin, pressed.set)
    with suppress(asyncio.CancelledError):
        await pressed.wait()
    loop.remove_reader(sys.stdin)


def _reason(error: BaseException) -> BaseException:
    """The first error of a group; one of a namespace as ours, in a single line."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, AzureError | NotAnswered):
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
