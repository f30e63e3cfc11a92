"""What `drain_job` makes of its command line; no Spark is started."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from twinbus.pipeline import drain_job


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the drain is called with, in place of a drain."""
    found: dict[str, Any] = {}

    @contextlib.contextmanager
    def no_session(**_: object) -> Iterator[None]:
        yield

    def no_drain(*_: object, **options: Any) -> SimpleNamespace:
        found.update(options)
        return SimpleNamespace(statistics=lambda: None)

    stand_ins = {
        "spark.session": SimpleNamespace(LOCAL_MASTER="local", spark_session=no_session),
        "drain.drain": SimpleNamespace(drain=no_drain),
    }
    for name, module in stand_ins.items():
        monkeypatch.setitem(sys.modules, f"twinbus.pipeline.{name}", module)
    monkeypatch.setenv("TWINBUS_PRIMARY", "Endpoint=sb://one/")
    monkeypatch.setenv("TWINBUS_SECONDARY", "Endpoint=sb://two/")
    return found


def test_strict_keeps_the_order_within_sessions(asked: dict[str, Any]) -> None:
    assert drain_job.main(["some/queue"]) == 0
    assert asked["options"].session_order == "relaxed"
    assert drain_job.main(["some/queue", "--strict"]) == 0
    assert asked["options"].session_order == "strict"


def test_a_rate_is_read_as_the_console_reads_it(
    asked: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    for said, per_s in (("500", 500), ("30000/min", 500), ("standard", 250)):
        assert drain_job.main(["some/queue", "--rate", said]) == 0
        assert asked["rate_per_s"] == per_s
    assert drain_job.main(["some/queue"]) == 0
    assert asked["rate_per_s"] is None
    assert drain_job.main(["some/queue", "--rate", "fast"]) == drain_job.WRONG_USE
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("twinbus: --rate must be a number and a time, like 500/s")
