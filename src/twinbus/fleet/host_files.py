"""Files by which the processes of one host share evidence (docs/failures.md).

    host = open_host(os.environ, label, secondary)
    await host.publish(notices)      while this process has something to say
    found = await host.read()        what the other living processes say

A directory of the run directory belongs to one pair of namespaces. A process writes a file of its
own, whole, by a rename, and holds a lock on it for as long as it says so. The kernel releases the
lock when the process ends, however it ends: a reader that gets the lock knows that the writer is
gone. No process id is compared, because ids are used again and containers have their own: a process
has a random name, with which the names of its files begin. A file that was not refreshed does not
count either: its process hangs.

A *role* is a lock too: who holds it does something for all processes of the host.

A *host* is one run directory under one boot of a kernel: containers that share the directory are
one host, copies of an image or a disk are several, and a machine that was restarted is another one.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import hashlib
import os
import secrets
import stat
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Final

from twinbus.client.connection import MACHINE
from twinbus.fleet.core.notices import DATA_BYTES_MAX, Notice, decode, encode, is_host_id
from twinbus.run_directory import RunDirectory, RunDirectoryUnusable, prepare, run_directories_of

FOLDER: Final = "fleet"
SUFFIX: Final = ".notices"
HOST_ID: Final = "host-id"
BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
"""Random at each boot. Elsewhere than on Linux there is none, and hosts differ by directory."""

REFRESH_S: Final = 10.0
"""How often a process that has something to say refreshes its file."""

AGE_MAX_S: Final = 30.0
"""A file that is older does not count. Its time is that since the boot, which all processes of the
host have: it cannot be set, and goes on while the machine is suspended."""

HIDDEN_MAX_S: Final = 60.0
"""A file is written under a hidden name and renamed at once; one still hidden is orphaned."""

FILES_MAX: Final = 256
"""Files that are read at once. One is enough evidence, so more change no decision."""

ENTRIES_MAX: Final = 4_096
"""Entries of the directory that are looked at."""

ID_TRIES: Final = 20
ID_WAIT_S: Final = 0.05
"""How often, and how far apart, a process tries to be the one that makes the host's id."""

_READ_FLAGS: Final = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
_LOCK_FLAGS: Final = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC


class HostFiles:
    """The files of one pair of namespaces, as one process sees them. Methods from any thread."""

    def __init__(self, directory: Path, host_id: str) -> None:
        """`directory` exists and is this user's alone; `open_host` finds it."""
        self.directory = directory
        self.host_id = host_id
        self.process = _own.process
        self._path = directory / f"{self.process}-{secrets.token_hex(4)}{SUFFIX}"
        self._hidden = directory / f".{self._path.name}"
        self._file: int | None = None
        """Open and locked while this process has something to say."""
        self._said = b""
        self._roles: dict[str, int] = {}
        self.lock = threading.Lock()
        """Held while a file is open that this object does not know yet, so a fork waits for it."""
        self._is_over = False
        """It was closed, or belongs to the parent of this process."""
        _opened.add(self)

    def __repr__(self) -> str:
        return f"<files of host {self.host_id} in {self.directory}>"

    async def read(self) -> Mapping[str, Sequence[Notice]]:
        """Return what the other pairs of this host say, by their process."""
        return await asyncio.to_thread(self.read_files)

    async def publish(self, notices: Sequence[Notice]) -> None:
        """Say this until the next call; nothing: withdraw. To be repeated every `REFRESH_S`."""
        await asyncio.to_thread(self.write_file, notices)

    def read_files(self) -> dict[str, list[Notice]]:
        try:
            with os.scandir(self.directory) as entries:
                names = [entry.name for entry in islice(entries, ENTRIES_MAX)]
        except OSError:
            return {}
        found: dict[str, list[Notice]] = {}
        files = 0
        for name in names:
            if name.startswith("."):
                _sweep_hidden(self.directory / name)
            elif name.endswith(SUFFIX) and name != self._path.name and files < FILES_MAX:
                data = _living(self.directory / name)
                if data:
                    files += 1
                    found.setdefault(name.partition("-")[0], []).extend(decode(data))
        return found

    def write_file(self, notices: Sequence[Notice]) -> None:
        """Raise OSError if the file cannot be written or locked."""
        with self.lock:
            if self._is_over:
                return
            if not notices:
                self._withdraw()
                return
            data = encode(notices)
            if data != self._said or not self._refresh():
                self._replace(data)

    def hold(self, role: str) -> bool:
        """Take the role, or keep it; return whether this process has it.

        Where no lock can be had, each process has the role, for itself alone.
        """
        with self.lock:
            if role in self._roles or self._is_over:
                return not self._is_over
            try:
                opened = _role_of(self._role_path(role))
            except OSError:
                return True
            if opened is None:
                return False
            self._roles[role] = opened
            return True

    def let_go(self, role: str) -> None:
        """Leave the role to another process, if this one has it."""
        with self.lock:
            self._let_go(role)

    def close(self) -> None:
        """Withdraw, and let go of every role."""
        with self.lock:
            if self._is_over:
                return
            self._withdraw()
            for role in list(self._roles):
                self._let_go(role)
            self._is_over = True
        _opened.discard(self)

    def _refresh(self) -> bool:
        """Make the file new; return whether it is still there."""
        if self._file is None or not _is_at(self._path, self._file):
            return False
        _stamp(self._file)
        return True

    def _replace(self, data: bytes) -> None:
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        before = self._file
        opened = os.open(self._hidden, _LOCK_FLAGS | os.O_EXCL, 0o600)
        try:
            # Locked before anyone can see it: a reader takes an unlocked file for a dead writer's.
            if not _locks(opened):
                raise OSError(f"{self._hidden} is locked by another process")
            _write_all(opened, data)
            _stamp(opened)
            self._hidden.rename(self._path)
        except BaseException:
            os.close(opened)
            self._hidden.unlink(missing_ok=True)
            raise
        self._file, self._said = opened, data
        if before is not None:
            os.close(before)

    def _withdraw(self) -> None:
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._path.unlink()
            os.close(self._file)
        self._file, self._said = None, b""

    def _let_go(self, role: str) -> None:
        opened = self._roles.pop(role, None)
        if opened is not None:
            with contextlib.suppress(OSError):
                self._role_path(role).unlink()
            os.close(opened)

    def _role_path(self, role: str) -> Path:
        # A role may have the name of an entity in it, which has other characters and any length.
        return self.directory / f"{hashlib.sha256(role.encode()).hexdigest()[:16]}.role"

    def leave_in_child(self) -> None:
        """In a forked process: close its copies of the locks, which belong to the parent.

        Otherwise a lock would last for as long as the child lives.
        """
        self._is_over = True
        self.lock = threading.Lock()
        for opened in (self._file, *self._roles.values()):
            if opened is not None:
                with contextlib.suppress(OSError):
                    os.close(opened)
        self._file = None
        self._roles.clear()


def open_host(environment: Mapping[str, str], label: str, secondary: str) -> HostFiles | None:
    """Return the files of a pair of namespaces; None: the environment turns them off.

    Raise RunDirectoryUnusable if there is no directory for them. It may wait for other processes.
    """
    key = hashlib.sha256(f"{label}\n{secondary}".lower().encode()).hexdigest()[:16]
    reasons = []
    for place in run_directories_of(environment):
        try:
            prepare(place)
            for directory in (place.path / FOLDER, place.path / FOLDER / key):
                prepare(RunDirectory(directory, is_configured=False))
            return HostFiles(directory, _host_id(place.path / FOLDER))
        except RunDirectoryUnusable as error:
            reasons.append(str(error))
        except OSError as error:
            reasons.append(f"{place.path}: {error.strerror or error}")
    if reasons:
        raise RunDirectoryUnusable("; ".join(reasons))
    return None


def _host_id(folder: Path) -> str:
    """The id of this run directory's host: the same for all processes, another for every copy.

    A copied directory has the random id of the first. It lies elsewhere, or another kernel runs.
    Hostname and machine id decide nothing: containers and machines of one image may share them.
    """
    try:
        boot = BOOT_ID.read_text().strip()
    except OSError:
        boot = ""
    place = folder.stat()
    text = f"{_random_id(folder)} {boot} {place.st_dev} {place.st_ino}"
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _random_id(folder: Path) -> str:
    """A random id in the directory, made by the first process that needs one."""
    path = folder / HOST_ID
    for _ in range(ID_TRIES):
        found = _read_own(path)
        known = "" if found is None else found.decode("ascii", "replace").strip()
        if is_host_id(known):
            return known
        guard = os.open(folder / f".{HOST_ID}-lock", _LOCK_FLAGS, 0o600)
        try:
            if _locks(guard) and _read_own(path) == found:
                made = secrets.token_hex(8)
                hidden = folder / f".{HOST_ID}-new"
                hidden.write_text(made)
                hidden.rename(path)
                return made
        finally:
            os.close(guard)
        time.sleep(ID_WAIT_S)
    # A process stopped while it made the id. This one is a host of its own.
    return secrets.token_hex(8)


def _role_of(path: Path) -> int | None:
    """Open and lock the file of a role; None: another process has it. Raise OSError otherwise."""
    opened = os.open(path, _LOCK_FLAGS, 0o600)
    try:
        # The holder before removes the file: the lock on one that is gone is no role.
        if _locks(opened) and _is_at(path, opened):
            return opened
    except OSError:
        os.close(opened)
        raise
    os.close(opened)
    return None


def _living(path: Path) -> bytes | None:
    """Return a process's file if the process lives; remove the file of one that is gone."""
    try:
        opened = os.open(path, _READ_FLAGS)
    except OSError:
        return None
    try:
        found = os.fstat(opened)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.getuid():
            return None
        if _is_unlocked(opened):
            # A writer that goes on has put its next file in this place before it lets go.
            if _is_at(path, opened):
                path.unlink()
            return None
        if found.st_mode & 0o022 or abs(MACHINE.since_boot() - found.st_mtime) > AGE_MAX_S:
            return None
        return _read_all(opened)
    except OSError:
        return None
    finally:
        os.close(opened)


def _sweep_hidden(path: Path) -> None:
    """Remove the hidden file of a process that ended before it gave the file its name."""
    with contextlib.suppress(OSError):
        found = path.lstat()
        # Its time of modification may be that since the boot.
        is_orphan = time.time() - found.st_ctime > HIDDEN_MAX_S and stat.S_ISREG(found.st_mode)
        if is_orphan and path.name.endswith(SUFFIX):
            path.unlink()


def _read_own(path: Path) -> bytes | None:
    """Return a regular file of this user; None: there is none."""
    try:
        opened = os.open(path, _READ_FLAGS)
    except FileNotFoundError:
        return None
    try:
        found = os.fstat(opened)
        is_own = stat.S_ISREG(found.st_mode) and found.st_uid == os.getuid()
        return _read_all(opened) if is_own else b""
    finally:
        os.close(opened)


def _read_all(opened: int) -> bytes:
    """Return the file, or one byte more than is ever valid."""
    chunks, left = [], DATA_BYTES_MAX + 1
    while left > 0 and (chunk := os.read(opened, left)):
        chunks.append(chunk)
        left -= len(chunk)
    return b"".join(chunks)


def _write_all(opened: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(opened, view) :]


def _stamp(opened: int) -> None:
    """Give a file the present time since the boot."""
    now = MACHINE.since_boot()
    os.utime(opened, (now, now))


def _locks(opened: int) -> bool:
    """Lock a file; False: another process has it."""
    try:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_unlocked(opened: int) -> bool:
    """Whether no process has a lock on the file for writing. Readers do not disturb others."""
    try:
        fcntl.flock(opened, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_at(path: Path, opened: int) -> bool:
    """Whether the open file is the one at the path."""
    try:
        return os.path.samestat(path.lstat(), os.fstat(opened))
    except FileNotFoundError:
        return False


class _OwnName:
    def __init__(self) -> None:
        self.process = secrets.token_hex(8)


_own = _OwnName()
_opened: weakref.WeakSet[HostFiles] = weakref.WeakSet()
_at_fork: list[HostFiles] = []


def _before_fork() -> None:
    _at_fork[:] = list(_opened)
    for host in _at_fork:
        host.lock.acquire()


def _go_on_in_parent() -> None:
    for host in _at_fork:
        host.lock.release()
    _at_fork.clear()


def _leave_in_child() -> None:
    _own.process = secrets.token_hex(8)
    for host in _at_fork:
        host.leave_in_child()
    _at_fork.clear()
    _opened.clear()


os.register_at_fork(
    before=_before_fork, after_in_parent=_go_on_in_parent, after_in_child=_leave_in_child
)
