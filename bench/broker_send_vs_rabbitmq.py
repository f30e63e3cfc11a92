"""Sends acknowledged on disk: our broker against RabbitMQ, with one client for both.

1 KB messages, marked durable, go to a durable queue over one connection that keeps 1,000 of them
unsettled. RabbitMQ is Debian's, with its AMQP 1.0 plugin. Both brokers run all the time, each as a
process of its own with its data on the same disk; only one is under load at a time.
"""

from __future__ import annotations

import http.client
import itertools
import re
import tempfile
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from bench.harness import Progress, Sides
from bench.peers.rabbitmq3 import RabbitMQ, rabbitmq
from bench.pipelined_client import PipelinedSender
from bench.processes import TWINBUS, serve, wait_until
from twinbus.amqp.message import Header, Properties, encode_message
from twinbus.namespace.tokens import sign

if TYPE_CHECKING:
    from collections.abc import Iterator

UNIT = "messages/s"
MESSAGES = 30_000
"""Of one round: seconds of work for either broker, and no more than 30 MB to throw away."""
WINDOW = 1_000
BODY_BYTES = 1_024
TOKEN_LIFE_S = 3_600
START_TIMEOUT_S = 20.0
HTTP_TIMEOUT_S = 30.0
DATA = Path(__file__).parent / "results"
"""Both brokers keep their data here: a temporary directory may be memory, not disk."""

CONNECTION_STRING = re.compile(
    r"Endpoint=(sb://[^;/]+)[^;]*;SharedAccessKeyName=([^;]+);SharedAccessKey=([^;]+)"
)
MESSAGE_COUNT = re.compile(r"<MessageCount>(\d+)</MessageCount>")
QUEUE_ENTRY = (
    '<entry xmlns="http://www.w3.org/2005/Atom"><content type="application/xml">'
    "<QueueDescription"
    ' xmlns="http://schemas.microsoft.com/netservices/2010/10/servicebus/connect">'
    "<UserMetadata>{}</UserMetadata></QueueDescription></content></entry>"
)


class Twinbus:
    """Our broker in a process of its own, with a queue per round."""

    def __init__(self, endpoint: str, rule_name: str, key: str, *, process: int = 0) -> None:
        self.process = process
        self.connection_string = (
            f"Endpoint={endpoint};SharedAccessKeyName={rule_name};SharedAccessKey={key};"
            "UseDevelopmentEmulator=true"
        )
        parts = urlsplit(endpoint)
        assert parts.hostname is not None
        assert parts.port is not None
        self.host, self.port = parts.hostname, parts.port
        self.audience = f"{endpoint}/"
        self.token = sign(self.audience, rule_name, key, int(time.time()) + TOKEN_LIFE_S)

    def declare_queue(self, name: str, metadata: str = "") -> None:
        self.administer("PUT", name, QUEUE_ENTRY.format(metadata))

    def delete_queue(self, name: str) -> None:
        self.administer("DELETE", name)

    def stored(self, name: str) -> int:
        """How many messages a queue holds."""
        found = MESSAGE_COUNT.search(self.administer("GET", name))
        assert found is not None
        return int(found[1])

    def administer(self, verb: str, name: str, body: str = "") -> str:
        """The answer to a request to the administration API."""
        connection = http.client.HTTPConnection(self.host, self.port, timeout=HTTP_TIMEOUT_S)
        headers = {"Authorization": self.token, "Content-Type": "application/atom+xml"}
        connection.request(verb, f"/{name}?api-version=2021-05", body, headers)
        response = connection.getresponse()
        text = response.read().decode(errors="replace")
        connection.close()
        if response.status >= 300:
            raise RuntimeError(f"{verb} {name}: {response.status} {text}")
        return text


@contextmanager
def sides(progress: Progress) -> Iterator[Sides]:
    """Both brokers, running."""
    DATA.mkdir(parents=True, exist_ok=True)
    payload = durable_message()
    with ExitStack() as stack:
        peer = stack.enter_context(rabbitmq(DATA, progress))
        progress("starting twinbus serve")
        ours = stack.enter_context(twinbus())
        numbers = itertools.count()
        yield Sides(
            ours=lambda: ours_round(ours, f"bench-{next(numbers)}", payload),
            peer=lambda: peer_round(peer, f"bench-{next(numbers)}", payload),
            note=f"RabbitMQ {peer.version()}, AMQP 1.0 plugin, durable queue, persistent messages",
        )


def durable_message() -> bytes:
    """The encoded message that both brokers get, header included."""
    return encode_message(
        header=Header(durable=True),
        properties=Properties(message_id="bench", content_type="application/octet-stream"),
        application_properties={"origin": "bench"},
        data=bytes(BODY_BYTES),
    )


def ours_round(
    broker: Twinbus, queue: str, payload: bytes, messages: int = MESSAGES, window: int = WINDOW
) -> float:
    broker.declare_queue(queue)
    token = (broker.audience, broker.token)
    with PipelinedSender(broker.host, broker.port, queue, token=token) as sender:
        rate = sender.send(payload, messages, window)
    broker.delete_queue(queue)
    return rate


def peer_round(broker: RabbitMQ, queue: str, payload: bytes) -> float:
    broker.declare_queue(queue)
    address = f"/amq/queue/{queue}"
    login = ("guest", "guest")
    with PipelinedSender(broker.host, broker.port, address, login=login) as sender:
        rate = sender.send(payload, MESSAGES, WINDOW)
    # The comparison is only fair if the peer really was asked to keep every message.
    stored = broker.persistent_messages(queue)
    assert stored == MESSAGES, f"RabbitMQ holds {stored} persistent messages of {MESSAGES}"
    broker.delete_queue(queue)
    return rate


@contextmanager
def twinbus(*options: str, own_session: bool = True) -> Iterator[Twinbus]:
    """`twinbus serve` on a free port, its data in a directory that goes when it stops."""
    with tempfile.TemporaryDirectory(prefix="twinbus-", dir=DATA) as directory:
        home = Path(directory)
        log = home / "serve.log"
        command = [*TWINBUS, "serve", "bench:0", "--data", str(home / "data"), *options]
        with serve(command, log=log, own_session=own_session) as process:
            wait_until(
                lambda: CONNECTION_STRING.search(log.read_text()) is not None,
                process=process,
                log=log,
                timeout_s=START_TIMEOUT_S,
            )
            yield twinbus_at(log, process.pid)


def twinbus_at(log: Path, process: int) -> Twinbus:
    """What a process serves, by the connection string that it printed."""
    found = CONNECTION_STRING.search(log.read_text())
    assert found is not None
    return Twinbus(*found.groups(), process=process)
