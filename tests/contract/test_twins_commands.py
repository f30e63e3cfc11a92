"""`twinbus twins` as an administrator types it, against two namespaces of a real broker."""

from __future__ import annotations

import asyncio
import json
import signal
from datetime import timedelta
from pathlib import Path

import pytest
from azure.core.exceptions import ResourceNotFoundError
from azure.servicebus import ServiceBusMessage
from azure.servicebus.management import (
    EntityStatus,
    SqlRuleFilter,
)

from tests.contract.pairs import embedded
from tests.contract.twin_world import (
    ASKED_WRONGLY,
    ATTENTION,
    COULD_NOT,
    MARK,
    RULES,
    Terminal,
    both,
    both_strings,
    described,
    make_topic,
    rules_of,
    states,
    terminal,
)
from tests.official_sdk import administration, client, receive_count
from tests.processes import ENTRY, started, with_key
from twinbus import EmbeddedBroker
from twinbus.broker.profile import PROFILES
from twinbus.client.twins import is_marked, marked_paths
from twinbus.namespace.access import endpoint_of
from twinbus.servicebus.twins import UNFINISHED_MARK

pytestmark = pytest.mark.contract

broker = embedded(queues=(), rules=RULES)


texts = both_strings()
typed = terminal()


def test_create_copies_everything_and_marks_it(typed: Terminal, texts: tuple[str, str]) -> None:
    with both(texts) as (primary, secondary):
        primary.create_queue(
            "orders",
            default_message_time_to_live=timedelta(hours=3),
            dead_lettering_on_message_expiration=True,
            requires_duplicate_detection=True,
            duplicate_detection_history_time_window=timedelta(minutes=3),
            max_delivery_count=4,
            lock_duration=timedelta(seconds=30),
            max_size_in_megabytes=2_048,
            user_metadata="of the orders team",
        )
        primary.create_queue("contoso/x-servicebus-transfer/0")
        primary.create_queue("contoso/x-twinbus-lease", requires_session=True)
        primary.create_queue("by-session", requires_session=True)
        make_topic(primary)

        done = typed("twins", "create", "--all", "--output", "json")
        assert done.status == 0, done
        assert states(done) == {"orders": "created", "events": "created", "by-session": "left_out"}

        assert {one.name for one in secondary.list_queues()} == {"orders"}
        twin = secondary.get_queue("orders")
        assert twin.user_metadata == MARK
        assert described(twin) == described(primary.get_queue("orders"))
        topic = secondary.get_topic("events")
        assert topic.user_metadata == MARK
        assert described(topic) | {"size_in_bytes": 0} == described(primary.get_topic("events")) | {
            "size_in_bytes": 0
        }
        for name in ("all", "sql", "correlated"):
            there = secondary.get_subscription("events", name)
            assert there.user_metadata == MARK
            assert described(there) == described(primary.get_subscription("events", name))
            assert rules_of(secondary, "events", name) == rules_of(primary, "events", name)
        assert set(rules_of(secondary, "events", "sql")) == {"red", "never"}

    again = typed("twins", "create", "--all", "--output", "json")
    assert (again.status, states(again)["events"]) == (0, "ok")
    checked = typed("twins", "check")
    assert checked.status == 0, checked
    assert "2 of 2 twins are well" in checked.out


def test_messages_take_the_same_way_in_a_twin(typed: Terminal, texts: tuple[str, str]) -> None:
    with both(texts) as (primary, _):
        make_topic(primary)
    assert typed("twins", "create", "events").status == 0
    red = ServiceBusMessage("r", application_properties={"color": "red", "size": 5})
    with client(texts[1]) as sdk:
        with sdk.get_topic_sender("events") as sender:
            sender.send_messages([red, ServiceBusMessage("x")])
        with sdk.get_subscription_receiver("events", "sql") as receiver:
            (got,) = receive_count(receiver, 1)
            assert (got.application_properties or {})[b"seen"] == 5
            receiver.abandon_message(got)
    found = json.loads(typed("twins", "check", "--output", "json").out)["twins"]
    assert found[0]["messages"] == {"waiting": 3, "dead_lettered": 0}


def test_sessions_only_when_asked_for(typed: Terminal, texts: tuple[str, str]) -> None:
    with both(texts) as (primary, secondary):
        primary.create_queue("by-session", requires_session=True)
        refused = typed("twins", "create", "by-session")
        assert refused.status == COULD_NOT
        assert "--with-sessions" in refused.out
        assert list(secondary.list_queues()) == []
        assert typed("twins", "create", "by-session", "--with-sessions").status == 0
        assert secondary.get_queue("by-session").requires_session


def test_a_live_namesake_is_never_written_to(typed: Terminal, texts: tuple[str, str]) -> None:
    with both(texts) as (primary, secondary):
        for admin in (primary, secondary):
            admin.create_queue("orders", user_metadata="live")
            admin.create_topic("events")
        primary.create_subscription("events", "all")
        primary.create_queue("billing")
        # Someone else's traffic.
        with client(texts[1]) as sdk, sdk.get_queue_sender("orders") as sender:
            sender.send_messages(ServiceBusMessage("theirs"))
        before = described(secondary.get_queue("orders")), described(secondary.get_topic("events"))
        done = typed("twins", "create", "orders", "events", "billing")
        assert done.status == COULD_NOT
        assert "REFUSED" in done.out
        (line,) = [one for one in done.out.splitlines() if "adopt orders" in one]
        assert "does not have the mark of a twin" in line
        checked = typed("twins", "check", "orders", "--output", "json")
        assert (checked.status, states(checked)) == (ATTENTION, {"orders": "refused"})
        after = described(secondary.get_queue("orders")), described(secondary.get_topic("events"))
        assert after == before
        assert secondary.get_queue("orders").user_metadata == "live"
        assert list(secondary.list_subscriptions("events")) == []
        assert secondary.get_queue("billing").user_metadata == MARK
    with client(texts[1]) as sdk, sdk.get_queue_receiver("orders") as receiver:
        (got,) = receive_count(receiver, 1)
        assert got.delivery_count == 0


def test_a_namesake_is_adopted_after_asking(typed: Terminal, texts: tuple[str, str]) -> None:
    with both(texts) as (primary, secondary):
        primary.create_queue("orders", max_delivery_count=10)
        secondary.create_queue("orders", max_delivery_count=3, user_metadata="of  the team")
        with client(texts[1]) as sdk, sdk.get_queue_sender("orders") as sender:
            sender.send_messages(ServiceBusMessage("there"))
        unasked = typed("twins", "adopt", "orders")
        assert unasked.status == ASKED_WRONGLY
        assert "it holds 1 message and 0 dead letters" in unasked.out
        assert "error: the maximum delivery count is 3 in the twin" in unasked.out
        assert secondary.get_queue("orders").user_metadata == "of  the team"

        done = typed("twins", "adopt", "Orders", "--yes")
        assert done.status == ATTENTION, done
        twin = secondary.get_queue("orders")
        assert twin.user_metadata == f"{MARK} of  the team"
        assert twin.max_delivery_count == 3
        assert secondary.get_queue_runtime_properties("orders").active_message_count == 1
        assert "is a twin already" in typed("twins", "adopt", "orders", "--yes").out
        checked = typed("twins", "check", "--output", "json")
        assert (checked.status, states(checked)) == (ATTENTION, {"orders": "differs"})


@pytest.mark.parametrize("answer", ["no", "adopt"])
def test_a_person_confirms_at_a_terminal(
    typed: Terminal, texts: tuple[str, str], monkeypatch: pytest.MonkeyPatch, answer: str
) -> None:
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("builtins.input", lambda _: answer)
    with both(texts) as (primary, secondary):
        for admin in (primary, secondary):
            admin.create_topic("events")
        done = typed("twins", "adopt", "events")
        is_yes = answer == "adopt"
        assert done.status == (0 if is_yes else COULD_NOT)
        assert ("nothing was changed" in done.out) is not is_yes
        assert (secondary.get_topic("events").user_metadata == MARK) is is_yes


def test_a_secondary_of_a_smaller_tier_gets_what_it_takes(
    typed: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        EmbeddedBroker("contoso", profile=PROFILES["azure-premium"]) as large,
        EmbeddedBroker("contoso-dr", profile=PROFILES["azure-standard"]) as small,
        administration(large.connection_string()) as primary,
    ):
        sides = large.connection_string(), small.connection_string()
        words = ("--primary", sides[0], "--secondary", sides[1])
        primary.create_queue(
            "orders", max_size_in_megabytes=81_920, max_message_size_in_kilobytes=2_048
        )
        for verb in ("create", "check"):
            done = typed("twins", verb, "orders", *words)
            assert done.status == 0, done
            assert "is 5,120 in the twin and 81,920 in the primary" in done.out
            assert "larger messages are refused (the tier of the secondary allows" in done.out


def test_what_must_not_be_adopted(typed: Terminal, texts: tuple[str, str]) -> None:
    with both(texts) as (primary, secondary):
        for name in ("a", "b", "long", "none", "contoso/x-servicebus-transfer/0"):
            primary.create_queue(name)
        secondary.create_queue("a", user_metadata="twinbus-twin-of:fabrikam")
        secondary.create_topic("b")
        secondary.create_queue("long", user_metadata="x" * 1_020)
        secondary.create_queue("contoso/x-servicebus-transfer/0")
        said = {
            "a": "is the twin of an entity of fabrikam",
            "b": "is a topic in",
            "long": "1,044 characters",
            "none": "run `twinbus twins create none`",
            "ghost": "there is no queue or topic",
            "contoso/x-servicebus-transfer/0": "a queue of Twinbus itself",
        }
        for name, text in said.items():
            done = typed("twins", "adopt", name, "--yes")
            assert done.status == COULD_NOT
            assert text in done.err
            assert len(done.err.splitlines()) == 1
        assert secondary.get_queue("a").user_metadata == "twinbus-twin-of:fabrikam"
        assert typed("twins", "create", "a").status == COULD_NOT


def test_a_marked_twin_is_checked_and_only_completed(
    typed: Terminal, texts: tuple[str, str]
) -> None:
    with both(texts) as (primary, secondary):
        make_topic(primary)
        primary.create_queue("orders")
        assert typed("twins", "create", "--all").status == 0
        # Later changes on both sides.
        primary.create_subscription("events", "new")
        primary.create_rule("events", "new", "big", filter=SqlRuleFilter("size > 9"))
        primary.delete_rule("events", "new", "$Default")
        primary.create_rule("events", "sql", "blue", filter=SqlRuleFilter("color = 'blue'"))
        changed = secondary.get_rule("events", "correlated", "both")
        changed.filter = SqlRuleFilter("1 = 2")
        secondary.update_rule("events", "correlated", changed)
        twin = secondary.get_queue("orders")
        twin.status = EntityStatus.SEND_DISABLED
        secondary.update_queue(twin)

        checked = typed("twins", "check")
        assert checked.status == ATTENTION
        assert "error: subscription new is missing" in checked.out
        assert "error: subscription sql: rule blue is missing" in checked.out
        assert "rule both has the filter '1 = 2', not correlation" in checked.out
        assert "the status of the twin is SendDisabled" in checked.out
        with pytest.raises(ResourceNotFoundError):
            secondary.get_subscription("events", "new")

        done = typed("twins", "create", "--all")
        assert done.status == ATTENTION
        assert "added rule blue of subscription sql, subscription new" in done.out.replace(
            "subscription new, rule blue of subscription sql",
            "rule blue of subscription sql, subscription new",
        )
        assert "the status of the twin is SendDisabled" in done.out
        for name in ("new", "sql"):
            assert rules_of(secondary, "events", name) == rules_of(primary, "events", name)
        assert secondary.get_queue("orders").status == EntityStatus.SEND_DISABLED
        assert "'1 = 2'" in rules_of(secondary, "events", "correlated")["both"].filter


def test_a_subscription_whose_creation_was_killed_is_finished(
    typed: Terminal, texts: tuple[str, str]
) -> None:
    with both(texts) as (primary, secondary):
        make_topic(primary)
        assert typed("twins", "create", "events").status == 0
        primary.create_subscription("events", "late")
        primary.create_rule("events", "late", "big", filter=SqlRuleFilter("size > 9"))
        primary.delete_rule("events", "late", "$Default")
        # What a kill leaves: the rule that the service adds, and all of the primary's.
        secondary.create_subscription("events", "late", user_metadata=f"{UNFINISHED_MARK}contoso")
        secondary.create_rule("events", "late", "big", filter=SqlRuleFilter("size > 9"))
        assert "subscription late: its rules are not complete" in typed("twins", "check").out
        assert typed("twins", "create", "events").status == 0
        assert rules_of(secondary, "events", "late") == rules_of(primary, "events", "late")
        assert secondary.get_subscription("events", "late").user_metadata == MARK


def test_two_namespaces_that_are_each_others_secondary(
    typed: Terminal, texts: tuple[str, str]
) -> None:
    other_way = ("--primary", texts[1], "--secondary", texts[0])
    with both(texts) as (contoso, other):
        contoso.create_queue("orders")
        other.create_queue("shop")
        for admin in (contoso, other):
            admin.create_queue("live")
        first = typed("twins", "create", "--all", "--output", "json")
        assert (first.status, states(first)) == (
            COULD_NOT,
            {"live": "refused", "orders": "created"},
        )
        words = ("twins", "create", "--all", "--output", "json", *other_way)
        second = typed(*words, label="other")
        assert states(second) == {"live": "refused", "orders": "left_out", "shop": "created"}
        assert contoso.get_queue("shop").user_metadata == "twinbus-twin-of:other"
        # Neither direction takes a twin of the other one for an entity.
        assert states(typed("twins", "check", "--all", "--output", "json"))["shop"] == "left_out"
        assert typed("twins", "check").status == 0
        by_name = typed("twins", "create", "shop")
        assert "it is itself the twin of an entity of other" in by_name.out


def test_the_settings_file_names_the_entities(
    typed: Terminal, texts: tuple[str, str], tmp_path: Path
) -> None:
    with both(texts) as (primary, secondary):
        for name in ("orders", "billing-eu", "audit"):
            primary.create_queue(name)
        file = tmp_path / "twinbus.toml"
        file.write_text('[pair.eu]\ntwins = ["orders", "billing-*"]\n')
        pair = ("--pair", "eu", "--config", str(file))
        assert typed("twins", "create", *pair).status == 0
        assert {one.name for one in secondary.list_queues()} == {"orders", "billing-eu"}
        checked = typed("twins", "check", "--output", "json", *pair)
        assert states(checked) == {"orders": "ok", "billing-eu": "ok"}
        primary.create_queue("billing-by-session", requires_session=True)
        assert "left out" in typed("twins", "create", *pair).out
        file.write_text(file.read_text() + "twins-with-sessions = true\n")
        assert typed("twins", "create", *pair).status == 0
        assert secondary.get_queue("billing-by-session").requires_session


def test_forwarding_stays_between_twins(typed: Terminal, texts: tuple[str, str]) -> None:
    with both(texts) as (primary, secondary):
        primary.create_queue("zulu")
        primary.create_queue("dead")
        primary.create_queue("alpha", forward_to="zulu", forward_dead_lettered_messages_to="dead")
        primary.create_topic("events")
        primary.create_subscription("events", "to-zulu", forward_to="zulu")
        alone = typed("twins", "create", "alpha", "events")
        assert alone.status == COULD_NOT
        assert "it forwards to zulu, which has no twin: name zulu too" in alone.out
        assert list(secondary.list_queues()) == []

        done = typed("twins", "create", "alpha", "events", "zulu")
        assert done.status == 0, done
        assert "remark: dead letters stay in the twin" in done.out
        port = texts[1].partition("localhost:")[2].partition("/")[0]
        twin = secondary.get_queue("alpha")
        assert (twin.forward_to or "").endswith(f":{port}/zulu")
        assert not twin.forward_dead_lettered_messages_to
        with client(texts[1]) as sdk:
            with sdk.get_queue_sender("alpha") as sender:
                sender.send_messages(ServiceBusMessage("to zulu"))
            with sdk.get_queue_receiver("zulu") as receiver:
                assert [str(one) for one in receive_count(receiver, 1)] == ["to zulu"]


def test_a_killed_creation_is_finished_by_the_next(typed: Terminal, texts: tuple[str, str]) -> None:
    with both(texts) as (primary, secondary):
        primary.create_topic("events")
        names = [f"sub-{number:02}" for number in range(20)]
        for name in names:
            primary.create_subscription("events", name)
            primary.create_rule("events", name, "a", filter=SqlRuleFilter(f"to = '{name}'"))
            primary.delete_rule("events", name, "$Default")

        def subscriptions() -> int:
            try:
                return len(list(secondary.list_subscriptions("events")))
            except ResourceNotFoundError:
                return 0

        endpoint = endpoint_of(texts[1])
        environment = {"TWINBUS_PRIMARY": texts[0], "TWINBUS_SECONDARY": texts[1]}
        words = ("twins", "create", "--all", "--label", "contoso")
        for wanted in (1, 5, 9):
            with started("-c", ENTRY, *words, environment=environment) as process:
                while subscriptions() < wanted:
                    assert process.poll() is None, "it ended before it was killed"
                process.send_signal(signal.SIGKILL)
                process.wait()
            # No sender takes an unfinished topic for a twin.
            assert asyncio.run(is_marked(endpoint, "events", "contoso")) is False
            checked = typed("twins", "check", "--output", "json")
            assert (checked.status, states(checked)) == (ATTENTION, {"events": "unfinished"})
        done = typed("twins", "create", "--all")
        assert done.status == 0, done
        assert asyncio.run(is_marked(endpoint, "events", "contoso")) is True
        for name in names:
            assert rules_of(secondary, "events", name) == rules_of(primary, "events", name)
        assert typed("twins", "check").status == 0


def test_marks_are_read_without_the_sdk(typed: Terminal, texts: tuple[str, str]) -> None:
    with both(texts) as (primary, secondary):
        primary.create_queue("orders")
        make_topic(primary)
        secondary.create_queue("live", user_metadata='<not> & "a" twin')
        assert typed("twins", "create", "--all").status == 0
        secondary.create_queue("s", requires_session=True, user_metadata=f"{MARK} & more")
        with client(texts[1]) as sdk, sdk.get_queue_sender("orders") as sender:
            sender.send_messages(ServiceBusMessage("x"))
    endpoint = endpoint_of(texts[1])

    async def asked(path: str, label: str = "contoso") -> bool | None:
        return await is_marked(endpoint, path, label)

    assert [asyncio.run(asked(path)) for path in ("orders", "events", "s")] == [True] * 3
    assert [asyncio.run(asked(path)) for path in ("live", "ghost")] == [False] * 2
    assert asyncio.run(asked("orders", "fabrikam")) is False
    assert asyncio.run(marked_paths(endpoint, "contoso")) == frozenset(("events", "orders", "s"))
    weak = endpoint_of(with_key(texts[1], "sender", "k"))
    assert asyncio.run(is_marked(weak, "orders", "contoso")) is None
    assert asyncio.run(marked_paths(weak, "contoso")) is None


def test_a_wrong_word_names_what_to_give(typed: Terminal, texts: tuple[str, str]) -> None:
    assert typed("twins", "create").status == ASKED_WRONGLY
    none = typed("twins", "check")
    assert (none.status, "no twin of contoso is marked" in none.out) == (0, True)
    ghost = typed("twins", "create", "ghost")
    assert ghost.status == COULD_NOT
    assert "there is no queue or topic of this name" in ghost.out
    as_json = typed("twins", "adopt", "orders", "--output", "json")
    assert as_json.status == ASKED_WRONGLY


def test_a_credential_without_the_right_is_one_line(
    typed: Terminal, texts: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    weak = with_key(texts[1], "sender", "k")
    done = typed("twins", "check", "--secondary", weak)
    assert done.status == COULD_NOT
    (line,) = done.err.splitlines()
    assert "needs the Manage right" in line
