"""The screen of `twinbus top`, drawn from the documents of the page's model.

Everything fits the given size: what is worst comes first, and the rest is counted. Foreign text
goes through `visible` and is never read as markup.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from textwrap import wrap
from typing import Any, Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from twinbus.console.control.status_text import rank
from twinbus.console.terminal.table import duration, visible
from twinbus.page.core.headline import headline_of
from twinbus.page.core.history import BUCKET_S
from twinbus.page.core.pair_table import Pair

RATE_S: Final = 30.0
"""Rates are means over this time."""

RATE_MIN_S: Final = 2.0
"""A shorter observation, such as a single look, has no rate."""

NOT_KNOWN: Final = "–"

HEADLINE_LINES: Final = 2
ATTENTION_LINES: Final = 3
FIXED_LINES: Final = 9
"""Headline, the headings of both tables, lines that count the rest, empty lines, the foot."""

LEVELS: Final = {
    "healthy": ("✔", "bold green"),
    "failed-over": ("⚠", "bold yellow"),
    "attention": ("⚠", "bold yellow"),
    "unprotected": ("✖", "bold red"),
    "none": ("○", "bold"),
}
"""Sign and style of the headline: the level is not shown by colour alone."""

STATE_STYLES: Final = {
    "unusable": "red",
    "raising": "red",
    "failed over": "yellow",
    "suspect": "yellow",
}


def screen(
    pairs: Sequence[Pair], now: float, *, width: int, height: int | None, hint: str = ""
) -> RenderableType:
    """Return what to show; without a height every row is shown."""
    ordered = sorted(pairs, key=_urgency)
    entities = sorted(
        ((pair, entity) for pair in ordered for entity in _entities(pair)), key=_entity_urgency
    )
    troubles = _troubles(ordered)
    pairs_max = entities_max = None
    if height is not None:
        troubles = troubles[:ATTENTION_LINES]
        room = max(2, height - FIXED_LINES - len(troubles))
        pairs_max = min(len(ordered), max(1, room // 3, room - len(entities)))
        entities_max = max(1, room - pairs_max)
    parts: list[RenderableType] = [
        _headline(pairs, now, width),
        _pair_table(ordered[:pairs_max], now),
    ]
    parts += _more(len(ordered), pairs_max, "pairs and syphons")
    parts += [Text(f"! {text}", "yellow", no_wrap=True, overflow="ellipsis") for text in troubles]
    if entities:
        parts += [Text(""), _entity_table(entities[:entities_max], now, len(ordered) > 1)]
        parts += _more(len(entities), entities_max, "entities")
    clock = datetime.fromtimestamp(now).astimezone()
    return Group(*parts, Text(f"{clock:%H:%M:%S}  {hint}".rstrip(), "dim"))


def rates(pair: Pair, now: float) -> list[float | None]:
    """Return the messages a second to the primary, to the backlog, and raised; None: unknown."""
    watched_from = max((gap[1] for gap in pair["unseen"]), default=0.0)
    if pair["state"] != "running" or now - watched_from < RATE_MIN_S:
        return [None, None, None]
    begins = max(watched_from, (now - RATE_S) // BUCKET_S * BUCKET_S)
    recent = [bucket for bucket in pair["sends"] if bucket[0] + BUCKET_S > begins]
    return [sum(bucket[index] for bucket in recent) / (now - begins) for index in (1, 2, 3)]


def _headline(pairs: Iterable[Pair], now: float, width: int) -> Text:
    headline = headline_of(pairs, now)
    sign, style = LEVELS[headline["level"]]
    lines = wrap(f"{sign} {visible(headline['text'])}", width)
    if len(lines) > HEADLINE_LINES:
        lines[HEADLINE_LINES - 1 :] = [lines[HEADLINE_LINES - 1][: width - 1] + "…"]
    return Text("\n".join([*lines, ""]), style)


def _pair_table(pairs: Sequence[Pair], now: float) -> Table:
    table = _table("PAIR", "STATE", ">PRIMARY/s", ">BACKLOG/s", ">RAISED/s", ">WAITING", "SYPHON")
    for pair in pairs:
        is_pair = pair["kind"] == "pair"
        sent = [_number(rate, ",.1f") if is_pair else "" for rate in rates(pair, now)]
        waiting = _number(pair["waiting"], ",")
        state, style = _pair_state(pair)
        cells = [f"{pair['name']}.{pair['pid']}", state, *sent, waiting, _syphon(pair["syphon"])]
        table.add_row(*(Text(visible(cell)) for cell in cells), style=style)
    return table


def _number(value: float | None, form: str) -> str:
    return NOT_KNOWN if value is None else format(value, form)


def _pair_state(pair: Pair) -> tuple[str, str]:
    if pair["state"] != "running":
        return str(pair["state"]), "dim" if pair["state"] == "gone" else "red"
    if not pair["protected"]:
        return "UNPROTECTED", "red"
    if pair["safe"] is False:
        return "NOT SAFE", "red"
    return ("attention", "yellow") if pair["attention"] else ("ok", "")


def _syphon(syphon: Mapping[str, Any] | None) -> str:
    if syphon is None:
        return "none here"
    if syphon["paused"]:
        return "PAUSED"
    parts = [f"{syphon['rate']:,.0f}/s", f"{syphon['in_flight']:,} in flight"]
    if syphon["forecast_s"]:
        parts.append(f"empty in {duration(syphon['forecast_s'])}")
    if syphon["dead_lettered"]:
        parts.append(f"{syphon['dead_lettered']:,} dead")
    return ", ".join(parts)


def _troubles(pairs: Iterable[Pair]) -> list[str]:
    """Return why pairs and syphons need attention; entities have their own table."""
    found: dict[str, None] = {}
    for pair in pairs:
        if pair["state"] == "silent":
            found[f"{pair['name']}: {visible(pair['why'])}"] = None
        obstacles = (pair["syphon"] or {}).get("obstacles", ())
        for obstacle in obstacles if pair["state"] == "running" else ():
            text = f"syphon of {pair['name']}: {obstacle['what']}: {obstacle['why']}"
            found[visible(text)] = None
    return list(found)


def _entity_table(
    entities: Sequence[tuple[Pair, Mapping[str, Any]]], now: float, is_pair_named: bool
) -> Table:
    pair_column = ["PAIR"] if is_pair_named else []
    table = _table("ENTITY", *pair_column, "STATE", "FOR", ">SENT", ">DIVERTED", ">RAISED", "NEXT")
    for pair, entity in entities:
        states, since = entity["states"], entity["since"]
        cells = [
            entity["path"],
            *([pair["name"]] if is_pair_named else []),
            ", ".join(states),
            "" if since is None else duration(max(0.0, now - since)),
            *(f"{entity[count]:,}" for count in ("sent", "diverted", "raised")),
            _next(entity),
        ]
        style = next(filter(None, map(STATE_STYLES.get, states)), "yellow" if states[1:] else "")
        table.add_row(*(Text(visible(cell)) for cell in cells), style=style)
    return table


def _next(entity: Mapping[str, Any]) -> str:
    """Return what happens next to an entity, and why it is not healthy."""
    parts = []
    if (left_s := entity["fails_over_in_s"]) is not None:
        parts.append(f"fails over in {duration(left_s)}")
    if (ping_s := entity["next_ping_in_s"]) is not None:
        parts.append(f"ping in {duration(ping_s)}" if ping_s else "pinging")
    if entity["raising"]:
        parts.append(f"{entity['raising']:,} raised in 1 min: {entity['raising_reason']}")
    elif entity["state"] != "healthy" and entity["reason"]:
        parts.append(entity["reason"])
    return ", ".join(parts)


def _table(*columns: str) -> Table:
    """Return a table without lines; a name with > in front is right-aligned."""
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    for index, column in enumerate(columns):
        # The last column gives way first, then the first, which has names.
        ratio = 1 if index == len(columns) - 1 else None
        right = column.startswith(">")
        table.add_column(
            column.lstrip(">"),
            justify="right" if right else "left",
            no_wrap=True,
            overflow="ellipsis",
            ratio=ratio,
            min_width=len(column.lstrip(">")) if index else 8,
        )
    table.expand = True
    return table


def _more(count: int, shown: int | None, noun: str) -> list[Text]:
    left = 0 if shown is None else count - shown
    return [Text(f"and {left:,} more {noun}", "dim")] if left > 0 else []


def _entities(pair: Pair) -> list[Mapping[str, Any]]:
    return [] if pair["state"] == "gone" else pair["entities"]


def _urgency(pair: Pair) -> tuple[object, ...]:
    is_bad = not pair["protected"] or pair["safe"] is False or pair["state"] == "silent"
    is_gone = pair["state"] == "gone"
    return is_gone, not is_bad, not pair["attention"], pair["name"], pair["pid"]


def _entity_urgency(one: tuple[Pair, Mapping[str, Any]]) -> tuple[object, ...]:
    pair, entity = one
    is_held = entity["forced"] or entity["frozen"]
    path = str(entity["path"]).lower()
    return rank(entity["states"]), not is_held, path, pair["name"], pair["pid"]
