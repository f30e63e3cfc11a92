"""Tools for tests: those of Twinbus itself, and yours.

    LocalNamespace    a namespace in this process, with outages on request and what was sent to it
    LocalPair         two of them, for a paired application
    ProxiedNamespace  a real namespace behind a fault proxy, with outages on request
    administration    the SDK's administration client for `twinbus serve` without TLS
    VirtualClock      drives one state machine and returns its timeline
    VirtualLoop       an asyncio event loop in virtual time; `run_virtual` runs a coroutine on it
    fake_sdk          clients and senders like those of the Azure SDK, without a network
    FakePair          a paired client over two fake namespaces

`twinbus.testing.pytest_plugin` has the first two as fixtures (docs/testing.md). The last two are
imported from `twinbus.testing.fake_sdk`. The other names load on first use: every run of pytest
imports this package where the plugin is installed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from twinbus.extras import load

if TYPE_CHECKING:
    from twinbus.testing.local_namespace import LocalNamespace as LocalNamespace
    from twinbus.testing.local_namespace import LocalPair as LocalPair
    from twinbus.testing.local_namespace import SentMessage as SentMessage
    from twinbus.testing.local_namespace import SentMessages as SentMessages
    from twinbus.testing.local_namespace import administration as administration
    from twinbus.testing.local_namespace import async_administration as async_administration
    from twinbus.testing.outages import Outage as Outage
    from twinbus.testing.outages import OutageKind as OutageKind
    from twinbus.testing.proxied_namespace import ProxiedNamespace as ProxiedNamespace
    from twinbus.testing.virtual_time import Machine as Machine
    from twinbus.testing.virtual_time import VirtualClock as VirtualClock
    from twinbus.testing.virtual_time import VirtualLoop as VirtualLoop
    from twinbus.testing.virtual_time import run_virtual as run_virtual

_NAMES = {
    "local_namespace": "LocalNamespace LocalPair SentMessage SentMessages administration"
    " async_administration",
    "outages": "Outage OutageKind",
    "proxied_namespace": "ProxiedNamespace",
    "virtual_time": "Machine VirtualClock VirtualLoop run_virtual",
}
_HOMES = {name: home for home, names in _NAMES.items() for name in names.split()}
__all__ = list(_HOMES)

if not TYPE_CHECKING:  # a checker that sees this function accepts every name

    def __getattr__(name: str) -> object:
        home = _HOMES.get(name)
        if home is None:
            raise AttributeError(f"module 'twinbus.testing' has no attribute {name!r}")
        value = load(f"twinbus.testing.{home}", name)
        globals()[name] = value
        return value
