"""`spark-submit` with the command line of `twinbus`."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.spark.drain_world import KINDS, QUEUES, duplicates, world
from twinbus.ledger import read

EACH = 100
SERVED = KINDS[:3]
RATE = 100


@pytest.mark.soak  # a JVM of its own, half a minute of processor time
def test_spark_submit_runs_the_drain_and_prints_what_the_ledger_says(tmp_path: Path) -> None:
    submit = str(Path(_pyspark_home()) / "bin" / "spark-submit")
    with world(tmp_path) as namespaces:
        namespaces.fill("s", EACH)
        ran = subprocess.run(
            [
                *(submit, "--master", "local[2,4]", "--conf", "spark.ui.enabled=false"),
                *("--driver-java-options", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"),
                *(script(), "syphon", "drain", "--engine", "spark", "--output", "json"),
                *("--label", "contoso", "--ledger", str(tmp_path / "ledger"), "--lease"),
                *("--rate", str(RATE), *(word for kind in SERVED for word in ("--only", kind))),
            ],
            env={
                **os.environ,
                "PYSPARK_PYTHON": sys.executable,
                "SPARK_HOME": _pyspark_home(),
                "SPARK_LOCAL_IP": "127.0.0.1",
                "TWINBUS_PRIMARY": namespaces.primary,
                "TWINBUS_SECONDARY": namespaces.secondary,
            },
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )
        assert ran.returncode == 0, ran.stderr
        arrived, left = namespaces.received(), namespaces.waiting()
    count = EACH * len(SERVED)
    assert left == EACH * (len(KINDS) - len(SERVED))
    # spark-submit puts a script's standard error among its output.
    done = json.loads(ran.stdout.splitlines()[-1])
    assert (done["drained"], done["forwarded"], done["dead_lettered"]) == (True, count, 0)
    assert done["queues"] == QUEUES
    assert sum(map(len, arrived.values())) == count
    assert not duplicates(arrived)
    sent_at = [r["at_ms"] for r in read(tmp_path / "ledger") if r["operation"] == "forward"]
    assert max(sent_at) - min(sent_at) > count / RATE * 1000 / 2, "nothing kept the rate"
    assert "SharedAccessKey" not in ran.stderr + ran.stdout


def script() -> str:
    """The path that a user is told to hand to spark-submit."""
    told = subprocess.run(
        [sys.executable, "-m", "twinbus.console.entry", "--where"],
        capture_output=True,
        text=True,
        check=True,
    )
    return told.stdout.strip()


def _pyspark_home() -> str:
    spec = importlib.util.find_spec("pyspark")
    assert spec is not None
    assert spec.origin is not None
    return str(Path(spec.origin).parent)
