"""All parts of the fuzzer, by name."""

from __future__ import annotations

from tests.fuzz.frames import FRAMES
from tests.fuzz.gateways import GATEWAYS
from tests.fuzz.http import HTTP
from tests.fuzz.messages import MESSAGES
from tests.fuzz.part import Part
from tests.fuzz.ports import PORTS
from tests.fuzz.requests import CBS, MANAGEMENT
from tests.fuzz.resources import RESOURCES
from tests.fuzz.sql import SQL
from tests.fuzz.strangers import STRANGERS
from tests.fuzz.unpacking import UNPACKING
from tests.fuzz.work import WORK

_ALL = (
    FRAMES,
    STRANGERS,
    MESSAGES,
    MANAGEMENT,
    CBS,
    UNPACKING,
    HTTP,
    PORTS,
    SQL,
    WORK,
    RESOURCES,
    GATEWAYS,
)
PARTS: dict[str, Part] = {part.name: part for part in _ALL}
