"""A side of a pair on its way to a Spark task: a description, or a factory, that is opened there.

A description such as `sb://contoso.servicebus.windows.net?credential=managed-identity` holds no
secret: each machine opens the credential with its own identity, file or variable. A connection
string is a secret and travels inside the task; `credential=env:NAME` leaves it at home.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from twinbus.errors import SyphonError
from twinbus.namespace.access import NamespaceAccess
from twinbus.namespace.credential_sources import route_of
from twinbus.namespace.endpoint import Endpoint, endpoint_of
from twinbus.namespace.namespace import Namespace
from twinbus.namespace.route import DIRECT

ShippedSide = NamespaceAccess | Callable[[], Any]
"""What a task opens. A factory returns a Namespace, or a text as a pair takes it."""


def shipped_side(role: str, given: object) -> ShippedSide:
    """Return a side as it can be shipped; SyphonError if it cannot."""
    if isinstance(given, NamespaceAccess):
        return given
    if isinstance(given, Namespace):
        if given.access is not None:
            return given.access
        if given.connection_string is not None and given.route == DIRECT:
            return NamespaceAccess.parse(given.connection_string, name=given.label)
    elif isinstance(given, str):
        try:
            return NamespaceAccess.parse(given)
        except ValueError as error:
            raise SyphonError(f"the {role}: {error}") from None
    elif callable(given):
        return given
    raise SyphonError(
        f"the {role} needs a connection string, sb://HOST?credential=SOURCE, or a function that"
        f" returns a Namespace: tasks sign in by themselves, on other machines; got"
        f" {type(given).__name__}"
    )


def open_side(side: ShippedSide) -> Endpoint:
    """Return the endpoint of a side, its credential opened on this machine."""
    if isinstance(side, NamespaceAccess) and side.connection_string:
        found = Endpoint.parse(side.connection_string)
        return replace(found, name=side.name or "", route=route_of(side))
    made = side if isinstance(side, NamespaceAccess) else side()
    return endpoint_of(Namespace.of(made))
