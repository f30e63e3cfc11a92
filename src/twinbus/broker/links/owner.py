"""What a connection tells the object behind one of its links, whoever serves that link."""

from __future__ import annotations

from twinbus.amqp.events import DeliveryArrived, DeliveryTooLarge


class LinkOwner:
    """The object behind a link; each kind of link overrides what concerns it."""

    address = ""
    """The node that the link is attached to, as the client named it."""
    is_on_entity = False
    """True for a link that sends to an entity or receives from one."""

    def take(self, event: DeliveryArrived, now_ms: int) -> None:
        """Take a delivery of the client."""

    def take_all(self, events: list[DeliveryArrived], now_ms: int) -> None:
        """Take deliveries that came one after the other."""
        for event in events:
            self.take(event, now_ms)

    def refuse_oversize(self, event: DeliveryTooLarge, now_ms: int) -> None:
        """Reject a delivery beyond the link's limit, if its link rejects such."""

    def credit_changed(self) -> None:
        """The client gave credit, asked to drain, or its window takes transfers again."""

    def may_write_again(self) -> None:
        """The client reads again: deliveries that waited for it can go on."""

    def granted_until_ms(self, now_ms: int) -> int | None:
        """When the right to the link ends, None: never; raises `Unauthorized` if it has ended."""
        return None

    def abandon(self) -> None:
        """Let go of the entity without a word: the engine is being replaced."""

    def close(self, now_ms: int) -> None:
        """The link is gone, by the client's wish or ours."""
