"""The files of deploy/: every metric, label and command they name exists, and promtool accepts the
rules. What the image and CI install is named by hash, and fits pyproject.toml."""

from __future__ import annotations

import json
import re
import subprocess
import tomllib
from collections.abc import Iterator
from configparser import ConfigParser
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.version import Version
from typer.core import TyperGroup
from typer.main import get_command

from tests.promtool import NoPromtool, find_promtool
from twinbus.console.cli import app
from twinbus.console.syphon import metrics as syphon_metrics
from twinbus.exposition import metrics_of, text_of
from twinbus.pairing.observing import metrics as pair_metrics
from twinbus.status.document import QUEUE_STATES, EntityState

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
RULES = DEPLOY / "prometheus/twinbus.rules.yml"
CASES = DEPLOY / "prometheus/twinbus.test.yml"
DASHBOARD = DEPLOY / "grafana/twinbus.json"
CONTAINERS = (DEPLOY / "Containerfile", DEPLOY / "compose.yaml")

TARGET_LABELS = frozenset({"instance", "job"})
"""What Prometheus adds itself."""

VALUES = {
    "state": {*EntityState, *QUEUE_STATES},
    "outcome": set(pair_metrics.OUTCOMES),
    "kind": {"waiting", "dead-lettered"},
    "by": {"primary", "secondary", "lease", "pump"},
}
"""The values of labels that an expression may select."""


def exposed() -> dict[str, set[str]]:
    """Return every series that a pair or a syphon exposes, with its labels."""
    families = {**pair_metrics.FAMILIES, **syphon_metrics.FAMILIES}
    text = text_of(pair_metrics.PairCollector().collect()).decode()
    text += text_of(metrics_of(syphon_metrics.FAMILIES, "pair", ())).decode()
    names: dict[str, set[str]] = {}
    for name, kind in re.findall(r"^# TYPE (\w+) (\w+)$", text, re.MULTILINE):
        parts = ("_bucket", "_sum", "_count") if kind == "histogram" else ("",)
        family = families.get(name.removesuffix("_total"), (None, None))
        for part in parts:
            names[name + part] = {"pair", *family[2:], *({"le"} if part else ())}
    return names


def expressions() -> list[str]:
    """Return the expressions of the dashboard, with its variables filled in."""
    dashboard = json.loads(DASHBOARD.read_text())
    found = [one["expr"] for panel in dashboard["panels"] for one in panel.get("targets", ())]
    return [text.replace("$__rate_interval", "5m").replace("$pair", ".*") for text in found]


def breaches(text: str) -> Iterator[str]:
    """Yield what a text names that nothing exposes: series, labels, values of labels."""
    known = exposed()
    for name, _, selected in re.findall(r"\b(twinbus_\w+)(\{([^}]*)\})?", text):
        if name not in known:
            yield f"there is no series {name}"
            continue
        for label, values in re.findall(r'(\w+)[!=~]+"([^"]*)"', selected):
            if label not in known[name] | TARGET_LABELS:
                yield f"{name} has no label {label}"
            if label in VALUES and not set(values.split("|")) <= VALUES[label]:
                yield f"{label} of {name} is never {values!r}"


@pytest.mark.parametrize("file", [RULES, CASES], ids=lambda file: file.name)
def test_rules_and_cases_name_what_is_exposed(file: Path) -> None:
    text = file.read_text()
    assert text.count("twinbus_") > 15
    assert list(breaches(re.sub(r"twinbus_?\w*\.\w+\.yml", "", text))) == []


def test_the_dashboard_names_what_is_exposed_and_shows_nearly_all_of_it() -> None:
    texts = expressions()
    assert list(breaches("\n".join(texts))) == []
    shown = set(re.findall(r"twinbus_\w+", "\n".join(texts)))
    hidden = {"twinbus_divert_seconds_sum", "twinbus_divert_seconds_count"}
    assert exposed().keys() - shown == hidden


def test_panels_have_their_own_ids_and_do_not_overlap() -> None:
    panels = json.loads(DASHBOARD.read_text())["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    cells = [
        (x, y)
        for panel in panels
        for place in [panel["gridPos"]]
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(set(cells)) == len(cells)
    assert max(x for x, _ in cells) < 24


@pytest.mark.parametrize(
    ("text", "breach"),
    [
        ("sum(twinbus_protected)", None),
        ("sum(twinbus_protectd)", "there is no series twinbus_protectd"),
        ('twinbus_entities{stat="healthy"}', "twinbus_entities has no label stat"),
        ('twinbus_entities{state="failed-over"}', "state of twinbus_entities is never"),
    ],
)
def test_a_planted_breach_is_found(text: str, breach: str | None) -> None:
    found = list(breaches(text))
    assert found == [] if breach is None else found[0].startswith(breach)


def container_commands() -> list[list[str]]:
    """Return what the containers run, after `twinbus`."""
    texts = "\n".join(path.read_text() for path in CONTAINERS)
    found = re.findall(r"^ *(?:command:|CMD) (\[.*\])$", texts, re.MULTILINE)
    return [json.loads(words) for words in found]


def parse(words: list[str]) -> None:
    """Read a command line as `twinbus` does and run nothing; an error of click if it is wrong."""
    command: Any = get_command(app)
    while isinstance(command, TyperGroup):
        name, *words = words
        command = command.commands[name]
    command.make_context("twinbus", words)


def test_the_containers_run_commands_and_options_that_exist() -> None:
    found = container_commands()
    assert sorted(words[0] for words in found) == ["page", "serve", "serve", "serve", "syphon"]
    for words in found:
        parse(words)
    with pytest.raises(Exception, match="--prt"):
        parse(["page", "--prt", "8080"])


@pytest.fixture(scope="module")
def promtool() -> Path:
    try:
        return find_promtool()
    except NoPromtool as error:
        pytest.skip(str(error))


def run(*command: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


# One test, so that only one worker fetches promtool.
def test_promtool_accepts_the_rules_their_cases_and_the_dashboard(
    promtool: Path, tmp_path: Path
) -> None:
    checked = run(promtool, "check", "rules", RULES)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    tested = run(promtool, "test", "rules", CASES)
    assert tested.returncode == 0, tested.stdout + tested.stderr
    # The cases would find a broken rule.
    for file in (RULES, CASES):
        text = file.read_text().replace("== 0\n        for: 5m", "== 0\n        for: 50m")
        (tmp_path / file.name).write_text(text)
    broken = run(promtool, "test", "rules", tmp_path / CASES.name)
    assert broken.returncode != 0
    assert "TwinbusUnprotected" in broken.stdout + broken.stderr
    rules = [{"record": f"panel:{n}", "expr": text} for n, text in enumerate(expressions())]
    file = tmp_path / "dashboard.yml"
    file.write_text(json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}))
    checked = run(promtool, "check", "rules", file)
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_every_alert_has_a_case_that_fires_it() -> None:
    alerts = set(re.findall(r"- alert: (\w+)", RULES.read_text()))
    fired = set(re.findall(r'alertname="(\w+)"', CASES.read_text()))
    assert len(alerts) > 10
    assert fired == alerts


CONFINED = {
    "UMask": "0077",
    "MemoryMax": "2G",
    "RestrictAddressFamilies": "AF_INET AF_INET6 AF_UNIX",
    "CapabilityBoundingSet": "",
    "NoNewPrivileges": "yes",
    "ProtectSystem": "strict",
    "ProtectHome": "yes",
    "PrivateTmp": "yes",
    "PrivateDevices": "yes",
    "SystemCallArchitectures": "native",
}


def test_the_service_may_do_no_more_than_it_needs() -> None:
    unit = ConfigParser(interpolation=None, strict=False)
    unit.read(DEPLOY / "systemd/twinbus-syphon@.service")
    found = {name: unit["Service"].get(name) for name in CONFINED}
    assert found == CONFINED
    assert unit["Service"]["User"] == "twinbus"


def test_containers_run_without_rights_and_write_to_volumes_only() -> None:
    containerfile, compose = (file.read_text() for file in CONTAINERS)
    assert re.search(r"^USER twinbus$", containerfile, re.MULTILINE)
    for line in (
        "read_only: true",
        'cap_drop: ["ALL"]',
        'security_opt: ["no-new-privileges:true"]',
    ):
        assert f"\n  {line}\n" in compose


def pinned(lock: Path) -> dict[str, tuple[Version, int]]:
    """The version of each package that a lock names, and the number of its hashes."""
    found = re.findall(
        r"^([\w.-]+)==([^ ;]+)[^\n]*\\\n((?:    --hash=sha256:\w{64}[^\n]*\n)+)",
        lock.read_text(),
        re.MULTILINE,
    )
    return {name: (Version(version), hashes.count("--hash")) for name, version, hashes in found}


def asked_for(extras: set[str]) -> list[Requirement]:
    """What the project and these extras ask for, and the extras that they name in turn."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    texts = [*project["dependencies"]]
    taken: set[str] = set()
    while rest := extras - taken:
        taken |= rest
        for text in (text for extra in rest for text in project["optional-dependencies"][extra]):
            own = Requirement(text)
            if own.name == project["name"]:
                extras = extras | own.extras
            else:
                texts.append(text)
    return [Requirement(text) for text in texts]


def builders() -> list[Requirement]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    return [Requirement(text) for text in project["build-system"]["requires"]]


LOCKS = {
    "deploy/requirements.txt": asked_for({"broker", "console", "identity", "telemetry"}),
    "deploy/build-requirements.txt": builders(),
    ".ci/requirements.txt": asked_for({"all", "dev"}),
    # hatchling needs editables to install the project; Spark is built by setuptools; uv installs.
    ".ci/build-requirements.txt": [
        *builders(),
        Requirement("editables"),
        Requirement("setuptools"),
        Requirement("uv"),
    ],
}
"""What each lock must name by hash."""


@pytest.mark.parametrize("lock", LOCKS)
def test_a_lock_names_by_hash_what_the_project_asks_for(lock: str) -> None:
    locked = pinned(ROOT / lock)
    lines = (ROOT / lock).read_text().splitlines()
    assert len(locked) == sum(line[:1].isalnum() for line in lines), "one has no hash"
    unmet = [
        str(wanted)
        for wanted in LOCKS[lock]
        if wanted.name not in locked or locked[wanted.name][0] not in wanted.specifier
    ]
    assert unmet == [], "run: make lock"
    assert all(hashes for _, hashes in locked.values())


def test_the_image_and_ci_install_by_hash() -> None:
    for line in re.findall(r"pip install .*", CONTAINERS[0].read_text()):
        assert "--require-hashes -r" in line or "--no-index" in line
    assert "make --no-print-directory setup-by-hash" in (ROOT / ".ci/run").read_text()
    steps = subprocess.run(
        ["make", "--dry-run", "--always-make", "setup-by-hash"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    installs = re.findall(r"pip install .*?(?= && |\n)", steps)
    assert len(installs) == 3
    for install in installs:
        by_hash = re.search(r"--require-hashes -r \S+$", install)
        of_the_project = install.endswith("--no-build-isolation --editable .")
        assert "--no-deps" in install
        assert by_hash or of_the_project, install
