"""Options of the JVMs that tests start again and again."""

from __future__ import annotations

from typing import Final

from twinbus.pipeline.spark.session import QUICK_START

NAME, _SHORT = next(iter(QUICK_START.items()))

QUICK_JAVA: Final = f"{_SHORT} -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
"""Those of a drill, and Spark's classes are not verified once more at each start: a third of it.

The drill itself and the sessions of test_session.py have the options that users have.
"""

QUICK_SETTINGS: Final = {NAME: QUICK_JAVA}
