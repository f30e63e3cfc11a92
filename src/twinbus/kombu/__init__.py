"""Celery and kombu on a pair: tasks are sent while the primary is down.

    import twinbus.kombu                           # makes twinbus:// known to kombu

    app = Celery("shop", broker="twinbus://eu")    # `eu` is a pair of the settings file

docs/celery.md has the other ways to name two namespaces.
"""

from __future__ import annotations

from twinbus.extras import missing_package

try:
    from kombu.transport import TRANSPORT_ALIASES
except ModuleNotFoundError as error:
    raise missing_package("twinbus.kombu", error) from None

from twinbus.kombu.transport import Transport

__all__ = ["Transport"]

TRANSPORT_ALIASES["twinbus"] = "twinbus.kombu:Transport"
