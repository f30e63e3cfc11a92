"""The verdict of `twinbus check`: levels, the line of a plugin, and the limits of its options."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.unit.console.commands import run
from tests.unit.status import statuses
from tests.unit.status.statuses import NOW, QUEUE, entity, queue, side, status
from twinbus.console.output import WrongUse
from twinbus.console.watch.check import (
    BacklogFigures,
    CheckedHost,
    CheckFinding,
    CheckLevel,
    CheckRequest,
    Limits,
    PerfFigure,
    Thresholds,
    backlog_findings,
    figures,
    findings_of,
    known_backlog,
    labels_of,
    limits_of,
    plugin_line,
    worst,
)
from twinbus.status.document import PairStatus, SyphonQueueStatus

OK, WARNING, CRITICAL, UNKNOWN = CheckLevel


def pair(found: PairStatus) -> CheckedHost:
    return CheckedHost("contoso", "contoso.4711", found, NOW)


def syphon(paused: bool = False, **queue_changes: Any) -> CheckedHost:
    found = replace(statuses.syphon(completed=3, **queue_changes), paused=paused, waiting=7)
    return CheckedHost("contoso", "contoso.4712", found)


def test_a_queue_without_a_pump_is_a_warning() -> None:
    unpumped = replace(statuses.syphon(), without_pump=["a/6"])
    (finding,) = findings_of(CheckedHost("contoso", "contoso.4712", unpumped), CRITICAL)
    assert finding.level is WARNING
    assert finding.text.startswith(
        "syphon of contoso.4712: 1 backlog queue has no pump here: a/6; start the syphon without"
    )


def levels(host: CheckedHost, unprotected: CheckLevel = CRITICAL) -> list[CheckLevel]:
    return [finding.level for finding in findings_of(host, unprotected)]


@pytest.mark.parametrize(
    ("document", "level"),
    [
        (status(entity("orders")), OK),
        (status(entity("orders", "suspect", fails_over_in_s=5.0)), WARNING),
        (status(entity("orders", "failed over")), WARNING),
        (status(entity("orders", "unusable")), CRITICAL),
        (status(entity("orders", "failed over", frozen=True)), WARNING),
        (status(entity("orders"), protected=False), CRITICAL),
        (status(entity("orders"), backlog_queues={"q": queue("pulled")}), CRITICAL),
        (status(entity("orders", frozen=True)), CRITICAL),
        (status(faulted="broken", sides={}), CRITICAL),
        (status(sides=side("closed", "by hand")), CRITICAL),
        (status(entity("orders"), verification_error="refused"), CRITICAL),
        (status(entity("orders"), ledger_unrecorded=3), WARNING),
        (status(entity("orders", raising=3, raising_reason="not found")), WARNING),
    ],
)
def test_the_level_of_a_pair(document: PairStatus, level: CheckLevel) -> None:
    assert levels(pair(document)) == [level]


@pytest.mark.parametrize("level", [OK, WARNING, CRITICAL])
def test_unprotected_has_the_level_of_its_option_and_hides_nothing_worse(level: CheckLevel) -> None:
    assert levels(pair(status(protected=False)), level) == [level]
    assert levels(pair(status(entity("orders", "unusable"), protected=False)), level) == [CRITICAL]
    raising = entity("orders", raising=1, raising_reason="expired key")
    [found] = findings_of(pair(status(raising, protected=False)), level)
    assert found.level is (WARNING if level is OK else level)
    assert "raising: orders (1 call in the last minute: expired key)" in found.text


@pytest.mark.parametrize(
    ("host", "level"),
    [
        (syphon(), OK),
        (syphon(paused=True), WARNING),
        (syphon(problems={"primary": "connection refused"}), WARNING),
        (syphon(held={"orders": "not found"}, gives_up_in_s={"orders": 60.0}), WARNING),
        (syphon(problems={"lease": "another syphon has the lease"}), OK),
        (syphon(dead_lettered=2), OK),
    ],
)
def test_the_level_of_a_syphon(host: CheckedHost, level: CheckLevel) -> None:
    assert levels(host) == [level]


def test_a_syphon_inside_a_pair_is_judged_too() -> None:
    inside = {QUEUE: SyphonQueueStatus(problems={"primary": "connection refused"})}
    assert levels(pair(status(entity("orders"), syphon=inside))) == [OK, WARNING]


def test_the_backlog_is_judged_by_its_limits_and_what_is_unknown_is_left_out() -> None:
    thresholds = Thresholds(
        age_s=Limits(60, 600), depth=Limits(None, 10), dead_letters=Limits(0), unprotected=OK
    )
    full = backlog_findings(BacklogFigures(10, 601.0, 1), thresholds)
    assert [one.level for one in full] == [OK, CRITICAL, WARNING]
    assert [one.text for one in full] == [
        "backlog: 10 messages",
        "oldest message in the backlog: 10 min 1 s",
        "1 dead letter",
    ]
    assert backlog_findings(BacklogFigures(), thresholds) == []
    assert [one.level for one in backlog_findings(BacklogFigures(11), thresholds)] == [CRITICAL]


def test_without_a_secondary_the_hosts_tell_depth_and_dead_letters() -> None:
    hosts = [pair(status(backlog_waiting=9)), syphon(dead_lettered=2)]
    assert known_backlog(hosts) == BacklogFigures(depth=9, dead_letters=2)
    assert known_backlog([pair(status())]) == BacklogFigures()


def test_processes_of_one_pair_count_the_same_backlog_and_those_of_two_pairs_do_not() -> None:
    other = CheckedHost("fabrikam", "fabrikam.9", status(backlog_waiting=5))
    hosts = [pair(status(backlog_waiting=9)), pair(status(backlog_waiting=8)), other]
    assert known_backlog(hosts).depth == 14


@pytest.mark.parametrize(
    ("name", "label", "hosts", "labels"),
    [
        (None, None, [], []),
        (None, None, [pair(status())], ["contoso"]),
        ("contoso", None, [], ["contoso"]),
        ("contoso.4711", None, [], ["contoso"]),
        ("contoso.eu", None, [], ["contoso.eu"]),
        ("contoso", "fabrikam", [], ["fabrikam"]),
    ],
)
def test_a_pair_that_does_not_run_still_has_its_own_backlog_only(
    name: str | None, label: str | None, hosts: list[CheckedHost], labels: list[str]
) -> None:
    request = CheckRequest(name, None, label, Thresholds(), 1.0)
    assert labels_of(request, hosts) == labels


def test_the_backlog_of_a_pair_that_runs_is_counted_whatever_the_primary_is_called() -> None:
    request = CheckRequest(None, None, None, Thresholds(), 1.0, primary_label="localhost-5672")
    assert labels_of(request, [pair(status())] * 2) == ["contoso", "localhost-5672"]
    assert labels_of(request, []) == ["localhost-5672"]
    assert labels_of(replace(request, pair="contoso"), []) == ["localhost-5672"]
    assert labels_of(replace(request, label="fabrikam"), [pair(status())]) == ["fabrikam"]


def test_figures_have_units_limits_and_a_minimum() -> None:
    pulled = status(backlog_queues={QUEUE: queue("pulled")})
    exposed = [pair(one) for one in (status(verification_error="refused"), pulled)]
    found = {one.name: one.value for one in figures(exposed, BacklogFigures(), Thresholds())}
    assert found["unprotected"] == 2
    hosts = [pair(status(entity("orders", "failed over", sent=5, diverted=2, raised=1)))]
    numbers = figures(hosts, BacklogFigures(2, 1.5, 0), Thresholds(age_s=Limits(3600.0, 21600.0)))
    assert " ".join(map(str, numbers)) == (
        "pairs=1;;;0 unprotected=0;;;0 failed_over=1;;;0 raising=0;;;0 sent=5c;;;0"
        " diverted=2c;;;0 raised=1c;;;0 backlog=2;;;0"
        " backlog_age=1.5s;3600;21600;0 dead_letters=0;;;0"
    )


def test_the_line_names_what_is_wrong_worst_first_and_can_not_be_forged_by_a_name() -> None:
    findings = [
        CheckFinding(OK, "fine"),
        CheckFinding(UNKNOWN, "who knows"),
        CheckFinding(WARNING, "a | b\nc"),
        CheckFinding(CRITICAL, "worst"),
    ]
    line = plugin_line(findings, [PerfFigure("pairs", 1)])
    assert line == "TWINBUS CRITICAL - worst; a / b c; who knows | pairs=1;;;0"
    assert plugin_line(findings[:1], []) == "TWINBUS OK - fine"
    many = plugin_line([CheckFinding(WARNING, str(number)) for number in range(8)], [])
    assert many == "TWINBUS WARNING - 0; 1; 2; 3; 4; and 3 more"


def test_the_exit_status_is_the_one_of_nagios() -> None:
    assert [level.exit_status for level in (OK, WARNING, CRITICAL, UNKNOWN)] == [0, 1, 2, 3]
    assert worst([]) is UNKNOWN


@pytest.mark.parametrize(
    ("text", "limits"),
    [
        ("0", Limits(0)),
        ("10, 20", Limits(10, 20)),
        ("off", Limits()),
        ("off,20", Limits(None, 20)),
        (",20", Limits(None, 20)),
    ],
)
def test_limits_are_a_warning_and_a_critical_one(text: str, limits: Limits) -> None:
    assert limits_of(text, "--backlog-depth") == limits


def test_limits_of_an_age_are_durations() -> None:
    assert limits_of("90s,2h", "--backlog-age", is_time=True) == Limits(90, 7200)


@pytest.mark.parametrize("text", ["1,2,3", "-1", "many", "2,1", "1.5", "²"])
def test_a_wrong_limit_is_refused_with_its_option(text: str) -> None:
    with pytest.raises(WrongUse, match="--dead-letters"):
        limits_of(text, "--dead-letters")


@pytest.fixture
def nobody_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TWINBUS_RUN_DIR", str(tmp_path))
    for name in ("TWINBUS_PRIMARY", "TWINBUS_SECONDARY"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.usefixtures("nobody_runs")
@pytest.mark.parametrize(
    ("words", "exit_status", "start"),
    [
        ([], 3, "TWINBUS UNKNOWN - no pair and no syphon runs here"),
        (["--pair", "contoso"], 2, "TWINBUS CRITICAL - no pair or syphon 'contoso' runs here"),
        (["--nonsense"], 3, "TWINBUS UNKNOWN - usage error: No such option: --nonsense"),
        (["--unprotected", "x"], 3, "TWINBUS UNKNOWN - usage error: Invalid value"),
        (["--backlog-age", "soon"], 3, "TWINBUS UNKNOWN - --backlog-age must be"),
        (["--secondary", "no string"], 3, "TWINBUS UNKNOWN - the secondary namespace: "),
        (["--config", "/no/file"], 3, "TWINBUS UNKNOWN - /no/file of --config does not exist"),
        (
            ["--pair", "eu", "--config", "/no/file", "--secondary", "sb://host"],
            *(3, "TWINBUS UNKNOWN - /no/file of --config does not exist"),
        ),
    ],
)
def test_what_goes_wrong_in_the_check_is_one_line_on_stdout(
    capsys: pytest.CaptureFixture[str], words: list[str], exit_status: int, start: str
) -> None:
    done = run(capsys, "check", *words)
    assert (done.status, done.err) == (exit_status, "")
    (line,) = done.out.splitlines()
    assert line.startswith(start)


@pytest.mark.usefixtures("nobody_runs")
def test_the_verdict_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    done = run(capsys, "check", "--pair", "contoso", "--output", "json")
    document = json.loads(done.out)
    assert (document["state"], document["exit_status"], done.status) == ("CRITICAL", 2, 2)
    assert document["findings"][0]["level"] == "CRITICAL"
    assert document["figures"]["pairs"] == 0
