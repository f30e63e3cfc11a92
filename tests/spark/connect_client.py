"""A program without a JVM that keeps tables, reports and plans over Spark Connect.

python -m tests.spark.connect_client URL LEDGER
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark import SparkContext

from twinbus.cost.arithmetic import CountingRule
from twinbus.cost.prices import standard
from twinbus.errors import TwinbusError
from twinbus.pipeline.drain.drain import drain
from twinbus.pipeline.planner import simulate_on_spark
from twinbus.pipeline.reports.availability import availability_report
from twinbus.pipeline.reports.charges import charges_report
from twinbus.pipeline.reports.conservation import conservation_report
from twinbus.pipeline.reports.documents import ReportRequest
from twinbus.pipeline.spark.session import spark_session
from twinbus.pipeline.store.current import current_tables
from twinbus.planning.question import PlanQuestion, Traffic, grid, parse_pattern

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PLAN = PlanQuestion(
    patterns=(parse_pattern("2/year lognormal 40min", 1.0),),
    years=200,
    traffic=Traffic(rate_per_s=500, size_bytes=2_048, entities=40, clients=20),
    settings=grid([60], [60], [10]),
)


def told(spark: SparkSession, ledger: Path) -> dict[str, str]:
    """The reports of a ledger, whose tables are updated first, and a plan."""
    asked = ReportRequest()
    with current_tables(spark, ledger) as tables:
        return {
            "conservation": repr(conservation_report(tables, asked, None)),
            "availability": repr(availability_report(tables, asked)),
            "charges": repr(charges_report(tables, asked, standard(), CountingRule())),
            "plan": repr(simulate_on_spark(spark, PLAN)),
        }


def main(url: str, ledger: Path) -> None:
    with spark_session(master=url) as spark:
        answers = told(spark, ledger)
        try:
            drain(spark, "Endpoint=x", "Endpoint=y", ["q"])
        except TwinbusError as error:
            answers["drain"] = str(error)
    assert SparkContext._gateway is None, "this process has a JVM"
    sys.stdout.write(json.dumps(answers))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
