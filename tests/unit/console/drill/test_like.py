"""`twinbus drill --like TIER`: both namespaces of the drill get the limits of that tier."""

from __future__ import annotations

import subprocess
from dataclasses import replace

import pytest

from tests.unit.console.commands import run
from tests.unit.console.drill.drill_results import PASSED
from twinbus.console.drill import commands, world
from twinbus.console.drill.result import DrillPlan
from twinbus.console.drill.sheet import drill_sheet
from twinbus.console.sheet.page import page_of


class Started(Exception):
    """A process was started with these words."""


def started(_: object, words: list[str], **__: object) -> None:
    raise Started(words)


@pytest.mark.parametrize(
    ("words", "like"), [((), None), (("--like", "azure-standard"), "azure-standard")]
)
def test_the_option_reaches_both_namespaces(
    words: tuple[str, ...],
    like: str | None,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    plans: list[DrillPlan] = []

    def drill(plan: DrillPlan, *_: object, **__: object) -> int:
        plans.append(plan)
        return 0

    monkeypatch.setattr(commands, "run", drill)
    assert run(capsys, "drill", *words).status == 0
    (plan,) = plans
    assert plan.like == like
    monkeypatch.setattr(subprocess.Popen, "__init__", started)
    with world.World(plan.like) as drilled:
        for side in (drilled.primary, drilled.secondary):
            with pytest.raises(Started) as caught:
                side.start()
            command = caught.value.args[0]
            assert "serve" in command
            assert command[command.index("--ledger") + 2 :] == (["--like", like] if like else [])


def test_the_report_repeats_the_option() -> None:
    limited = replace(PASSED, plan=replace(PASSED.plan, like="azure-standard"))
    assert " --like azure-standard" in page_of(drill_sheet(limited))
    assert "--like" not in page_of(drill_sheet(PASSED))
