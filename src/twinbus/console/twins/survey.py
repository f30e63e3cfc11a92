"""The entities of both namespaces, and the state of each twin: read, compared, created, adopted."""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final, Self

from azure.core.exceptions import AzureError, HttpResponseError
from azure.servicebus.aio.management import ServiceBusAdministrationClient
from azure.servicebus.management import RuleProperties

from twinbus.client.administration import UNAUTHORIZED
from twinbus.console.namespaces import explained
from twinbus.console.output import WrongUse
from twinbus.console.twins.making import TwinMaker, TwinNotMade, adopted_metadata, mark_adopted
from twinbus.console.twins.reading import (
    held_by,
    read_entities,
    read_rules,
    read_subscriptions,
    with_subscriptions,
)
from twinbus.console.twins.reports import Adoption, TwinReport, TwinState, mend
from twinbus.ledger.requests import BilledRequests
from twinbus.namespace.administration_client import administration_client
from twinbus.namespace.namespace import Namespace
from twinbus.pairing.core.twin_plan import (
    PlannedTwin,
    Step,
    differences_that_matter,
    is_of_twinbus,
    missing,
    plan_twins,
    selected,
    to_create,
    twins_of,
    unusable,
)
from twinbus.pairing.core.twin_settings import TwinSettings
from twinbus.pairing.sdk.administration import SERVER_FAULTS, first_line
from twinbus.servicebus.twins import (
    is_named,
    is_twin_of,
    is_unfinished_twin_of,
    marked_label,
)
from twinbus.wording import plain, visible

READING: Final = "reading entities"
CREATING: Final = "creating twins"


@dataclass(slots=True)
class _Side:
    namespace: Namespace
    client: ServiceBusAdministrationClient = field(init=False)
    entities: dict[str, TwinSettings] = field(default_factory=dict)
    """By path in lower case."""


async def _tier(client: ServiceBusAdministrationClient) -> str | None:
    """Return the tier of a namespace; None: it does not say."""
    try:
        sku = (await client.get_namespace_properties()).messaging_sku
    except AzureError:
        return None
    return None if sku is None else str(getattr(sku, "value", sku))


class TwinSurvey:
    """Two namespaces and their entities; an async context manager, then `read`."""

    def __init__(
        self, primary: Namespace, secondary: Namespace, say: Callable[[str], None] = lambda _: None
    ) -> None:
        """`say` is called with each step that may take long. WrongUse: one namespace, twice."""
        if primary.place == secondary.place:
            raise WrongUse(f"both sides are {primary.endpoint}: give two namespaces")
        self.primary = primary
        self.secondary = secondary
        self.label = primary.label
        self._say = say
        self._stack = AsyncExitStack()
        self._ours = _Side(primary)
        self._there = _Side(secondary)
        self._sku: str | None = None

    async def __aenter__(self) -> Self:
        for side in (self._ours, self._there):
            requests = BilledRequests(side.namespace.label)
            client = administration_client(side.namespace, requests)
            side.client = await self._stack.enter_async_context(client)
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._stack.aclose()

    async def read(self, listed: Collection[str]) -> None:
        """Read the entities; whole topics only for those listed and for those that are marked."""
        for side in (self._ours, self._there):
            self._say(f"reading the entities of {side.namespace.endpoint}")
            with explained(side.namespace, READING, "Manage"):
                side.entities = await read_entities(side.client)
        self._sku = await _tier(self._there.client)
        keys = self._chosen_keys(listed)
        for side in (self._ours, self._there):
            self._say(f"reading subscriptions and rules of {side.namespace.endpoint}")
            chosen = {key: one for key, one in side.entities.items() if key in keys}
            with explained(side.namespace, READING, "Manage"):
                side.entities |= await with_subscriptions(side.client, chosen)

    @property
    def twins(self) -> set[str]:
        """Paths of all marked twins, in lower case."""
        return twins_of(self._there.entities, self.label)

    def is_twin(self, path: str) -> bool:
        return path.lower() in self.twins

    def twin(self, path: str) -> TwinSettings | None:
        """Return the marked twin of this path; None: there is none."""
        return self._there.entities[path.lower()] if self.is_twin(path) else None

    def _chosen_keys(self, listed: Collection[str]) -> set[str]:
        if listed:
            return set(selected(self._ours.entities, listed))
        return {
            key
            for key, one in self._there.entities.items()
            if marked_label(one.user_metadata) == self.label
        }

    async def check(self, listed: Collection[str]) -> list[TwinReport]:
        """Return the state of the listed entities' twins; of all marked ones if none is listed."""
        self._say("counting messages")
        found = [self._unknown(name) for name in missing(self._ours.entities, listed)]
        for key in sorted(self._chosen_keys(listed)):
            report = self._report(key, is_by_name=is_named(listed, key) or not listed)
            there = self._there.entities.get(key)
            if there is not None and is_twin_of(there.user_metadata, self.label):
                with explained(self.secondary, "counting messages", "Manage"):
                    report = replace(report, held=await held_by(self._there.client, there))
            found.append(report)
        return found

    def _report(self, key: str, *, is_by_name: bool) -> TwinReport:
        entity, there = self._ours.entities.get(key), self._there.entities.get(key)
        if entity is None:
            assert there is not None, f"{key} is in neither namespace"
            says = "the primary has no such entity: receive what it holds, then delete it"
            return TwinReport(there.name, TwinState.LEFT_OVER, there.kind, says)
        report = partial(TwinReport, entity.name, kind=entity.kind)
        if (other := marked_label(entity.user_metadata)) is not None:
            state = TwinState.REFUSED if is_by_name else TwinState.LEFT_OUT
            return report(state=state, says=f"it is itself the twin of an entity of {other}")
        if there is None:
            if entity.has_sessions and not is_by_name:
                return report(state=TwinState.LEFT_OUT, says="it has sessions")
            run = f"run `twinbus twins create {entity.name}`"
            return report(state=TwinState.MISSING, says=run)
        if why := unusable(entity, there, self.label, self.secondary.label):
            return report(state=TwinState.REFUSED, says=why)
        if is_unfinished_twin_of(there.user_metadata, self.label):
            run = f"`twinbus twins create {entity.name}` finishes it"
            return report(state=TwinState.UNFINISHED, says=run)
        return self._compared(entity, there)

    def _compared(self, entity: TwinSettings, there: TwinSettings) -> TwinReport:
        found = tuple(differences_that_matter(entity, there, self.twins, self._sku))
        errors = [one for one in found if one.is_error]
        state = TwinState.DIFFERS if errors else TwinState.OK
        return TwinReport(entity.name, state, entity.kind, mend(entity.name, errors), found)

    def _unknown(self, name: str) -> TwinReport:
        says = f"there is no queue or topic of this name in {self.primary.endpoint}"
        if is_of_twinbus(name):
            says = "it is a queue of Twinbus itself, which gets no twin"
        return TwinReport(name, TwinState.FAILED, says=says)

    async def create(self, listed: Collection[str], *, with_sessions: bool) -> list[TwinReport]:
        """Create, finish or compare the twin of each listed entity."""
        found = [self._unknown(name) for name in missing(self._ours.entities, listed)]
        plans = plan_twins(
            selected(self._ours.entities, listed),
            self._there.entities,
            listed,
            label=self.label,
            secondary_label=self.secondary.label,
            with_sessions=with_sessions,
        )
        maker = TwinMaker(self._primary_rules, self._there.client, self.label, self._sku)
        for number, plan in enumerate(plans, 1):
            self._say(f"creating {plan.path}, {number} of {len(plans)}")
            found.append(await self._carried_out(plan, maker, with_sessions=with_sessions))
        return sorted(found, key=lambda one: one.path.lower())

    async def _carried_out(
        self, plan: PlannedTwin, maker: TwinMaker, *, with_sessions: bool
    ) -> TwinReport:
        entity, key = plan.entity, plan.path.lower()
        report = partial(TwinReport, plan.path, kind=entity.kind)
        if plan.step in {Step.REFUSE, Step.LEAVE_OUT}:
            is_refused = plan.step is Step.REFUSE
            state = TwinState.REFUSED if is_refused else TwinState.LEFT_OUT
            return report(state=state, says=plan.why)
        try:
            with explained(self.secondary, CREATING, "Manage"):
                try:
                    if plan.step is Step.CHECK:
                        return await self._completed(plan, maker, with_sessions=with_sessions)
                    if plan.step is Step.CREATE:
                        await maker.create(entity, self.twins)
                    else:
                        await maker.finish(entity, self.twins)
                except HttpResponseError as error:
                    # The service also forbids one entity too many; the credential could list.
                    status = error.status_code or SERVER_FAULTS
                    if status == UNAUTHORIZED or status >= SERVER_FAULTS:
                        raise
                    raise TwinNotMade(plain(first_line(error))) from error
        except TwinNotMade as error:
            return report(state=TwinState.FAILED, says=str(error))
        made = replace(
            to_create(entity, self.twins, maker.sku), user_metadata=maker.mark, status="Active"
        )
        self._there.entities[key] = made
        return replace(self._compared(entity, made), state=TwinState.CREATED)

    async def _completed(
        self, plan: PlannedTwin, maker: TwinMaker, *, with_sessions: bool
    ) -> TwinReport:
        """Add what a marked twin lacks of subscriptions and rules, and compare it."""
        assert plan.there is not None
        found = self._compared(plan.entity, plan.there)
        if not any(one.is_added for one in found.differences):
            return found
        added = await maker.add_missing(plan.entity, self.twins, with_sessions=with_sessions)
        there = await read_subscriptions(self._there.client, plan.there)
        self._there.entities[plan.path.lower()] = there
        found = self._compared(plan.entity, there)
        says = "; ".join(filter(None, [f"added {', '.join(added)}" if added else "", found.says]))
        return replace(found, says=says)

    async def _primary_rules(self, topic: str, subscription: str) -> list[RuleProperties]:
        with explained(self.primary, "reading rules", "Manage"):
            return await read_rules(self._ours.client, topic, subscription)

    async def adoptable(self, path: str) -> Adoption:
        """Return the entity of this path to adopt; TwinNotMade if it must not be adopted."""
        key = path.strip("/").lower()
        entity, there = self._ours.entities.get(key), self._there.entities.get(key)
        if entity is None or is_of_twinbus(key):
            raise TwinNotMade(f"{visible(path)}: {self._unknown(key).says}")
        if there is None:
            raise TwinNotMade(
                f"there is no {entity.name} in {self.secondary.endpoint}: run `twinbus twins create"
                f" {entity.name}`"
            )
        if marked_label(entity.user_metadata) is not None:
            raise TwinNotMade(f"{entity.name} of the primary is itself a twin")
        if marked_label(there.user_metadata) is not None or there.kind is not entity.kind:
            if why := unusable(entity, there, self.label, self.secondary.label):
                raise TwinNotMade(why)
            if is_unfinished_twin_of(there.user_metadata, self.label):
                raise TwinNotMade(f"`twinbus twins create {entity.name}` was killed: run it again")
        else:
            adopted_metadata(there, self.label)
        with explained(self.secondary, "counting messages", "Manage"):
            held = await held_by(self._there.client, there)
        return Adoption(entity, there, held, replace(self._compared(entity, there), held=held))

    async def adopt(self, candidate: Adoption) -> None:
        with explained(self.secondary, "marking a twin", "Manage"):
            await mark_adopted(self._there.client, candidate.there, self.label)
