"""What one client has completed, over all its links, in bounded memory."""

from __future__ import annotations

from twinbus.gateway.client_copies import LEFT_MAX, PATHS_MAX, ClientCopies
from twinbus.pairing.core.sides import Side
from twinbus.pairing.receiving.copies import Copy


def copy(side: Side, number: int) -> Copy:
    since_ms = 1 if side is Side.SECONDARY else None
    return Copy(side, number, "a", b"digest", 1, since_ms)


def test_an_entity_is_known_to_its_next_link_until_too_many_others_are_closed() -> None:
    copies = ClientCopies()
    open_one, first = copies.opened("open"), copies.opened("Q/Subscriptions/red")
    copies.closed("q/subscriptions/red")
    assert copies.opened("q/subscriptions/RED") is first
    copies.closed("q/subscriptions/red")
    for number in range(PATHS_MAX):
        copies.opened(f"other{number}")
        copies.closed(f"other{number}")
    assert copies.opened("q/subscriptions/red") is not first
    assert copies.opened("open") is open_one


def test_what_a_closed_link_has_left_is_known_when_it_is_completed_by_its_token() -> None:
    copies = ClientCopies()
    of_path = copies.opened("q")
    copies.closed("q")
    for number, status in enumerate(("abandoned", "suspended", "completed")):
        token = bytes([number])
        copies.left(token, of_path, copy(Side.SECONDARY, number))
        copies.settled(token, status)
    assert of_path.is_second(copy(Side.PRIMARY, 10))
    assert not of_path.is_second(copy(Side.PRIMARY, 11))


def test_the_oldest_messages_that_were_left_are_forgotten() -> None:
    copies = ClientCopies()
    of_path = copies.opened("q")
    for number in range(LEFT_MAX + 1):
        copies.left(number.to_bytes(2, "big"), of_path, copy(Side.SECONDARY, number))
    copies.settled((0).to_bytes(2, "big"), "completed")
    assert not of_path.is_second(copy(Side.PRIMARY, LEFT_MAX + 2))
    copies.settled((1).to_bytes(2, "big"), "completed")
    assert of_path.is_second(copy(Side.PRIMARY, LEFT_MAX + 2))
