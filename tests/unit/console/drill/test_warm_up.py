"""The reports that warm Spark up while a drill sends its messages."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from twinbus.console.drill import phases


@pytest.mark.parametrize("sent_in_step", [1, 3, None])
def test_it_ends_with_the_step_in_which_the_last_message_was_sent(
    sent_in_step: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[int] = []

    def outage_report(*_: object, before_each: Callable[[], None], **__: object) -> None:
        for number in range(1, 5):
            before_each()
            steps.append(number)

    def imported(name: str) -> Any:
        assert name == phases.REPORT
        return SimpleNamespace(outage_report=outage_report)

    monkeypatch.setattr(phases, "import_module", imported)
    session: Any = None
    phases._warm_up_reports(session, Path(), lambda: sent_in_step in steps)
    assert steps == [*range(1, (sent_in_step or 4) + 1)]
