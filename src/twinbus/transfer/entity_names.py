"""Which paths name a queue or a topic: the only addresses that a backlog message is sent to.

A backlog message is foreign input (SPEC 6). A path with a `$` segment addresses a node that carries
out requests with the rights of the syphon, a subscription is no place to send to, and an absolute
address names another namespace. So the rule lists what a name may consist of, not what it may not.
"""

from __future__ import annotations

import re
from typing import Final

from twinbus.errors import InvalidDestinationError

ENTITY_NAME_MAX: Final = 260
"""Characters of a path of a queue or topic: the limit of Azure."""

_SEGMENT: Final = r"(?!\.{1,2}(?:/|\Z))[A-Za-z0-9._~-]+"
_LATER_SEGMENT: Final = rf"(?!(?i:subscriptions)(?:/|\Z)){_SEGMENT}"
_ENTITY: Final = re.compile(
    rf"{_SEGMENT}(?:/{_LATER_SEGMENT})*",
    # Without it the letters in any case would include U+017F and U+212A.
    re.ASCII,
)


def is_entity_name(path: str) -> bool:
    """Whether a queue or topic can have this path."""
    return len(path) <= ENTITY_NAME_MAX and _ENTITY.fullmatch(path) is not None


def require_entity_name(path: str) -> None:
    """Raise InvalidDestinationError, with the path in its text, if no entity can have it."""
    if not is_entity_name(path):
        raise InvalidDestinationError(not_an_entity_name(path))


def not_an_entity_name(path: str) -> str:
    """The text of an error about a path that no entity can have."""
    if len(path) > ENTITY_NAME_MAX:
        wrong = f"{len(path)} characters; the limit is {ENTITY_NAME_MAX}"
    else:
        wrong = (
            "only letters, digits, '.', '-', '_', '~' and single '/' between parts can be in it, "
            "no part '.' or '..', and no part 'Subscriptions' after the first"
        )
    return f"{path!r:.280} is not the path of a queue or topic: {wrong}"
