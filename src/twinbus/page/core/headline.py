"""One sentence and one level about all pairs that are shown. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Final

from twinbus.page.core.model import Headline, ShownEntity, ShownPair, ShownProof
from twinbus.wording import counted, duration, named, visible

NAMED_MAX: Final = 3
"""Pairs or entities that the sentence names."""


PROVEN: Final = {"nothing lost": "nothing lost", "lost": "messages were LOST"}
"""What the headline says of a verdict."""


def headline_of(
    pairs: Iterable[ShownPair], now: float, proof: ShownProof | None = None
) -> Headline:
    """Return the worst that is true of the pairs: level, text, and since when if that is known.

    `proof` is the last conservation report: only it may say that nothing was lost.
    """
    shown = list(pairs)
    alive = [pair for pair in shown if pair.state != "gone" and pair.kind == "pair"]
    running = [pair for pair in alive if pair.state == "running"]
    if not alive:
        ended = sum(pair.kind == "pair" for pair in shown)
        more = f"; {counted(ended, 'pair')} ended within the last hour" if ended else ""
        return Headline("none", f"No pair runs here{more}.")
    if unprotected := [pair for pair in running if not pair.protected]:
        why = next((pair.why for pair in unprotected if pair.why), "no backlog queue")
        names = named([pair.name for pair in unprotected], NAMED_MAX)
        return Headline("unprotected", f"Unprotected: {names}, sends have no backlog ({why}).")
    if unsafe := [pair for pair in running if pair.safe is False]:
        return Headline("attention", f"{visible(unsafe[0].name)}: {unsafe[0].safety}.")
    if silent := [pair for pair in alive if pair.state == "silent"]:
        names = named([pair.name for pair in silent], NAMED_MAX)
        return Headline("attention", f"No answer from {names}: {visible(silent[0].why)}.")
    entities = [one for pair in running for one in pair.entities]
    if diverted := [one for one in entities if one.state == "failed over"]:
        return _failed_over(diverted, now, proof)
    if troubled := [pair for pair in shown if pair.state == "running" and pair.attention]:
        more = f" (and {len(troubled) - 1:,} more)" if len(troubled) > 1 else ""
        first = troubled[0]
        return Headline("attention", f"{visible(first.name)}: {first.attention[0]}{more}.")
    what = f"{counted(len(running), 'pair')}, {counted(len(entities), 'entity', 'entities')}"
    return Headline("healthy", f"Healthy: {what}, sends go to the primary.")


def _failed_over(entities: Sequence[ShownEntity], now: float, proof: ShownProof | None) -> Headline:
    since = min((one.since for one in entities if one.since is not None), default=None)
    lasting = "" if since is None else f" for {duration(max(0.0, now - since))}"
    count = sum(one.diverted for one in entities)
    raised = sum(one.raised for one in entities)
    errors = f", {raised:,} raised to their callers" if raised else ""
    names = named(list(dict.fromkeys(one.path for one in entities)), NAMED_MAX)
    proven = _proven(proof, since)
    text = f"Failed over{lasting}: {names}; {count:,} diverted{errors}{proven}."
    return Headline("failed-over", text, since)


def _proven(proof: ShownProof | None, since: float | None) -> str:
    """Return what a proof that was made in this outage says; empty: there is none."""
    if proof is None or proof.made_at is None or since is None or proof.made_at < since:
        return ""
    words = PROVEN.get(proof.verdict)
    made = f"{datetime.fromtimestamp(proof.made_at).astimezone():%H:%M}"
    return "" if words is None else f"; {words} by the proof of {made}"
