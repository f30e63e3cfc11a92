"""Errors of Spark and failures of jobs, each as one line."""

from __future__ import annotations

import pytest
from py4j.protocol import Py4JError, Py4JNetworkError  # type: ignore[import-untyped]
from pyspark.errors import AnalysisException, StreamingQueryException

from twinbus.ledger.record import LedgerError
from twinbus.pipeline.spark.classic import (
    JVM_GONE,
    JobCancelled,
    SparkFailed,
    failure_of,
    spark_failures_in_one_line,
)

FROM_JAVA = """An error occurred while calling o42.exists.
: java.lang.IllegalArgumentException: java.net.UnknownHostException: nohost
\tat org.apache.hadoop.security.SecurityUtil.buildTokenService(SecurityUtil.java:478)
Caused by: java.net.UnknownHostException: nohost
"""
FROM_A_TASK = """Job aborted due to stage failure: Lost task 0.0 in stage 3.0 (TID 2): \
java.io.FileNotFoundException: File file:/x does not exist
\tat org.apache.spark.Task.run(Task.scala:1)
"""


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (
            Py4JError(FROM_JAVA),
            "java.lang.IllegalArgumentException: java.net.UnknownHostException: nohost",
        ),
        (
            StreamingQueryException(FROM_A_TASK),
            "java.io.FileNotFoundException: File file:/x does not exist",
        ),
        (AnalysisException("[PATH_NOT_FOUND] nothing at /x"), "[PATH_NOT_FOUND] nothing at /x"),
        (Py4JNetworkError("Answer from Java side is empty"), "Answer from Java side is empty"),
        (Py4JError(""), "Py4JError('')"),
        (AnalysisException("x" * 1_000), "x" * 300),
    ],
)
def test_the_line_that_says_why_is_told_and_no_other(error: Exception, line: str) -> None:
    with pytest.raises(SparkFailed) as told, spark_failures_in_one_line():
        raise error
    assert str(told.value) == f"Spark failed: {line}"
    assert told.value.__cause__ is error


class GoneError(Py4JError):  # type: ignore[misc]  # untyped in py4j
    """An error of Java whose text would have to come from a JVM that is gone."""

    def __str__(self) -> str:
        raise ConnectionRefusedError(111, "Connection refused")


def test_an_error_of_a_jvm_that_is_gone_has_a_line_too() -> None:
    with pytest.raises(SparkFailed, match=JVM_GONE), spark_failures_in_one_line():
        raise GoneError


@pytest.mark.parametrize(
    "error",
    [
        LedgerError("ours"),
        ConnectionRefusedError(111, "not to a JVM"),
        ValueError("a mistake"),
        SystemExit(1),
    ],
)
def test_what_is_not_sparks_stays_as_it_is(error: BaseException) -> None:
    with pytest.raises(type(error)) as told, spark_failures_in_one_line():
        raise error
    assert told.value is error


TRACE = """An exception was thrown from the Python worker. Please see the stack trace below.
Traceback (most recent call last):
  File "host.py", line 1, in drain
twinbus.errors.SyphonError: there is no queue x in contoso; name one that exists
"""


def test_an_error_of_ours_in_a_task_is_what_the_user_reads() -> None:
    failure = failure_of(RuntimeError(TRACE))
    assert str(failure) == "there is no queue x in contoso; name one that exists"
    assert failure.is_final


def test_a_lost_executor_is_worth_another_job_and_one_line() -> None:
    failure = failure_of(RuntimeError("Job aborted due to stage failure: lost\n\tat scala.x"))
    assert str(failure) == "Job aborted due to stage failure: lost"
    assert not failure.is_final


def test_a_job_that_somebody_cancelled_is_not_tried_again() -> None:
    failure = failure_of(RuntimeError("[SPARK_JOB_CANCELLED] Job 3 cancelled"))
    assert isinstance(failure, JobCancelled)
