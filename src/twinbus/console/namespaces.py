"""The namespaces that a command is about, and what their errors mean to whoever typed it."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

from azure.core.exceptions import AzureError, ClientAuthenticationError
from azure.servicebus.exceptions import ServiceBusError

from twinbus.console.terminal.output import STOPPED, WrongUse
from twinbus.errors import MissingRightError, TwinbusError
from twinbus.loops import fast_loop
from twinbus.namespace.administration_client import administration_client
from twinbus.namespace.namespace import Namespace
from twinbus.pairing.core.classify import FailureMeaning, meaning_of
from twinbus.pairing.lifecycle.administration import first_line

if TYPE_CHECKING:
    from azure.servicebus.aio.management import ServiceBusAdministrationClient

__all__ = ["UnreachableError", "administration", "answers", "parse_side", "run_to_its_end"]

FORBIDDEN: Final = (401, 403)


class UnreachableError(TwinbusError):
    """A namespace does not answer, or answers with a fault of its own."""


def parse_side(text: str | None, role: str, name: str | None = None) -> Namespace:
    """The namespace of a connection string; WrongUse, without any secret, if it leads to none."""
    if not text or not text.strip():
        raise WrongUse(
            f"the {role} namespace is missing: say its connection string, or better put it into"
            f" TWINBUS_{role.upper()}"
        )
    # The variable by which other programs are told of a private certificate authority.
    roots = os.environ.get("SSL_CERT_FILE")
    trust = {"connection_verify": roots} if roots else {}
    try:
        return Namespace.from_connection_string(text, name=name, **trust)
    except ValueError as error:
        raise WrongUse(f"the {role} namespace: {error}") from None


@asynccontextmanager
async def administration(
    namespace: Namespace, doing: str
) -> AsyncIterator[ServiceBusAdministrationClient]:
    """The administration client of a namespace; its errors as `answers` puts them."""
    with answers(namespace, doing, "Manage"):
        async with administration_client(namespace) as client:
            yield client


class answers:  # noqa: N801  # reads as a sentence where it is used
    """Turns what the SDK raises in the block into one line for a person."""

    def __init__(self, namespace: Namespace, doing: str, right: str) -> None:
        """`doing` is what needs `right`, as a gerund."""
        self._namespace, self._doing, self._right = namespace, doing, right

    def __enter__(self) -> None:
        return None

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if isinstance(error, AzureError | ServiceBusError | OSError | ValueError):
            raise self._translated(error) from error

    def _translated(self, error: Exception) -> TwinbusError:
        endpoint, said = self._namespace.endpoint, _in_line(error)
        status = getattr(error, "status_code", None)
        meaning = meaning_of(error)
        if (
            isinstance(error, ClientAuthenticationError)
            or status in FORBIDDEN
            or meaning is FailureMeaning.UNAUTHORIZED
        ):
            return MissingRightError(
                f"{self._doing} in {endpoint} needs the {self._right} right, and the credential"
                f" is refused or does not have it ({said})"
            )
        if meaning is FailureMeaning.UNREACHABLE and status is None:
            return UnreachableError(f"{endpoint} cannot be reached: {said}")
        return UnreachableError(f"{self._doing} in {endpoint} failed: {said}")


def _in_line(error: BaseException) -> str:
    return first_line(error) or type(error).__name__


def run_to_its_end(work: Callable[[], Coroutine[Any, Any, int]]) -> int:
    """Run a command's coroutine; Ctrl-C and SIGTERM end it, after it has tidied up."""
    # The SDK and the syphon log what a command says better itself, in one line.
    logging.getLogger().addHandler(logging.NullHandler())

    async def main() -> int:
        task = asyncio.current_task()
        assert task is not None
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        return await work()

    try:
        with asyncio.Runner(loop_factory=fast_loop()) as runner:
            return runner.run(main())
    except (KeyboardInterrupt, asyncio.CancelledError):
        print("twinbus: stopped", file=sys.stderr)
        return STOPPED
