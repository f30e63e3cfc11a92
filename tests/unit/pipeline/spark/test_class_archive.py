"""The archive of Spark's classes: who writes it, who uses it, and what is passed over."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from tests.unit.pipeline.spark.test_java import fake_java
from twinbus.pipeline.spark import class_archive as archives_module
from twinbus.pipeline.spark import classic, session
from twinbus.pipeline.spark.class_archive import (
    KEPT,
    MEMORY_MIN_BYTES,
    RECORDING_S,
    SWITCH,
    ClassArchive,
    memory_bytes,
)
from twinbus.pipeline.spark.class_archive import class_archive as found
from twinbus.pipeline.spark.java import Java

HOTSPOT = """echo 'openjdk version "17.0.9"\nOpenJDK 64-Bit Server VM (build {build})' >&2"""
NOW = 1_000_000.0
HEAD = b"\x0b\xa8\x0b\xf0 classes"


class Machine:
    """A Java, a Spark and a cache of their own."""

    def __init__(self, root: Path) -> None:
        self.cache = root / "cache" / "twinbus"
        self.environment = {"XDG_CACHE_HOME": str(root / "cache")}
        self.spark = root / "spark"
        (self.spark / "jars").mkdir(parents=True)
        self.home = root / "java"
        self.memory_bytes = MEMORY_MIN_BYTES
        self.update_java(1)

    def update_java(self, build: int) -> None:
        executable = self.home / "bin" / "java"
        executable.unlink(missing_ok=True)
        fake_java(self.home, HOTSPOT.format(build=build))
        os.utime(executable, (build, build))

    def ask(self, *, record: bool = True, now: float = NOW) -> ClassArchive | None:
        java = Java(self.home, 17, "JAVA_HOME")
        return found(java, str(self.spark), self.environment, record=record, now=now)

    def recorded(self) -> Path:
        """The archive, after one session recorded it and another one found it."""
        recording = self.ask()
        assert recording is not None
        recording.path.write_bytes(HEAD)
        used = self.ask(record=False)
        assert used is not None
        return used.path


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    made = Machine(tmp_path)
    # Whatever the machine of the test has.
    monkeypatch.setattr(archives_module, "memory_bytes", lambda: made.memory_bytes)
    return made


def test_one_session_records_and_the_next_ones_use_it(machine: Machine) -> None:
    assert machine.ask(record=False) is None
    first = machine.ask()
    assert first is not None
    assert first.is_recorded
    assert first.option == f'"-XX:ArchiveClassesAtExit={first.path}"'
    # Another one at the same time neither waits nor records too.
    assert machine.ask() is None
    # Java writes the head of the file last.
    first.path.write_bytes(bytes(len(HEAD)))
    assert machine.ask() is None
    first.path.write_bytes(HEAD)
    for record in (False, True):
        used = machine.ask(record=record)
        assert used is not None
        assert not used.is_recorded
        assert used.option == f'"-XX:SharedArchiveFile={used.path}"'
        assert list(machine.cache.iterdir()) == [used.path]
        assert used.path.read_bytes() == HEAD


def test_a_session_that_was_killed_is_not_waited_for_for_ever(machine: Machine) -> None:
    killed = machine.ask()
    assert killed is not None
    later = machine.ask(now=NOW + RECORDING_S + 1)
    assert later is not None
    assert later.is_recorded
    assert list(machine.cache.iterdir()) == [later.path]


def test_an_archive_that_belongs_to_another_user_is_used(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = machine.recorded()

    def refused(*_: Any) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "utime", refused)
    used = machine.ask()
    assert used is not None
    assert used.path == archive


def test_nothing_is_taken_from_a_cache_that_others_can_write_to(machine: Machine) -> None:
    """A JVM maps the archive as code: who can write it runs code as this user."""
    archive = machine.recorded()
    assert machine.cache.stat().st_mode & 0o777 == 0o700
    archive.chmod(0o620)
    assert machine.ask(record=False) is None
    archive.chmod(0o600)
    machine.cache.chmod(0o770)
    assert machine.ask() is None
    machine.cache.chmod(0o700)
    real = machine.cache.rename(machine.cache.with_name("elsewhere"))
    machine.cache.symlink_to(real)
    assert machine.ask() is None
    machine.cache.unlink()
    real.rename(machine.cache)
    used = machine.ask()
    assert used is not None
    assert used.path == archive


@pytest.mark.parametrize("what", ["cache", "archive"])
def test_nothing_is_taken_that_belongs_to_another_user(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    archive = machine.recorded()
    foreign, lstat = machine.cache if what == "cache" else archive, Path.lstat

    def seen(path: Path) -> os.stat_result:
        found = list(lstat(path))
        if path == foreign:
            found[stat.ST_UID] = 65534
        return os.stat_result(found)

    monkeypatch.setattr(Path, "lstat", seen)
    assert machine.ask(record=False) is None


def test_of_two_that_recorded_one_is_used_and_the_other_goes(machine: Machine) -> None:
    first = machine.ask()
    assert first is not None
    second = first.path.with_name(first.path.name.replace(".new", "2.new"))
    for path in (first.path, second):
        path.write_bytes(HEAD)
    used = machine.ask()
    assert used is not None
    assert {path.suffix for path in machine.cache.iterdir()} == {".jsa", ".new"}
    machine.update_java(2)
    later = machine.ask(now=time.time() + RECORDING_S + 1)
    assert later is not None
    assert set(machine.cache.iterdir()) == {used.path, later.path}


def test_an_archive_that_was_cut_off_is_removed(machine: Machine) -> None:
    # Java crashes with it.
    archive = machine.recorded()
    archive.write_bytes(HEAD[:-1])
    assert machine.ask(record=False) is None
    assert list(machine.cache.iterdir()) == []
    assert machine.recorded().read_bytes() == HEAD


def test_another_java_or_another_spark_has_another_archive(machine: Machine) -> None:
    archives = {machine.recorded()}
    machine.update_java(2)
    archives.add(machine.recorded())
    os.utime(machine.spark / "jars", (1, 1))
    archives.add(machine.recorded())
    machine.environment["SPARK_CONF_DIR"] = "/etc/spark"
    archives.add(machine.recorded())
    assert len(archives) == 4
    assert set(machine.cache.iterdir()) == archives


def test_archives_that_were_not_used_for_longest_are_removed(machine: Machine) -> None:
    archives = []
    for build in range(KEPT + 3):
        machine.update_java(build + 1)
        archives.append(machine.recorded())
        os.utime(archives[-1], (build, build))
    # The one of this Java stays beside those.
    assert set(machine.cache.iterdir()) == set(archives[-KEPT - 1 :])


def test_a_machine_with_little_memory_writes_none(machine: Machine) -> None:
    machine.memory_bytes -= 1
    assert machine.ask() is None


def test_the_memory_is_that_of_the_machine_or_of_its_container(tmp_path: Path) -> None:
    limit = tmp_path / "memory.max"
    whole = memory_bytes(limit)
    assert whole == os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for text, least in (("max\n", whole), (f"{whole + 1}\n", whole), ("4096\n", 4096)):
        limit.write_text(text)
        assert memory_bytes(limit) == least


def test_it_can_be_switched_off(machine: Machine) -> None:
    machine.recorded()
    machine.environment[SWITCH] = "off"
    assert machine.ask() is None


def test_no_archive_is_asked_of_a_java_that_does_not_know_it(machine: Machine) -> None:
    fake_java(machine.home, """echo 'openjdk version "17.0.9"\nEclipse OpenJ9 VM' >&2""")
    assert machine.ask() is None


@pytest.mark.parametrize("name", ["a:b", 'a"b', "a%pb", "a$b", "ü"])
def test_a_path_that_javas_options_would_misread_has_none(machine: Machine, name: str) -> None:
    machine.environment["XDG_CACHE_HOME"] = f"/tmp/{name}"
    assert machine.ask() is None


def test_a_cache_that_cannot_be_used_has_none(machine: Machine, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    machine.environment["XDG_CACHE_HOME"] = str(tmp_path / "file")
    assert machine.ask() is None


@pytest.fixture
def launches(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Java options of the JVMs that `start_session` would start; one with an archive fails."""
    options: list[str] = []

    def launch(settings: Mapping[str, str], output: Any, *, ends_alone: bool) -> Any:
        options.append(settings.get("spark.driver.extraJavaOptions", "none"))
        if "SharedArchiveFile" in options[-1] or ends_alone:
            raise OSError("Java gateway process exited")
        return mock.Mock()

    # A process has one JVM, and other tests of this one may have started it.
    none = {"running_session": lambda: None, "reset": lambda: None}
    monkeypatch.setattr(session, "classic", mock.Mock(wraps=classic, launch=launch, **none))
    machine.spark = Path(pytest.importorskip("pyspark").__file__).parent
    monkeypatch.setenv("JAVA_HOME", str(machine.home))
    monkeypatch.setenv("XDG_CACHE_HOME", machine.environment["XDG_CACHE_HOME"])
    monkeypatch.delenv(SWITCH, raising=False)
    return options


def test_spark_starts_without_an_archive_that_no_jvm_starts_with(
    machine: Machine, launches: list[str]
) -> None:
    archive = machine.recorded()
    session.start_session(settings=session.QUICK_START)
    short = session.QUICK_START["spark.driver.extraJavaOptions"]
    assert launches == [f'{short} "-XX:SharedArchiveFile={archive}"', short]
    assert not archive.exists()
    # The same for a JVM that should record one.
    session.start_session(record_classes=True)
    assert [option.partition("=")[0] for option in launches[2:]] == [
        '-XX:+UseParallelGC "-XX:ArchiveClassesAtExit',
        "-XX:+UseParallelGC",
    ]
    assert list(machine.cache.iterdir()) == []


@pytest.mark.parametrize(
    "name", ["JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS", "SPARK_SUBMIT_OPTS"]
)
def test_a_collector_of_the_environment_is_the_only_one(
    launches: list[str], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(name, "-Dx=y -XX:+UseZGC")
    session.start_session()
    session.start_session(settings=session.QUICK_START)
    # A cluster has options of its own.
    session.start_session(master="spark://host:7077")
    assert launches == ["none", "-XX:TieredStopAtLevel=1 ", "none"]
    # Options that choose none change nothing.
    monkeypatch.setenv(name, "-XX:+UseStringDeduplication")
    session.start_session()
    assert launches[3:] == ["-XX:+UseParallelGC"]


@pytest.mark.parametrize("name", ["java-opts", "spark-defaults.conf"])
def test_a_collector_of_sparks_own_files_is_the_only_one(
    launches: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    session.start_session()
    (tmp_path / name).write_text("spark.driver.defaultJavaOptions -Dx=y -XX:+UseG1GC\n")
    session.start_session()
    assert launches == ["-XX:+UseParallelGC", "none"]


@pytest.mark.parametrize(
    "settings",
    [
        {"spark.driver.extraJavaOptions": "-Xshare:off"},
        {"spark.driver.extraJavaOptions": "-XX:SharedArchiveFile=mine.jsa"},
        {"spark.driver.extraClassPath": "mine.jar"},
        {"spark.master": "spark://host:7077"},
    ],
    ids=str,
)
def test_a_session_with_a_word_of_its_own_about_classes_has_none(
    machine: Machine, launches: list[str], settings: dict[str, str]
) -> None:
    archive = machine.recorded()
    # Java does not find the archive that was named.
    fails = "SharedArchiveFile" in str(settings)
    with pytest.raises(session.SparkStartError) if fails else nullcontext():
        session.start_session(settings=settings)
    [options] = launches
    assert str(archive) not in options
