"""Checks of the doctor: the twins that the settings name, and the rights on them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Final

from twinbus.console.doctor.rights import ExaminedPair, Finding, Level, refused, right_on
from twinbus.console.twins.reports import TwinReport, TwinState
from twinbus.console.twins.survey import TwinSurvey
from twinbus.errors import TwinbusError
from twinbus.pairing.core.twin_settings import Kind, TwinSettings
from twinbus.servicebus.names import subscription_path
from twinbus.servicebus.twins import PATTERN_CHARACTERS
from twinbus.wording import counted

CHECK: Final = "twins"

RIGHTS_MAX: Final = 20
"""Twins on which rights are checked: each takes two links and a second."""


async def check_twins(pair: ExaminedPair) -> list[Finding]:
    """Check that the twins of the settings exist, are marked and do not differ, and the rights."""
    if not pair.twins:
        return []
    if not all(pair.manages.get(role) for role in pair.roles):
        text = "marks and settings are not checked: this needs the Manage right on both sides"
        names = [one for one in pair.twins if PATTERN_CHARACTERS.isdisjoint(one)]
        skipped = Finding(CHECK, Level.SKIP, text, "run `twinbus twins check` with that right")
        return [skipped, *await _rights(pair, [(name, name) for name in names])]
    try:
        async with TwinSurvey(pair.primary, pair.secondary) as survey:
            await survey.read(pair.twins)
            reports = await survey.check(pair.twins)
    except TwinbusError as error:
        return [refused(CHECK, error)]
    found = [finding for report in reports for finding in _findings(report)]
    well = [report for report in reports if report.state is TwinState.OK]
    if well:
        text = f"{counted(len(well), 'twin')} of {len(reports)} are there, marked and alike"
        found.insert(0, Finding(CHECK, Level.OK, text))
    there = [survey.twin(report.path) for report in reports]
    return [*found, *await _rights(pair, [_places(twin) for twin in there if twin is not None])]


def _findings(report: TwinReport) -> list[Finding]:
    remarks = [
        Finding(CHECK, Level.WARN, f"{report.path}: {one}")
        for one in report.differences
        if not one.is_error
    ]
    if report.state is TwinState.LEFT_OUT:
        return [Finding(CHECK, Level.OK, f"{report.path} has no twin: {report.says}")]
    if not report.needs_attention:
        return remarks
    errors = [str(one) for one in report.differences if one.is_error]
    text = "; ".join(errors) or f"its twin is {report.state.lower()}"
    return [Finding(CHECK, Level.FAIL, f"{report.path}: {text}", report.says), *remarks]


def _places(twin: TwinSettings) -> tuple[str, str | None]:
    """Return where messages are sent to and received from; None: only by session."""
    if twin.kind is Kind.QUEUE:
        return twin.name, None if twin.requires_session else twin.name
    plain = [one.name for one in twin.subscriptions.values() if not one.requires_session]
    return twin.name, subscription_path(twin.name, plain[0]) if plain else None


async def _rights(pair: ExaminedPair, places: list[tuple[str, str | None]]) -> list[Finding]:
    """Check Send for senders and Listen for receivers."""
    no_send = "messages go to the backlog queues instead: grant Send on the twin"
    no_listen = "receivers with this credential cannot read the twin: grant Listen on it"
    checks: list[Awaitable[Finding]] = []
    for send_to, receive_from in places[:RIGHTS_MAX]:
        name, side = "right Send twin", pair.secondary
        checks.append(right_on(name, side, "Send", send_to, Level.FAIL, no_send))
        if receive_from is not None:
            name = "right Listen twin"
            checks.append(right_on(name, side, "Listen", receive_from, Level.WARN, no_listen))
    found = list(await asyncio.gather(*checks))
    if len(places) > RIGHTS_MAX:
        text = f"rights on {counted(len(places) - RIGHTS_MAX, 'more twin')} are not checked"
        found.append(Finding("rights twins", Level.SKIP, text))
    return found
