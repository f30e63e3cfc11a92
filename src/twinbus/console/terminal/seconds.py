"""Reads a duration option: `8`, `0.5`, `60s`, `15min`, `2h`. Pure."""

from __future__ import annotations

from math import inf

from twinbus.console.terminal.output import WrongUse
from twinbus.cost.quantities import QuantityError, parse_duration


def seconds_of(text: str, option: str, *, least: float, most: float = inf) -> float:
    """Return the seconds; WrongUse if the text cannot be read or is out of range."""
    try:
        seconds = float(parse_duration(text, option, most=inf))
    except QuantityError:
        seconds = -inf
    if not least <= seconds <= most:
        limits = f"from {least:g} to {most:,.10g}" if most < inf else f"at least {least:g}"
        raise WrongUse(
            f"{option} must be {limits} seconds, written like 90, 90s or 15min; got {text!r:.60}"
        )
    return seconds
