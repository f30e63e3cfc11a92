"""`twinbus backlog` and `twinbus doctor` as a person types them, against a broker in a process.

Most run in the test's own process: a process of their own would add a second of imports.
"""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage

from tests.end_to_end.hand_made_world import KEY
from tests.official_sdk import NOBODY, administration, client, receive_count
from tests.processes import ENTRY, ServedBroker, started, until, with_key
from tests.unit.console.commands import Ran, run
from twinbus import SendAvailabilityOptions, WrongKeyError, pair_namespaces
from twinbus.transfer.sdk import to_backlog_message

pytestmark = pytest.mark.end_to_end

COULD_NOT, ASKED_WRONGLY, ATTENTION = 1, 2, 3


@pytest.fixture
def primary(broker: ServedBroker) -> str:
    return broker.connection_string("contoso")


@pytest.fixture
def secondary(broker: ServedBroker) -> str:
    """The secondary, empty."""
    text = broker.connection_string("contoso-dr")
    with administration(text) as admin:
        for queue in list(admin.list_queues()):
            admin.delete_queue(queue.name)
    return text


Terminal = Callable[..., Ran]


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Terminal:
    """Types a command in the environment of two namespaces, and returns what it printed."""

    def in_this_process(primary: str | None, secondary: str | None, *words: str) -> Ran:
        monkeypatch.setenv("TWINBUS_PRIMARY", primary or "")
        monkeypatch.setenv("TWINBUS_SECONDARY", secondary or "")
        done = run(capsys, *words)
        assert "Traceback" not in done.err
        assert not any(key in done.out + done.err for key in (KEY, "SAS_KEY_VALUE"))
        return done

    return in_this_process


def one_line(done: Ran) -> str:
    (line,) = done.err.splitlines()
    assert line.startswith("twinbus: ")
    return line


def divert(secondary: str, queue: str, *messages: tuple[str, ServiceBusMessage]) -> None:
    with client(secondary) as sdk, sdk.get_queue_sender(queue) as sender:
        for path, message in messages:
            sender.send_messages(to_backlog_message(message, path, now_ms=0))


def names(text: str) -> list[str]:
    with administration(text) as admin:
        return sorted(queue.name for queue in admin.list_queues())


def test_create_list_peek_and_prune(typed: Terminal, primary: str, secondary: str) -> None:
    created = typed(primary, secondary, "backlog", "create", "--queues", "3", "--label", "contoso")
    assert created.status == 0, created
    assert created.out.count("created  contoso/x-servicebus-transfer/") == 3
    again = typed(primary, secondary, "backlog", "create", "--label", "contoso", "--queues", "3")
    assert "3 of 3 can be used, 0 created" in again.out
    strict = typed(
        primary, secondary, "backlog", "create", "--label", "contoso", "--queues", "3", "--strict"
    )
    assert "3 of 3 can be used, 0 created" in strict.out
    with administration(secondary) as admin:
        assert admin.get_queue("contoso/x-twinbus-lease").requires_session
        admin.delete_queue("contoso/x-twinbus-lease")
    divert(
        secondary,
        "contoso/x-servicebus-transfer/1",
        ("orders", ServiceBusMessage("one", session_id="s1", message_id="id-1")),
        ("payments", ServiceBusMessage("two!", time_to_live=timedelta(hours=1))),
    )

    listed = typed(None, secondary, "backlog", "list", "--output", "json")
    counts = {
        q["path"]: (q["active"], q["size_bytes"] > 0) for q in json.loads(listed.out)["queues"]
    }
    assert counts["contoso/x-servicebus-transfer/1"] == (2, True)
    assert counts["contoso/x-servicebus-transfer/0"] == (0, False)
    table = typed(None, secondary, "backlog", "list", "--label", "contoso").out
    assert "3 backlog queues, 2 messages to forward" in table

    peeked = typed(None, secondary, "backlog", "peek", "--entity", "Orders", "--output", "json")
    (message,) = json.loads(peeked.out)["messages"]
    assert (message["path"], message["session_id"], message["message_id"]) == (
        "orders",
        "s1",
        "id-1",
    )
    assert (message["body_bytes"], message["delivery_count"]) == (3, 0)

    spare = ("backlog", "prune", "--label", "contoso", "--queues", "1")
    dry = typed(None, secondary, *spare, "--dry-run")
    assert "contoso/x-servicebus-transfer/1  kept: it holds 2 messages" in dry.out
    assert "contoso/x-servicebus-transfer/2  would be deleted" in dry.out
    assert len(names(secondary)) == 3 + 1, "the queues, and the notice board"
    unasked = typed(None, secondary, *spare)
    assert unasked.status == ASKED_WRONGLY
    assert "--yes" in one_line(unasked)
    pruned = typed(None, secondary, *spare, "--yes")
    assert pruned.status == 0, pruned
    assert names(secondary) == [
        *(f"contoso/x-servicebus-transfer/{n}" for n in (0, 1)),
        "contoso/x-twinbus-board",
    ]
    # Nobody was disturbed: what was looked at is there, unlocked, never delivered.
    first = "contoso/x-servicebus-transfer/1"
    with client(secondary) as sdk, sdk.get_queue_receiver(first) as receiver:
        got = receive_count(receiver, 2)
        assert [message.delivery_count for message in got] == [0, 0]


def test_drift_is_shown_and_never_repaired(typed: Terminal, primary: str, secondary: str) -> None:
    with administration(secondary) as admin:
        admin.create_queue("contoso/x-servicebus-transfer/0", requires_session=True)
    created = typed(primary, secondary, "backlog", "create", "--label", "contoso", "--queues", "2")
    assert created.status == ATTENTION, created
    assert "UNSAFE   contoso/x-servicebus-transfer/0" in created.out
    assert "created  contoso/x-servicebus-transfer/1" in created.out
    listed = typed(None, secondary, "backlog", "list")
    assert "requires_session is True, not False" in listed.out


@pytest.mark.parametrize(
    ("secondary", "arguments", "status", "said"),
    [
        ("", ("list",), ASKED_WRONGLY, "TWINBUS_SECONDARY"),
        ("s3cret", ("list",), ASKED_WRONGLY, "NAME=VALUE"),
        (NOBODY, ("list",), COULD_NOT, "localhost:1 cannot be reached"),
        (NOBODY, ("peek", "--label", "x", "--queue", "0"), COULD_NOT, "cannot be reached"),
        (NOBODY, ("peek", "--queue", "orders"), ASKED_WRONGLY, "is not a backlog queue"),
        (NOBODY, ("create",), ASKED_WRONGLY, "TWINBUS_PRIMARY"),
        (NOBODY, ("prune",), ASKED_WRONGLY, "--label"),
        (NOBODY, ("prune", "--label", "a b"), ASKED_WRONGLY, "--label must be"),
        (NOBODY, ("prune", "--label", "x", "--yes", "--dry-run"), ASKED_WRONGLY, "one of them"),
    ],
)
def test_words_that_lead_nowhere(
    typed: Terminal, secondary: str, arguments: tuple[str, ...], status: int, said: str
) -> None:
    done = typed(None, secondary, "backlog", *arguments)
    assert done.status == status, done
    assert said in one_line(done)


def test_a_missing_right_is_named(typed: Terminal, primary: str, secondary: str) -> None:
    for command in (("list",), ("create", "--label", "contoso")):
        done = typed(primary, with_key(secondary, "sender", KEY), "backlog", *command)
        assert done.status == COULD_NOT
        assert "needs the Manage right" in one_line(done)


def test_a_wrong_key_is_not_called_a_missing_right(
    typed: Terminal, primary: str, secondary: str
) -> None:
    wrong_key = with_key(secondary, "RootManageSharedAccessKey", KEY)
    for text in (wrong_key, with_key(secondary, "nobody", KEY)):
        for command in (
            ("backlog", "list"),
            ("backlog", "create", "--label", "contoso"),
            ("backlog", "peek", "--queue", "contoso/x-servicebus-transfer/0"),
            ("syphon", "drain"),
            ("syphon", "run"),
        ):
            done = typed(primary, text, *command)
            assert done.status == COULD_NOT
            line = one_line(done)
            assert "refused the credential: wrong key or wrong key name" in line
            assert "right" not in line
    with pytest.raises(WrongKeyError, match="wrong key or wrong key name"):
        asyncio.run(pair_once(primary, wrong_key))
    with pytest.raises(WrongKeyError, match="wrong key or wrong key name"):
        asyncio.run(pair_once(primary, wrong_key, create_backlog_queues=False))


async def pair_once(primary: str, secondary: str, **options: Any) -> None:
    async with pair_namespaces(primary, secondary, SendAvailabilityOptions(**options)):
        pass


def test_a_doctor_finds_a_good_pair_fit_and_leaves_nothing(
    typed: Terminal, primary: str, secondary: str
) -> None:
    done = typed(primary, secondary, "doctor", "--queues", "2", "--output", "json")
    report = json.loads(done.out)
    assert (done.status, done.err) == (0, ""), report
    assert {finding["level"] for finding in report["findings"]} == {"ok"}, report
    checks = [finding["check"] for finding in report["findings"]]
    assert checks[:2] == ["sides", "names"]
    assert checks[-2:] == ["ping", "there and back"]
    for text in (primary, secondary):
        assert not any("doctor" in name for name in names(text))
        with administration(text) as admin:
            assert not list(admin.list_topics())


def test_a_doctor_that_is_stopped_leaves_nothing(primary: str, secondary: str) -> None:
    with started("-c", ENTRY, "doctor", primary, secondary, stderr=subprocess.PIPE) as doctor:
        until(lambda: any("-home" in name for name in names(primary)))
        doctor.send_signal(signal.SIGINT)
        assert doctor.stderr is not None
        assert doctor.stderr.read() == "twinbus: stopped\n"
        assert doctor.wait(60) == 130
    assert not any("doctor" in name for text in (primary, secondary) for name in names(text))


def levels(done: Ran) -> dict[str, str]:
    found = json.loads(done.out)["findings"]
    return {finding["check"]: finding["level"] for finding in found}


def test_a_doctor_without_rights_says_which_and_what_for(
    typed: Terminal, primary: str, secondary: str
) -> None:
    typed(primary, secondary, "backlog", "create", "--queues", "1")
    sender = with_key(primary, "sender", KEY), with_key(secondary, "sender", KEY)
    arguments = ("doctor", "--queues", "1", "--entity", "orders", "--output", "json")
    done = typed(*sender, *arguments)
    assert done.status == 0, done
    assert {check: level for check, level in levels(done).items() if level != "ok"} == {
        "right Manage secondary": "warn",
        "right Listen secondary": "warn",
        "right Listen board": "warn",
        "backlog queues": "skip",
        "ping": "skip",
        "there and back": "skip",
    }
    listener = with_key(primary, "listener", KEY), with_key(secondary, "listener", KEY)
    done = typed(*listener, *arguments)
    assert done.status == COULD_NOT
    found = levels(done)
    assert (found["right Send primary"], found["right Send secondary"]) == ("fail", "fail")
    assert found["right Listen secondary"] == "ok"


@pytest.mark.parametrize("trouble", ["same", "down", "key", "missing", "nonsense"])
def test_a_doctor_finds_what_is_wrong(
    typed: Terminal, primary: str, secondary: str, trouble: str
) -> None:
    expected: dict[str, tuple[str, int, str]] = {
        "same": (primary, COULD_NOT, "both sides are"),
        "down": (NOBODY, COULD_NOT, "fail  reach secondary"),
        "key": (with_key(secondary, "RootManageSharedAccessKey", KEY), COULD_NOT, "refused"),
        "missing": ("", ASKED_WRONGLY, "TWINBUS_SECONDARY"),
        "nonsense": ("Endpoint=sb://x;s3cret", ASKED_WRONGLY, "one part has no '='"),
    }
    second, status, said = expected[trouble]
    done = typed(primary, second, "doctor")
    assert done.status == status, done
    if status == ASKED_WRONGLY:
        assert said in one_line(done)
    else:
        assert said in done.out
        assert done.out.splitlines()[-1].startswith("not fit to be paired")


@pytest.mark.parametrize("down", ["primary", "secondary"])
def test_a_doctor_examines_the_side_that_answers_while_the_other_is_down(
    typed: Terminal, primary: str, secondary: str, down: str
) -> None:
    sides = {"primary": primary, "secondary": secondary, down: NOBODY}
    done = typed(*sides.values(), "doctor", "--queues", "1", "--label", "x", "--output", "json")
    assert done.status == COULD_NOT
    other = "secondary" if down == "primary" else "primary"
    expected = {"sides": "ok", "names": "ok", f"reach {other}": "ok", f"reach {down}": "fail"}
    expected |= {f"{check} {other}": "ok" for check in ("clock", "credential")}
    expected |= {f"right {right} {other}": "ok" for right in ("Manage", "Send")}
    if other == "secondary":
        expected |= {"right Listen secondary": "ok", "backlog queues": "ok", "drift": "ok"}
        expected["notice board"] = "ok"
    assert levels(done) == {**expected, "not checked": "skip"}
    assert not any("doctor" in name for name in names(sides[other]))
