"""`twinbus syphon drain --engine spark`, on the session that is there already."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from azure.servicebus import ServiceBusMessage

from tests.official_sdk import administration, client
from tests.processes import ServedBroker
from twinbus.console.cli import main
from twinbus.transfer import to_backlog_message

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

QUEUE = "contoso/x-servicebus-transfer/0"


def test_a_drain_on_spark_says_what_was_moved_and_what_was_given_up(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with ServedBroker(tmp_path, "contoso", "contoso-dr", ephemeral=True) as broker:
        primary = broker.connection_string("contoso")
        secondary = broker.connection_string("contoso-dr")
        with administration(primary) as admin:
            admin.create_queue("orders")
        with administration(secondary) as admin:
            admin.create_queue(QUEUE)
        with client(secondary) as sdk, sdk.get_queue_sender(QUEUE) as sender:
            sender.send_messages([to_backlog_message(ServiceBusMessage("x"), "orders")] * 20)
            sender.send_messages(ServiceBusMessage("it says no destination"))
        monkeypatch.setenv("TWINBUS_PRIMARY", primary)
        monkeypatch.setenv("TWINBUS_SECONDARY", secondary)
        words = "syphon drain --engine spark --label contoso --output json".split()
        monkeypatch.setattr("sys.argv", ["twinbus", *words])
        with pytest.raises(SystemExit) as ended:
            main()
        with administration(primary) as admin:
            arrived = admin.get_queue_runtime_properties("orders").active_message_count
    done = json.loads(capsys.readouterr().out)
    assert (done["drained"], done["forwarded"], done["dead_lettered"]) == (True, 20, 1)
    assert (arrived, ended.value.code) == (20, 3)
