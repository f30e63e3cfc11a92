"""Twinbus for code without asyncio: the same names, and calls that return when it is done.

    from twinbus.blocking import SendAvailabilityOptions, pair_namespaces

    with pair_namespaces(primary, secondary, options) as pair:
        with pair.get_queue_sender("orders") as sender:
            sender.send_messages(ServiceBusMessage("order 1"))

Everything happens in the asyncio core, on one thread that the pair starts for itself; the caller
waits for the answer. So nothing here is decided twice, and, unlike a call of the sync SDK, a call
can be given up: Ctrl-C ends it in the core as well.

- A pair and its senders may be used by many threads at once.
- Inside a coroutine a call works, but it blocks that coroutine's event loop while it waits: there,
  use `twinbus` itself.
- The thread does not survive a fork. A pair made before it says so in the child, and closing it
  there does nothing; make the pair in the child (gunicorn: `post_fork`, Celery:
  `worker_process_init`).
- A program that ends without closing its pair is not held up.
- Receivers are the sync SDK's own, from the primary, and are no business of the pair's thread.
"""

from __future__ import annotations

from twinbus.blocking.pair import Pair, pair_namespaces
from twinbus.blocking.sender import PairedSender
from twinbus.blocking.sides import EventStream, PairSide
from twinbus.namespace.namespace import Namespace
from twinbus.options import SendAvailabilityOptions, Verdict
from twinbus.pair import PairStatus

__all__ = [
    "EventStream",
    "Namespace",
    "Pair",
    "PairSide",
    "PairStatus",
    "PairedSender",
    "SendAvailabilityOptions",
    "Verdict",
    "pair_namespaces",
]
