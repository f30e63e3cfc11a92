"""Outage patterns: how often the primary is down, and how long.

    2/year lognormal 40min           on average twice a year, median length 40 minutes
    exactly 2/year exponential 40min twice in every year, median length 40 minutes
    300/year fixed 5s                on average 300 times a year, each 5 seconds long
    west-europe-2025-11              an outage that happened, once in every year

The number in a year is Poisson unless it is exact, and outages are independent. A length is its
median, because people remember a usual outage rather than a mean that one long outage shifts.

The outages that happened are presets of `twinbus drill` too, with what Microsoft publishes of
Geo-Replication in an outage beside them.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from twinbus.cost.arithmetic import message_units, moved_message_units
from twinbus.cost.quantities import DAY_S, QuantityError, parse_duration, parse_frequency

LENGTH_MAX_S: Final = 30 * DAY_S
"""Maximum length of a simulated outage. Without it one extreme draw of a wide lognormal would
dominate a mean, and a real outage of a month would be handled in another way."""

PER_YEAR_MAX: Final = 400
"""Somewhat more than one a day. A backlog does not help a primary that is down more often."""

SIGMA_MAX: Final = 3.0
"""At 3 one outage in six is longer than twenty times the median."""


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

FORM: Final = "like '2/year lognormal 40min' or 'exactly 2/year fixed 1h', or one of " + ", ".join(
    one.name for one in KNOWN_OUTAGES
)


class Lengths(StrEnum):
    """Distribution of the length of outages."""

    LOGNORMAL = "lognormal"
    EXPONENTIAL = "exponential"
    FIXED = "fixed"


@dataclass(frozen=True, kw_only=True, slots=True)
class OutagePattern:
    """Outages of one kind."""

    per_year: float
    lengths: Lengths
    median_s: float
    sigma: float = 1.0
    """Of a lognormal length: the standard deviation of its logarithm."""
    is_exact: bool = False
    """Whether every year has exactly `per_year` outages."""

    def __post_init__(self) -> None:
        if not 0 <= self.per_year <= PER_YEAR_MAX:
            raise QuantityError(
                f"outages must be 0 to {PER_YEAR_MAX} a year; got {self.per_year:g}"
            )
        if self.is_exact and self.per_year != int(self.per_year):
            raise QuantityError(
                f"outages: exactly {self.per_year:g} a year is no whole number; leave `exactly` out"
            )
        if not 0 < self.median_s <= LENGTH_MAX_S:
            raise QuantityError(
                f"outages must be longer than 0 and at most {LENGTH_MAX_S // DAY_S} days; got"
                f" {self.median_s:g} s"
            )
        if not 0 < self.sigma <= SIGMA_MAX:
            raise QuantityError(
                f"sigma must be more than 0 and at most {SIGMA_MAX:g}; got {self.sigma:g}"
            )

    def __str__(self) -> str:
        exactly = "exactly " if self.is_exact else ""
        spread = f" (sigma {self.sigma:g})" if self.lengths is Lengths.LOGNORMAL else ""
        return f"{exactly}{self.per_year:g}/year {self.lengths} {self.median_s:g}s{spread}"


def parse_pattern(text: str, sigma: float = 1.0) -> OutagePattern:
    """Return the pattern in a text; QuantityError, in one line, if it cannot be read."""
    if known := known_outage(text):
        text = known.pattern
    words = text.split()
    is_exact = bool(words) and words[0].lower() == "exactly"
    if is_exact:
        del words[0]
    if len(words) < 3:
        raise QuantityError(f"outages must be {FORM}; got {text!r:.60}")
    kind = words[1].lower()
    if kind not in set(Lengths):
        kinds = ", ".join(Lengths)
        raise QuantityError(f"outages: lengths are {kinds}; got {words[1]!r:.40} in {text!r:.60}")
    return OutagePattern(
        per_year=float(parse_frequency(words[0], "outages")),
        lengths=Lengths(kind),
        median_s=float(parse_duration(" ".join(words[2:]), "the length of outages")),
        sigma=sigma,
        is_exact=is_exact,
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
