"""`twinbus syphon drain --engine spark`, on the session that is there already."""

from __future__ import annotations

import json
import os
import signal
from typing import TYPE_CHECKING, Any

import pytest
from azure.servicebus import ServiceBusMessage

from tests.ledger_reading import read
from tests.official_sdk import administration, client
from tests.processes import ServedBroker
from twinbus.console.cli import main
from twinbus.console.syphon.drain import DrainDisplay
from twinbus.transfer.sdk import to_backlog_message

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

ATTENTION, STOPPED = 3, 130
QUEUES = [f"contoso/x-servicebus-transfer/{index}" for index in range(2)]


RATE_PER_S = 40
EACH = 60


def test_a_drain_on_spark_says_what_was_moved_and_what_was_given_up(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def drains(*more: str) -> tuple[object, dict[str, Any]]:
        words = "syphon drain --engine spark --label contoso --output json".split()
        monkeypatch.setattr("sys.argv", ["twinbus", *words, *more])
        with pytest.raises(SystemExit) as ended:
            main()
        return ended.value.code, json.loads(capsys.readouterr().out)

    with ServedBroker(tmp_path, "contoso", "contoso-dr", ephemeral=True) as broker:
        primary = broker.connection_string("contoso")
        secondary = broker.connection_string("contoso-dr")
        monkeypatch.setenv("TWINBUS_PRIMARY", primary)
        monkeypatch.setenv("TWINBUS_SECONDARY", secondary)
        with administration(primary) as admin:
            for path in ("orders", "events"):
                admin.create_queue(path)
        with administration(secondary) as admin:
            for queue in QUEUES:
                admin.create_queue(queue)
        with client(secondary) as sdk, sdk.get_queue_sender(QUEUES[0]) as sender:
            for path in ("events", "orders"):
                sender.send_messages(
                    [to_backlog_message(ServiceBusMessage("x"), path, now_ms=0)] * EACH
                )
            sender.send_messages(ServiceBusMessage("it says no destination"))

        bounds = "--only", "orders", "--rate", str(RATE_PER_S), "--lease"
        code, done = drains(*bounds, "--ledger", str(tmp_path / "ledger"))
        assert (code, done["drained"], done["forwarded"]) == (0, True, EACH)
        assert (done["queues"], done["not_served"]) == ([QUEUES[0]], EACH + 1)
        sent = [r["at_ms"] for r in read(tmp_path / "ledger") if r["operation"] == "forward"]
        assert max(sent) - min(sent) >= 1_000 * EACH / RATE_PER_S * 0.8

        with monkeypatch.context() as stopping:
            stopping.setattr(
                DrainDisplay, "__call__", lambda *_: os.kill(os.getpid(), signal.SIGTERM)
            )
            code, stopped = drains("--queue", QUEUES[0], "--rate", "1")
        # A scheduler must not take it for drained.
        assert (code, stopped["drained"], stopped["queues"]) == (STOPPED, False, QUEUES[:1])
        assert stopped["forwarded"] < EACH

        code, done = drains("--tasks", "1")
        assert (code, done["drained"]) == (ATTENTION if done["dead_lettered"] else 0, True)
        assert stopped["forwarded"] + done["forwarded"] == EACH
        assert stopped["dead_lettered"] + done["dead_lettered"] == 1
        with administration(primary) as admin:
            for path in ("orders", "events"):
                arrived = admin.get_queue_runtime_properties(path).active_message_count
                assert arrived == EACH
