"""`twinbus backlog dead-letters` on a real broker: seen, put back, saved, and never in a circle."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusSubQueue

from tests.official_sdk import Faults, administration, client, receive_all
from tests.processes import ServedBroker, run_twinbus
from tests.unit.console.commands import Ran, run
from twinbus.options import SendAvailabilityOptions
from twinbus.syphon.draining import drain
from twinbus.syphon.replaying import REPLAYS_MAX
from twinbus.transfer.sdk import to_backlog_message

pytestmark = pytest.mark.contract

BACKLOG = [f"contoso/x-servicebus-transfer/{index}" for index in range(2)]
ATTENTION = 3


class World:
    """A primary without `late`, and backlog queues whose messages for it were dead-lettered."""

    def __init__(self, broker: ServedBroker, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys
        self.primary = broker.connection_string("contoso")
        self.secondary = broker.connection_string("contoso-dr")
        self.listener = broker.connection_string("contoso-dr", rule="app", key="app-key")

    def run(self, *words: str, text: str | None = None) -> Ran:
        """Exit status, output and errors of a command, run in this process: that is quicker."""
        command = ("backlog", "dead-letters", *words)
        return run(self._capsys, *command, "--secondary", text or self.secondary)

    def json(self, *words: str, expected: int = 0) -> Any:
        status, output, errors = self.run(*words, "--output", "json")
        assert status == expected, errors
        return json.loads(output)

    def listed(self, *words: str) -> list[str]:
        """The message ids of a list."""
        return sorted(ids(self.json("list", *words)["messages"]))

    def syphon(self) -> None:
        options = SendAvailabilityOptions(undeliverable_grace=0)
        work = drain(self.primary, self.secondary, BACKLOG, options=options, idle_s=0.2)
        asyncio.run(asyncio.wait_for(work, 60))

    def dead(self, queue: str) -> int:
        with administration(self.secondary) as admin:
            return admin.get_queue_runtime_properties(queue).dead_letter_message_count or 0


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedBroker]:
    rules = ("--rule", "app:app-key:Send,Listen")
    directory = tmp_path_factory.mktemp("dead-letters")
    with ServedBroker(directory, "contoso", "contoso-dr", options=rules, ephemeral=True) as served:
        yield served


@pytest.fixture
def world(broker: ServedBroker, capsys: pytest.CaptureFixture[str]) -> Iterator[World]:
    made = World(broker, capsys)
    with administration(made.primary) as admin:
        admin.create_queue("orders")
    with administration(made.secondary) as admin, client(made.secondary) as sdk:
        for queue in BACKLOG:
            admin.create_queue(queue)
        with sdk.get_queue_sender(BACKLOG[0]) as sender:
            late = [
                ServiceBusMessage(f"body {n}", message_id=f"late-{n}", correlation_id="c")
                for n in range(3)
            ]
            sender.send_messages(
                [to_backlog_message(message, "late", now_ms=0) for message in late]
            )
            sender.send_messages(ServiceBusMessage("stray", message_id="stray"))
        with sdk.get_queue_sender(BACKLOG[1]) as sender:
            sender.send_messages(ServiceBusMessage(b"\x00\xff", message_id="other stray"))
    made.syphon()
    yield made
    for text in (made.primary, made.secondary):
        with administration(text) as admin:
            for name in [queue.name for queue in admin.list_queues()]:
                admin.delete_queue(name)


def ids(found: list[dict[str, Any]]) -> list[str]:
    return [one["message_id"] for one in found]


def test_dead_letters_are_listed_by_what_is_asked(world: World) -> None:
    late = ["late-0", "late-1", "late-2"]
    assert world.listed() == [*late, "other stray", "stray"]
    assert world.listed("--queue", "1") == ["other stray"]
    assert world.listed("--queue", BACKLOG[1]) == ["other stray"]
    assert world.listed("--entity", "LATE") == late
    assert world.listed("--reason", "MissingDestination") == ["other stray", "stray"]
    assert world.listed("--since", "2099-01-01") == []
    assert len(world.listed("--since", "1h", "--label", "contoso")) == 5
    assert len(world.listed("--since", "90m")) == len(world.listed("--since", "90min")) == 5
    _, text, _ = world.run("list", "--max", "2")
    assert "2 dead letters; --max 2 was reached" in text
    _, text, _ = world.run()
    assert "DestinationNotFound: late is missing from the primary" in text
    assert "5 dead letters" in text


def test_the_command_is_there_for_a_shell_and_takes_the_namespace_from_the_environment(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TWINBUS_SECONDARY", world.secondary)
    done = run_twinbus("backlog", "dead-letters", "list", "--queue", "1")
    assert (done.returncode, done.stderr) == (0, "")
    assert "other stray" in done.stdout


def test_a_letter_whose_copy_is_refused_stays(world: World) -> None:
    Faults(world.secondary).add(
        "refuse_send",
        entity=BACKLOG[1],
        condition="amqp:resource-limit-exceeded",
        description="the queue is full",
    )
    done = world.json("replay", "--all", "--queue", "1", expected=ATTENTION)
    Faults(world.secondary).clear()
    assert done["replayed"] == []
    assert done["missed"][0]["why"] == "the copy was refused: the queue is full"
    assert world.dead(BACKLOG[1]) == 1
    assert ids(world.json("replay", "--queue", "1")["replayed"]) == ["other stray"]


def test_one_dead_letter_is_shown_whole(world: World) -> None:
    one = world.json("list", "--entity", "late")["messages"][0]
    document = world.json("show", "0", str(one["sequence_number"]))
    assert document["reason"] == "DestinationNotFound"
    assert "late" in document["description"]
    assert document["properties"]["correlation_id"] == "c"
    assert base64.b64decode(document["body_base64"]).startswith(b"body ")
    _, text, _ = world.run("show", "0", str(one["sequence_number"]))
    assert "DestinationNotFound" in text
    assert text.endswith(f"\n\n{document['body_text']}\n")
    assert document["body_base64"] not in text
    status, _, errors = world.run("show", "0", "999999")
    assert (status, errors.count("\n")) == (1, 1)
    assert "no dead letter 999999" in errors


def test_a_body_is_shown_as_text_where_it_is_text(world: World) -> None:
    bodies = {"json": '{\n  "größe":  1\x1b[2J\n}'.encode(), "binary": b"\x00\xff"}
    with client(world.secondary) as sdk, sdk.get_queue_sender(BACKLOG[1]) as sender:
        sender.send_messages([ServiceBusMessage(b, message_id=n) for n, b in bodies.items()])
    world.syphon()
    numbers = {
        one["message_id"]: str(one["sequence_number"])
        for one in world.json("list", "--queue", "1")["messages"]
    }
    _, text, _ = world.run("show", "1", numbers["json"])
    assert text.endswith('\n\n{\n  "größe":  1�[2J\n}\n')
    assert "body_base64" not in text
    assert world.json("show", "1", numbers["json"])["body_text"] == bodies["json"].decode()
    _, text, _ = world.run("show", "1", numbers["binary"])
    assert text.splitlines()[-1].split() == ["body_base64", "AP8="]
    assert world.json("show", "1", numbers["binary"])["body_text"] is None


def test_a_replay_delivers_once_the_destination_is_there(world: World) -> None:
    with administration(world.primary) as admin:
        admin.create_queue("late")
    (stray,) = world.json("list", "--queue", "0", "--reason", "MissingDestination")["messages"]
    done = world.json("replay", "--entity", "late")
    assert sorted(ids(done["replayed"])) == ["late-0", "late-1", "late-2"]
    assert (done["refused"], done["missed"]) == ([], [])
    assert world.dead(BACKLOG[0]) == 1
    world.syphon()
    with (
        client(world.primary) as sdk,
        sdk.get_queue_receiver("late", receive_mode="receiveanddelete") as receiver,
    ):
        got = receive_all(receiver)
    assert sorted(m.message_id or "" for m in got) == ["late-0", "late-1", "late-2"]
    for message in got:
        assert not message.application_properties
        assert message.correlation_id == "c"
    # What was not meant is free again, and not counted as delivered once more.
    with (
        client(world.secondary) as sdk,
        sdk.get_queue_receiver(BACKLOG[0], sub_queue=ServiceBusSubQueue.DEAD_LETTER) as receiver,
    ):
        (found,) = receiver.receive_messages(2, max_wait_time=30)
        assert found.message_id == "stray"
        assert found.delivery_count == stray["delivery_count"]


def test_a_replay_cannot_go_round_for_ever(world: World) -> None:
    for _ in range(REPLAYS_MAX):
        done = world.json("replay", "--reason", "MissingDestination", "--queue", "1")
        assert ids(done["replayed"]) == ["other stray"]
        world.syphon()
        assert world.dead(BACKLOG[1]) == 1
    refused = world.json("replay", "--queue", "1", expected=ATTENTION)
    assert (ids(refused["replayed"]), ids(refused["refused"])) == ([], ["other stray"])
    assert world.dead(BACKLOG[1]) == 1
    status, text, _ = world.run("replay", "--queue", "1")
    assert status == ATTENTION
    assert "refused 1" in text
    forced = world.json("replay", "--queue", "1", "--force")
    assert ids(forced["replayed"]) == ["other stray"]
    assert world.dead(BACKLOG[1]) == 0


def test_a_replay_that_selects_nothing_says_so(world: World) -> None:
    status, text, _ = world.run("replay", "--reason", "Nope")
    assert (status, text.count("\n")) == (ATTENTION, 1)
    assert "no dead letter matches, nothing was replayed" in text
    assert "back in its backlog queue" not in text
    assert world.json("replay", "--number", "999999", expected=ATTENTION)["replayed"] == []
    assert len(world.json("replay", "--all")["replayed"]) == 5
    # Nothing is left to do, and that is what `--all` asks for.
    assert world.json("replay", "--all")["replayed"] == []


def test_an_export_is_lossless_and_settles_nothing(world: World, tmp_path: Path) -> None:
    file = tmp_path / "letters.jsonl"
    status, text, _ = world.run("export", "--to", str(file))
    assert status == 0
    assert "5 dead letters written" in text
    documents = [json.loads(line) for line in file.read_text().splitlines()]
    assert len(documents) == 5
    bodies = {one["message_id"]: base64.b64decode(one["body_base64"]) for one in documents}
    assert bodies["other stray"] == b"\x00\xff"
    assert world.dead(BACKLOG[0]) + world.dead(BACKLOG[1]) == 5
    status, _, errors = world.run("export", "--to", str(file))
    assert status == 1
    assert "File exists" in errors
    _, piped, _ = world.run("export", "--queue", "1")
    assert json.loads(piped)["message_id"] == "other stray"


def test_wrong_use_gets_one_clear_line(world: World) -> None:
    gone = "gone/x-servicebus-transfer/0"
    for words, expected, said in (
        (("replay",), 2, "--all"),
        (("list", "--queue", "7"), 1, "there is no backlog queue 7 in sb:"),
        (("list", "--queue", gone), 1, gone),
        (("list", "--since", "soon"), 2, "--since must be a day like"),
    ):
        status, _, errors = world.run(*words)
        assert (status, errors.count("\n")) == (expected, 1)
        assert said in errors
    status, _, errors = world.run("list", text=world.listener)
    assert status == 1
    assert "needs the Manage right" in errors
    # A queue that is named needs no right to list them.
    status, text, _ = world.run("list", "--queue", BACKLOG[1], text=world.listener)
    assert status == 0
    assert "other stray" in text
