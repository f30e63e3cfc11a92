"""Settings that all tests share."""

from __future__ import annotations

from hypothesis import settings

# No deadline: it measures the machine's mood, not the code; a hang meets pytest's timeout.
settings.register_profile("test", deadline=None)
# `make soak` asks the same questions far more often.
settings.register_profile("soak", deadline=None, max_examples=5_000)
settings.load_profile("test")
