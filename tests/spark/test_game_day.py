"""The game day of docs/runbook.md, step by step, with the proxy in front of a broker."""

from __future__ import annotations

import asyncio
import itertools
import re
import shlex
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import PIPE
from typing import TYPE_CHECKING, Any

import pytest
from azure.servicebus import ServiceBusMessage, TransportType
from azure.servicebus.exceptions import OperationTimeoutError

from tests.official_sdk import client
from tests.processes import ENTRY, run_twinbus, started, until
from twinbus import EmbeddedBroker
from twinbus.blocking import Namespace, Pair, SendAvailabilityOptions, pair_namespaces
from twinbus.console.report.making import BacklogScan
from twinbus.pipeline.reports.conservation import conservation_report
from twinbus.pipeline.reports.documents import ReportRequest
from twinbus.pipeline.store.current import current_tables

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

PAGE = Path(__file__).resolve().parents[2] / "docs" / "runbook.md"
FLUSHED_S = 1.0
"""Ledgers are written five times a second."""


def steps() -> list[list[str]]:
    """The commands of the page, without `twinbus`, in their order."""
    section = PAGE.read_text().partition("## Rehearse it: a game day\n")[2].partition("\n## ")[0]
    lines = re.findall(r"^ {7}(twinbus .*)$", section, re.MULTILINE)
    return [shlex.split(line)[1:] for line in lines]


@contextmanager
def proxy(arguments: list[str], upstream_port: int) -> Iterator[tuple[int, str, str]]:
    """Run the command of step 1 in front of a broker; port, authority, steering string."""
    assert arguments[:2] == ["faults", "proxy"]
    command = ["faults", "proxy", "0", "--upstream", f"sb://localhost:{upstream_port}"]
    with started("-c", ENTRY, *command, stderr=PIPE) as process:
        assert process.stdout is not None
        # A process that fails to start ends its output.
        lines = itertools.takewhile(lambda line: "ready;" not in line, process.stdout)
        text = "".join(lines)

        def printed(pattern: str) -> str:
            found = re.search(pattern, text)
            assert found is not None, text
            return found[1]

        authority = printed(r'connection_verify="(.+)"')
        assert Path(authority).exists()
        yield int(printed(r"localhost:(\d+) ->")), authority, printed(r"--namespace '(.+)'")
        process.terminate()
        assert process.wait(30) == 0
        assert not Path(authority).exists()
        assert process.stderr is not None
        log = process.stderr.read()
    assert "hang, transfer to service" in log
    assert "SharedAccessSignature" not in log


def states(pair: Pair) -> set[str]:
    return {str(entity.state) for entity in pair.status().entities.values()}


@pytest.mark.soak  # half a minute of a worker in CI, which has the drill
def test_the_game_day_ends_in_the_proof(spark: SparkSession, tmp_path: Path) -> None:
    start, hang, clear, lose, prove = steps()
    numbers = itertools.count()
    accepted: list[str] = []
    options = SendAvailabilityOptions(
        backlog_queue_count=2,
        failover_interval=0.5,
        ping_primary_interval=1.0,
        attempt_timeout=3.0,
        enable_syphon=True,
        syphon_poll=5.0,
        ledger=str(tmp_path),
    )
    with (
        EmbeddedBroker("contoso", "dr") as broker,
        proxy(start, broker.port("contoso")) as (port, authority, steering),
    ):
        broker.create_queue("orders", namespace="contoso")
        # The lines that the proxy prints for Python and Twinbus, with the strings of the namespace.
        through: dict[str, Any] = {
            "custom_endpoint_address": f"sb://localhost:{port}",
            "transport_type": TransportType.Amqp,
            "connection_verify": authority,
        }
        own = (
            "Endpoint=sb://contoso.servicebus.windows.net/;"
            "SharedAccessKeyName=RootManageSharedAccessKey;SharedAccessKey=SAS_KEY_VALUE"
        )

        def steer(arguments: list[str]) -> None:
            told = run_twinbus(*(steering if one == "$FAULTS" else one for one in arguments))
            assert told.returncode == 0, told.stderr

        with (
            client(own, retry_total=0, **through) as plain,
            plain.get_queue_sender("orders") as alone,
            pair_namespaces(
                Namespace.from_connection_string(own, **through),
                broker.connection_string("dr"),
                options,
            ) as pair,
            pair.get_queue_sender("orders") as sender,
        ):

            def send() -> None:
                text = f"order {next(numbers)}"
                sender.send_messages(ServiceBusMessage(text, message_id=text), timeout=60)
                accepted.append(text)

            send()
            alone.send_messages(ServiceBusMessage("alone", message_id="alone"))
            assert states(pair) == {"healthy"}

            steer(hang)
            send()
            assert states(pair) == {"failed over"}
            send()
            with pytest.raises(OperationTimeoutError):
                alone.send_messages(ServiceBusMessage("lost to the outage"), timeout=0.5)

            steer(clear)
            until(lambda: states(pair) == {"healthy"}, 30)
            send()

            steer(lose)
            # The attempt ended without an answer: the pair sends it again, with the same id.
            send()

            received: list[str] = []
            direct = client(broker.connection_string("contoso"))
            with direct, direct.get_queue_receiver("orders") as receiver:
                while set(received) < {*accepted, "alone"}:
                    for message in receiver.receive_messages(10, max_wait_time=30):
                        receiver.complete_message(message)
                        received.append(str(message))
        assert sorted(received) == sorted([*accepted, "alone", accepted[-1]])

        assert prove == ["report", "conservation", "$TWINBUS_LEDGER"]
        time.sleep(FLUSHED_S)
        scan = BacklogScan(broker.connection_string("dr"))
        asyncio.run(scan.peek())
        with current_tables(spark, str(tmp_path)) as tables:
            report = conservation_report(tables, ReportRequest(), scan.snapshot(spark))
        scan.close()
    total = report.total
    assert (total.accepted, total.delivered) == (len(accepted), len(accepted))
    assert (total.lost, total.waiting, total.undecided) == (0, 0, 0)
