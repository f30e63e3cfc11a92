"""The screen of `twinbus top`: what is worst first, and everything within the terminal."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from tests.unit.status.statuses import QUEUE, entity, queue, status
from twinbus.console.watch.top import rates, screen
from twinbus.control.protocol import HostCard
from twinbus.page.core.model import ShownPair
from twinbus.page.core.view import Board, HostAnswer
from twinbus.status.document import HostStatus, SyphonQueueStatus, SyphonStatus

NOW = 1_800_000_000.0


def answer(name: str, found: HostStatus, kind: str = "pair", pid: int = 4711) -> HostAnswer:
    card = HostCard(kind, name, pid, "app.py", "")
    return HostAnswer(f"{name}.{pid}", card, found)


def pairs(*answers: HostAnswer) -> list[ShownPair]:
    board = Board(host="web-1")
    board.observe(answers, NOW)
    return list(board.table.pairs.values())


def drawn(*answers: HostAnswer, width: int = 80, height: int | None = 24) -> list[str]:
    """Return the lines of the screen, as a terminal without colour shows them."""
    file = io.StringIO()
    console = Console(file=file, width=width, color_system=None, highlight=False)
    console.print(screen(pairs(*answers), NOW, width=width, height=height, hint="q ends"))
    return [line.rstrip() for line in file.getvalue().splitlines()]


def syphon_queue(**changes: Any) -> dict[str, SyphonQueueStatus]:
    given = {"in_flight": 3, "forwarded": 9, "completed": 9, "rate_per_s": 12.4, **changes}
    return {QUEUE: SyphonQueueStatus(**given)}


OUTAGE = answer(
    "contoso",
    status(
        entity("events", sent=12_345),
        entity(
            "orders", "failed over", since_s=75.0, sent=7, diverted=1_204, next_ping_in_s=12.0,
            reason="no success for 60 s", pinger="another host",
        ),
        entity("payments", "suspect", since_s=3.0, fails_over_in_s=57.0, reason="a send failed"),
        backlog_waiting=1_204,
        syphon=syphon_queue(problems={"primary": "refused"}),
    ),
)  # fmt: skip


def test_an_outage_at_80_columns() -> None:
    lines = drawn(OUTAGE)
    assert lines[0].startswith("⚠ Failed over for 1 min 15 s: orders; 1,204 diverted")
    assert max(map(len, lines)) <= 80
    assert len(lines) <= 24
    (pair,) = [line for line in lines if line.startswith("contoso.4711")]
    assert pair.split()[1:7] == ["failed", "over", "–", "–", "–", "1,204"]
    assert "! syphon of contoso: primary: refused" in lines
    rows = [line.split()[0] for line in lines if line[:6].strip() in ("orders", "paymen", "events")]
    assert rows == ["orders", "payments", "events"]
    (orders,) = [line for line in lines if line.startswith("orders")]
    assert "1 min 15 s" in orders
    assert "ping in 12 s by another host" in "".join(drawn(OUTAGE, width=200))
    assert any("fails over in 57 s" in line for line in lines)
    assert lines[-1].endswith("q ends")


@pytest.mark.parametrize(("width", "height"), [(80, 24), (40, 11), (200, 60), (80, 5), (20, 3)])
def test_fifty_pairs_with_forty_entities_fit_any_terminal(width: int, height: int) -> None:
    entities = [entity(f"queue-with-a-long-name-{n}") for n in range(39)]
    many = [
        answer(f"pair-{n}", status(*entities, entity("orders", "unusable")), pid=n)
        for n in range(50)
    ]
    lines = drawn(*many, width=width, height=height)
    assert max(map(len, lines)) <= width
    if height >= 11:
        assert len(lines) <= height
        text = "\n".join(lines)
        assert "more pairs and syphons" in text
        assert "more entities" in text
        assert "orders" in text


def test_without_a_height_every_row_is_shown() -> None:
    entities = [entity(f"queue-{n}") for n in range(100)]
    lines = drawn(answer("contoso", status(*entities)), height=None)
    assert sum(line.startswith("queue-") for line in lines) == 100


def test_what_is_worst_comes_first_and_what_ended_last() -> None:
    board = Board(host="web-1")
    ended = answer("a-ended", status(), pid=1)
    board.observe([ended], NOW - 5)
    silent = HostAnswer("d-silent.4", HostCard("pair", "d-silent", 4), None, "blocked")
    board.observe(
        [
            answer("b-fine", status(entity("orders")), pid=2),
            answer(
                "c-naked", status(protected=False, backlog_queues={"q": queue("pulled")}), pid=3
            ),
            silent,
        ],
        NOW,
    )
    file = io.StringIO()
    documents = list(board.table.pairs.values())
    Console(file=file, width=80).print(screen(documents, NOW, width=80, height=24))
    lines = file.getvalue().splitlines()
    assert lines[0].startswith("✖ Unprotected: c-naked")
    names = [line.split(".")[0] for line in lines if line[:2] in ("a-", "b-", "c-", "d-")]
    assert names == ["c-naked", "d-silent", "b-fine", "a-ended"]
    assert any(line.rstrip() == "! d-silent: blocked" for line in lines)


def test_nothing_runs() -> None:
    assert drawn()[0] == "○ No pair runs here."


def test_names_cannot_steer_the_terminal_and_are_no_markup() -> None:
    lines = drawn(answer("[red]x", status(entity("[bold]\x1b[2Jorders", "failed over"))))
    text = "\n".join(lines)
    assert "\x1b" not in text
    assert "[red]x.4711" in text
    assert "[bold]" in text


def test_a_syphon_program_is_a_row_of_its_own() -> None:
    found = SyphonStatus(queues=syphon_queue(dead_lettered=2), waiting=40, empty_in_s=3.2)
    (line,) = [one for one in drawn(answer("contoso", found, "syphon"), width=84) if "4711" in one]
    assert "40" in line
    assert "12/s, 3 in flight" in line
    paused = replace(found, paused=True)
    (line,) = [one for one in drawn(answer("contoso", paused, "syphon")) if "4711" in one]
    assert line.endswith("PAUSED")


def test_rates_are_means_of_the_last_half_minute() -> None:
    [pair] = pairs(answer("contoso", status()))
    sends = [(NOW - 60, 900, 0, 0), (NOW - 20, 60, 30, 3), (NOW - 10, 60, 30, 3)]
    pair = replace(pair, sends=sends, unseen=[])
    assert rates(pair, NOW) == [4.0, 2.0, 0.2]
    assert rates(replace(pair, sends=[]), NOW) == [0.0, 0.0, 0.0]
    # Watched for 5 s, and 18 messages a second: not 90 in 10 s.
    young = replace(pair, sends=[(NOW - 10, 90, 0, 0)], unseen=[(NOW - 600, NOW - 5)])
    assert rates(young, NOW) == [18.0, 0.0, 0.0]


def test_one_look_has_no_rate() -> None:
    [pair] = pairs(answer("contoso", status(entity("orders", sent=900))))
    assert rates(pair, NOW) == [None, None, None]
    text = "\n".join(drawn(answer("contoso", status(entity("orders", sent=900)))))
    assert "0.0" not in text
