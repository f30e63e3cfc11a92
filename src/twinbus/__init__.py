"""Twinbus: an application keeps sending while its Service Bus namespace is down.

The public door. Names load on first use, so that `import twinbus` costs next to nothing and needs
none of the extras.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from twinbus.broker.embedded import EmbeddedBroker
    from twinbus.errors import (
        BrokerError,
        BrokerStartError,
        ListenError,
        StoreError,
        StoreFull,
        TwinbusError,
    )

__version__ = "0.1.0.dev0"

__all__ = [
    "BrokerError",
    "BrokerStartError",
    "EmbeddedBroker",
    "ListenError",
    "StoreError",
    "StoreFull",
    "TwinbusError",
]

_HOMES = {
    "BrokerError": "twinbus.errors",
    "BrokerStartError": "twinbus.errors",
    "EmbeddedBroker": "twinbus.broker.embedded",
    "ListenError": "twinbus.errors",
    "StoreError": "twinbus.errors",
    "StoreFull": "twinbus.errors",
    "TwinbusError": "twinbus.errors",
}
"""Where each public name lives; the layout test holds its keys to `__all__`."""


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'twinbus' has no attribute {name!r}")
    value: object = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
