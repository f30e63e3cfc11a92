"""SASL before AMQP: both ends of the short exchange that Service Bus clients expect.

The broker takes any of its mechanisms without a secret, because rights come later, from the token
that a client puts on `$cbs`. A client picks ANONYMOUS, or PLAIN where a user is given.
"""

from __future__ import annotations

from twinbus.amqp.frames import encode_frame
from twinbus.amqp.performatives import SaslInit, SaslMechanisms, SaslOutcome
from twinbus.amqp.types import AmqpError, Symbol

SASL_FRAME = 1
OUTCOME_OK = 0
OUTCOME_AUTH_FAILED = 1

SERVER_MECHANISMS = ("MSSBCBS", "ANONYMOUS", "EXTERNAL")
"""MSSBCBS is what .NET asks for, ANONYMOUS what Python and JavaScript do before put-token."""


class SaslFailed(AmqpError):
    """The exchange ended without a login; the text says why."""


class ServerSasl:
    """The broker's side: offers mechanisms, then answers the client's choice."""

    def start(self) -> bytes:
        return _frame(
            SaslMechanisms(sasl_server_mechanisms=[Symbol(name) for name in SERVER_MECHANISMS])
        )

    def handle(self, frame: object) -> tuple[bytes, bool]:
        """Take the client's frame; return what to send, and whether the exchange is over."""
        if not isinstance(frame, SaslInit):
            raise SaslFailed(f"expected sasl-init, got {type(frame).__name__}")
        if str(frame.mechanism) not in SERVER_MECHANISMS:
            return _frame(SaslOutcome(code=OUTCOME_AUTH_FAILED)), False
        return _frame(SaslOutcome(code=OUTCOME_OK)), True


class ClientSasl:
    """A client's side: ANONYMOUS, or PLAIN with a user and a password."""

    def __init__(self, user: str | None = None, password: str = "") -> None:
        self._mechanism = "ANONYMOUS" if user is None else "PLAIN"
        self._response = b"" if user is None else f"\0{user}\0{password}".encode()

    def start(self) -> bytes:
        """Nothing: the server speaks first."""
        return b""

    def handle(self, frame: object) -> tuple[bytes, bool]:
        """Take the server's frame; return what to send, and whether the exchange is over."""
        if isinstance(frame, SaslMechanisms):
            offered = [str(name) for name in frame.sasl_server_mechanisms or []]
            if self._mechanism not in offered:
                raise SaslFailed(f"the peer offers {offered}, not {self._mechanism}")
            mechanism = Symbol(self._mechanism)
            return _frame(SaslInit(mechanism=mechanism, initial_response=self._response)), False
        if isinstance(frame, SaslOutcome):
            if frame.code != OUTCOME_OK:
                raise SaslFailed(f"the peer refused the login (sasl outcome {frame.code})")
            return b"", True
        raise SaslFailed(f"unexpected {type(frame).__name__} during sasl")


def _frame(performative: SaslMechanisms | SaslInit | SaslOutcome) -> bytes:
    return encode_frame(0, performative, frame_type=SASL_FRAME)
