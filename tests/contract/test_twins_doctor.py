"""What `twinbus doctor` says of twins and the rights on them, against a real broker."""

from __future__ import annotations

import json

import pytest

from tests.contract.pairs import embedded
from tests.contract.twin_world import RULES, Terminal, both, both_strings, make_topic, terminal
from tests.processes import with_key

pytestmark = pytest.mark.contract

broker = embedded(queues=(), rules=RULES)
texts = both_strings()
typed = terminal()


def doctor(typed: Terminal, *words: str) -> dict[str, list[tuple[str, str]]]:
    """The doctor's findings about twins, by check: level and text."""
    done = typed("doctor", "--queues", "1", "--output", "json", *words)
    found: dict[str, list[tuple[str, str]]] = {}
    for one in json.loads(done.out)["findings"]:
        if "twin" in one["check"]:
            found.setdefault(one["check"], []).append((one["level"], one["says"]))
    return found


def test_the_doctor_checks_twins_and_the_rights_on_them(
    typed: Terminal, texts: tuple[str, str]
) -> None:
    with both(texts) as (primary, secondary):
        for name in ("orders", "billing", "missing"):
            primary.create_queue(name)
        make_topic(primary)
        secondary.create_queue("billing")
        assert typed("twins", "create", "orders", "events").status == 0
        assert doctor(typed) == {}
        found = doctor(typed, "--twin", "orders", "--twin", "events")
        assert found == {
            "twins": [("ok", "2 twins of 2 are there, marked and alike")],
            "right Send twin": [("ok", "there, on orders"), ("ok", "there, on events")][::-1],
            "right Listen twin": [
                ("ok", "there, on events/Subscriptions/all"),
                ("ok", "there, on orders"),
            ],
        }
        twin = secondary.get_queue("orders")
        twin.max_delivery_count = 1
        secondary.update_queue(twin)
        found = doctor(typed, "--twin", "*")
        levels = {text.partition(":")[0]: level for level, text in found["twins"]}
        assert levels["billing"] == levels["missing"] == levels["orders"] == "fail"
        assert ("fail", "billing: its twin is refused") in found["twins"]


def test_the_doctor_without_manage_checks_rights_on_named_twins(
    typed: Terminal, texts: tuple[str, str]
) -> None:
    with both(texts) as (primary, _):
        primary.create_queue("orders")
    assert typed("twins", "create", "orders").status == 0
    assert typed("backlog", "create", "--queues", "1").status == 0
    sending, listening = (with_key(texts[1], rule, "k") for rule in ("sender", "listener"))
    found = doctor(typed, "--twin", "orders", texts[0], sending)
    assert found["twins"][0][0] == "skip"
    assert found["right Send twin"] == [("ok", "there, on orders")]
    assert found["right Listen twin"] == [("warn", "missing on orders")]
    found = doctor(typed, "--twin", "orders", texts[0], listening)
    assert found["right Send twin"] == [("fail", "missing on orders")]
    assert found["right Listen twin"] == [("ok", "there, on orders")]
