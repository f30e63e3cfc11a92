"""What one client's sends take while another one loads the broker or gateway.

A neighbour sends a message of 1 KB, waits for the answer, and sends the next. Each noise is another
client, in a process of its own. Rounds without and with it take turns, and the table has the 95th
percentile of the sends of both, and the factor between them.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import tempfile
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.request import Request, urlopen

from bench import noises
from bench.broker_send_vs_rabbitmq import DATA, Twinbus, durable_message, twinbus
from bench.gateway_vs_direct import gateway_before
from bench.pipelined_client import PipelinedSender
from bench.relay_world import scaled

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from bench.harness import Progress

ROUNDS = 5
SENDS = 400
WARM_UP = 50
SETTLING_S = 0.5
RULES = 2_000
RECEIVER_QUEUES = 3
"""Of 5,000 receivers each, which is the limit of one; a key has 20,000 links at most."""

AIM = 3.0
SCHEMA = "http://schemas.microsoft.com/netservices/2010/10/servicebus/connect"
INSTANCE = "http://www.w3.org/2001/XMLSchema-instance"


@dataclass(frozen=True)
class Noise:
    name: str
    begin: Callable[[], AbstractContextManager[None]]


def tables(progress: Progress) -> str:
    """The table of the broker, and that of the gateway."""
    DATA.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        progress("starting the namespaces and the gateway")
        certificate = stack.enter_context(_certificate())
        primary = stack.enter_context(twinbus(*certificate))
        secondary = stack.enter_context(twinbus())
        gateway = stack.enter_context(gateway_before(primary, secondary, *certificate))
        queues = ["neighbour", *(f"idle-{number}" for number in range(1, RECEIVER_QUEUES))]
        for queue in (*queues, "noise", "hung"):
            primary.declare_queue(queue)
        _declare_rules(primary, progress)
        _hang(primary, "hung")
        return "\n\n".join(
            _table(kind, place, queues, progress)
            for kind, place in (("broker", primary), ("gateway", gateway))
        )


def _table(kind: str, place: Twinbus, queues: list[str], progress: Progress) -> str:
    lines = [
        f"sends of a neighbour of the {kind}: 95th percentile of {ROUNDS} rounds of {SENDS}, in ms",
        "",
        f"{'noise':42}  {'without':>8}  {'with':>8}  factor (aim: {AIM:g})",
    ]
    token = (place.audience, place.token)
    with PipelinedSender(place.host, place.port, queues[0], token=token) as neighbour:
        for noise in _noises(place, queues):
            quiet_s: list[float] = []
            noisy_s: list[float] = []
            for number in range(ROUNDS):
                progress(f"{kind}, {noise.name}: round {number + 1} of {ROUNDS}")
                quiet_s += _sends(neighbour)
                with noise.begin():
                    noisy_s += _sends(neighbour)
            quiet, noisy = (statistics.quantiles(found, n=20)[-1] for found in (quiet_s, noisy_s))
            lines.append(
                f"{noise.name:42}  {quiet * 1e3:8.2f}  {noisy * 1e3:8.2f}  {noisy / quiet:.1f}"
            )
    return "\n".join(lines)


def _noises(place: Twinbus, queues: list[str]) -> list[Noise]:
    access, port = place.connection_string, f"{place.host}:{place.port}"

    def one(name: str, kind: Callable[..., None], queue: str, to: str = access) -> Noise:
        return Noise(name, lambda: noises.made(kind, to, queue))

    return [
        one("none, a program that only computes", noises.computing, ""),
        one("small messages, 50 in flight", noises.small_messages, "noise"),
        one("sends to an entity that hangs", noises.small_messages, "hung"),
        one(f"batches of {noises.BATCH_MESSAGES:,} empty messages", noises.empty_batches, "noise"),
        one(f"messages for {RULES:,} SQL rules", noises.small_messages, "rules"),
        one("TLS handshakes, 16 at once", noises.handshakes, "", port),
        one("15,000 receivers without credit", noises.idle_receivers, ",".join(queues)),
    ]


def _sends(neighbour: PipelinedSender) -> list[float]:
    time.sleep(SETTLING_S)
    payload, found = durable_message(), []
    for number in range(WARM_UP + scaled(SENDS)):
        began = time.perf_counter()
        neighbour.send(payload, 1, 1)
        if number >= WARM_UP:
            found.append(time.perf_counter() - began)
    return found


def _declare_rules(broker: Twinbus, progress: Progress) -> None:
    progress(f"declaring {RULES} rules")
    broker.administer("PUT", "rules", _entry("TopicDescription", ""))
    broker.administer("PUT", "rules/Subscriptions/s", _entry("SubscriptionDescription", ""))
    for number in range(scaled(RULES) - 1):
        sql = f"<SqlExpression>kind = 'k{number}' AND size &gt; {number}</SqlExpression>"
        rule = f'<Filter i:type="SqlFilter">{sql}</Filter><Name>r{number}</Name>'
        path = f"rules/Subscriptions/s/Rules/r{number}"
        broker.administer("PUT", path, _entry("RuleDescription", rule))


def _entry(kind: str, content: str) -> str:
    return (
        '<entry xmlns="http://www.w3.org/2005/Atom"><content type="application/xml">'
        f'<{kind} xmlns="{SCHEMA}" xmlns:i="{INSTANCE}">{content}</{kind}></content></entry>'
    )


def _hang(broker: Twinbus, queue: str) -> None:
    fault = json.dumps({"kind": "hang", "entity": queue}).encode()
    headers = {"Authorization": broker.token, "Content-Type": "application/json"}
    address = f"http://{broker.host}:{broker.port}/$faults"
    with urlopen(Request(address, fault, headers), timeout=10):
        pass


@contextmanager
def _certificate() -> Iterator[list[str]]:
    """The options of a server that has a certificate of its own, and takes plain text too."""
    with tempfile.TemporaryDirectory(prefix="certificate-", dir=DATA) as directory:
        key, certificate = Path(directory) / "key.pem", Path(directory) / "cert.pem"
        made = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 1"
        files = ["-subj", "/CN=localhost", "-keyout", str(key), "-out", str(certificate)]
        subprocess.run(["openssl", *made.split(), *files], check=True, capture_output=True)
        yield ["--tls-cert", str(certificate), "--tls-key", str(key)]
