"""Compares the behaviour of a real namespace with the embedded broker: the facts behind Twinbus.

    facts = await verify({"primary": namespace}, VerifyPlan(profile=AZURE_STANDARD))

Each check runs on the namespace and on a broker of the same tier in this process, and what both
answered is compared.
"""

from twinbus.verify.run import Fact, Likeness, VerifyPlan, VerifyReport, verify
from twinbus.verify.scratch import PREFIX, Check, ForeignEntities, clean

__all__ = [
    "PREFIX",
    "Check",
    "Fact",
    "ForeignEntities",
    "Likeness",
    "VerifyPlan",
    "VerifyReport",
    "clean",
    "verify",
]
