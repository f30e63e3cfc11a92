"""Checks of the doctor: the notice board, and the rights on it. A pair works without it."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Final

from azure.core.exceptions import ResourceNotFoundError

from twinbus.console.doctor.rights import ExaminedPair, Finding, Level, refused, right_on
from twinbus.console.namespaces import UnreachableError, administration
from twinbus.errors import TwinbusError
from twinbus.pairing.core.backlog import BacklogDescription, board_flaws
from twinbus.pairing.sdk.administration import description_of
from twinbus.servicebus.names import board_path

CHECK: Final = "notice board"
WITHOUT: Final = "hosts share no evidence of outages"


async def check_board(pair: ExaminedPair) -> list[Finding]:
    """Check that the notice board is there and can be used, and the rights Listen and Send."""
    path = board_path(pair.primary.label)
    if pair.manages.get("secondary"):
        try:
            found = await _described(pair, path)
        except TwinbusError as error:
            return [refused(CHECK, error, Level.WARN)]
        if found is None:
            return [Finding(CHECK, Level.OK, f"{path} is not there; it will be created")]
        if flaws := board_flaws(found):
            do = f"delete it, and it will be created; without it {WITHOUT}"
            return [Finding(CHECK, Level.WARN, f"{path}: {'; '.join(flaws)}", do)]
    rights = await asyncio.gather(
        *(
            right_on(
                f"right {right} board",
                pair.secondary,
                right,
                path,
                Level.WARN,
                f"{WITHOUT}: grant {right} on it, or pair with board=False",
            )
            for right in ("Listen", "Send")
        )
    )
    return [_as_warning(one) for one in rights]


async def _described(pair: ExaminedPair, path: str) -> BacklogDescription | None:
    async with administration(pair.secondary, "reading a queue") as client:
        try:
            return description_of(await client.get_queue(path))
        except ResourceNotFoundError:
            return None
        except AttributeError:
            # The client raises this for a topic where it expects a queue.
            raise UnreachableError(f"{path} is a topic; delete it: {WITHOUT}") from None


def _as_warning(finding: Finding) -> Finding:
    if finding.level is not Level.FAIL:
        return finding
    do = f"{WITHOUT}: run `twinbus backlog create`, or pair with board=False"
    return replace(finding, level=Level.WARN, do=do)
