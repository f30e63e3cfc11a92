"""How fast a drain may go, as people write it: `500`, `500/s`, `30000/min` or `standard`. Pure.

It is here because `submit` and the console both read it, and nothing below knows both what a
rate looks like and what a syphon can keep to.
"""

from __future__ import annotations

from typing import Final

from twinbus.cost.quantities import QuantityError, parse_rate
from twinbus.syphon.core.pacing.governor import HIGHEST_PER_S, LOWEST_PER_S, STANDARD_PER_S

STANDARD: Final = "standard"


def parse_drain_rate(text: str, name: str) -> float:
    """Messages a second; QuantityError names the option, its limits and what was said."""
    if text.strip().lower() == STANDARD:
        return STANDARD_PER_S
    try:
        per_s = float(parse_rate(text, name, most=int(HIGHEST_PER_S)))
    except QuantityError as error:
        raise QuantityError(
            f"{error}; or say `{STANDARD}`: {STANDARD_PER_S:g}/s, what a Standard namespace has"
            " left"
        ) from None
    if per_s < LOWEST_PER_S:
        raise QuantityError(
            f"{name} must be from {LOWEST_PER_S:g} to {HIGHEST_PER_S:,.0f} messages a second; got"
            f" {text!r:.60}"
        )
    return per_s
