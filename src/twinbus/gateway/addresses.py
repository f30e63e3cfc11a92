"""Which addresses of a client the gateway hands on to the primary."""

from __future__ import annotations

from twinbus.broker.refusals import NotAllowed


def require_plain(path: str) -> None:
    """Raise `NotAllowed` for a path that the primary might read as another one.

    A token may be for one entity only. `orders/../payments` begins with that entity, and the
    gateway's own credential would then reach `payments` at a server that resolves the path.
    """
    parts = path.split("/")
    if "%" in path or "\\" in path or any(part in {".", ".."} for part in parts) or "" in parts[1:]:
        raise NotAllowed(f"{path!r:.280} is no address of an entity or its nodes.")
