"""Which worlds TLC visits: a few processes each, and which faults may happen in them."""

from __future__ import annotations

from typing import Any, Final

from tests.model.tlc import Outcome, check

INVARIANTS: Final = (
    "NothingLost",
    "CompletedAfterAccepted",
    "StrictOrder",
    "OneHolder",
    "OwnFailure",
    "UnmarkedUntouched",
)
HOME: Final = "ComesHome"


def world(**changes: Any) -> dict[str, Any]:
    """One pair, one message, one backlog queue, one syphon; no faults."""
    constants = {
        "Apps": {"a"}, "OneHost": frozenset(), "Quorum": 1, "SendersEach": 1, "Messages": 1,
        "Queues": {"q"}, "Twin": "none", "Syphons": {"y"}, "Strict": False,
        "Stops": 0, "Losses": 0, "Crashes": 0, "Cuts": 0, "Bug": "none",
    }  # fmt: skip
    assert changes.keys() <= constants.keys()
    return constants | changes


SMALL: Final[dict[str, dict[str, Any]]] = {
    "an outage": world(Queues={"q", "r"}, Stops=1, Losses=1, Crashes=1),
    "two senders": world(SendersEach=2, Stops=1),
    "a twin": world(Twin="marked", Stops=1, Losses=1, Crashes=1),
    "a namesake without the mark": world(Messages=2, Twin="unmarked", Stops=1),
    "strict order": world(Messages=2, Strict=True, Stops=1, Losses=1, Crashes=1),
    "two syphons": world(Syphons={"y", "z"}, Strict=True, Stops=1, Crashes=1, Cuts=1),
    "two hosts": world(Apps={"a", "b"}, Stops=1),
}
"""Visited to the end in CI, and those in `SLOW` by `make soak`."""

SLOW: Final = frozenset({"strict order", "two hosts"})
"""Worlds with planted faults that CI looks for; to the end they take half a minute there."""

COMING_HOME: Final = frozenset({"an outage", "a twin", "two syphons"})
"""Small worlds in which TLC checks liveness too, which takes as long again or longer."""

LARGE: Final[dict[str, dict[str, Any]]] = {
    "a twin": world(Messages=2, Twin="marked", Stops=1, Losses=1, Crashes=1),
    "two senders": world(SendersEach=2, Queues={"q", "r"}, Stops=1, Losses=1),
    "strict order": world(
        Messages=2, Syphons={"y", "z"}, Strict=True, Stops=1, Losses=1, Crashes=1, Cuts=1
    ),
    "two hosts": world(Apps={"a", "b"}, Stops=1, Losses=1),
    "one host": world(Apps={"a", "b"}, OneHost={"a", "b"}, Quorum=2, Stops=1),
}
"""Visited to the end by `make soak`."""

PLANTED: Final[dict[str, tuple[str, str]]] = {
    "acknowledged without an answer": ("an outage", "NothingLost"),
    "completed before it is sent": ("an outage", "CompletedAfterAccepted"),
    "a session returns early": ("strict order", "StrictOrder"),
    "a takeover does not wait": ("two syphons", "OneHolder"),
    "a holder leaves no mark": ("two syphons", "OneHolder"),
    "evidence is enough": ("two hosts", "OwnFailure"),
    "the mark is not read": ("a namesake without the mark", "UnmarkedUntouched"),
    "a forward is forgotten": ("an outage", HOME),
}
"""Faults of the model: the world that shows each, and what does not hold in it."""


def visit(name: str) -> Outcome:
    """Visit every state of a small world, with all promises."""
    properties = [HOME] if name in COMING_HOME else []
    return check(SMALL[name], invariants=INVARIANTS, properties=properties)


def look_for(bug: str) -> Outcome:
    """Visit the world of a planted fault, with the one promise that it breaks."""
    name, broken = PLANTED[bug]
    # Alone, because another promise may be broken first.
    kept, liveness = ([], [HOME]) if broken == HOME else ([broken], [])
    return check(SMALL[name] | {"Bug": bug}, invariants=kept, properties=liveness)
