"""The address of a Spark, in errors that people paste into tickets."""

from __future__ import annotations

import pytest

from twinbus.ledger.record import LedgerError
from twinbus.pipeline.spark.session import (
    SparkStartError,
    require_shared,
    shown_master,
    start_session,
)

TOKEN = ";use_ssl=true;token=hush-hush"


@pytest.mark.parametrize(
    ("master", "shown"),
    [
        (f"sc://spark.example:443/{TOKEN}", "sc://spark.example:443"),
        (f"sc://spark.example{TOKEN}", "sc://spark.example"),
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


@pytest.mark.parametrize(
    "place", ["127.0.0.1:1/", "127.0.0.1:1", "127.0.0.1:x/", "127.0.0.1:99999"]
)
def test_a_spark_connect_that_does_not_answer_is_named_without_its_token(place: str) -> None:
    with pytest.raises(SparkStartError, match=r"sc://127\.0\.0\.1") as caught:
        start_session(master=f"sc://{place}{TOKEN}")
    assert "hush" not in str(caught.value)
