"""What Ctrl-C does to a drain on Spark."""

from __future__ import annotations

import os
import signal
import threading

import pytest

pytest.importorskip("pyspark")

from twinbus.pipeline.drain.drain import _stopped_by_interrupt


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
