"""Methods of a pair that are the same for asyncio and for `twinbus.blocking`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Generic, TypeVar

from twinbus.options import SendAvailabilityOptions
from twinbus.pairing.core.failover import Event, ForceFailover, Freeze, MarkHealthy, Unfreeze
from twinbus.servicebus.names import subscription_path
from twinbus.servicebus.twins import is_listed

SdkReceiver = TypeVar("SdkReceiver")
SdkSessions = TypeVar("SdkSessions")


class PairMethods(ABC, Generic[SdkReceiver, SdkSessions]):
    """Receivers, lists of sessions, and a person's commands."""

    options: SendAvailabilityOptions

    def get_queue_receiver(
        self, queue_name: str, *, guard: bool = False, **sdk_options: Any
    ) -> SdkReceiver:
        """A receiver from a queue, with the interface of the SDK's receiver.

        For an entity of the option `twins` it reads the primary and the twin, on our own links.
        With `guard` it reads the primary on our own links: it connects again for as long as it
        lives, and finds a link that fell silent. Otherwise it is the SDK's own receiver from the
        primary, with the SDK's own retries.
        """
        if guard or is_listed(self.options.twins, queue_name):
            return self._paired_receiver(queue_name, queue_name, sdk_options)
        return self._receiver_client().get_queue_receiver(queue_name, **sdk_options)  # type: ignore[no-any-return]

    def get_subscription_receiver(
        self, topic_name: str, subscription_name: str, *, guard: bool = False, **sdk_options: Any
    ) -> SdkReceiver:
        """A receiver from a subscription, as `get_queue_receiver`; the topic is the entity."""
        if guard or is_listed(self.options.twins, topic_name):
            path = subscription_path(topic_name, subscription_name)
            return self._paired_receiver(topic_name, path, sdk_options)
        get = self._receiver_client().get_subscription_receiver
        return get(topic_name, subscription_name, **sdk_options)  # type: ignore[no-any-return]

    def list_queue_sessions(self, queue_name: str, **sdk_options: Any) -> SdkSessions:
        """The SDK's own list of the sessions in a queue of the primary."""
        return self._receiver_client().list_queue_sessions(queue_name, **sdk_options)  # type: ignore[no-any-return]

    def list_subscription_sessions(
        self, topic_name: str, subscription_name: str, **sdk_options: Any
    ) -> SdkSessions:
        """The SDK's own list of the sessions in a subscription of the primary."""
        listed = self._receiver_client().list_subscription_sessions
        return listed(topic_name, subscription_name, **sdk_options)  # type: ignore[no-any-return]

    def force_failover(self, path: str) -> None:
        """Divert the entity's sends until `mark_healthy`; ValueError: it has no sender here."""
        self._command(path, ForceFailover())

    def mark_healthy(self, path: str) -> None:
        """Send to the primary again, whatever the pings say."""
        self._command(path, MarkHealthy())

    def freeze(self, path: str) -> None:
        """Keep the entity's routing as it is, without timer and pings, until `unfreeze`."""
        self._command(path, Freeze())

    def unfreeze(self, path: str) -> None:
        """Let the entity's routing change again."""
        self._command(path, Unfreeze())

    @abstractmethod
    def _paired_receiver(self, entity: str, path: str, sdk_options: dict[str, Any]) -> SdkReceiver:
        """A receiver on our own links from `path`, which is the entity or its subscription."""

    @abstractmethod
    def _receiver_client(self) -> Any:
        """The SDK's client of the primary, with the SDK's own retries."""

    @abstractmethod
    def _command(self, path: str, event: Event) -> None:
        """Apply a person's command to an entity; announce a change of forced or frozen."""
