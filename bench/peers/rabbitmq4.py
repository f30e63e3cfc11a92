"""RabbitMQ 4: Debian's packages, unpacked into a directory and run from there.

A peer of the benchmarks, and a control of the power cuts.

Debian 12 has RabbitMQ 3.10, whose classic queues sync before they confirm. Those of RabbitMQ 4 do
not, and Debian has it in a later suite. Its packages need that suite's C library, so they run in a
root directory of their own; nothing is installed.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

PACKAGES = ("rabbitmq-server", "base-files", "dash", "sed", "grep", "mawk", "coreutils")
SUITE = "deb [trusted=yes] http://deb.debian.org/debian sid main\n"
FETCH_LIMIT_S = 900.0
START_LIMIT_S = 180.0
COMMAND_LIMIT_S = 120.0
COOKIE = "twinbus"
DEVICES = {"null": 3, "zero": 5, "random": 8, "urandom": 9}


class NotThere(Exception):
    """RabbitMQ 4 cannot be had on this machine; the text says why."""


def unpack(directory: Path) -> Path:
    """Fetch the packages and unpack them; the root directory."""
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise NotThere("fetching RabbitMQ 4 needs apt-get, and chroot needs root")
    apt, root = directory / "apt", directory / "root"
    for part in ("lists/partial", "cache/archives/partial"):
        (apt / part).mkdir(parents=True)
    (apt / "sources.list").write_text(SUITE)
    (apt / "status").touch()
    settings = {
        "Dir::Etc::sourcelist": apt / "sources.list",
        "Dir::Etc::sourceparts": "-",
        "Dir::State::lists": apt / "lists",
        "Dir::State::status": apt / "status",
        "Dir::Cache": apt / "cache",
        "APT::Install-Recommends": "0",
        "APT::Sandbox::User": "root",
    }
    options = [part for name, value in settings.items() for part in ("-o", f"{name}={value}")]
    _run("apt-get", *options, "-qq", "update")
    _run("apt-get", *options, "-qq", "-y", "--download-only", "install", *PACKAGES)
    root.mkdir()
    for package in sorted((apt / "cache" / "archives").glob("*.deb")):
        unpacked = subprocess.Popen(["dpkg-deb", "--fsys-tarfile", package], stdout=subprocess.PIPE)
        _run("tar", "-x", "-C", str(root), "--keep-directory-symlink", stdin=unpacked.stdout)
        unpacked.wait()
    # What the packages' own scripts would do.
    for name, target in {"sh": "dash", "awk": "mawk"}.items():
        (root / "usr/bin" / name).unlink(missing_ok=True)
        (root / "usr/bin" / name).symlink_to(target)
    for part in ("dev", "etc/rabbitmq", "tmp", "proc"):
        (root / part).mkdir(parents=True, exist_ok=True)
    for name, minor in DEVICES.items():
        os.mknod(root / "dev" / name, 0o20666, os.makedev(1, minor))
    (root / "etc/hosts").write_text("127.0.0.1 localhost\n")
    return root


def _run(*command: str, stdin: object = None) -> None:
    done = subprocess.run(
        command, stdin=stdin, capture_output=True, text=True, timeout=FETCH_LIMIT_S, check=False
    )  # type: ignore[call-overload]
    if done.returncode:
        raise NotThere(f"{command[0]}: {(done.stderr.strip().splitlines() or ['failed'])[-1]}")


class Node:
    """A node of RabbitMQ whose data is in `disk` of its root directory."""

    def __init__(self, root: Path, *, plugins: Sequence[str] = ()) -> None:
        self._root = root
        self._log = root.parent / "node.log"
        self.port, mapper_port, nodes_port = _free_ports(3)
        (sbin,) = root.glob("usr/lib/rabbitmq/lib/rabbitmq_server-*/sbin")
        self._sbin = f"/{sbin.relative_to(root)}"
        self._mapper = ["epmd", "-port", str(mapper_port), "-address", "127.0.0.1"]
        (root / "etc/rabbitmq/control.conf").write_text(
            f"listeners.tcp.local = 127.0.0.1:{self.port}\n"
        )
        (root / "etc/rabbitmq/enabled_plugins").write_text(f"[{', '.join(plugins)}].\n")
        self._environment = {
            "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
            "HOME": "/tmp",
            "LANG": "C.UTF-8",
            "ERL_EPMD_PORT": str(mapper_port),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODENAME": "control@localhost",
            "RABBITMQ_CONF_ENV_FILE": "/dev/null",
            "RABBITMQ_CONFIG_FILE": "/etc/rabbitmq/control.conf",
            "RABBITMQ_ENABLED_PLUGINS_FILE": "/etc/rabbitmq/enabled_plugins",
            "RABBITMQ_MNESIA_BASE": "/disk/data",
            "RABBITMQ_LOGS": "-",
            "RABBITMQ_DIST_PORT": str(nodes_port),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": f"-setcookie {COOKIE}",
        }

    @contextmanager
    def running(self) -> Iterator[int]:
        """Run the node, and kill it at the end; the id of its process."""
        mapper = self._start(*self._mapper)
        # A node that finds no port mapper starts one of its own.
        self._await_port(int(self._environment["ERL_EPMD_PORT"]), mapper)
        node = self._start(f"{self._sbin}/rabbitmq-server")
        try:
            self._await_port(self.port, node)
            self._control("await_startup")
            yield node.pid
        finally:
            for process in (node, mapper):
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()

    def declare_queue(self, name: str, kind: str = "classic") -> None:
        """Make a durable queue: classic, or quorum."""
        self.evaluate(
            f'{{new, _}} = rabbit_amqqueue:declare(rabbit_misc:r(<<"/">>, queue, <<"{name}">>), '
            f'true, false, [{{<<"x-queue-type">>, longstr, <<"{kind}">>}}], none, '
            '<<"control">>).'
        )

    def delete_queue(self, name: str) -> None:
        self._control("delete_queue", name)

    def evaluate(self, expression: str) -> str:
        """Run an expression of Erlang in the node."""
        return self._control("eval", expression)

    def version(self) -> str:
        return self._control("--silent", "version").strip()

    def messages(self, name: str) -> int:
        listing = self._control("--silent", "list_queues", "name", "messages")
        return int(dict(line.split("\t") for line in listing.splitlines()).get(name, "0"))

    def _await_port(self, port: int, process: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + START_LIMIT_S
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1.0).close()
                return
            except OSError:
                assert process.poll() is None, f"it ended: {self._log.read_text()[-500:]}"
                assert time.monotonic() < deadline, "it did not start"
                time.sleep(0.1)

    def _start(self, *command: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            ["chroot", str(self._root), *command],
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=self._log.open("ab"),
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def _control(self, *arguments: str) -> str:
        command = ["chroot", str(self._root), f"{self._sbin}/rabbitmqctl"]
        done = subprocess.run(
            [*command, "--erlang-cookie", COOKIE, *arguments],
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=COMMAND_LIMIT_S,
            check=False,
        )
        assert done.returncode == 0, done.stderr or done.stdout
        return done.stdout


def _free_ports(count: int) -> list[int]:
    found = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in found]
    for each in found:
        each.close()
    return ports
