"""Missing packages, coroutines run to their end, and resolvers that hang."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import subprocess
import sys
import threading
import tomllib
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from twinbus import extras
from twinbus.errors import MissingPackageError, TwinbusError
from twinbus.lookups import JOINED_S, LOOKUPS_MAX, HostLookups, needs_lookup
from twinbus.loops import run_anywhere

ROOT = Path(__file__).resolve().parents[2]
WHEEL: dict[str, Any] = {"archive_info": {}}


@pytest.mark.parametrize(
    ("origin", "command"),
    [
        (None, "pip install 'twinbus[broker]'"),
        ({"url": "file://{here}", "dir_info": {}}, "pip install '{here}[broker]'"),
        (
            {"url": "file://{here}", "dir_info": {"editable": True}},
            "pip install -e '{here}[broker]'",
        ),
        ({"url": "file://{here}/a%20b.whl", **WHEEL}, "pip install '{here}/a b.whl[broker]'"),
        (
            {"url": "https://x.example/t.git", "vcs_info": {"vcs": "git", "commit_id": "0"}},
            "pip install 'twinbus[broker] @ git+https://x.example/t.git'",
        ),
        (
            {"url": "https://x.example/t.whl"},
            "pip install 'twinbus[broker] @ https://x.example/t.whl'",
        ),
        (
            {"url": "file:///gone", "dir_info": {}},
            "pip install 'CHECKOUT[broker]', with the directory of Twinbus's sources as CHECKOUT",
        ),
    ],
)
def test_the_command_installs_from_where_twinbus_came(
    origin: dict[str, Any] | None, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a b.whl").touch()
    installed = tmp_path / "packages" / "twinbus-1.0.dist-info"
    installed.mkdir(parents=True)
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: twinbus\nVersion: 1.0\n")
    if origin:
        text = json.dumps(origin).replace("{here}", str(tmp_path))
        (installed / "direct_url.json").write_text(text)
    monkeypatch.syspath_prepend(installed.parent)
    assert extras.install_command("broker") == command.replace("{here}", str(tmp_path))


def test_a_tree_that_was_not_installed_is_its_own_source(monkeypatch: pytest.MonkeyPatch) -> None:
    def distribution(name: str) -> None:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "distribution", distribution)
    assert extras.install_command("broker") == f"pip install '{ROOT}[broker]'"


def test_every_extra_of_the_package_is_known_with_its_modules() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = {}
    for extra, packages in project["optional-dependencies"].items():
        names = [re.split(r"[\[>;=<]", package)[0] for package in packages]
        wanted[extra] = " ".join(sorted(name for name in names if name != "twinbus"))
    del wanted["all"], wanted["dev"]
    modules = {"azure.identity": "azure-identity", "prometheus_client": "prometheus-client"}
    modules["opentelemetry"] = "opentelemetry-api"
    known = {
        extra: " ".join(sorted(modules.get(name, name) for name in names.split()))
        for extra, names in extras.EXTRAS.items()
    }
    assert known == wanted


@pytest.mark.parametrize(
    ("missing", "line", "extra"),
    [
        ("uvicorn", "from twinbus import EmbeddedBroker", "broker"),
        ("lmdb", "from twinbus.testing import LocalNamespace", "broker"),
        ("pyspark", "from twinbus.pipeline import read_ledger", "spark"),
        ("kombu", "import twinbus.kombu", "celery"),
        ("prometheus_client", "import twinbus.pairing.observing.metrics", "telemetry"),
    ],
)
def test_an_import_without_its_extra_ends_in_one_sentence(
    missing: str, line: str, extra: str
) -> None:
    program = f"import sys\nsys.modules[{missing!r}] = None\n{line}\n"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    *above, last = done.stderr.splitlines()
    assert last.startswith("twinbus.errors.MissingPackageError: ")
    assert f"needs the extra `{extra}`" in last
    assert last.endswith(extras.install_command(extra))
    # The user's line and ours, not the way through the broker or Spark.
    assert len(above) <= 8, done.stderr
    assert "During handling" not in done.stderr


def test_a_missing_package_is_an_import_error_and_one_of_ours() -> None:
    error = extras.missing_package("X", ModuleNotFoundError("No module named 'h11'", name="h11"))
    assert isinstance(error, MissingPackageError)
    assert isinstance(error, TwinbusError)
    assert isinstance(error, ModuleNotFoundError)
    assert error.name == "h11"
    other = ModuleNotFoundError("No module named 'twinbus.x'", name="twinbus.x")
    assert extras.missing_package("X", other) is other


def test_no_text_of_the_package_installs_from_an_index() -> None:
    texts = [path for path in (ROOT / "src").rglob("*.py") if path.name != "extras.py"]
    assert [
        path.name for path in texts if re.search("pip install '?twinbus", path.read_text())
    ] == []


async def answer() -> int:
    await asyncio.sleep(0)
    return 42


async def failure() -> int:
    raise ValueError("no answer")


def test_a_coroutine_is_run_with_and_without_a_loop_around_the_caller() -> None:
    async def cell() -> int:
        return run_anywhere(answer())

    assert run_anywhere(answer()) == asyncio.run(cell()) == 42


def test_what_it_raises_is_raised() -> None:
    async def cell() -> int:
        return run_anywhere(failure())

    with pytest.raises(ValueError, match="no answer"):
        asyncio.run(cell())


LIMIT_S = 20.0


class Resolver:
    """In place of `socket.getaddrinfo`: hosts that begin with "hangs" wait for `answers`."""

    def __init__(self) -> None:
        self.answers = threading.Event()
        self.asked: list[str] = []

    def __call__(self, host: str, *_: Any, **__: Any) -> list[Any]:
        self.asked.append(host)
        if host.startswith("hangs"):
            self.answers.wait(LIMIT_S)
        if host.startswith("unknown"):
            raise socket.gaierror(socket.EAI_NONAME, "unknown")
        if ".." in host:
            raise UnicodeError("label empty")
        return []


@pytest.fixture
def resolver(monkeypatch: pytest.MonkeyPatch) -> Resolver:
    made = Resolver()
    monkeypatch.setattr(socket, "getaddrinfo", made)
    return made


async def test_lookups_that_hang_leave_other_hosts_alone_and_are_few(
    resolver: Resolver,
) -> None:
    now = 100.0
    of_process = HostLookups(lambda: now)
    joined = [asyncio.create_task(of_process.resolved("hangs.example")) for _ in range(20)]
    await asyncio.sleep(0)
    assert resolver.asked.count("hangs.example") <= 1
    # One that takes long is not joined, up to the limit.
    for _ in range(20):
        now += JOINED_S
        joined.append(asyncio.create_task(of_process.resolved("hangs.example")))
        await asyncio.sleep(0)
    try:
        async with asyncio.timeout(LIMIT_S / 2):
            await of_process.resolved("answers.example")
            with pytest.raises(socket.gaierror):
                await of_process.resolved("unknown.example")
            await of_process.resolved("no..name")  # Who connects to it says what is wrong.
        # A caller that gives up takes the lookup from no other.
        joined.pop().cancel()
    finally:
        resolver.answers.set()
    await asyncio.gather(*joined)
    assert resolver.asked.count("hangs.example") == LOOKUPS_MAX
    assert of_process.under_way == {}


async def test_without_a_thread_the_lookup_fails(
    resolver: Resolver, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(OSError, match=r"a\.example was not looked up: can't start new thread"):
        await HostLookups().resolved("a.example")
    assert resolver.asked == []


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "[::1]", "LocalHost"])
def test_addresses_need_no_lookup(host: str) -> None:
    assert not needs_lookup(host)
