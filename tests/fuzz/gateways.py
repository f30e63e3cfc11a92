"""The same clients before a gateway: what they took comes back, whatever the primary does.

The gateway and its primary are joined in memory. Beside what clients do to a broker, the primary
falls silent to the gateway's connections of single clients, and answers again later. When all have
left, every budget of the gateway must be empty.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Self

import pytest
from hypothesis import Phase
from hypothesis import strategies as st

from tests.fuzz.part import Part, run_async
from tests.fuzz.resources import ACTS, CLIENTS, Step, Taker, play_and_check
from tests.fuzz.world import TOKENS, FuzzWorld, at_most
from tests.unit.gateway.joined_namespaces import PRIMARY, SECONDARY, Joined, join
from twinbus import SendAvailabilityOptions
from twinbus.amqp.transport import ClientTransport
from twinbus.broker.budgets import CONNECTION_LINKS
from twinbus.broker.descriptions import AuthorizationRule
from twinbus.broker.port_access import PortAccess
from twinbus.broker.sas import ALL_RIGHTS
from twinbus.gateway.node_requests import UNANSWERED_MAX
from twinbus.gateway.server import GatewayServer
from twinbus.ledger.writer import NullLedger
from twinbus.namespace.namespace import Namespace
from twinbus.pairing.observing.recording import Recorder
from twinbus.pairing.sending.client import PairedClient

ANSWER_S = 30.0
ENDING_TURNS = 30_000
"""Turns of the loop in which everything ends that clients who are gone have begun."""


class GatewayWorld(FuzzWorld):
    rules = (AuthorizationRule(key_name="root", primary_key="a2V5", rights=ALL_RIGHTS),)
    turns_max = 150
    """The sends of all clients share a connection to the primary, which takes them in order."""
    opening_turns = 100
    gateway: GatewayServer
    _ends: Joined
    _paired: PairedClient

    @property
    def front(self) -> GatewayServer:
        return self.gateway

    @classmethod
    @asynccontextmanager
    async def running(cls) -> AsyncIterator[Self]:
        async with super().running() as world:
            with pytest.MonkeyPatch.context() as patch:
                world._open(patch)
                yield world
                world.hold(is_held=False)
                await world.gateway.close()
                await world._paired.close()

    def _open(self, patch: pytest.MonkeyPatch) -> None:
        self._ends = join(self.server, patch)
        primary, secondary = map(Namespace.from_connection_string, (PRIMARY, SECONDARY))
        options = SendAvailabilityOptions(attempt_timeout=ANSWER_S)
        recorder = Recorder(NullLedger(), primary, secondary)
        self._paired = PairedClient(primary, secondary, options, recorder)
        access = PortAccess(tokens=TOKENS)
        self.gateway = GatewayServer("g", self._paired, access, patience_s=ANSWER_S)
        self.gateway.profile = self.server.profile

    def hold(self, *, is_held: bool) -> None:
        """Let the primary fall silent, or answer again, on all connections but those for sends."""
        lines = [upstream._connection for upstream in self.gateway.primary]
        for_sends = [line._connection for line in lines if line is not None]
        for _, down in self._ends:
            assert isinstance(down.reader, ClientTransport)
            if not is_held:
                down.release()
            elif down.reader._connection not in for_sends:
                down.is_held = True

    async def settle_down(self) -> None:
        self.hold(is_held=False)
        for _ in range(ENDING_TURNS):
            await asyncio.sleep(0)
            pending = self.gateway.pending
            # The primary has its own turns in which it handles what the gateway closes.
            if not (pending.calls or pending.count or self.server.turns):
                break
        # The gateway may have hung up: then the primary has closed nothing.
        self._ends[:] = [end for end in self._ends if end[0] in self.server.peers]
        self._ends.ups[:] = [up for up in self._ends.ups if not up.is_closed]
        self._check_empty()

    def check_limits(self) -> None:
        for client, relay in self.gateway._links._relays.items():
            at_most("requests without an answer", len(relay.unanswered._waiting), UNANSWERED_MAX)
            at_most("links at the primary", relay.links.amount, CONNECTION_LINKS)
            held = client.budgets.held_bytes
            at_most("bytes of a connection", held.used, held.limit)

    def _check_empty(self) -> None:
        gateway = self.gateway
        assert not gateway.pending.calls, "work of clients that are gone goes on"
        assert (gateway.pending.count, gateway.pending.size_bytes) == (0, 0)
        assert not gateway._links._relays
        budgets = gateway.admission.budgets
        for budget in (*budgets.all(), gateway._links._upstream_links):
            assert budget.used == 0, f"{budget} of clients that are gone"
        assert budgets.unread.used == 0


def _hold(taker: Taker, number: int) -> None:
    world = taker.world
    assert isinstance(world, GatewayWorld)
    world.hold(is_held=number % 2 == 0)


GATEWAY_ACTS = {**ACTS, "hold": _hold}
stories = st.lists(
    st.builds(
        Step,
        st.integers(0, CLIENTS - 1),
        st.sampled_from(tuple(GATEWAY_ACTS)),
        st.integers(0, 200),
    ),
    min_size=1,
    max_size=30,
)


def check(story: list[Step]) -> None:
    run_async(play_and_check(story, GatewayWorld, GATEWAY_ACTS))


GATEWAYS = Part(
    "gateways",
    stories,
    check,
    finds=([Step(0, "ask", 99), Step(0, "hold", 0), Step(0, "ask", 98), Step(0, "receivers", 99)],),
    short=2,
    round=20,
    phases=(Phase.explicit, Phase.generate, Phase.shrink),
)
