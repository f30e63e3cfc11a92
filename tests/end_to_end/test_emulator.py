"""`twinbus serve` in place of Microsoft's emulator: its Config.json, its ports, its string."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage

from tests.official_sdk import administration, client
from tests.processes import ServedBroker, run_twinbus

pytestmark = pytest.mark.end_to_end

CONFIG = {
    "UserConfig": {
        "Namespaces": [
            {
                "Name": "sbemulatorns",
                "Queues": [{"Name": "orders", "Properties": {"LockDuration": "PT30S"}}],
                "Topics": [
                    {
                        "Name": "events",
                        "Subscriptions": [
                            {
                                "Name": "chairs",
                                "Rules": [
                                    {
                                        "Name": "chair",
                                        "Properties": {
                                            "FilterType": "Correlation",
                                            "CorrelationFilter": {"Properties": {"legs": 4}},
                                        },
                                    },
                                    {
                                        "Name": "cheap",
                                        "Properties": {
                                            "FilterType": "Sql",
                                            "SqlFilter": {"SqlExpression": "price < 10"},
                                        },
                                    },
                                ],
                            }
                        ],
                    }
                ],
            }
        ],
        "Logging": {"Type": "File"},
    }
}


def written(directory: Path, document: object = CONFIG) -> str:
    path = directory / "Config.json"
    path.write_text(json.dumps(document))
    return str(path)


def test_the_entities_of_the_file_are_served_on_two_ports(tmp_path: Path) -> None:
    options = ("--config", written(tmp_path), "--second-port", "0", "--test-clock")
    broker = ServedBroker(tmp_path, "sbemulatorns", options=options, ephemeral=True)
    with broker:
        text = broker.connection_string()
        with client(text) as sdk, sdk.get_topic_sender("events") as sender:
            chair: dict[str | bytes, Any] = {"legs": 4, "price": 90}
            stool: dict[str | bytes, Any] = {"legs": 3, "price": 90}
            cheap: dict[str | bytes, Any] = {"price": 9}
            for properties in (chair, stool, cheap):
                sender.send_messages(ServiceBusMessage("x", application_properties=properties))
            with sdk.get_subscription_receiver("events", "chairs") as receiver:
                found = receiver.receive_messages(3, max_wait_time=30)
                found += receiver.receive_messages(1, max_wait_time=30) if len(found) < 2 else []
            taken = [dict(one.application_properties or {}) for one in found]
            assert taken == [{b"legs": 4, b"price": 90}, {b"price": 9}]
        # Administration on the second port, as on the emulator's 5300.
        second = broker.connection_string("sbemulatorns for administration")
        assert second.partition(";")[2] == text.partition(";")[2]
        with administration(second) as admin:
            queue = admin.get_queue("orders")
            assert queue.lock_duration == timedelta(seconds=30)
            # What the file leaves out is as on the emulator.
            assert queue.max_delivery_count == 3
            assert queue.default_message_time_to_live == timedelta(hours=1)
        moved = run_twinbus("faults", "advance", "2h", "--namespace", text)
        assert (moved.returncode, moved.stdout) == (
            0,
            "the clock of the broker is 2 h 0 min ahead\n",
        )
    log = broker.log_path.read_text()
    assert "Config.json: UserConfig.Logging.Type: File writes no file here" in log


def test_each_mistake_is_a_line_and_nothing_is_served(tmp_path: Path) -> None:
    wrong = json.loads(json.dumps(CONFIG).replace("PT30S", "30 s").replace("price <", "price"))
    path = written(tmp_path, wrong)
    ended = run_twinbus("serve", "--config", path)
    place = f"{path}: UserConfig.Namespaces[0]"
    lines = ended.stderr.splitlines()
    assert lines[0].startswith(f"{place}.Queues[0].Properties.LockDuration: it is '30 s', which")
    assert lines[1].startswith(f"{place}.Topics[0].Subscriptions[0].Rules[1]: ")
    assert lines[2:] == [f"twinbus: --config {path} has 2 mistakes"]
    assert (ended.returncode, ended.stdout) == (2, "")


def test_without_a_port_it_takes_those_of_the_emulator(tmp_path: Path) -> None:
    # Another program may have 5672 here, so the port is only looked for in the refusal.
    ended = run_twinbus("serve", "other:5672", "--config", written(tmp_path))
    text = "--config is of the namespace 'sbemulatorns'; give sbemulatorns:PORT alone"
    assert text in ended.stderr
    assert ended.returncode == 2
