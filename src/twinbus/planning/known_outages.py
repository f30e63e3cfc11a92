"""Outages that happened, by name: presets of `twinbus drill` and `twinbus plan`.

Also what Microsoft publishes of Geo-Replication in an outage, for the comparison beside them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from twinbus.cost.arithmetic import message_units, moved_message_units


@dataclass(frozen=True, slots=True)
class KnownOutage:
    """One outage of Azure."""

    name: str
    when: str
    length_s: float
    source: str

    @property
    def pattern(self) -> str:
        """The outage once in every year, in the words of `parse_pattern`."""
        return f"exactly 1/year fixed {self.length_s:g}s"

    def added_units(self, rate_per_s: float, failover_s: float, size_bytes: int) -> int:
        """Return the operations that the backlog adds, at this rate, over the whole outage."""
        diverted = rate_per_s * max(0.0, self.length_s - failover_s)
        each = moved_message_units(size_bytes) - message_units(size_bytes)
        return round(diverted * each)


KNOWN_OUTAGES: Final = (
    KnownOutage(
        name="west-europe-2025-11",
        when="West Europe, 5 November 2025, 17:00 to 02:25 UTC",
        length_s=33_900.0,
        # The final review says "approximately 16:53"; the times are those of the first one.
        source=(
            "Azure status history, incident 2LGD-9VG: a subset of customers; Service Bus is one of"
            " the services it names"
        ),
    ),
)

PROMOTION_S: Final = (300.0, 600.0)
"""Usual duration of a promotion of Geo-Replication, planned or forced, once a person started it."""

PROMOTION_SOURCE: Final = "Microsoft, Reliability in Azure Service Bus, 5 December 2025"


def known_outage(name: str) -> KnownOutage | None:
    """Return the outage of this name; None if no outage has it."""
    return next((one for one in KNOWN_OUTAGES if one.name == name.strip().lower()), None)


def sends_in_promotion(rate_per_s: float) -> tuple[int, int]:
    """Return how many sends come while a promotion of usual duration runs: fewest and most."""
    fewest, most = PROMOTION_S
    return round(rate_per_s * fewest), round(rate_per_s * most)
