"""Tools for tests in virtual time: those of Twinbus itself, and yours.

    VirtualClock   drives one state machine and returns its timeline
    VirtualLoop    an asyncio event loop in virtual time; `run_virtual` runs a coroutine on it
    fake_sdk       clients and senders like those of the Azure SDK, without a network
    FakePair       a paired client over two fake namespaces

`twinbus.testing.fake_sdk` and `twinbus.testing.fake_pair` are imported by their own names. Nothing
here sleeps: an hour of failover takes as long as its events take to handle.
"""

from twinbus.testing.virtual_clock import Machine, VirtualClock
from twinbus.testing.virtual_loop import VirtualLoop, run_virtual

__all__ = ["Machine", "VirtualClock", "VirtualLoop", "run_virtual"]
