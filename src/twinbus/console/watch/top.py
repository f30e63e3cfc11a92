"""`twinbus top`: the pairs of this machine in a terminal, once a second until q or Ctrl-C.

The screen is drawn from the page's model and fits the given size: what is worst comes first, and
the rest is counted. Foreign text goes through `visible` and is never read as markup.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import sys
import termios
import time
import tty
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from datetime import datetime
from textwrap import wrap
from typing import Any, Final

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from twinbus.console import STOPPED
from twinbus.console.output import Output, print_json
from twinbus.page.core.model import LEVELS, ShownEntity, ShownPair, ShownReceiver, ShownSyphon
from twinbus.page.core.timeline import BUCKET_S
from twinbus.page.core.view import Board, headline_of
from twinbus.page.live import HostPoller
from twinbus.status.judgement import rank
from twinbus.wording import NOT_KNOWN, duration, visible

EVERY_S: Final = 1.0
HINT: Final = "q ends"
KEYS_MAX: Final = 64
"""Bytes of one read from the keyboard."""

RATE_S: Final = 30.0
"""Rates are means over this time."""

RATE_MIN_S: Final = 2.0
"""A shorter observation, such as a single look, has no rate."""

HEADLINE_LINES: Final = 2
ATTENTION_LINES: Final = 3
FIXED_LINES: Final = 9
"""Headline, the headings of both tables, lines that count the rest, empty lines, the foot."""

RECEIVING_LINES: Final = 3
"""The heading of the table about receiving, a line that counts the rest, an empty line."""

SIGNS: Final = {
    "healthy": ("✔", "bold green"),
    "failed-over": ("⚠", "bold yellow"),
    "attention": ("⚠", "bold yellow"),
    "unprotected": ("✖", "bold red"),
    "none": ("○", "bold"),
}
"""Sign and style of the headline: the level is not shown by colour alone."""

PAIR_STYLES: Final = {"unprotected": "red", "healthy": "", "none": "dim"}
STATE_STYLES: Final = {
    "unusable": "red",
    "raising": "red",
    "failed over": "yellow",
    "suspect": "yellow",
}


def run_top(name: str | None, output: Output, *, once: bool) -> int:
    """Show the pairs until the person ends it; without a terminal, once. Return the exit status."""
    poller = HostPoller()
    top = _Top(poller, name)
    console = Console(highlight=False)
    try:
        if output is Output.JSON:
            print_json(top.document())
        elif once or not console.is_terminal:
            pairs, now = top.look()
            console.print(screen(pairs, now, width=console.width, height=None))
        else:
            _follow(top, console)
    finally:
        poller.close()
    return 0


class _Top:
    """The page's model of this machine, for one terminal."""

    def __init__(self, poller: HostPoller, name: str | None) -> None:
        self._poller = poller
        self._name = None if name is None else name.lower()
        self._board = Board(host=socket.gethostname())

    def look(self) -> tuple[list[ShownPair], float]:
        """Ask every pair; return the documents of the chosen ones, and when that was."""
        now = time.time()
        self._board.observe(self._poller.poll(), now)
        return [pair for pair in self._board.table.pairs.values() if self._is_chosen(pair)], now

    def document(self) -> dict[str, Any]:
        pairs, now = self.look()
        return {
            "now": now,
            "headline": asdict(headline_of(pairs, now)),
            "pairs": [{**asdict(one), "level": one.level, "word": one.word} for one in pairs],
        }

    def _is_chosen(self, pair: ShownPair) -> bool:
        names = (pair.name, f"{pair.name}.{pair.pid}", pair.id)
        return self._name is None or self._name in (one.lower() for one in names)


def _follow(top: _Top, console: Console) -> None:
    def ended(*_: object) -> None:
        sys.exit(STOPPED)

    # The terminal must be put back in order before the process ends.
    before = signal.signal(signal.SIGTERM, ended)
    try:
        with (
            contextlib.suppress(KeyboardInterrupt),
            _keys() as is_ended,
            Live(console=console, screen=True, auto_refresh=False) as live,
        ):
            while True:
                began = time.monotonic()
                pairs, now = top.look()
                size = console.size
                shown = screen(pairs, now, width=size.width, height=size.height, hint=HINT)
                live.update(shown, refresh=True)
                if is_ended(max(0.0, EVERY_S - (time.monotonic() - began))):
                    return
    finally:
        signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def _keys() -> Iterator[Any]:
    """Yield a function that waits some seconds and returns whether q was pressed meanwhile."""
    if not sys.stdin.isatty():
        yield time.sleep
        return
    descriptor = sys.stdin.fileno()
    settings = termios.tcgetattr(descriptor)

    def is_ended(wait_s: float) -> bool:
        ends = time.monotonic() + wait_s
        while (left_s := ends - time.monotonic()) > 0:
            if select.select([descriptor], [], [], left_s)[0]:
                pressed = os.read(descriptor, KEYS_MAX)
                if not pressed or b"q" in pressed.lower():
                    return True
        return False

    try:
        tty.setcbreak(descriptor)
        yield is_ended
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, settings)


def screen(
    pairs: Sequence[ShownPair], now: float, *, width: int, height: int | None, hint: str = ""
) -> RenderableType:
    """Return what to show; without a height every row is shown."""
    ordered = sorted(
        pairs, key=lambda one: (LEVELS.index(one.level), one.safe is not False, one.name, one.pid)
    )
    entities = sorted(
        ((pair, one) for pair in ordered if pair.state != "gone" for one in pair.entities),
        key=_urgency,
    )
    receiving = sorted(
        (one for pair in ordered for one in pair.receiving),
        key=lambda one: (LEVELS.index(one.level), one.path.lower()),
    )
    troubles = _troubles(ordered)
    pairs_max = entities_max = receiving_max = None
    if height is not None:
        troubles = troubles[:ATTENTION_LINES]
        room = max(2, height - FIXED_LINES - len(troubles))
        if receiving:
            room = max(2, room - RECEIVING_LINES)
            receiving_max = min(len(receiving), max(1, room // 3))
            room = max(2, room - receiving_max)
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
    if receiving:
        parts += [Text(""), _receiving_table(receiving[:receiving_max])]
        parts += _more(len(receiving), receiving_max, "queues and subscriptions")
    clock = datetime.fromtimestamp(now).astimezone()
    return Group(*parts, Text(f"{clock:%H:%M:%S}  {hint}".rstrip(), "dim"))


def rates(pair: ShownPair, now: float) -> list[float | None]:
    """Return the messages a second to the primary, to the backlog, and raised; None: unknown."""
    watched_from = max((gap[1] for gap in pair.unseen), default=0.0)
    if pair.state != "running" or now - watched_from < RATE_MIN_S:
        return [None, None, None]
    begins = max(watched_from, (now - RATE_S) // BUCKET_S * BUCKET_S)
    recent = [bucket for bucket in pair.sends if bucket[0] + BUCKET_S > begins]
    return [sum(bucket[index] for bucket in recent) / (now - begins) for index in (1, 2, 3)]


def _headline(pairs: Iterable[ShownPair], now: float, width: int) -> Text:
    headline = headline_of(pairs, now)
    sign, style = SIGNS[headline.level]
    lines = wrap(f"{sign} {visible(headline.text)}", width)
    if len(lines) > HEADLINE_LINES:
        lines[HEADLINE_LINES - 1 :] = [lines[HEADLINE_LINES - 1][: width - 1] + "…"]
    return Text("\n".join([*lines, ""]), style)


def _pair_table(pairs: Sequence[ShownPair], now: float) -> Table:
    table = _table("PAIR", "STATE", ">PRIMARY/s", ">BACKLOG/s", ">RAISED/s", ">WAITING", "SYPHON")
    for pair in pairs:
        is_pair = pair.kind == "pair"
        sent = [_number(rate, ",.1f") if is_pair else "" for rate in rates(pair, now)]
        waiting = _number(pair.waiting, ",")
        style = PAIR_STYLES.get(pair.level, "yellow")
        cells = [f"{pair.name}.{pair.pid}", pair.word, *sent, waiting, _syphon(pair.syphon)]
        table.add_row(*(Text(visible(cell)) for cell in cells), style=style)
    return table


def _number(value: float | None, form: str) -> str:
    return NOT_KNOWN if value is None else format(value, form)


def _syphon(syphon: ShownSyphon | None) -> str:
    if syphon is None:
        return "none here"
    if syphon.paused:
        return "PAUSED"
    parts = [f"{syphon.rate:,.0f}/s", f"{syphon.in_flight:,} in flight"]
    if syphon.forecast_s:
        parts.append(f"empty in {duration(syphon.forecast_s)}")
    if syphon.dead_lettered:
        parts.append(f"{syphon.dead_lettered:,} dead")
    if syphon.twins:
        parts.append(syphon.twins)
    return ", ".join(parts)


def _troubles(pairs: Iterable[ShownPair]) -> list[str]:
    """Return why pairs and syphons need attention; entities have their own table."""
    found: dict[str, None] = {}
    for pair in pairs:
        if pair.state == "silent":
            found[f"{pair.name}: {visible(pair.why)}"] = None
        if pair.syphon is None or pair.state != "running":
            continue
        for obstacle in pair.syphon.obstacles:
            text = f"syphon of {pair.name}: {obstacle.what}: {obstacle.why}"
            found[visible(text)] = None
    return list(found)


def _entity_table(
    entities: Sequence[tuple[ShownPair, ShownEntity]], now: float, is_pair_named: bool
) -> Table:
    pair_column = ["PAIR"] if is_pair_named else []
    table = _table("ENTITY", *pair_column, "STATE", "FOR", ">SENT", ">DIVERTED", ">RAISED", "NEXT")
    for pair, entity in entities:
        states, since = entity.states, entity.since
        cells = [
            entity.path,
            *([pair.name] if is_pair_named else []),
            ", ".join(states),
            "" if since is None else duration(max(0.0, now - since)),
            *(f"{count:,}" for count in (entity.sent, entity.diverted, entity.raised)),
            _next(entity),
        ]
        style = next(filter(None, map(STATE_STYLES.get, states)), "yellow" if states[1:] else "")
        table.add_row(*(Text(visible(cell)) for cell in cells), style=style)
    return table


def _receiving_table(rows: Sequence[ShownReceiver]) -> Table:
    columns = (
        "FROM",
        "PRIMARY",
        "TWIN",
        ">HANDED OUT",
        "HANDLERS",
        ">IN TWIN",
        "THE TWIN IS",
    )
    table = _table(*columns)
    for one in rows:
        cells = [
            one.path,
            one.primary,
            one.secondary,
            f"{one.handed_out:,}" if one.receivers or one.handed_out else "",
            one.processor,
            _number(one.waiting, ",") if one.twin else "",
            ", ".join(filter(None, (one.twin, one.twin_reason or one.reason))),
        ]
        style = "yellow" if one.level == "attention" else ""
        table.add_row(*(Text(visible(cell)) for cell in cells), style=style)
    return table


def _next(entity: ShownEntity) -> str:
    """Return what happens next to an entity, and why it is not healthy."""
    parts = []
    if (left_s := entity.fails_over_in_s) is not None:
        parts.append(f"fails over in {duration(left_s)}")
    if (ping_s := entity.next_ping_in_s) is not None:
        by = f" by {entity.pinger}" if entity.pinger else ""
        parts.append(f"ping in {duration(ping_s)}{by}" if ping_s else "pinging")
    if entity.raising:
        parts.append(f"{entity.raising:,} raised in 1 min: {entity.raising_reason}")
    elif entity.state != "healthy" and entity.reason:
        parts.append(entity.reason)
    if entity.evidence:
        parts.append(f"also: {entity.evidence}")
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


def _urgency(one: tuple[ShownPair, ShownEntity]) -> tuple[object, ...]:
    pair, entity = one
    is_held = entity.forced or entity.frozen
    return rank(entity.states), not is_held, entity.path.lower(), pair.name, pair.pid
