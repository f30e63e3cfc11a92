"""What `submit drain` makes of its command line; no Spark is started."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from twinbus.pipeline import drain_job, submit, tables_job


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the drain is called with, in place of a drain."""
    found: dict[str, Any] = {}

    @contextlib.contextmanager
    def no_session(**_: object) -> Iterator[None]:
        yield

    def no_drain(*given: object, **options: Any) -> SimpleNamespace:
        found.update(options, sides=given[1:3])
        return SimpleNamespace(statistics=lambda: None)

    stand_ins = {
        "spark.session": SimpleNamespace(LOCAL_MASTER="local", spark_session=no_session),
        "drain.drain": SimpleNamespace(drain=no_drain),
    }
    for name, module in stand_ins.items():
        monkeypatch.setitem(sys.modules, f"twinbus.pipeline.{name}", module)
    monkeypatch.setenv(
        "TWINBUS_PRIMARY", "Endpoint=sb://one/;SharedAccessKeyName=a;SharedAccessKey=b"
    )
    monkeypatch.setenv("TWINBUS_SECONDARY", "sb://two?credential=managed-identity")
    return found


def test_strict_keeps_the_order_within_sessions(asked: dict[str, Any]) -> None:
    assert submit.main(["drain", "some/queue"]) == 0
    assert asked["options"].session_order == "relaxed"
    assert submit.main(["drain", "some/queue", "--strict"]) == 0
    assert asked["options"].session_order == "strict"


def test_the_sides_and_the_way_to_them_come_from_the_environment(
    asked: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TWINBUS_TRANSPORT", "websocket")
    monkeypatch.setenv("TWINBUS_CREDENTIAL", "default")
    assert submit.main(["drain", "some/queue"]) == 0
    primary, secondary = asked["sides"]
    assert (primary.host, primary.credential, primary.transport) == ("one", "", "websocket")
    assert (secondary.host, secondary.credential) == ("two", "managed-identity")
    monkeypatch.setenv("TWINBUS_SECONDARY", "sb://two?credential=s3cret.1")
    assert submit.main(["drain", "some/queue"]) == submit.WRONG_USE
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("twinbus: TWINBUS_SECONDARY: a credential is default")
    assert "s3cret" not in line


def test_a_rate_is_read_as_the_console_reads_it(
    asked: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    for said, per_s in (("500", 500), ("30000/min", 500), ("standard", 250)):
        assert submit.main(["drain", "some/queue", "--rate", said]) == 0
        assert asked["rate_per_s"] == per_s
    assert submit.main(["drain", "some/queue"]) == 0
    assert asked["rate_per_s"] is None
    assert submit.main(["drain", "some/queue", "--rate", "fast"]) == submit.WRONG_USE
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("twinbus: --rate must be a number and a time, like 500/s")


def test_the_names_of_earlier_releases_work_and_name_the_new_one(
    asked: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert drain_job.main(["some/queue", "--rate", "500"]) == 0
    assert asked["rate_per_s"] == 500
    assert "`python -m twinbus.pipeline.submit drain`" in capsys.readouterr().err
    assert tables_job.main(["retain", "x", "--days", "0"]) == submit.WRONG_USE
    told, refused = capsys.readouterr().err.splitlines()
    assert "`python -m twinbus.pipeline.submit`" in told
    assert refused == "twinbus: --days is 0, at least 1: today is always kept"
    assert submit.main(["erase", "x", "--message-id", ""]) == submit.WRONG_USE
    assert "--message-id is empty" in capsys.readouterr().err
    # The path must be of the script that takes the same arguments.
    assert drain_job.main(["--where"]) == 0
    assert Path(capsys.readouterr().out.strip()).name == "drain_job.py"
