"""Config.json of the emulator: what is created, and each mistake by its place in the file."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from twinbus.broker.descriptions import (
    CorrelationFilter,
    QueueDescription,
    SqlAction,
    SqlFilter,
    TopicDescription,
)
from twinbus.broker.emulator.config import read_config
from twinbus.broker.emulator.values import MISTAKES_MAX, ConfigMistakes

PLACE = "UserConfig.Namespaces[0]"

SHOP: dict[str, Any] = {
    "UserConfig": {
        "Namespaces": [
            {
                "Name": "sbemulatorns",
                "Queues": [
                    {
                        "Name": "orders",
                        "Properties": {
                            "DeadLetteringOnMessageExpiration": True,
                            "DefaultMessageTimeToLive": "P1DT2H",
                            "DuplicateDetectionHistoryTimeWindow": "PT5M",
                            "ForwardDeadLetteredMessagesTo": "graveyard",
                            "ForwardTo": "",
                            "LockDuration": "PT30S",
                            "MaxDeliveryCount": 7,
                            "RequiresDuplicateDetection": True,
                            "RequiresSession": True,
                        },
                    },
                    {"Name": "graveyard"},
                ],
                "Topics": [
                    {
                        "Name": "events",
                        "Properties": {"RequiresDuplicateDetection": False},
                        "Subscriptions": [
                            {"Name": "all"},
                            {
                                "Name": "chairs",
                                "Properties": {"ForwardTo": "graveyard"},
                                "Rules": [
                                    {
                                        "Name": "exact",
                                        "Properties": {
                                            "FilterType": "Correlation",
                                            "CorrelationFilter": {
                                                "Label": "chair",
                                                "To": "hall",
                                                "Properties": {"legs": 4, "soft": True},
                                            },
                                        },
                                    },
                                    {
                                        "Name": "many",
                                        "Properties": {
                                            "FilterType": "Sql",
                                            "SqlFilter": {"SqlExpression": "quantity > 10"},
                                            "Action": {"SqlExpression": "SET bulk = 1"},
                                        },
                                    },
                                ],
                            },
                        ],
                    }
                ],
            }
        ],
        "Logging": {"Type": "File,Console"},
    }
}


def shop() -> dict[str, Any]:
    return copy.deepcopy(SHOP)


def place(document: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = document["UserConfig"]["Namespaces"][0]
    return found


def mistakes(document: object) -> list[str]:
    with pytest.raises(ConfigMistakes) as caught:
        read_config(document if isinstance(document, str) else json.dumps(document))
    return caught.value.lines


def test_every_property_of_the_format_is_read() -> None:
    config = read_config(json.dumps(SHOP))
    assert config.namespace == "sbemulatorns"
    assert config.queues["orders"] == QueueDescription(
        dead_letter_on_expiration=True,
        default_ttl_ms=26 * 3_600_000,
        duplicate_detection_window_ms=300_000,
        forward_dead_letters_to="graveyard",
        lock_duration_ms=30_000,
        max_delivery_count=7,
        requires_duplicate_detection=True,
        requires_session=True,
    )
    everything, chairs = config.subscriptions
    assert (everything.topic, everything.name, everything.rules) == ("events", "all", ())
    assert chairs.description.forward_to == "graveyard"
    exact, many = chairs.rules
    properties = (("legs", 4), ("soft", True))
    assert exact.filter == CorrelationFilter(label="chair", to="hall", properties=properties)
    assert many.filter == SqlFilter(expression="quantity > 10")
    assert many.action == SqlAction(expression="SET bulk = 1")


def test_comments_and_trailing_commas_are_allowed_as_on_the_emulator() -> None:
    text = """{ // the one namespace
      "UserConfig": {"Namespaces": [{
        "Name": "sbemulatorns", /* no topics,
        yet */
        "Queues": [{"Name": "a", "Properties": {"ForwardTo": "b"}}, {"Name": "b"} // , {"Name": "c"}
        , ],
        }, // the end
      ]}}"""
    assert list(read_config(text).queues) == ["a", "b"]
    # Not inside a text; and the place of an error is that of the file.
    assert "'http://x' is no queue" in mistakes(text.replace(': "b"}}', ': "http://x"}}'))[0]
    assert "line 5 column" in mistakes(text.replace('"Queues":', '"Queues"'))[0]


def test_what_is_left_out_has_the_emulators_defaults() -> None:
    config = read_config(json.dumps(SHOP))
    assert config.queues["graveyard"] == QueueDescription(
        default_ttl_ms=3_600_000, duplicate_detection_window_ms=20_000, max_delivery_count=3
    )
    assert config.topics["events"] == TopicDescription(
        default_ttl_ms=3_600_000, duplicate_detection_window_ms=20_000
    )


def test_a_log_file_is_named_as_not_written() -> None:
    [note] = read_config(json.dumps(SHOP)).notes
    assert note.startswith("UserConfig.Logging.Type: File,Console writes no file here")


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("LockDuration", "1m", "it is '1m', which is no ISO 8601 duration"),
        ("LockDuration", "PT10M", "is PT10M; this broker takes PT5S to PT5M"),
        ("LockDuration", 60, "must be an ISO 8601 duration such as PT1M, not a number"),
        ("DuplicateDetectionHistoryTimeWindow", "PT5S", "takes PT20S to P7D"),
        ("MaxDeliveryCount", 0, "must be a whole number from 1 to"),
        ("MaxDeliveryCount", True, "not True"),
        ("RequiresSession", "true", "must be true or false, not a text"),
        ("ForwardTo", "nowhere", "'nowhere' is no queue or topic of this file"),
        ("requiresSession", True, "is unknown here; write RequiresSession"),
        ("MaxSizeInMegabytes", 5, "is unknown here; known: DefaultMessageTimeToLive"),
    ],
)
def test_a_wrong_property_is_named_with_its_place(key: str, value: object, text: str) -> None:
    document = shop()
    place(document)["Queues"][1]["Properties"] = {key: value}
    [line] = mistakes(document)
    assert line.startswith(f"{PLACE}.Queues[1].Properties.{key}: ")
    assert text in line


def rules_of(document: dict[str, Any]) -> Any:
    return place(document)["Topics"][0]["Subscriptions"][1]["Rules"]


@pytest.mark.parametrize(
    ("properties", "where", "text"),
    [
        ({"FilterType": "Boolean"}, ".FilterType", "must be Correlation or Sql, not 'Boolean'"),
        ({"FilterType": "Sql"}, ".SqlFilter", "is missing; FilterType is Sql"),
        (
            {"FilterType": "Sql", "SqlFilter": {"SqlExpression": "a ="}},
            "",
            "",
        ),
        (
            {"FilterType": "Correlation", "CorrelationFilter": {}},
            ".CorrelationFilter",
            "must name at least one property",
        ),
        (
            {"FilterType": "Correlation", "CorrelationFilter": {"Properties": {"a": None}}},
            ".CorrelationFilter.Properties.a",
            "must be a text, a number, true or false, not null",
        ),
        (
            {
                "FilterType": "Correlation",
                "CorrelationFilter": {"Label": "x"},
                "SqlFilter": {"SqlExpression": "1=1"},
            },
            ".SqlFilter",
            "does not belong to FilterType Correlation; leave it out",
        ),
    ],
)
def test_a_wrong_rule_is_named_with_its_place(
    properties: dict[str, Any], where: str, text: str
) -> None:
    document = shop()
    rules_of(document)[0]["Properties"] = properties
    [line] = mistakes(document)
    at = f"{PLACE}.Topics[0].Subscriptions[1].Rules[0]"
    assert line.startswith(f"{at}.Properties{where}: " if where else f"{at}: ")
    assert text in line


def test_all_mistakes_of_a_file_are_reported_at_once_up_to_a_limit() -> None:
    document = shop()
    place(document)["Queues"] += [{"Name": ""}, {"Name": "ORDERS"}, {"Name": "a b"}, 7]
    place(document)["Topics"][0]["Subscriptions"].append({"Name": "all"})
    lines = mistakes(document)
    starts = [line.partition(": ")[0].removeprefix(f"{PLACE}.") for line in lines]
    assert starts == [
        "Queues[2].Name",
        "Queues[3].Name",
        "Queues[4].Name",
        "Queues[5]",
        "Queues[5].Name",
        "Topics[0].Subscriptions[2].Name",
    ]
    assert "is at UserConfig.Namespaces[0].Queues[0].Name already" in lines[1]
    place(document)["Queues"] = [{"Name": "-"} for _ in range(60)] + [{} for _ in range(60)]
    lines = mistakes(document)
    assert len(lines) == MISTAKES_MAX + 1
    assert lines[-1].startswith("and ")


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("{", "this is not JSON: Expecting property name"),
        ("[]", "the file: must be an object, not a list"),
        ("{}", "UserConfig: is missing"),
        ('{"UserConfig": {"Namespaces": [], "Namespaces": []}}', "the key 'Namespaces' occurs"),
        ('{"UserConfig": {"Namespaces": []}}', "UserConfig.Namespaces: has 0 namespaces; give exa"),
        ("[" * 100_000, "this is not JSON: "),
    ],
)
def test_a_file_that_is_no_configuration_says_so(text: str, line: str) -> None:
    assert mistakes(text)[0].startswith(line)
