"""What `twinbus twins` decides for each entity."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from twinbus.pairing.core.twin_plan import (
    PlannedTwin,
    Step,
    differences_that_matter,
    missing,
    plan_twins,
    selected,
    to_create,
    twins_of,
)
from twinbus.pairing.core.twin_settings import Kind, TwinSettings
from twinbus.servicebus.names import FOREVER_MS
from twinbus.servicebus.twins import twin_mark, unfinished_mark

OURS, UNFINISHED, OTHERS = twin_mark("contoso"), unfinished_mark("contoso"), twin_mark("fabrikam")


def queue(name: str = "orders", **settings: Any) -> TwinSettings:
    return TwinSettings(kind=Kind.QUEUE, name=name, **settings)


def topic(name: str = "orders", **subscription: Any) -> TwinSettings:
    one = TwinSettings(kind=Kind.SUBSCRIPTION, name="all", **subscription)
    return TwinSettings(kind=Kind.TOPIC, name=name, subscriptions={"all": one})


def by_path(*entities: TwinSettings) -> dict[str, TwinSettings]:
    return {one.name.lower(): one for one in entities}


def planned(
    primary: TwinSettings | list[TwinSettings],
    *secondary: TwinSettings,
    listed: tuple[str, ...] = ("*",),
    with_sessions: bool = False,
) -> list[PlannedTwin]:
    ours = by_path(*(primary if isinstance(primary, list) else [primary]))
    return plan_twins(
        selected(ours, listed),
        by_path(*secondary),
        listed,
        label="contoso",
        secondary_label="contoso-dr",
        with_sessions=with_sessions,
    )


def test_queues_of_twinbus_are_never_selected() -> None:
    entities = by_path(
        queue("Orders"),
        queue("contoso/x-servicebus-transfer/3"),
        queue("contoso/x-twinbus-lease"),
        queue("twinbus-doctor-1"),
        queue("contoso/x-servicebus-transfer/03"),
    )
    everything = ["*", "contoso/x-servicebus-transfer/3", "contoso/x-twinbus-lease"]
    assert sorted(selected(entities, everything)) == ["contoso/x-servicebus-transfer/03", "orders"]
    assert missing(entities, everything) == everything[1:]


def test_names_and_patterns_in_any_letter_case_select() -> None:
    entities = by_path(queue("Orders"), queue("billing/eu"), queue("billing"))
    assert list(selected(entities, ["ORDERS"])) == ["orders"]
    assert list(selected(entities, ["billing/*"])) == ["billing/eu"]
    assert missing(entities, ["orders", "ghost", "ghost-*"]) == ["ghost"]


@pytest.mark.parametrize(
    ("there", "step", "said"),
    [
        (None, Step.CREATE, ""),
        (queue(user_metadata=OURS), Step.CHECK, ""),
        (queue(user_metadata=f"{OURS} by Ann"), Step.CHECK, ""),
        (queue(user_metadata=UNFINISHED), Step.FINISH, ""),
        (queue(), Step.REFUSE, "does not have the mark of a twin"),
        (queue(user_metadata="live"), Step.REFUSE, "run `twinbus twins adopt orders`"),
        (queue(user_metadata=OTHERS), Step.REFUSE, "is the twin of an entity of fabrikam"),
        (queue(user_metadata=f"of {OURS}"), Step.REFUSE, "does not have the mark"),
        (topic(), Step.REFUSE, "is a topic in contoso-dr and a queue in the primary"),
        (replace(topic(), user_metadata=OURS), Step.REFUSE, "is a topic in contoso-dr"),
    ],
)
@pytest.mark.parametrize("listed", [("*",), ("orders",)])
def test_a_namesake_is_used_only_with_our_mark(
    there: TwinSettings | None, step: Step, said: str, listed: tuple[str, ...]
) -> None:
    (plan,) = planned(queue(), *([there] if there else []), listed=listed)
    assert plan.step is step
    assert said in plan.why


@pytest.mark.parametrize(
    "entity",
    [queue(requires_session=True), topic(requires_session=True), queue(user_metadata=OTHERS)],
)
def test_what_gets_no_twin_is_refused_by_name_and_left_out_by_pattern(entity: TwinSettings) -> None:
    assert planned(entity, listed=("Orders",))[0].step is Step.REFUSE
    assert planned(entity, listed=("ord*",))[0].step is Step.LEAVE_OUT


@pytest.mark.parametrize("entity", [queue(requires_session=True), topic(requires_session=True)])
def test_sessions_get_a_twin_when_asked_for(entity: TwinSettings) -> None:
    (refused,) = planned(entity, listed=("orders",))
    assert "--with-sessions" in refused.why
    assert planned(entity, with_sessions=True)[0].step is Step.CREATE
    marked = replace(entity, user_metadata=OURS)
    assert planned(entity, marked)[0].step is Step.CHECK


@pytest.mark.parametrize("source", [queue("a", forward_to="Z"), topic("a", forward_to="z")])
def test_a_destination_of_forwarding_comes_first_and_must_be_a_twin(source: TwinSettings) -> None:
    both = [source, queue("z")]
    assert [one.path for one in planned(both)] == ["z", "a"]
    assert {one.step for one in planned(both)} == {Step.CREATE}
    (alone,) = planned(both, listed=("a",))
    assert alone.step is Step.REFUSE
    assert alone.why == "it forwards to z, which has no twin: name z too"
    (with_twin,) = planned(both, queue("z", user_metadata=OURS), listed=("a",))
    assert with_twin.step is Step.CREATE
    live = planned(both, queue("z"))
    assert [one.step for one in live] == [Step.REFUSE, Step.LEAVE_OUT]


def test_a_circle_of_forwarding_ends() -> None:
    assert len(planned([queue("a", forward_to="b"), queue("b", forward_to="a")])) == 2


def test_marked_twins_are_found_by_label() -> None:
    entities = by_path(
        queue("A", user_metadata=OURS), queue("b", user_metadata=UNFINISHED), queue("c")
    )
    assert twins_of(entities, "contoso") == {"a"}
    assert twins_of(entities, "fabrikam") == set()


def test_a_twin_never_deletes_itself_and_forwards_dead_letters_to_twins_only() -> None:
    source = queue(auto_delete_on_idle_ms=300_000, forward_dead_letters_to="dead", forward_to="z")
    made = to_create(source, {"z"}, None)
    assert made.auto_delete_on_idle_ms == FOREVER_MS
    assert (made.forward_to, made.forward_dead_letters_to) == ("z", None)
    assert to_create(source, {"z", "dead"}, None).forward_dead_letters_to == "dead"
    subscribed = topic("t", auto_delete_on_idle_ms=300_000)
    (one,) = to_create(subscribed, set(), None).subscriptions.values()
    assert one.auto_delete_on_idle_ms == FOREVER_MS


def test_what_the_tier_does_not_allow_is_a_remark() -> None:
    source = queue(max_size_mb=81_920, max_message_size_kb=1_024, max_delivery_count=10)
    twin = queue(max_size_mb=5_120, max_message_size_kb=256, max_delivery_count=9)
    found = differences_that_matter(source, twin, set(), "Standard")
    assert [one.is_error for one in found] == [True, False, False]
    assert "maximum delivery count" in str(found[0])
    assert str(found[1]).endswith("are refused (the tier of the secondary allows no more)")
    # A twin that could take larger messages, and does not.
    found = differences_that_matter(source, twin, set(), "Premium")
    assert [one.is_error for one in found] == [True, True, False]


@pytest.mark.parametrize(
    ("settings", "sku", "expected"),
    [
        ({"max_size_mb": 81_920, "max_message_size_kb": 1_024}, "Standard", (5_120, 256, None)),
        ({"max_size_mb": 2_048, "max_message_size_kb": 256}, "Standard", (2_048, 256, None)),
        ({"max_size_mb": 16_384, "enable_partitioning": True}, "Standard", (1_024, None, True)),
        ({"max_size_mb": 81_920, "max_message_size_kb": 1_024}, "Premium", (81_920, 1_024, False)),
        ({"max_size_mb": 1_024, "enable_partitioning": True}, "Premium", (1_024, None, False)),
        ({"max_size_mb": 81_920, "max_message_size_kb": 1_024}, None, (81_920, 1_024, None)),
    ],
)
def test_a_twin_fits_the_tier_of_its_namespace(
    settings: dict[str, Any], sku: str | None, expected: tuple[int, int | None, bool | None]
) -> None:
    made = to_create(queue(**settings), set(), sku)
    assert (made.max_size_mb, made.max_message_size_kb, made.enable_partitioning) == expected
