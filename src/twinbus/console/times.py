"""Times in options: a duration (`8`, `0.5`, `60s`, `15min`, `2h`), and a time window. Pure.

The window of `--since` and `--until`:

2026-11-16              a day in UTC; as an end it includes the whole day
2026-11-16T05:30        a time, in UTC unless it has an offset: 05:30Z, 06:30+01:00
24h, 7d, 90min, 90m     this long before now
"""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, timedelta
from math import inf
from typing import Final

from twinbus.console.output import WrongUse
from twinbus.cost.arithmetic import QuantityError, parse_duration

AGO_MAX_S: Final = 100 * 366 * 86_400
"""A hundred years: no ledger is older, and `datetime` has a limit."""

_FIRST_MS: Final = 0
_LAST_MS: Final = 253_402_214_400_000
"""From 1970, before which nothing is recorded, to the last day that has a day after it: reports
look at the day before and after a window too."""

_DAY: Final = re.compile(r"\d{4}-\d{2}-\d{2}", re.ASCII)
_AGO: Final = re.compile(r"[\d.][\d.\s]*[a-z][a-z\d.\s]*", re.ASCII | re.IGNORECASE)


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


def window_of(since: str | None, until: str | None, now: datetime) -> tuple[int | None, int | None]:
    """Return the window of the two options in unix ms, without its end; None: open on that side.

    WrongUse if an option cannot be read or the window is empty.
    """
    began = None if since is None else _moment(since, "--since", now, is_end=False)
    ended = None if until is None else _moment(until, "--until", now, is_end=True)
    if began is not None and ended is not None and ended <= began:
        raise WrongUse(
            f"the window ends before it begins: --since {since} is {_text(began)}, --until {until}"
            f" is {_text(ended)}"
        )
    return _in_ms(began), _in_ms(ended)


def _moment(text: str, option: str, now: datetime, *, is_end: bool) -> datetime:
    stripped = text.strip()
    try:
        if _DAY.fullmatch(stripped):
            day = datetime.combine(date.fromisoformat(stripped), datetime.min.time(), UTC)
            return day + timedelta(days=1) if is_end else day
        if _AGO.fullmatch(stripped):
            ago_s = parse_duration(stripped, option, most=AGO_MAX_S)
            return now - timedelta(seconds=float(ago_s))
        # `fromisoformat` would read a bare number or a week of a year as something else.
        if "-" not in stripped.lstrip("-") or ":" not in stripped:
            raise ValueError
        moment = datetime.fromisoformat(stripped)
        return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    except (ValueError, OverflowError):
        raise WrongUse(
            f"{option} must be a day like 2026-11-16, a time like 2026-11-16T05:30, or how long ago"
            f" like 24h or 7d; got {text!r:.60}"
        ) from None


def _in_ms(moment: datetime | None) -> int | None:
    if moment is None:
        return None
    return min(max(round(moment.timestamp() * 1000), _FIRST_MS), _LAST_MS)


def _text(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%d %H:%M:%S UTC")
