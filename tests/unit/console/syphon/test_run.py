"""The syphon's commands: run, drain, metrics, the log of obstacles, the search for queues."""

from __future__ import annotations

import asyncio
import io
import json
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from aiohttp import ClientSession
from prometheus_client.parser import text_string_to_metric_families

from tests.unit.syphon.core.test_links_and_locks import QUEUE, states
from twinbus.client.administration import ListingRefused, QueueCounts
from twinbus.client.peeking import BacklogMeter, QueueDepth
from twinbus.console.namespaces import UnreachableError
from twinbus.console.output import Output, WrongUse
from twinbus.console.syphon import request as queue_search
from twinbus.console.syphon import run
from twinbus.console.syphon.drain import DrainDisplay, outcome, progress_line
from twinbus.console.syphon.metrics import HttpAddress, MetricsRequest, SyphonMetrics
from twinbus.console.syphon.request import QueueSearch, SyphonRequest, rate_of
from twinbus.console.syphon.run import PARTLY_S, ObstacleLog, SyphonProgram
from twinbus.console.watch.status import syphon_lines
from twinbus.exposition import metrics_of, text_of
from twinbus.ledger import NullLedger
from twinbus.namespace.access import Endpoint
from twinbus.namespace.namespace import Namespace
from twinbus.options import SendAvailabilityOptions
from twinbus.pairing.core import secondary
from twinbus.pairing.observing.metrics import BACKLOG_FAMILIES, depth_samples
from twinbus.status.document import SyphonQueueStatus, SyphonStatus, TwinContents
from twinbus.status.judgement import judgement_of
from twinbus.syphon.core.pacing import Rate
from twinbus.syphon.draining import DrainProgress
from twinbus.syphon.host import SyphonGroup

KEY = "SharedAccessKeyName=a;SharedAccessKey=b;UseDevelopmentEmulator=true"


@pytest.fixture
def sockets(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    # Pytest's own directories are too long for the address of a socket.
    directory = Path(tempfile.mkdtemp(prefix="tb-"))
    monkeypatch.setenv("TWINBUS_RUN_DIR", str(directory))
    yield
    shutil.rmtree(directory)


@pytest.mark.usefixtures("sockets")
def test_a_syphon_with_leases_waits_for_a_secondary_that_refuses_connections(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answers: list[Exception | None] = [UnreachableError("b refuses")] * 2 + [None]
    stop = asyncio.Event()

    class Request(SyphonRequest):
        async def have_lease_queue(self) -> None:
            if (answer := answers.pop(0)) is not None:
                raise answer
            stop.set()

    monkeypatch.setattr(run, "CHECK_EVERY_S", 0.001)
    monkeypatch.setattr(secondary, "LIST_FIRST_S", 0.0)
    # Nothing listens on these ports of this host.
    sides: dict[str, Any] = {
        side: Namespace.from_connection_string(f"Endpoint=sb://127.0.0.1:{port};{KEY}", name=side)
        for side, port in (("primary", 9), ("secondary", 11))
    }
    request = Request(options=SendAvailabilityOptions(), lease=True, **sides)
    asyncio.run(SyphonProgram(request, NullLedger(), 2, Output.JSON).run(stop))
    events = [json.loads(line)["event"] for line in capsys.readouterr().out.splitlines()]
    assert (events[:2], events[-1], answers) == (["waiting", "running"], "stopped", [])


NOW = 0.0
SECRET = ".example.net;SharedAccessKeyName=a;SharedAccessKey=b"


def standing(
    waiting: int, per_s: float = 0.0, still_s: float = 0.0, first: int = 1_000, **facts: Any
) -> str:
    progress = DrainProgress(waiting=waiting, forwarded=first - waiting, dead_lettered=0, **facts)
    return progress_line(progress, first, per_s, still_s)


def test_a_drain_that_moves_says_how_long_it_will_take() -> None:
    line = standing(250, per_s=2.0)
    assert line == "[##################......]  75%  250 of 1,000 left  2/s  2 min 5 s to go"


def test_a_drain_that_stands_says_why() -> None:
    line = standing(250, per_s=2.0, still_s=6.0, problems=("orders: it is disabled",))
    assert line.endswith("250 of 1,000 left  not moving: orders: it is disabled")
    assert standing(250, still_s=6.0).endswith("not moving: nothing was received")


def test_a_drain_that_moves_shows_what_it_holds_too() -> None:
    line = standing(250, per_s=50.0, problems=("orders: it is full",))
    assert line.endswith("50/s  5 s to go  orders: it is full")


def test_a_missing_destination_is_told_with_its_end() -> None:
    line = standing(
        3, still_s=9.0, problems=("gone: no such entity",), giving_up={"gone": 21_590.0}
    )
    assert line.endswith(
        "not moving: gone is missing: its messages are dead-lettered in 5 h 59 min (--grace)"
    )


def test_a_paused_drain_says_so() -> None:
    assert "paused: `twinbus syphon resume` resumes it" in standing(3, still_s=60.0, is_paused=True)


def test_what_a_drain_came_to() -> None:
    done = {"drained": True, "forwarded": 5_000, "dead_lettered": 2, "not_served": 7}
    line = outcome({**done, "seconds": 10.0})
    assert line.startswith("drained: 5,000 messages forwarded in 10 s, 500/s; 2 dead-lettered,")
    assert "7 of other destinations were deferred" in line


def test_a_status_lists_queues_and_what_is_in_the_way_once() -> None:
    state = SyphonQueueStatus(
        completed=1_234,
        in_flight=5,
        dead_lettered=1,
        deferred=2,
        held={"gone": "no such entity"},
        gives_up_in_s={"gone": 60.0},
        rate_per_s=99.6,
        limit="at most 120/s: the primary answers that it is busy",
    )
    queues = {"a/x-servicebus-transfer/0": state, "a/x-servicebus-transfer/1": state}
    found = SyphonStatus(queues=queues, waiting=600, rate_per_s=10.0, empty_in_s=60.0)
    lines = syphon_lines("a, syphon", found)
    assert lines[0] == "a, syphon"
    assert lines[2].split() == ["a/x-servicebus-transfer/0", "1,234", "5", "1", "2", "100/s"]
    assert lines[-3:] == [
        "  at most 120/s: the primary answers that it is busy",
        "  ! gone: no such entity (dead-lettered in 1 min 0 s) [2 queues]",
        "  600 messages wait, 10/s, empty in 1 min 0 s",
    ]
    still = syphon_lines("a", replace(found, empty_in_s=None, rate_per_s=0.0))
    assert still[-1] == "  600 messages wait, 0/s, not moving"


def test_queues_without_a_pump_are_named_and_need_attention() -> None:
    found = SyphonStatus(queues={}, without_pump=["a/6", "a/7"], waiting=5)
    lines = syphon_lines("a", found)
    assert lines[-2] == (
        "  ! 2 backlog queues have no pump here: a/6, a/7;"
        " start the syphon without --queues, or with a larger number"
    )
    assert [one.kind for one in judgement_of(found, NOW).concerns] == ["no pump"]


def test_a_paused_syphon_forecasts_no_end() -> None:
    host = SyphonGroup(Rate(None))
    sides = [Namespace.from_connection_string(f"Endpoint=sb://{n}{SECRET}") for n in ("a", "b")]
    request = SyphonRequest(primary=sides[0], secondary=sides[1], options=SendAvailabilityOptions())
    assert request.status(host, 600, 75.0).empty_in_s == 8.0
    host.pause()
    document = request.status(host, 600, 75.0)
    assert document.empty_in_s is None
    lines = syphon_lines("a, syphon", document)
    assert lines[0] == "a, syphon, PAUSED"
    assert lines[-1] == "  600 messages wait, paused: `twinbus syphon resume` resumes it"
    assert request.status(host, 0, 75.0).empty_in_s == 0.0


@pytest.mark.parametrize(
    ("facts", "needs_somebody"),
    [
        ({}, False),
        ({"problems": {"lease": "another syphon has the lease (session 0 of a)"}}, False),
        (
            {"problems": {"lease": "another syphon has the lease", "primary": "the lease is gone"}},
            False,
        ),
        ({"problems": {"lease": "another syphon has the lease", "secondary": "refused"}}, True),
        ({"problems": {"lease": "it was not requested yet"}}, True),
        ({"problems": {"lease": "there is no lease queue a"}}, True),
        ({"problems": {"primary": "it cannot be reached"}}, True),
        ({"held": {"gone": "no such entity"}}, True),
        ({"dead_lettered": 1}, False),
    ],
)
def test_a_standby_is_well_unless_a_side_is_out_of_reach(
    facts: dict[str, Any], needs_somebody: bool
) -> None:
    queues = {"a": SyphonQueueStatus(), "b": SyphonQueueStatus(**facts)}
    found = SyphonStatus(queues=queues)
    assert bool(judgement_of(found, NOW).concerns) is needs_somebody
    assert judgement_of(replace(found, paused=True), NOW).concerns


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_has_one_line_that_goes_and_a_log_has_few() -> None:
    screen, log, nothing = Screen(), io.StringIO(), io.StringIO()
    shows = [DrainDisplay(screen), DrainDisplay(log), DrainDisplay(nothing, is_quiet=True)]
    for waiting in (100, 60, 20):
        progress = DrainProgress(waiting=waiting, forwarded=100 - waiting, dead_lettered=0)
        for show in shows:
            show(progress)
    for show in shows:
        show.clear()
    assert screen.getvalue().count("\r\x1b[K[") == 3
    assert "20 of 100 left" in screen.getvalue()
    assert screen.getvalue().endswith("\r\x1b[K")
    assert log.getvalue().count("\n") == 1
    assert nothing.getvalue() == ""


def test_rates_as_people_write_them() -> None:
    assert (rate_of(None), rate_of("500"), rate_of("0.5")) == (None, 500, 0.5)
    assert (rate_of("500/s"), rate_of("30000/min"), rate_of("2k/s")) == (500, 500, 2_000)
    assert rate_of("Standard") == 250
    for text in ("fast", "", "-3", "0", "nan", "inf", "5/fortnight", "2M/s"):
        with pytest.raises(WrongUse, match=rf"^--rate must .*; got '{text}'; or `standard`"):
            rate_of(text)
    with pytest.raises(WrongUse, match=r"from 0.01 to 1,000,000 messages a second; got '1/h'$"):
        rate_of("1/h")


def asked(path: str, queues: dict[str, Any], *, is_paused: bool = False) -> str:
    """Return the answer of a syphon whose queues are in these states."""

    async def scenario() -> str:
        governor = SimpleNamespace(most_per_s=None)
        group = SimpleNamespace(
            status=lambda: queues, is_paused=is_paused, rate=SimpleNamespace(governor=governor)
        )
        request = MetricsRequest(HttpAddress("127.0.0.1", 0), None, None)
        twins = {"orders": TwinContents(waiting=3), "unknown": TwinContents()}
        search = SimpleNamespace(without_pump=[], twins=twins)
        ledger = SimpleNamespace(unrecorded=4)
        given = cast("tuple[Any, Any, Any, Any]", (group, search, None, ledger))
        metrics = SyphonMetrics(request, "contoso", *given)
        url = await metrics.start()
        try:
            async with ClientSession() as client, client.get(url + path) as answer:
                return await answer.text()
        finally:
            await metrics.close()

    return asyncio.run(scenario())


def series(text: str) -> dict[tuple[str, ...], float]:
    """Return the value of each series, by name and label values in the order of label names."""
    return {
        (sample.name, *(sample.labels[label] for label in sorted(sample.labels))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_every_series_of_a_syphon_can_be_scraped() -> None:
    blocked = states(completed=7, problems={"pump": "it failed"}, held={"orders": "full"})
    of = ("contoso", QUEUE)
    assert series(asked("/metrics", blocked, is_paused=True)) == {
        ("twinbus_syphon_paused", "contoso"): 1,
        ("twinbus_syphon_healthy", "contoso"): 0,
        ("twinbus_ledger_unrecorded_total", "contoso"): 4,
        ("twinbus_syphon_messages_total", "forwarded", *of): 0,
        ("twinbus_syphon_messages_total", "completed", *of): 7,
        ("twinbus_syphon_messages_total", "dead_lettered", *of): 0,
        ("twinbus_syphon_in_flight", *of): 5,
        ("twinbus_syphon_held_destinations", *of): 1,
        ("twinbus_syphon_blocked", "pump", *of): 1,
        ("twinbus_twin_messages", "syphon", "orders", "contoso"): 3,
    }


def test_the_depth_and_age_of_each_queue_is_exposed() -> None:
    depths = {QUEUE: QueueDepth(3, 1, 0.0), "empty": QueueDepth(0, 0, None)}
    meter = cast("BacklogMeter", SimpleNamespace(depths=lambda: depths))
    samples = [("contoso", depth_samples(meter))]
    found = series(text_of(metrics_of(BACKLOG_FAMILIES, "pair", samples)).decode())
    assert found.pop(("twinbus_backlog_oldest_seconds", "contoso", QUEUE)) > 1_000_000_000
    assert found == {
        ("twinbus_backlog_messages", "waiting", "contoso", QUEUE): 3,
        ("twinbus_backlog_messages", "dead-lettered", "contoso", QUEUE): 1,
        ("twinbus_backlog_messages", "waiting", "contoso", "empty"): 0,
        ("twinbus_backlog_messages", "dead-lettered", "contoso", "empty"): 0,
        ("twinbus_backlog_oldest_seconds", "contoso", "empty"): 0,
    }


def test_a_name_with_quotes_and_newlines_stays_one_label() -> None:
    found = series(asked("/metrics", {'a"} 1\n\\b': states()[QUEUE]}))
    assert ("twinbus_syphon_in_flight", "contoso", 'a"} 1\n\\b') in found


def test_health_has_the_reasons() -> None:
    assert json.loads(asked("/health", states(problems={"pump": "it failed"}))) == {
        "status": "failed",
        "pair": "contoso",
        "failures": ["it failed"],
        "waits_for": [],
    }


QUEUES = [f"contoso/x-servicebus-transfer/{index}" for index in range(4)]


def queues(count: int = 4, what: str = "primary", why: str = "", **facts: Any) -> dict[str, Any]:
    """Return four queues of which so many have a problem, if there is a reason."""
    well = SyphonQueueStatus(**facts)
    ill = replace(well, problems={what: why}) if why else well
    return {queue: ill if index < count else well for index, queue in enumerate(QUEUES)}


def test_a_killed_primary_is_one_line_and_its_return_another() -> None:
    log = ObstacleLog()
    assert log.observe(queues(2, why="the connection was lost"), 0.0) == []
    assert log.observe(queues(4, why="the connection was lost"), 1.0) == [
        ("held", "the primary is lost: the connection was lost")
    ]
    for now in range(2, 20):
        assert log.observe(queues(4, why="contoso cannot be reached"), float(now)) == []
    # Some queues have it again: it is not over.
    assert log.observe(queues(1, why="contoso cannot be reached"), 22.0) == []
    assert log.observe(queues(), 23.0) == [("released", "the primary is back after 22 s")]
    assert log.observe(queues(), 24.0) == []


def test_a_queue_that_alone_loses_a_side_is_named() -> None:
    log = ObstacleLog()
    disabled = queues(1, "secondary", "it is disabled")
    assert log.observe(disabled, 0.0) == []
    assert log.observe(disabled, PARTLY_S) == [
        ("held", f"{QUEUES[0]}: the secondary is lost: it is disabled")
    ]
    # All lose it later: that is an outage of the side.
    assert log.observe(queues(4, "secondary", "refused"), 60.0) == [
        ("held", "the secondary is lost: refused")
    ]
    assert log.observe(disabled, 70.0) == [("released", "the secondary is back after 10 s")]
    assert log.observe(queues(), 90.0) == [
        ("released", f"{QUEUES[0]}: the secondary is back after 1 min 30 s")
    ]


def test_held_destinations_and_leases_are_one_line_for_all_queues() -> None:
    log = ObstacleLog()
    full = {"orders": "it is full"}
    assert log.observe(queues(held=full), 0.0) == [("held", "orders is held: it is full")]
    assert log.observe(queues(held={"orders": "it is busy"}), 1.0) == []
    assert log.observe(queues(3, "lease", "another syphon has it"), 61.0) == [
        ("held", "lease: another syphon has it [3 queues]"),
        ("released", "orders is no longer held after 1 min 1 s"),
    ]


PATHS = [f"contoso/x-servicebus-transfer/{index}" for index in range(3)]


class FakeGroup:
    def __init__(self) -> None:
        self.queues: list[str] = []

    def status(self) -> dict[str, SyphonQueueStatus]:
        return dict.fromkeys(self.queues, SyphonQueueStatus())

    async def start(self, queues: list[str]) -> None:
        self.queues += queues


def searching(
    monkeypatch: pytest.MonkeyPatch, listing: dict[str, int], named: list[str] | None = None
) -> tuple[FakeGroup, QueueSearch]:
    """Return a search in a namespace whose backlog queues hold `listing` messages."""

    async def listed(*_: object) -> dict[str, str]:
        if listing is REFUSED:
            raise ListingRefused("no Manage right")
        return {queue: f"<MessageCount>{held}</MessageCount>" for queue, held in listing.items()}

    async def counted(_: Endpoint, __: str) -> QueueCounts:
        return QueueCounts(active=1, total=1)

    monkeypatch.setattr(queue_search, "list_entries", listed)
    monkeypatch.setattr(queue_search, "counts_of", counted)
    group = FakeGroup()
    endpoint = cast("Endpoint", None)
    return group, QueueSearch(endpoint, "contoso", cast("Any", group), group.start, named)


REFUSED: dict[str, int] = {}


def test_a_count_finds_and_starts_queues_that_were_made_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    listing = {PATHS[0]: 0}
    group, search = searching(monkeypatch, listing)
    assert search.is_due()
    asyncio.run(search.search())
    assert (group.queues, search.is_due()) == (PATHS[:1], False)
    listing |= {PATHS[1]: 5}
    counts = asyncio.run(search.counts())
    assert (counts[PATHS[1]].waiting, group.queues, search.without_pump) == (5, PATHS[:2], [])
    search.close()
    listing |= {PATHS[2]: 1}
    asyncio.run(search.counts())
    assert (group.queues, search.without_pump) == (PATHS[:2], PATHS[2:])


def test_queues_beyond_the_named_ones_are_told_and_not_pumped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    group, search = searching(monkeypatch, dict.fromkeys(PATHS, 2), PATHS[:2])
    asyncio.run(search.search())
    assert (group.queues, search.without_pump, search.is_due()) == (PATHS[:2], [], False)
    counts = asyncio.run(search.counts())
    assert sum(each.waiting for each in counts.values()) == 6
    assert (group.queues, search.without_pump) == (PATHS[:2], PATHS[2:])


def test_named_queues_are_counted_one_by_one_without_the_right_to_list(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _, search = searching(monkeypatch, REFUSED, PATHS[:2])
    assert list(asyncio.run(search.counts())) == PATHS[:2]
    _, search = searching(monkeypatch, REFUSED)
    with pytest.raises(ListingRefused):
        asyncio.run(search.counts())
