"""The notice board in commands: `fleet`, `doctor`, `backlog create`, `list` and `prune`."""

from __future__ import annotations

import asyncio
import json

import pytest
from azure.servicebus.management import EntityStatus

from tests.contract.pairs import embedded
from tests.contract.twin_world import RULES, Terminal, both_strings, terminal
from tests.official_sdk import administration
from tests.processes import with_key
from twinbus import EmbeddedBroker
from twinbus.fleet.board import NoticeBoard
from twinbus.fleet.core.notices import Notice
from twinbus.namespace.namespace import Namespace
from twinbus.pairing.core.backlog import BOARD, board_flaws
from twinbus.pairing.sdk.administration import description_of
from twinbus.servicebus.names import board_path

pytestmark = pytest.mark.contract

PATH = board_path("contoso")

broker = embedded(queues=(), rules=RULES)
texts = both_strings()
typed = terminal()


def post(text: str, *notices: Notice) -> None:
    async def posted() -> None:
        board = NoticeBoard(Namespace.from_connection_string(text), "contoso")
        await board.post(notices, 60.0)
        await board.rest()

    asyncio.run(posted())


def doctor(typed: Terminal, *words: str) -> list[tuple[str, str, str]]:
    done = typed("doctor", "--queues", "1", "--output", "json", *words)
    found = json.loads(done.out)["findings"]
    return [(one["check"], one["level"], one["says"]) for one in found if "board" in one["check"]]


def test_backlog_create_makes_the_board_and_other_commands_leave_it_alone(
    typed: Terminal, texts: tuple[str, str]
) -> None:
    for _ in range(2):
        done = typed("backlog", "create", "--queues", "1", "--output", "json")
        assert done.status == 0
        assert json.loads(done.out)["queues"][-1] == {
            "path": PATH, "state": "there", "detail": "the notice board"
        }  # fmt: skip
    with administration(texts[1]) as admin:
        found = description_of(admin.get_queue(PATH))
        assert found == BOARD
        assert board_flaws(found) == ()
    post(texts[1], Notice("orders", "0" * 16, 1.0, (), 1))
    listed = json.loads(typed("backlog", "list", "--output", "json").out)
    assert [queue["path"] for queue in listed["queues"]] == ["contoso/x-servicebus-transfer/0"]
    pruned = typed("backlog", "prune", "--queues", "0", "--yes")
    assert PATH not in pruned.out
    with administration(texts[1]) as admin:
        assert admin.get_queue(PATH).name == PATH


def test_fleet_prints_what_is_on_the_board(typed: Terminal, texts: tuple[str, str]) -> None:
    missing = typed("fleet")
    assert (missing.status, missing.err.count("\n")) == (1, 1)
    assert "is missing: create it with `twinbus backlog create`" in missing.err
    typed("backlog", "create", "--queues", "1")
    assert typed("fleet").status == 0
    post(texts[1], Notice("orders", "0" * 16, 1.0, ("timeout 3",), 1))
    post(texts[1], Notice("orders", "1" * 16, 2.0, (), 1))
    shown = typed("fleet", "--output", "json")
    assert shown.status == 3
    document = json.loads(shown.out)
    assert (document["board"], document["hosts"]) == (PATH, 2)
    first = document["entities"][0]
    assert 0 < first.pop("valid_s") <= 60
    assert first == {
        "entity": "orders",
        "host": "0" * 16,
        "state": "FAILED_OVER",
        "since": "1970-01-01T00:00:01+00:00",
        "failures": ["timeout 3"],
    }
    refused = typed("fleet", "--secondary", with_key(texts[1], "sender", "k"))
    assert refused.status == 1
    assert "needs the Listen right" in refused.err


def test_the_doctor_checks_the_board_and_the_rights_on_it(
    typed: Terminal, texts: tuple[str, str], broker: EmbeddedBroker
) -> None:
    assert doctor(typed) == [("notice board", "ok", f"{PATH} is not there; it will be created")]
    sending, listening = (with_key(texts[1], rule, "k") for rule in ("sender", "listener"))
    found = doctor(typed, texts[0], listening)
    assert [one[1] for one in found] == ["warn", "warn"]
    typed("backlog", "create", "--queues", "1")
    assert doctor(typed) == [
        ("right Listen board", "ok", f"there, on {PATH}"),
        ("right Send board", "ok", f"there, on {PATH}"),
    ]
    assert ("right Send board", "warn", f"missing on {PATH}") in doctor(typed, texts[0], listening)
    assert ("right Listen board", "warn", f"missing on {PATH}") in doctor(typed, texts[0], sending)
    with administration(texts[1]) as admin:
        queue = admin.get_queue(PATH)
        queue.status = EntityStatus.SEND_DISABLED
        admin.update_queue(queue)
    assert doctor(typed) == [("notice board", "warn", f"{PATH}: its status is SendDisabled")]
    done = typed("backlog", "create", "--queues", "1")
    assert done.status == 3
    assert f"UNUSABLE  {PATH}" in done.out
