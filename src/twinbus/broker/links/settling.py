"""A client's settlements: DISPOSITION frames about what it received."""

from __future__ import annotations

from twinbus.amqp.events import Disposed
from twinbus.amqp.link import LinkSession, SenderLink
from twinbus.amqp.performatives import Accepted, DeliveryState, Rejected, encode_state
from twinbus.broker.links.receiving import ReceivingLink


def settle(event: Disposed, now_ms: int) -> None:
    """Settle the deliveries of a disposition, and answer it."""
    if event.state is None and not event.settled:
        return
    session = event.session
    answer = encode_state(_echo(event.state))
    taken = session.take_unsettled(event.first, event.last)
    if type(event.state) is Accepted and not event.settled:
        taken = _complete_all(session, taken, answer, now_ms)
    for delivery_id, link, lock_token in taken:
        owner = link.owner
        if not isinstance(owner, ReceivingLink):
            continue
        failure = owner.settle(lock_token, event.state, now_ms)
        if not event.settled:
            session.settle(delivery_id, delivery_id, failure or answer, as_receiver=False)
    # One answer for each disposition, as wide as that: the SDK waits for a frame of its own
    # for each of many completes at once, 0.2 s where one frame answers them all.
    session.flush()


def _complete_all(
    session: LinkSession,
    taken: list[tuple[int, SenderLink, bytes]],
    answer: bytes,
    now_ms: int,
) -> list[tuple[int, SenderLink, bytes]]:
    """Complete the deliveries of one link at once; return those to be settled one by one.

    That is all of them if they came by several links or one of them cannot be completed.
    """
    if len(taken) < 2 or len({link for _, link, _ in taken}) > 1:
        return taken
    first, last = taken[0][0], taken[-1][0]
    owner = taken[0][1].owner
    if not isinstance(owner, ReceivingLink) or last - first != len(taken) - 1:
        return taken
    if not owner.complete_all([token for _, _, token in taken], now_ms):
        return taken
    session.settle(first, last, answer, as_receiver=False)
    return []


def _echo(state: object) -> DeliveryState:
    """The state that confirms a client's own: a rejection is echoed without its error.

    The SDKs read a rejection that carries an error as a failure of the settlement (AMQP.md 2.6).
    """
    if isinstance(state, Rejected):
        return Rejected()
    return state if isinstance(state, DeliveryState) else Accepted()
