"""Builds the programs of each language; they are kept outside the tree until a source changes."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import pytest

SOURCES = Path(__file__).parent
BUILD_LIMIT_S = 1_200.0
"""No promise, only an end of patience: with an empty cache the Go compiler takes minutes of
processor time, and in a whole run of the tests five programs share two cores."""

OUTPUT_TAIL = 2_000
"""Characters of a failed build that the reason of a skip quotes."""

TRUST_PASSWORD = "changeit"
"""Of the trust store, which has nothing secret in it; Java insists on one."""

CLASSPATH_PLUGIN = "org.codehaus.mojo:exec-maven-plugin:3.5.0:exec"
"""Prints the class path; it needs fewer downloads than Maven's own dependency plugin."""


class CannotBuild(Exception):
    """A toolchain is missing or cannot fetch the SDK; the text says which and why."""


@dataclass(frozen=True, slots=True)
class Program:
    """What was built in one language: its commands, and how it trusts a certificate authority."""

    tour: tuple[str, ...]
    """The command of the tour; empty for Python, whose tours are in tests/contract."""
    outage: tuple[str, ...]
    """The command that sends during an outage; it takes a queue and a name."""
    trust: Callable[[Path], TrustedRun]
    """Takes the authority's certificate (PEM)."""

    def run_tour(
        self, connection_string: str, authority: Path | None, timeout_s: float
    ) -> subprocess.CompletedProcess[str]:
        trusting = self.trust(authority) if authority else TrustedRun()
        command = (self.tour[0], *trusting.options, *self.tour[1:])
        variables = {"SERVICEBUS_CONNECTION_STRING": connection_string, **trusting.environment}
        return subprocess.run(
            command,
            env={**os.environ, **variables},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            encoding="utf-8",
            timeout=timeout_s,
            check=False,
        )


@dataclass(frozen=True, slots=True)
class TrustedRun:
    """What makes a program trust an authority."""

    options: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)


def built_or_skipped(language: str) -> Program:
    """The program; without one the test is skipped with the reason, and in CI it fails."""
    program = tried(language)
    if isinstance(program, Program):
        return program
    if os.environ.get("CI"):
        pytest.fail(str(program), pytrace=False)
    pytest.skip(str(program))


@cache
def tried(language: str) -> Program | CannotBuild:
    """The program, or why there is none: a build without a network is tried only once."""
    try:
        return built(language)
    except CannotBuild as error:
        return error


def built(language: str) -> Program:
    """What is in this language, built if its sources changed; raises `CannotBuild`."""
    tools, build, program = _LANGUAGES[language]
    missing = [tool for tool in tools if shutil.which(tool) is None]
    if missing:
        raise CannotBuild(f"{', '.join(missing)} not found: the tests in {language} need it")
    home = _cache() / f"{language}-{_digest(SOURCES / language)}"
    if not home.exists():
        home.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=home.parent, prefix=f"{language}-build-") as made:
            fresh = Path(made) / "tour"
            shutil.copytree(SOURCES / language, fresh)
            build(fresh)
            _move(fresh, home)
    return program(home)


def _move(fresh: Path, home: Path) -> None:
    try:
        fresh.rename(home)
    except OSError:
        # Another run has built the same sources meanwhile.
        if not home.exists():
            raise


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "twinbus" / "tours"


def _digest(folder: Path) -> str:
    """Changes with every file of the folder and with the way it is built."""
    digest = hashlib.sha256(Path(__file__).read_bytes())
    for path in sorted(folder.iterdir()):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


def _run(*command: str, directory: Path, environment: Mapping[str, str] | None = None) -> str:
    """The output of a build command; raises `CannotBuild` with its last lines."""
    # Other tests run beside it: they come first.
    politely = ("nice", *command) if shutil.which("nice") else command
    try:
        done = subprocess.run(
            politely,
            cwd=directory,
            env={**os.environ, **(environment or {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=BUILD_LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise CannotBuild(f"{command[0]} took longer than {BUILD_LIMIT_S:.0f} s") from error
    if done.returncode:
        said = (done.stdout + done.stderr).strip()[-OUTPUT_TAIL:]
        raise CannotBuild(f"{' '.join(command[:3])} ended with {done.returncode}: {said}")
    return done.stdout


def _build_javascript(home: Path) -> None:
    _run("npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts", directory=home)


def _javascript(home: Path) -> Program:
    def trust(authority: Path) -> TrustedRun:
        return TrustedRun(environment={"NODE_EXTRA_CA_CERTS": str(authority)})

    return Program(("node", str(home / "tour.js")), ("node", str(home / "outage.js")), trust)


def _build_go(home: Path) -> None:
    # Without C the build needs no C compiler and takes less time.
    _run("go", "build", "-o", "tour", ".", directory=home, environment={"CGO_ENABLED": "0"})


def _go(home: Path) -> Program:
    def trust(authority: Path) -> TrustedRun:
        return TrustedRun(environment={"SSL_CERT_FILE": str(authority)})

    # One program: with arguments it is not a tour.
    return Program((str(home / "tour"),), (str(home / "tour"),), trust)


def _build_java(home: Path) -> None:
    printed = _run(
        *("mvn", "-q", "-B", "-Dstyle.color=never", CLASSPATH_PLUGIN),
        *("-Dexec.executable=echo", "-Dexec.args=%classpath"),
        directory=home,
    )
    jars = home / "jars"
    jars.mkdir()
    # The first entry is the folder of the project's own classes, which Maven does not build.
    for jar in printed.split()[0].split(os.pathsep)[1:]:
        shutil.copy(jar, jars)
    sources = [path.name for path in home.glob("*.java")]
    _run("javac", "-proc:none", "-d", "classes", "-cp", "jars/*", *sources, directory=home)


def _java(home: Path) -> Program:
    def trust(authority: Path) -> TrustedRun:
        store = authority.with_name("trust.p12")
        _run(
            *("keytool", "-importcert", "-noprompt", "-alias", "authority"),
            *("-file", str(authority), "-keystore", str(store), "-storepass", TRUST_PASSWORD),
            directory=authority.parent,
        )
        return TrustedRun(
            options=(
                f"-Djavax.net.ssl.trustStore={store}",
                f"-Djavax.net.ssl.trustStorePassword={TRUST_PASSWORD}",
            )
        )

    classpath = f"{home / 'classes'}{os.pathsep}{home / 'jars'}/*"
    # The quick compiler alone: a tour ends before the other one pays.
    command = ("java", "-XX:TieredStopAtLevel=1", "-cp", classpath)
    return Program((*command, "Tour"), (*command, "Outage"), trust)


def _build_nothing(home: Path) -> None:
    """The tests' own interpreter has the SDK."""


def _python(home: Path) -> Program:
    def trust(authority: Path) -> TrustedRun:
        return TrustedRun(environment={"SSL_CERT_FILE": str(authority)})

    return Program((), (sys.executable, str(home / "outage.py")), trust)


_LANGUAGES: Mapping[
    str, tuple[tuple[str, ...], Callable[[Path], None], Callable[[Path], Program]]
] = {
    "go": (("go",), _build_go, _go),
    "java": (("java", "javac", "keytool", "mvn"), _build_java, _java),
    "javascript": (("node", "npm"), _build_javascript, _javascript),
    "python": ((), _build_nothing, _python),
}
