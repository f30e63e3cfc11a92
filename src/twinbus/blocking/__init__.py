"""Twinbus for code without asyncio: the same names, with calls that block.

    from twinbus.blocking import SendAvailabilityOptions, pair_namespaces

    with pair_namespaces(primary, secondary, options) as pair:
        with pair.get_queue_sender("orders") as sender:
            sender.send_messages(ServiceBusMessage("order 1"))

The asyncio core runs on one thread that the pair starts, and the caller waits for the result. A
busy sender sends small messages to a healthy entity on its caller's own thread. A call can be
interrupted: Ctrl-C ends it in the core too.

- A pair and its senders may be used by many threads at once.
- Inside a coroutine a call works, but it blocks that coroutine's event loop: use `twinbus` itself
  there.
- Without a block, call `pair.start()` and `pair.close()`.
- The thread does not survive a fork. In the child, a pair started before the fork raises, and
  closing it does nothing; start the pair in the child (gunicorn: `post_fork`, Celery:
  `worker_process_init`).
- A program that ends without closing its pair still exits at once.
- Receivers are the sync SDK's own, from the primary; they do not use the pair's thread.
- The handlers of `pair.process` run on threads of their own.
"""

from __future__ import annotations

from twinbus.blocking.pair import EventStream, Pair, PairSide, PrimarySide, pair_namespaces
from twinbus.blocking.processor import Processor, process
from twinbus.blocking.sender import MessageSender, PairedSender
from twinbus.blocking.transactions import Transaction, Transactions, transactions
from twinbus.namespace.namespace import Namespace
from twinbus.options import SendAvailabilityOptions, Verdict
from twinbus.pair import PairStatus

__all__ = [
    "EventStream",
    "MessageSender",
    "Namespace",
    "Pair",
    "PairSide",
    "PairStatus",
    "PairedSender",
    "PrimarySide",
    "Processor",
    "SendAvailabilityOptions",
    "Transaction",
    "Transactions",
    "Verdict",
    "pair_namespaces",
    "process",
    "transactions",
]
