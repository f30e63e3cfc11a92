"""The official SDKs of other languages against `twinbus serve`, with TLS and without.

In soak the tours also go through a gateway in front of it.

Each tour is a small program that prints one JSON line per step; each step is a test of its own.
docs/gateway.md says what the SDKs can do and what they cannot.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from tests.contract.certificates import write_authority, write_server_files
from tests.gateway.gateway_process import GatewayProcess
from tests.other_languages.toolchains import built_or_skipped
from tests.processes import ServedBroker
from twinbus.broker.embedded import EmbeddedBroker

# The first test of a tour builds and runs it, with an empty cache on a machine that does more.
pytestmark = pytest.mark.timeout(900)

TOUR_LIMIT_S = 240.0
"""A tour takes 5 to 20 seconds; this is an end of patience."""

TRANSPORTS = ("plain", "tls", "gateway")

COMMON = (
    "namespace properties",
    "queue administration",
    "topic administration",
    "administration errors",
    "runtime counts",
    "send and receive",
    "message properties",
    "batch",
    "abandon",
    "dead letter",
    "defer",
    "receive and delete",
    "renew message lock",
    "peek",
    "schedule and cancel",
    "scheduled message arrives",
    "topic with filters",
    "session in order",
    "session state and lock",
    "next session",
    "missing entity",
    "message too large",
    "wrong key",
    "websocket",
)
OWN = {
    "go": ("list sessions",),
    "java": ("processor", "session processor", "rules over AMQP", "transaction"),
    "javascript": ("processor", "rules over AMQP", "session of a missing entity"),
}

LEFT_OUT = {("java", "plain"): {"websocket"}, ("java", "gateway"): {"websocket"}}
"""Steps that an SDK has no means for, on any broker."""

OTHERWISE = {
    ("go", "gateway"): {"missing entity"},
    ("javascript", "gateway"): {"session of a missing entity"},
}
"""Steps that fail because a gateway refuses the link to a missing entity, and not the token before
it, so that the SDK has another error for it (docs/gateway.md)."""


@dataclass(frozen=True, slots=True)
class Result:
    """What a tour printed."""

    errors: dict[str, str]
    """By step, in the tour's order; empty for a step that succeeded."""
    status: int
    stderr: str
    broker_log: str


Tours = Callable[[str, str], Result]


@pytest.fixture(scope="session")
def tours(tmp_path_factory: pytest.TempPathFactory) -> Tours:
    """Runs the tour of a language over a transport, once."""

    @cache
    def run(language: str, transport: str) -> Result:
        return toured(language, tmp_path_factory.mktemp(f"{language}-{transport}"), transport)

    return run


def toured(language: str, directory: Path, transport: str) -> Result:
    program = built_or_skipped(language)
    options: tuple[str, ...] = ()
    authority = None
    if transport == "tls":
        chain, key = write_server_files(directory)
        options = ("--tls-cert", str(chain), "--tls-key", str(key))
        authority = write_authority(directory)
    with ExitStack() as stack:
        served = stack.enter_context(
            ServedBroker(directory, "contoso", options=options, ephemeral=True)
        )
        if transport == "gateway":
            served = stack.enter_context(_gateway(directory, served, stack))
        text = served.connection_string()
        if transport == "tls":
            text = text.replace("UseDevelopmentEmulator=true;", "")
        done = program.run_tour(text, authority, TOUR_LIMIT_S)
        log = served.log()
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    errors = {line["step"]: line.get("error", "") for line in lines}
    return Result(errors, done.returncode, done.stderr, log)


def _gateway(directory: Path, primary: ServedBroker, stack: ExitStack) -> GatewayProcess:
    secondary = stack.enter_context(EmbeddedBroker("contoso-dr"))
    # No outage is wanted here: a busy machine has time to answer.
    times = ("--failover-interval", "35s", "--attempt-timeout", "15s")
    return GatewayProcess(
        directory / "gateway", primary.connection_string(), secondary.connection_string(), times
    )


def steps_of(language: str, transport: str) -> list[str]:
    left_out = LEFT_OUT.get((language, transport), set())
    return [step for step in COMMON + OWN[language] if step not in left_out]


def marked(language: str, transport: str, step: str | None = None) -> object:
    """The parameters of one test."""
    values = (language, transport) if step is None else (language, transport, step)
    marks = [pytest.mark.soak] if transport == "gateway" else []
    return pytest.param(*values, id="-".join(values), marks=marks)


@pytest.mark.parametrize(
    ("language", "transport"),
    [marked(language, transport) for language in OWN for transport in TRANSPORTS],
)
def test_a_tour_ends_well_and_leaves_no_step_out(
    tours: Tours, language: str, transport: str
) -> None:
    result = tours(language, transport)
    assert result.status == 0, result.stderr
    assert sorted(result.errors) == sorted(steps_of(language, transport))
    assert "Traceback" not in result.broker_log


@pytest.mark.parametrize(
    ("language", "transport", "step"),
    [
        marked(language, transport, step)
        for language in OWN
        for transport in TRANSPORTS
        for step in steps_of(language, transport)
        if step not in OTHERWISE.get((language, transport), ())
    ],
)
def test_a_step_of_a_tour(tours: Tours, language: str, transport: str, step: str) -> None:
    result = tours(language, transport)
    error = result.errors.get(step, f"the tour did not reach this step:\n{result.stderr}")
    assert not error, error
