"""`--pair` and `--config` of the commands: option before environment before file."""

from __future__ import annotations

from dataclasses import fields
from functools import wraps
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from tests.unit.console.commands import run
from tests.unit.console.test_entry import commands
from twinbus.console import ledger, servers
from twinbus.console.cli import COMMANDS, app
from twinbus.console.doctor import commands as doctor
from twinbus.console.options import SidesOptions
from twinbus.console.page import commands as page
from twinbus.console.report import making as report
from twinbus.console.syphon import run as syphon_run
from twinbus.console.watch import status as control

HOST = "servicebus.windows.net"
KEY = f"Endpoint=sb://NAME.{HOST}/;SharedAccessKeyName=Root;SharedAccessKey=s3cret"
EU = """\
[pair.eu]
primary = "env:EU_PRIMARY"
secondary = "env:EU_SECONDARY"
queues = 7
ledger = "/var/eu"
rate = 250
lease = true
ttl-policy = "remaining"
poll = "60s"
detection-window = "20min"
"""
KEY_OF_EU = KEY.replace("NAME", "contoso")
US = '[pair.us]\nprimary = "env:US_PRIMARY"\nlabel = "fabrikam"\n'


@pytest.fixture
def path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A settings file with one pair, in the user's configuration directory."""
    for name in "CONFIG PRIMARY SECONDARY CREDENTIAL TRANSPORT PROXY ENDPOINT LEDGER".split():
        monkeypatch.delenv(f"TWINBUS_{name}", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("EU_PRIMARY", KEY.replace("NAME", "contoso"))
    monkeypatch.setenv("EU_SECONDARY", KEY.replace("NAME", "contoso-dr"))
    found = tmp_path / "twinbus" / "twinbus.toml"
    found.parent.mkdir(mode=0o755)
    found.write_text(EU)
    found.chmod(0o600)
    return found


def replace_command(
    monkeypatch: pytest.MonkeyPatch, calls: list[tuple[Any, ...]], *words: str
) -> None:
    """Put what takes the values of its sides and its queues in the place of a command."""
    of: Any = COMMANDS[words[0]].app
    for word in words[1:-1]:
        groups = {group.name: group.typer_instance for group in of.registered_groups}
        of = groups[word]
    info = next(
        one for one in of.registered_commands if words[-1] in (one.name, one.callback.__name__)
    )

    @wraps(info.callback)
    def take(**given: Any) -> None:
        sides = SidesOptions(**{field.name: given[field.name] for field in fields(SidesOptions)})
        assert sides.secondary_side.label
        calls.append((sides, given.get("queues")))

    monkeypatch.setattr(info, "callback", take)


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """What the commands were called with, in place of their work."""
    calls: list[tuple[Any, ...]] = []

    def take(*given: Any, **more: Any) -> int:
        calls.append((*given, more))
        return 0

    for module, name in (
        (report, "run"),
        *(
            (doctor, "run"),
            (page, "run"),
            (control, "show_status"),
            (control, "steer"),
            (syphon_run, "run"),
            (ledger, "run_task"),
            (servers, "serve_gateway"),
        ),
    ):
        monkeypatch.setattr(module, name, take)
    for words in (("backlog", "list"), ("backlog", "create"), ("backlog", "dead-letters", "list")):
        replace_command(monkeypatch, calls, *words)
    # The ledger of the pair is not there.
    monkeypatch.setattr(ledger.TablesOptions, "require", lambda _: None)
    return calls


def test_a_named_pair_gives_the_values_of_a_command(
    capsys: pytest.CaptureFixture[str], called: list[tuple[Any, ...]], path: Path
) -> None:
    path.write_text(EU + US)
    assert run(capsys, "backlog", "create", "--pair", "eu") == (0, "", "")
    sides, queues = called.pop()
    assert ([side.label for side in sides.both], queues) == (["contoso", "contoso-dr"], 7)
    assert run(capsys, "doctor", "--pair", "eu") == (0, "", "")
    pair, *_ = called.pop()
    asked = (pair.primary.label, pair.secondary.label, pair.count)
    assert asked == ("contoso", "contoso-dr", 7)
    gateway = ("--gateway", KEY.replace("NAME", "gate"))
    assert run(capsys, "doctor", "--pair", "eu", *gateway) == (0, "", "")
    assert [called[0][0].primary.label, called.pop()[1].label] == ["contoso", "gate"]
    assert run(capsys, "report", "conservation", "--pair", "eu") == (0, "", "")
    given, _, facts, _ = called.pop()
    asked = (given.ledger, facts.secondary.label, facts.detection_s)
    assert asked == ("/var/eu", "contoso-dr", 1_200)
    assert run(capsys, "ledger", "update", "--pair", "eu") == (0, "", "")
    assert called.pop()[0].ledger == "/var/eu"
    assert run(capsys, "page", "--pair", "eu") == (0, "", "")
    given, _ = called.pop()
    assert (given.ledger, given.both[1].label) == ("/var/eu", "contoso-dr")
    assert run(capsys, "syphon", "run", "--pair", "eu", "--no-lease") == (0, "", "")
    request, queues, *_ = called.pop()
    assert (request.rate_per_s, request.lease, request.ledger) == (250, False, "/var/eu")
    assert (request.options.ttl_policy, request.options.syphon_poll_s) == ("remaining", 60)
    # With a count it would not search for other queues, which may hold messages.
    assert queues is None


GATEWAY = """\
[pair.eu.gateway]
address = "shop:5673"
failover-interval = "10s"
patience = 30
syphon = false
host = "127.0.0.1"
key-file = "~/gateway-key"
require-tls = false
"""


def test_a_named_pair_gives_a_gateway_its_address_times_and_key(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    called: list[tuple[Any, ...]],
    path: Path,
) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    path.write_text(EU.replace("env:EU_SECONDARY", "embedded:~/backlog") + GATEWAY + US)
    assert run(capsys, "gateway", "--pair", "eu") == (0, "", "")
    given, sides, access, _ = called.pop()
    assert (given.namespace, given.queues, given.ledger) == ("shop:5673", 7, "/var/eu")
    assert (given.failover_interval, given.patience, given.ping_interval) == ("10s", "30", "60s")
    assert (sides.secondary, given.syphon) == ("embedded:/home/me/backlog", False)
    assert (access.host, access.key_file) == ("127.0.0.1", Path("/home/me/gateway-key"))
    assert (access.require_tls, access.require_token, access.tls_cert) == (False, False, None)
    words = ("gateway", "other:0", "--pair", "eu", "--patience", "5s", "--syphon")
    assert run(capsys, *words) == (0, "", "")
    given, *_ = called.pop()
    assert (given.namespace, given.patience, given.syphon) == ("other:0", "5s", True)
    # Only the gateway reaches a namespace that is inside of it.
    ran = run(capsys, "backlog", "list", "--pair", "eu")
    assert (ran.status, ran.out) == (2, "")
    assert "the secondary is inside a gateway (embedded:DIR)" in ran.err
    examined = ("--gateway", KEY.replace("NAME", "gate"))
    assert run(capsys, "doctor", "--pair", "eu", *examined) == (0, "", "")
    assert [type(one).__name__ for one in called.pop()][:2] == ["NoneType", "Namespace"]
    path.write_text(EU + GATEWAY)
    # Its address says nothing of the namespaces, so they are those of the only pair.
    assert run(capsys, "gateway", "mine:0").err == f"twinbus: using pair eu of {path}\n"
    given, sides, *_ = called.pop()
    assert (given.namespace, given.queues, sides.primary) == ("mine:0", 7, KEY_OF_EU)
    path.write_text(EU)
    assert "Missing argument 'NAME:PORT'" in run(capsys, "gateway", "--pair", "eu").err


def test_an_option_precedes_the_environment_and_that_the_file(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    called: list[tuple[Any, ...]],
    path: Path,
) -> None:
    create = ("backlog", "create", "--pair", "eu")
    monkeypatch.setenv("TWINBUS_SECONDARY", KEY.replace("NAME", "of-environment"))
    ran = run(capsys, *create, "--queues", "3")
    assert ran.err == "twinbus: TWINBUS_SECONDARY overrides the secondary of pair eu\n"
    sides, queues = called.pop()
    assert ([side.label for side in sides.both], queues) == (["contoso", "of-environment"], 3)
    option = KEY.replace("NAME", "of-option")
    for words in (
        (*create, "--secondary", option),
        (*create[:2], "--secondary", option, *create[2:]),
    ):
        assert run(capsys, *words) == (0, "", "")
        assert called.pop()[0].secondary_side.label == "of-option"


def test_the_only_pair_is_used_where_nothing_else_names_namespaces_and_says_so(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    called: list[tuple[Any, ...]],
    path: Path,
) -> None:
    said = f"twinbus: using pair eu of {path}\n"
    assert run(capsys, "backlog", "list") == (0, "", said)
    sides, _ = called.pop()
    assert [sides.secondary_side.label, sides.given_label] == ["contoso-dr", "contoso"]
    assert run(capsys, "report", "conservation") == (0, "", said)
    assert called.pop()[2].secondary.label == "contoso-dr"
    # A ledger or a namespace that is given belongs to another pair.
    assert run(capsys, "report", "conservation", "./ledger") == (0, "", "")
    assert called.pop()[2].secondary is None
    monkeypatch.setenv("TWINBUS_SECONDARY", KEY.replace("NAME", "other"))
    assert run(capsys, "backlog", "list") == (0, "", "")
    sides, _ = called.pop()
    assert [sides.secondary_side.label, sides.given_label] == ["other", None]


def test_one_of_several_pairs_must_be_named(
    capsys: pytest.CaptureFixture[str], called: list[tuple[Any, ...]], path: Path
) -> None:
    path.write_text(EU + US)
    ran = run(capsys, "backlog", "list")
    assert (ran.status, called) == (2, [])
    assert "name a pair with --pair" in ran.err
    ran = run(capsys, "backlog", "list", "--pair", "EU1")
    assert (ran.status, ran.err) == (2, f"twinbus: {path} has no pair 'EU1'; it has eu, us\n")
    ran = run(capsys, "backlog", "list", "--pair", "eu1")
    assert (ran.status, ran.err) == (2, f"twinbus: {path} has no pair 'eu1'; did you mean eu?\n")


def test_config_names_another_file_wherever_it_stands(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    called: list[tuple[Any, ...]],
    path: Path,
) -> None:
    other = path.parent / "other.toml"
    other.write_text(EU.replace("7", "9"))
    for words in (
        ("--pair", "eu", "--config", str(other)),
        ("--config", str(other), "--pair", "eu"),
    ):
        assert run(capsys, "backlog", "create", *words) == (0, "", "")
        assert called.pop()[1] == 9
    monkeypatch.setenv("TWINBUS_CONFIG", str(other))
    assert run(capsys, "backlog", "create", "--pair", "eu").status == 0
    assert called.pop()[1] == 9


def test_a_file_in_the_working_directory_has_no_say(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    called: list[tuple[Any, ...]],
    path: Path,
    tmp_path: Path,
) -> None:
    planted = tmp_path / "planted"
    for place in ("twinbus.toml", ".twinbus.toml", ".config/twinbus/twinbus.toml"):
        (planted / place).parent.mkdir(parents=True, exist_ok=True)
        (planted / place).write_text(EU.replace("EU_", "EVIL_"))
    path.unlink()
    monkeypatch.chdir(planted)
    ran = run(capsys, "backlog", "list")
    assert (ran.status, called) == (2, [])
    assert "the secondary namespace is missing" in ran.err
    ran = run(capsys, "backlog", "list", "--pair", "eu")
    assert (ran.status, called) == (2, [])
    assert f"there is no settings file: {path} does not exist" in ran.err


def test_a_wrong_file_stops_only_what_needs_it(
    capsys: pytest.CaptureFixture[str], called: list[tuple[Any, ...]], path: Path
) -> None:
    path.write_text("[pair.eu]\nqueues = 's3cret'\n")
    line = f"twinbus: {path}:2: pair.eu.queues must be a whole number from 1 to 100\n"
    assert run(capsys, "backlog", "list") == (2, "", line)
    assert run(capsys, "freeze", "orders", "--pair", "eu") == (2, "", line)
    assert called == []
    assert run(capsys, "status").status == 0
    given = KEY.replace("NAME", "given")
    assert run(capsys, "backlog", "list", "--secondary", given) == (0, "", "")
    assert run(capsys, "backlog", "list", "--help").status == 0


def test_help_shows_no_value_of_the_file(capsys: pytest.CaptureFixture[str], path: Path) -> None:
    path.write_text(EU.replace("env:EU_SECONDARY", KEY))
    for words in (("--pair", "eu"), ("--config", str(path), "--pair", "eu")):
        ran = run(capsys, "backlog", "create", *words, "--help")
        assert (ran.status, "s3cret" in ran.out, "--queues" in ran.out) == (0, False, True)


@pytest.mark.parametrize(
    ("name", "label"),
    [
        *(("eu", "contoso"), ("eu.4711", "contoso.4711"), ("us", "fabrikam")),
        *(("contoso", "contoso"), ("contoso.4711", "contoso.4711"), ("eu.x", "eu.x")),
    ],
)
def test_for_running_pairs_a_name_stands_for_its_label(
    capsys: pytest.CaptureFixture[str],
    called: list[tuple[Any, ...]],
    path: Path,
    name: str,
    label: str,
) -> None:
    path.write_text(EU + US)
    assert run(capsys, "status", "--pair", name) == (0, "", "")
    assert called.pop()[0] == label
    assert run(capsys, "freeze", "orders", "--pair", name) == (0, "", "")
    assert called.pop()[:3] == ("freeze", "orders", label)


def test_a_label_that_the_file_does_not_say_is_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, path: Path
) -> None:
    monkeypatch.setenv("EU_PRIMARY", "SharedAccessKey=s3cret")
    ran = run(capsys, "status", "--pair", "eu")
    assert (ran.status, ran.out, "s3cret" in ran.err) == (2, "", False)
    assert ran.err.startswith(f"twinbus: {path}:2: the primary of pair eu: a connection string")
    path.write_text("[pair.eu]\nqueues = 3\n")
    ran = run(capsys, "status", "--pair", "eu")
    assert ran.err == f"twinbus: {path}: pair eu has neither label nor primary\n"


def test_dead_letters_without_a_command_takes_the_pair_too(
    capsys: pytest.CaptureFixture[str], called: list[tuple[Any, ...]], path: Path
) -> None:
    path.write_text(EU + US)
    for words in (("--pair", "eu"), ("list", "--pair", "eu")):
        assert run(capsys, "backlog", "dead-letters", *words) == (0, "", "")
    path.write_text(EU)
    ran = run(capsys, "backlog", "dead-letters", "list")
    assert ran.err == f"twinbus: using pair eu of {path}\n"
    taken = [(sides.secondary_side.label, sides.given_label) for sides, _ in called]
    assert taken == [("contoso-dr", "contoso")] * 3


ALONE = {"serve", "prices", "config"}
"""Commands that are about no pair, and `config` itself, which has its own --pair."""


def test_a_command_about_no_namespace_reads_the_file_only_when_it_is_asked_to(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert path.exists()
    words = ("cost", "estimate", "--rate", "1/s", "--output", "json")
    by_default, by_pair = run(capsys, *words), run(capsys, *words, "--pair", "eu")
    given = run(capsys, *words, "--queues", "7", "--poll", "60s", "--lease")
    assert (by_default.err, by_pair.err) == ("", "")
    assert by_pair.out == given.out != by_default.out


def test_every_command_about_a_pair_takes_pair_and_config() -> None:
    wrong = []
    for words, command in commands(get_command(app)):
        names = {name for parameter in command.params for name in parameter.opts}
        is_about_pair = bool(names & {"--secondary", "--label", "--queues", "ledger", "--ledger"})
        if words and words[0] not in ALONE and is_about_pair:
            wrong += [words] if not {"--pair", "--config"} <= names else []
    assert wrong == []
