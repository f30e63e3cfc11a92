"""The files of a host: who reads what of whom, and what is left of a process that was killed."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from twinbus.client.connection import MACHINE
from twinbus.fleet import host_files as module
from twinbus.fleet.core.notices import Notice, is_host_id
from twinbus.fleet.host_files import AGE_MAX_S, SUFFIX, HostFiles, open_host
from twinbus.run_directory import VARIABLE, RunDirectoryUnusable

OWN = "0123456789abcdef"
since_boot = MACHINE.since_boot


@contextmanager
def process(directory: Path, label: str = "contoso", secondary: str = "dr") -> Iterator[HostFiles]:
    host = open_host({VARIABLE: str(directory)}, label, secondary)
    assert host is not None
    try:
        yield host
    finally:
        host.close()


def said(host: HostFiles, entity: str = "orders") -> Notice:
    return Notice(entity=entity, host=host.host_id, since=1.0, kinds=("timeout 3",), epoch=1)


def entities(host: HostFiles) -> list[str]:
    return sorted(one.entity for notices in host.read_files().values() for one in notices)


def test_a_process_hears_the_others_of_its_pair_and_not_itself(tmp_path: Path) -> None:
    with (
        process(tmp_path) as one,
        process(tmp_path) as other,
        process(tmp_path, secondary="another") as stranger,
    ):
        assert one.host_id == other.host_id == stranger.host_id
        assert is_host_id(one.host_id)
        one.write_file([said(one)])
        stranger.write_file([said(stranger, "theirs")])
        assert (entities(one), entities(other)) == ([], ["orders"])
        one.write_file([said(one), said(one, "billing")])
        assert entities(other) == ["billing", "orders"]
        one.write_file([])
        assert entities(other) == []
        assert list(one.directory.iterdir()) == []


def test_a_closed_process_leaves_nothing_and_says_nothing_more(tmp_path: Path) -> None:
    with process(tmp_path) as one, process(tmp_path) as other:
        one.write_file([said(one)])
        assert one.hold("speaker")
        one.close()
        assert list(one.directory.iterdir()) == []
        one.write_file([said(one)])
        assert not one.hold("speaker")
        assert entities(other) == []


def test_the_directories_and_files_are_their_users_alone(tmp_path: Path) -> None:
    with process(tmp_path / "run") as one:
        one.write_file([said(one)])
        places = [one.directory, *one.directory.iterdir()]
        assert [place.stat().st_mode & 0o077 for place in places] == [0, 0]
        (tmp_path / "run").chmod(0o777)
        with pytest.raises(RunDirectoryUnusable, match="writable by other users"):
            open_host({VARIABLE: str(tmp_path / "run")}, "contoso", "dr")
    assert open_host({VARIABLE: ""}, "contoso", "dr") is None


def test_a_file_that_is_not_refreshed_does_not_count_until_it_is(tmp_path: Path) -> None:
    with process(tmp_path) as one, process(tmp_path) as other:
        one.write_file([said(one)])
        [path] = one.directory.iterdir()
        # A wall clock may be set so that an old file has its time again.
        for at in (since_boot() - AGE_MAX_S - 1, since_boot() + AGE_MAX_S + 10, time.time()):
            os.utime(path, (at, at))
            assert entities(other) == []
            one.write_file([said(one)])
            assert entities(other) == ["orders"]


def test_a_file_that_somebody_removed_is_written_again(tmp_path: Path) -> None:
    with process(tmp_path) as one, process(tmp_path) as other:
        one.write_file([said(one)])
        [path] = one.directory.iterdir()
        path.unlink()
        one.write_file([said(one)])
        assert entities(other) == ["orders"]


def test_what_is_no_file_of_a_living_process_is_not_read(tmp_path: Path) -> None:
    with process(tmp_path) as one, process(tmp_path) as other:
        one.write_file([said(one)])
        [path] = one.directory.iterdir()
        data = path.read_bytes()
        (one.directory / f"dead{SUFFIX}").write_bytes(data)
        (one.directory / f"folder{SUFFIX}").mkdir()
        (one.directory / f"link{SUFFIX}").symlink_to(path)
        os.mkfifo(one.directory / f"pipe{SUFFIX}")
        (one.directory / "other-name").write_bytes(data)
        assert list(other.read_files()) == [one.process]
        assert not (one.directory / f"dead{SUFFIX}").exists(), (
            "an unlocked file is a dead process's"
        )
        path.chmod(0o666)
        assert other.read_files() == {}


def test_a_living_file_of_anything_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "encode", lambda _: b"x" * 2_000_000)
    with process(tmp_path) as one, process(tmp_path) as other:
        one.write_file([said(one)])
        assert entities(other) == []
    monkeypatch.undo()
    monkeypatch.setattr(module, "FILES_MAX", 1)
    with process(tmp_path) as one, process(tmp_path) as two, process(tmp_path) as other:
        one.write_file([said(one)])
        two.write_file([said(two)])
        assert len(entities(other)) == 1


def test_two_pairs_of_one_process_are_one_process(tmp_path: Path) -> None:
    with process(tmp_path) as one, process(tmp_path) as two, process(tmp_path) as other:
        one.write_file([said(one)])
        two.write_file([said(two, "billing")])
        assert list(other.read_files()) == [other.process]
        assert entities(other) == ["billing", "orders"]


def test_where_no_lock_can_be_had_each_process_has_every_role(tmp_path: Path) -> None:
    # Otherwise all would leave pings and board to another one, and nobody has the role.
    with process(tmp_path) as one, process(tmp_path) as other:
        one.directory.rmdir()
        assert one.hold("speaker")
        assert other.hold("speaker")
        one.let_go("speaker")
        one.write_file([said(one)])
        assert one.hold("speaker")
        assert not other.hold("speaker"), "the directory is back, and a lock can be had"


def test_a_role_has_one_holder_and_is_free_when_it_lets_go(tmp_path: Path) -> None:
    with process(tmp_path) as one, process(tmp_path) as other:
        role = "ping a/very/long" + "x" * 300
        assert one.hold(role)
        assert one.hold(role)
        assert not other.hold(role)
        assert other.hold("another role")
        one.let_go(role)
        assert other.hold(role)
        assert not one.hold(role)
        one.let_go(role)
        assert not one.hold(role)


def test_of_many_that_begin_at_once_all_have_one_host_id(tmp_path: Path) -> None:
    def begin(_: int) -> str:
        with process(tmp_path) as host:
            return host.host_id

    for _ in range(5):
        with ThreadPoolExecutor(8) as pool:
            assert len(set(pool.map(begin, range(8)))) == 1
        (tmp_path / "fleet" / "host-id").unlink()


def test_a_host_id_that_is_none_is_made_again(tmp_path: Path) -> None:
    with process(tmp_path) as one:
        first = one.host_id
    (tmp_path / "fleet" / "host-id").write_text("not an id")
    with process(tmp_path) as one:
        assert is_host_id(one.host_id)
        assert one.host_id != first


def test_a_host_is_one_directory_under_one_boot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def host_id(directory: Path) -> str:
        with process(directory) as host:
            return host.host_id

    first, copy, mounted = tmp_path / "first", tmp_path / "copy", tmp_path / "mounted"
    one = host_id(first)
    mounted.symlink_to(first)
    assert host_id(first) == host_id(mounted) == one, "a container that shares the directory"
    shutil.copytree(first, copy)
    assert host_id(copy) != one, "a container of an image that has the directory"
    boot_id = tmp_path / "boot-id"
    monkeypatch.setattr(module, "BOOT_ID", boot_id)
    without = host_id(first)
    assert is_host_id(without)
    boot_id.write_text("81b2a1a2-0d3c-4e49-9d5e-6b1cbb1c6f6a\n")
    assert len({one, without, host_id(first)}) == 3, "a disk that was cloned, or a restart"


TALKING = """
import os, sys, time
from twinbus.fleet.core.notices import Notice
from twinbus.fleet.host_files import open_host

host = open_host(os.environ, "contoso", "dr")
one, two = ([Notice("orders", host.host_id, 1.0, (), epoch)] for epoch in (1, 2))
host.hold("speaker")
print("ready", flush=True)
while True:
    host.write_file(one)
    host.write_file(two)
    host.hold("other role")
    host.let_go("other role")
"""


def test_a_process_killed_at_any_line_leaves_a_host_that_works(tmp_path: Path) -> None:
    environment = {**os.environ, VARIABLE: str(tmp_path)}
    with process(tmp_path) as other:
        heard = 0
        for delay_s in (0.0, 0.002, 0.01, 0.03):
            talker = subprocess.Popen(
                [sys.executable, "-c", TALKING],
                env=environment,
                stdout=subprocess.PIPE,
            )
            assert talker.stdout is not None
            assert talker.stdout.readline() == b"ready\n"
            until = time.monotonic() + delay_s
            # The last one lives until it was heard, however busy the machine is.
            at_most = until + (30.0 if delay_s == 0.03 else 0.0)
            while (now := time.monotonic()) < until or (now < at_most and not heard):
                # A writer that lives is heard, whole, in whatever moment.
                heard += len(entities(other))
                assert set(entities(other)) <= {"orders"}
            assert not other.hold("speaker")
            talker.send_signal(signal.SIGKILL)
            talker.wait()
            talker.stdout.close()
            assert entities(other) == []
            assert other.hold("speaker")
            assert other.hold("other role")
            other.let_go("speaker")
            other.let_go("other role")
            left = [one.name for one in other.directory.iterdir() if one.suffix == SUFFIX]
            assert all(name.startswith(".") for name in left), left
        assert heard


FORKING = """
import os, sys
from twinbus.fleet.core.notices import Notice
from twinbus.fleet.host_files import open_host

host = open_host(os.environ, "contoso", "dr")
host.write_file([Notice("orders", host.host_id, 1.0, (), 1)])
assert host.hold("speaker")
if os.fork() == 0:
    host.write_file([Notice("child", host.host_id, 1.0, (), 1)])
    assert not host.hold("speaker")
    host.close()
    own = open_host(os.environ, "contoso", "dr")
    assert own.process != host.process
    heard = sorted(one.entity for notices in own.read_files().values() for one in notices)
    os.write(1, f"{' '.join(heard)}\\n".encode())
    sys.stdin.readline()
    os._exit(0)
os.write(1, b"forked\\n")  # in one piece, because the child writes too
os.kill(os.getpid(), 9)
"""


def test_a_fork_leaves_file_and_roles_to_the_parent_and_ends_them_with_it(tmp_path: Path) -> None:
    environment = {**os.environ, VARIABLE: str(tmp_path)}
    with process(tmp_path) as other:
        parent = subprocess.Popen(
            [sys.executable, "-c", FORKING],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert parent.stdin is not None
        assert parent.stdout is not None
        lines = {parent.stdout.readline(), parent.stdout.readline()}
        parent.wait()
        # The child still lives, and holds nothing of its parent.
        assert lines <= {"forked\n", "orders\n", "\n"}
        assert entities(other) == []
        assert other.hold("speaker")
        parent.stdin.write("\n")
        parent.stdin.close()
        parent.stdout.close()
