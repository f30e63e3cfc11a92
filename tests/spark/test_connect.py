"""Spark Connect: a session without a SparkContext. Only what needs one is refused, in a line."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyspark
import pytest

from tests import outage_story as story
from tests.spark.connect_client import told
from tests.spark.kept import stored_tables
from twinbus.pipeline.spark import session
from twinbus.pipeline.store.stream import open_store, rebuild

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


@pytest.fixture
def url(spark: SparkSession) -> str:
    """A Connect server in the JVM that the tests share; it ends with the JVM."""
    jvm: Any = spark._jvm
    module = getattr(jvm, "org.apache.spark.sql.connect.service.SparkConnectService$")
    service = getattr(module, "MODULE$")
    if not service.started():
        service.start(spark.sparkContext._jsc.sc())
    return f"sc://localhost:{service.localPort()}"


@pytest.mark.skipif(
    pyspark.__version__.startswith("4.0."),
    reason="over Connect this Spark returns no counts of what was written",
)
@pytest.mark.soak  # above a minute of processor time: nothing is made for few rows there
def test_tables_reports_and_plans_are_the_same_over_connect(
    spark: SparkSession, url: str, tmp_path: Path
) -> None:
    ledger = story.write_story(tmp_path)
    ran = subprocess.run(
        [sys.executable, "-m", "tests.spark.connect_client", url, str(ledger)],
        cwd=Path(__file__).resolve().parents[2],
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    answers = json.loads(ran.stdout)
    refused = answers.pop("drain")
    store = open_store(spark, ledger)
    kept = stored_tables(store, store.latest())
    classic = rebuild(spark, ledger)
    assert kept == stored_tables(open_store(spark, ledger), classic)
    assert answers == told(spark, ledger)
    assert refused.startswith("this Spark session has no SparkContext (Spark Connect): a drain")
    assert "\n" not in refused


def test_a_connect_server_that_is_not_there_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "_active", lambda: None)
    with pytest.raises(session.SparkStartError, match=r"^Spark Connect at sc://127.0.0.1:1 cannot"):
        session.start_session(master="sc://127.0.0.1:1")
