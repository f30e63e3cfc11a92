"""What a drain on Spark says when a job fails, and what Ctrl-C does to it."""

from __future__ import annotations

import os
import signal
import threading

import pytest

pytest.importorskip("pyspark")

from twinbus.pipeline.drain.drain import _stopped_by_interrupt
from twinbus.pipeline.spark.background_job import JobCancelled, failure_of

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


@pytest.mark.parametrize(("interrupts", "reaches_its_end"), [(1, True), (2, False)])
def test_the_first_interrupt_stops_gently_and_the_second_does_not(
    interrupts: int, reaches_its_end: bool
) -> None:
    stop, ends = threading.Event(), []

    def work() -> None:
        with _stopped_by_interrupt(stop):
            for _ in range(interrupts):
                os.kill(os.getpid(), signal.SIGINT)
            ends.append(stop.wait(5))

    with pytest.raises(KeyboardInterrupt):
        work()
    assert ends == [True] * reaches_its_end
    assert stop.is_set()
