"""The address of a Spark, in errors that people paste into tickets."""

from __future__ import annotations

import subprocess
import sys

import pytest

from twinbus.ledger.record import LedgerError
from twinbus.pipeline.spark.session import require_shared, shown_master

TOKEN = ";use_ssl=true;token=hush-hush"


@pytest.mark.parametrize(
    ("master", "shown"),
    [
        (f"sc://spark.example:443/{TOKEN}", "sc://spark.example:443"),
        (f"sc://spark.example{TOKEN}", "sc://spark.example"),
        ("sc://spark.example:443?token=hush-hush", "sc://spark.example:443"),
        ("sc://me:hush-hush@spark.example:443/", "sc://spark.example:443"),
        ("spark://spark.example:7077", "spark://spark.example:7077"),
        ("local[2]", "local[2]"),
    ],
)
def test_an_error_about_a_cluster_has_no_token_in_it(master: str, shown: str) -> None:
    assert shown_master(master) == shown
    if not master.startswith("local"):
        with pytest.raises(LedgerError, match=f"{shown} is a cluster") as caught:
            require_shared(master, ["/ledger"], shared=False)
        assert "hush" not in str(caught.value)


CONNECTS = """
from twinbus.pipeline.spark.session import SparkStartError, start_session
for place in {places}:
    try:
        start_session(master="sc://" + place + {token!r})
    except SparkStartError as error:
        print(str(error).replace(chr(10), " "))
"""


def test_a_spark_connect_that_does_not_answer_is_named_without_its_token() -> None:
    places = ["127.0.0.1:1/", "127.0.0.1:1", "127.0.0.1:x/", "127.0.0.1:99999"]
    # In a process of its own: a session that another test has started would be taken.
    program = CONNECTS.format(places=places, token=TOKEN)
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=120
    )
    told = ran.stdout.splitlines()
    assert len(told) == len(places)
    for line in told:
        assert "sc://127.0.0.1" in line
    assert "hush" not in ran.stdout + ran.stderr
