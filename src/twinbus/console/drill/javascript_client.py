"""The drill's senders as a program in another language: the official JavaScript SDK on Node.

It knows a connection string and nothing of Twinbus. The SDK is fetched once with npm, at the
versions and digests of the lock file, and kept in the user's cache.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import shutil
import tempfile
from asyncio.subprocess import PIPE, STDOUT, Process
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from twinbus.console.drill.result import DrillPlan
from twinbus.console.drill.traffic import PADDING, timeout_s
from twinbus.console.drill.world import ENTITIES, DrillError
from twinbus.wording import visible

SOURCES: Final = Path(__file__).parent / "javascript"
SDK: Final = "@azure/service-bus"

NODE_LEAST: Final = 20
"""What package.json says of the SDK."""

FETCH_LIMIT_S: Final = 120.0
"""For the SDK with an empty cache: some megabytes. A drill without it uses the Python SDK."""

REASON_LENGTH_MAX: Final = 160

SDK_TIMEOUT_S: Final = 60.0
"""The SDK's own, which a drill makes longer and never shorter."""


class NoJavaScript(Exception):
    """The client cannot run here; the text says why."""


@dataclass(frozen=True, slots=True)
class JavaScriptClient:
    """The program with its SDK, ready to run."""

    command: tuple[str, ...]
    name: str
    """The SDK and its version, and that of Node."""


async def javascript_client() -> JavaScriptClient:
    """Return the program, with the SDK fetched if it is not in the cache; else NoJavaScript."""
    tools = {tool: shutil.which(tool) for tool in ("node", "npm")}
    missing = [tool for tool, path in tools.items() if path is None]
    if missing:
        raise NoJavaScript(f"there is no {' and no '.join(missing)} here")
    version = json.loads((SOURCES / "package.json").read_text())["dependencies"][SDK]
    node = (await _output("node", "--version")).strip()
    major = node.removeprefix("v").partition(".")[0]
    if not major.isdecimal() or int(major) < NODE_LEAST:
        raise NoJavaScript(f"the SDK needs Node {NODE_LEAST}, and this is {_short(node)}")
    home = _cache() / f"javascript-{_digest()}"
    if not home.exists():
        try:
            await _fetch(home)
        except OSError as error:
            raise NoJavaScript(f"{home.parent} cannot be written: {error.strerror}") from None
    return JavaScriptClient(
        ("node", str(home / "send.js")), f"JavaScript ({SDK} {version}, Node {node})"
    )


class JavaScriptTraffic:
    """Sends all messages of the plan; `run` ends when the last send has ended."""

    def __init__(
        self,
        plan: DrillPlan,
        client: JavaScriptClient,
        connection_string: str,
        log: Path,
        sent: Callable[[int], None],
    ) -> None:
        """`sent` gets how many sends have ended; the program's errors go to `log`."""
        self.sends_returned = 0
        self.began_ms = 0
        self.begun = asyncio.Event()
        self._plan = plan
        self._client = client
        self._connection_string = connection_string
        self._sent = sent
        self._log = log
        self._ended = 0

    async def run(self) -> None:
        """Send everything; DrillError if the program ends before that."""
        with self._log.open("ab") as log:
            async with _process(*self._client.command, errors=log) as process:
                assert process.stdin is not None
                assert process.stdout is not None
                process.stdin.write(json.dumps(self._document()).encode())
                process.stdin.close()
                async for line in process.stdout:
                    self._take(json.loads(line))
                status = await process.wait()
        if status or self._ended != self._plan.messages:
            said = self._log.read_text(errors="replace").strip().splitlines()
            raise DrillError(
                f"the client in JavaScript ended with {status} after {self._ended:,} of"
                f" {self._plan.messages:,} sends: {_short(said[-1] if said else 'it said nothing')}"
            )

    def _take(self, line: dict[str, Any]) -> None:
        if "beganMs" in line:
            self.began_ms = line["beganMs"]
            self.begun.set()
            return
        self._ended += 1
        # The ledger counts what failed; the caller knows, so nothing is lost.
        self.sends_returned += "error" not in line
        if "error" in line:
            with self._log.open("a") as log:
                log.write(f"{line['number']}: {_short(line['error'])}\n")
        self._sent(self._ended)

    def _document(self) -> dict[str, Any]:
        plan = self._plan
        return {
            "connectionString": self._connection_string,
            "entities": [
                {"path": entity.path, "sessions": list(entity.sessions)} for entity in ENTITIES
            ],
            "shares": [list(plan.share(sender)) for sender in range(plan.senders)],
            "rate": plan.rate,
            "timeoutMs": int(1000 * max(SDK_TIMEOUT_S, timeout_s(plan))),
            "padding": PADDING,
        }


async def _fetch(home: Path) -> None:
    """Install the SDK beside the program."""
    home.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=home.parent, prefix="fetching-") as made:
        fresh = Path(made) / "client"
        shutil.copytree(SOURCES, fresh)
        # Without scripts: a package that is installed runs no code of its own.
        options = ("--no-audit", "--no-fund", "--ignore-scripts", "--prefer-offline")
        await _output("npm", "ci", *options, "--prefix", str(fresh))
        _keep(fresh, home)


def _keep(fresh: Path, home: Path) -> None:
    try:
        fresh.rename(home)
    except OSError:
        # Another drill was faster.
        if not home.exists():
            raise


async def _output(*command: str) -> str:
    """Return what a program printed; NoJavaScript if it fails or takes too long."""
    try:
        async with asyncio.timeout(FETCH_LIMIT_S), _process(*command, errors=STDOUT) as process:
            printed = (await process.communicate())[0].decode(errors="replace")
    except TimeoutError:
        raise NoJavaScript(f"{command[0]} did not end within {FETCH_LIMIT_S:g} s") from None
    except OSError as error:
        raise NoJavaScript(f"{command[0]} cannot be run: {error.strerror}") from None
    if process.returncode:
        said = next((line for line in printed.splitlines() if line.strip()), "it said nothing")
        raise NoJavaScript(f"{command[0]} ended with {process.returncode}: {_short(said)}")
    return printed


@asynccontextmanager
async def _process(*command: str, errors: Any) -> AsyncIterator[Process]:
    """Run a program in the block; it is killed if it has not ended then."""
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=PIPE,
        stdout=PIPE,
        stderr=errors,
        # Ctrl-C is for the drill, which ends its programs itself.
        start_new_session=True,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "twinbus" / "drill"


def _digest() -> str:
    digest = hashlib.sha256()
    for path in sorted(SOURCES.iterdir()):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


def _short(text: str) -> str:
    return visible(text)[:REASON_LENGTH_MAX]
