"""Frames of a client that come before the answer to the ATTACH that they depend on."""

from __future__ import annotations

import pytest

from tests.unit.broker.links.joined import new_server
from tests.unit.broker.links.one_client import (
    EARLY_RECEIVING,
    EARLY_SENDING,
    Action,
    OneClient,
    check_before_the_answer,
    early,
)

EARLY = early([*EARLY_RECEIVING, *EARLY_SENDING])


@pytest.mark.virtual_time
@pytest.mark.parametrize("actions", EARLY, ids=["-".join(a.__name__ for a in e) for e in EARLY])
async def test_frames_before_the_answer_are_kept_or_refused(actions: tuple[Action, ...]) -> None:
    server = new_server()
    await check_before_the_answer(OneClient(server, server), actions)
    await server.close()
