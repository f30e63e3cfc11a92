"""A RabbitMQ node of our own: installed if need be, started, and stopped without a trace.

The node has its own name, ports, cookie, data directory and port mapper (epmd), all on loopback, so
that it neither meets nor disturbs a RabbitMQ that already runs on this machine.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import subprocess
import tempfile
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from bench.harness import NotMeasured, Progress
from bench.peers.shovel import shovel
from bench.processes import free_port, serve, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

SERVER_GLOB = "lib/rabbitmq_server-*/sbin"
SERVER_ROOT = Path("/usr/lib/rabbitmq")
INSTALL_TIMEOUT_S = 600.0
START_TIMEOUT_S = 90.0
"""An Erlang node boots in about 5 s; a loaded machine takes several times that."""
COMMAND_TIMEOUT_S = 60.0


class RabbitMQ:
    """A running node: where to connect, and the few administrative commands a benchmark needs."""

    def __init__(self, sbin: Path, environment: dict[str, str], port: int) -> None:
        self.host = "127.0.0.1"
        self.port = port
        self._sbin = sbin
        self._environment = environment

    def declare_queue(self, name: str) -> None:
        """Make a durable classic queue."""
        self._evaluate(
            f'rabbit_amqqueue:declare(rabbit_misc:r(<<"/">>, queue, <<"{name}">>), '
            'true, false, [], none, <<"bench">>).'
        )

    def delete_queue(self, name: str) -> None:
        self._control("delete_queue", name)

    def persistent_messages(self, name: str) -> int:
        """How many messages of a durable queue are marked to outlive the node."""
        listing = self._control(
            "--silent", "list_queues", "name", "durable", "messages", "messages_persistent"
        )
        for line in listing.splitlines():
            queue, durable, _, persistent = line.split("\t")
            if queue == name:
                assert durable == "true", f"{name} is not durable"
                return int(persistent)
        raise LookupError(f"RabbitMQ has no queue {name}")

    def shovel(self, source: str, destination: str, messages: int, *, prefetch: int) -> float:
        """Have a dynamic shovel move all that `source` holds; the seconds that took."""
        return shovel(self._evaluate, source, destination, messages, prefetch=prefetch)

    def version(self) -> str:
        return self._control("--silent", "version").strip()

    def _evaluate(self, expression: str) -> str:
        return self._control("eval", expression)

    def _control(self, *arguments: str) -> str:
        done = subprocess.run(
            [str(self._sbin / "rabbitmqctl"), *arguments],
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=COMMAND_TIMEOUT_S,
            check=False,
        )
        if done.returncode != 0:
            raise RuntimeError(f"rabbitmqctl {arguments[0]}: {done.stderr or done.stdout}")
        return done.stdout


@contextmanager
def rabbitmq(data: Path, progress: Progress) -> Iterator[RabbitMQ]:
    """Run a node with its data under `data`; raise `NotMeasured` where there can be none."""
    sbin = _installed() or _install(progress)
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="rabbitmq-", dir=data)))
        port, mapper_port = free_port(), free_port()
        environment = _environment(home, port=port, mapper_port=mapper_port)
        progress("starting RabbitMQ")
        mapper = ["epmd", "-port", str(mapper_port), "-address", "127.0.0.1"]
        stack.enter_context(serve(mapper, environment=environment, log=home / "epmd.log"))
        node = stack.enter_context(
            serve([str(sbin / "rabbitmq-server")], environment=environment, log=home / "node.log")
        )
        server = RabbitMQ(sbin, environment, port)
        started = "Server startup complete"
        wait_until(
            lambda: started in (home / "node.log").read_text(errors="replace"),
            process=node,
            log=home / "node.log",
            timeout_s=START_TIMEOUT_S,
        )
        yield server


def _installed() -> Path | None:
    found = sorted(SERVER_ROOT.glob(SERVER_GLOB))
    return found[-1] if found else None


def _install(progress: Progress) -> Path:
    """Install Debian's package, but only where that starts no service."""
    advice = "install rabbitmq-server yourself to run it"
    if shutil.which("apt-get") is None:
        raise NotMeasured(f"no RabbitMQ and no apt-get here; {advice}")
    if os.geteuid() != 0:
        raise NotMeasured(f"no RabbitMQ here and only root may install it; {advice}")
    if Path("/run/systemd/system").exists():
        # Debian's package would start a broker of its own that we did not ask for.
        raise NotMeasured(f"no RabbitMQ here and installing it would start a service; {advice}")
    progress("installing RabbitMQ from Debian")
    quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
    for command in (
        ["apt-get", "-qq", "update"],
        ["apt-get", "-qq", "install", "--yes", "--no-install-recommends", "rabbitmq-server"],
    ):
        done = subprocess.run(
            command,
            env=quiet,
            capture_output=True,
            text=True,
            timeout=INSTALL_TIMEOUT_S,
            check=False,
        )
        if done.returncode != 0:
            reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
            raise NotMeasured(f"{' '.join(command[:3])} failed: {reason}")
    sbin = _installed()
    if sbin is None:
        raise NotMeasured(f"apt-get installed RabbitMQ, but not under {SERVER_ROOT}")
    return sbin


def _environment(home: Path, *, port: int, mapper_port: int) -> dict[str, str]:
    plugins, config = home / "enabled_plugins", home / "rabbitmq.conf"
    plugins.write_text("[rabbitmq_amqp1_0, rabbitmq_shovel].\n")
    config.write_text(f"listeners.tcp.local = 127.0.0.1:{port}\nlog.console = true\n")
    (home / "empty.conf").write_text("")
    kept = {k: v for k, v in os.environ.items() if not re.match(r"RABBITMQ_|ERL_", k)}
    return kept | {
        "HOME": str(home),  # the Erlang cookie lives there
        "ERL_EPMD_PORT": str(mapper_port),
        "ERL_EPMD_ADDRESS": "127.0.0.1",
        "RABBITMQ_NODENAME": f"twinbus-bench-{secrets.token_hex(4)}@localhost",
        "RABBITMQ_CONF_ENV_FILE": str(home / "empty.conf"),
        "RABBITMQ_CONFIG_FILE": str(config),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(plugins),
        "RABBITMQ_MNESIA_BASE": str(home / "mnesia"),
        "RABBITMQ_LOG_BASE": str(home / "log"),
        "RABBITMQ_PID_FILE": str(home / "node.pid"),
        "RABBITMQ_DIST_PORT": str(free_port()),
        "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": (
            "-start_epmd false -kernel inet_dist_use_interface {127,0,0,1}"
        ),
    }
