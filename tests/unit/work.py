"""A bound on the processor time of a piece of code, for tests that a hostile input is not slow."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def bounded_work(limit_s: float) -> Iterator[None]:
    """Of this thread alone, without the collector: what earlier tests left costs it up to 0.4 s."""
    was_enabled = gc.isenabled()
    gc.disable()
    began_s = time.thread_time()
    try:
        yield
        used_s = time.thread_time() - began_s
    finally:
        if was_enabled:
            gc.enable()
    assert used_s < limit_s, f"{used_s:.3f} s of work, at most {limit_s:.3f}"
