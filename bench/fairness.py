"""What one client's sends take while another one loads the broker or gateway.

A neighbour sends a message of 1 KB, waits for the answer, and sends the next. Each noise is another
client, in a process of its own. Rounds without and with it take turns, and the table has the 95th
percentile of the sends of each, and the factors between them.

Noise comes in two forms. As from *another machine*, its client takes only the processor time that
broker and neighbour leave: what is late then is late in the broker or gateway, and this is the
figure with the aim. On *this machine* it takes its share of the processors; how much of that factor
is the machine's alone show the programs that only compute and ask nothing of anybody.
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

ROUNDS = 3
SENDS = 300
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
    begin: Callable[[bool], AbstractContextManager[None]]
    """Its argument: whether the noise gives way, as that from another machine."""


def tables(progress: Progress) -> str:
    """The table of the broker, and that of the gateway."""
    DATA.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        progress("starting the namespaces and the gateway")
        certificate = stack.enter_context(_certificate())
        # All in one session: a client gives way only to processes of its own.
        primary = stack.enter_context(twinbus(*certificate, own_session=False))
        secondary = stack.enter_context(twinbus(own_session=False))
        gateway = stack.enter_context(
            gateway_before(primary, secondary, *certificate, own_session=False)
        )
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
        f"{'noise':42}  {'without':>8}  {'from another machine':>22}  {'on this machine':>22}",
        f"{'':42}  {'':8}  {f'factor, aim {AIM:g}':>22}  {'factor':>22}",
    ]
    token = (place.audience, place.token)
    with PipelinedSender(place.host, place.port, queues[0], token=token) as neighbour:
        for noise in _noises(place, queues):
            quiet: list[float] = []
            noisy: dict[bool, list[float]] = {True: [], False: []}
            for number in range(ROUNDS):
                progress(f"{kind}, {noise.name}: round {number + 1} of {ROUNDS}")
                quiet += _sends(neighbour)
                for gives_way in noisy:
                    with noise.begin(gives_way):
                        noisy[gives_way] += _sends(neighbour)
            without = _late_s(quiet)
            columns = (
                f"{_late_s(found) * 1e3:15.2f} {_late_s(found) / without:6.1f}"
                for found in noisy.values()
            )
            lines.append(f"{noise.name:42}  {without * 1e3:8.2f}  {'  '.join(columns)}")
    return "\n".join(lines)


def _late_s(found: list[float]) -> float:
    return statistics.quantiles(found, n=20)[-1]


def _noises(place: Twinbus, queues: list[str]) -> list[Noise]:
    access, port = place.connection_string, f"{place.host}:{place.port}"

    def one(
        name: str, kind: Callable[..., None], queue: str, to: str = access, count: int = 1
    ) -> Noise:
        return Noise(name, lambda way: noises.made(kind, to, queue, gives_way=way, count=count))

    return [
        one("none, a program that only computes", noises.computing, ""),
        one("none, two programs that only compute", noises.computing, "", count=2),
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
