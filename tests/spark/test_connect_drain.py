"""A drain over Spark Connect: its refusals, and executors that are killed."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING
from unittest import mock

import pytest

from tests.spark.cluster_world import bare_python
from tests.spark.connect_server import connect_server
from tests.spark.drain_world import Driver, without_key, world
from tests.spark.test_cluster import MASTER, MESSAGES, kill_executors
from twinbus.errors import SyphonError
from twinbus.pipeline.drain import drain as drain_module
from twinbus.pipeline.drain.drain import DrainBacklog, drain
from twinbus.pipeline.drain.task import open_side, shipped_side
from twinbus.pipeline.spark import classic

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

KEY = "Endpoint=sb://localhost:1;SharedAccessKeyName=a;SharedAccessKey=s3cret"
NOWHERE = "sb://localhost:1?credential=env:TWINBUS_TEST_NOWHERE"


@pytest.mark.parametrize(
    ("primary", "ledger", "told"),
    [
        (KEY, "ledger", "the primary: a connection string is not sent over Spark Connect"),
        (NOWHERE, None, "over Spark Connect a drain needs a ledger"),
    ],
)
def test_what_a_drain_over_connect_cannot_do_is_one_line(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    primary: str,
    ledger: str | None,
    told: str,
) -> None:
    monkeypatch.delenv("TWINBUS_LEDGER", raising=False)
    place = tmp_path / ledger if ledger else None
    with (
        mock.patch.object(classic, "is_classic", return_value=False),
        pytest.raises(SyphonError, match=rf"^{told}[^\n]+$") as caught,
    ):
        drain(spark, primary, NOWHERE, ["q"], ledger_directory=place)
    assert "s3cret" not in str(caught.value)


def test_tasks_without_a_network_are_one_line(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TWINBUS_TEST_NOWHERE", KEY)
    side = shipped_side("secondary", NOWHERE)
    backlog = DrainBacklog(open_side(side), ["q"], None, None, waiting=7)
    told = r"^tasks of this Spark do not reach the secondary, which this process does: [^\n]+$"
    with (
        mock.patch.object(DrainBacklog, "count", return_value=7),
        pytest.raises(SyphonError, match=told),
    ):
        drain_module._require_network(spark, side, backlog)


@pytest.mark.soak  # three JVMs of its own
@pytest.mark.timeout(1_200)
def test_a_drain_over_connect_whose_executor_is_killed_loses_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with world(tmp_path) as plain:
        variables = {"TWINBUS_TEST_ONE": plain.primary, "TWINBUS_TEST_TWO": plain.secondary}
        one, two = (without_key(text, name) for name, text in variables.items())
        python = str(bare_python(tmp_path))
        with (
            connect_server(
                MASTER, tmp_path / "server.log", python=python, environment=variables
            ) as served,
            Driver(
                served.url,
                tmp_path / "driver.log",
                environment={**os.environ, **variables},
                executors=served.executors,
            ) as driver,
        ):
            # The client has brought the package.
            assert driver.started["is_bare"]
            figures = kill_executors(
                replace(plain, shipped=(one, two)),
                driver,
                tmp_path / "ledger",
                1,
                is_strict=True,
                messages=MESSAGES,
            )
    # What linked the tasks with their driver is gone.
    assert not list((tmp_path / "ledger").glob(".link-*"))
    with capsys.disabled():
        sys.stdout.write(f"\nover Connect: {figures}\n")
