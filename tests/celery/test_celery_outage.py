"""A Celery application with a prefork worker: the primary is killed, and no task is lost.

Without a twin its tasks run when the primary is back; with one they run while it is down.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.celery import shop
from tests.official_sdk import administration
from tests.processes import ServedBroker, run_twinbus
from twinbus.kombu.process_pair import close_process_pairs

pytestmark = pytest.mark.end_to_end

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 120.0
SETTINGS = """
[pair.eu]
primary = "env:EU_PRIMARY"
secondary = "env:EU_SECONDARY"
label = "contoso"
"""
TWINS = 'twins = ["celery"]\n'


class Shop:
    """The book of orders, the worker's log and the two namespaces."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.book = directory / "book.txt"
        self.log = directory / "worker.log"
        self.primary = ServedBroker(directory / "primary", "contoso")
        self.secondary = ServedBroker(directory / "secondary", "contoso-dr")
        self.settings = directory / "twinbus.toml"

    def orders(self) -> set[str]:
        return set(self.book.read_text().splitlines()) if self.book.exists() else set()

    def wait_for(self, *orders: str) -> None:
        self.wait(lambda: set(orders) <= self.orders())

    def wait(self, is_so: Callable[[], bool]) -> None:
        ends = time.monotonic() + PATIENCE_S
        while not is_so():
            log = self.log.read_text() if self.log.exists() else ""
            assert time.monotonic() < ends, f"{sorted(self.orders())}\n{log}"
            time.sleep(0.05)

    @contextmanager
    def worker(self) -> Iterator[subprocess.Popen[bytes]]:
        command = ["-A", "tests.celery.shop", "worker", "-P", "prefork", "-c", "2", "-l", "INFO"]
        # Most processes are forked while the worker receives, which no thread survives.
        command += ["--max-tasks-per-child", "4"]
        with self.log.open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "celery", *command, "-n", f"{os.getpid()}@localhost"],
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()
            process.wait()


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    shop_world = Shop(tmp_path)
    shop_world.settings.write_text(SETTINGS)
    with shop_world.primary as primary, shop_world.secondary as secondary:
        monkeypatch.setenv("TWINBUS_CONFIG", str(shop_world.settings))
        monkeypatch.setenv("EU_PRIMARY", primary.connection_string())
        monkeypatch.setenv("EU_SECONDARY", secondary.connection_string())
        monkeypatch.setenv("SHOP_BOOK", str(shop_world.book))
        # Without a pool of connections: the next test has another world behind the same URL.
        shop.app.conf.broker_pool_limit = None
        try:
            yield shop_world
        finally:
            close_process_pairs()


def test_tasks_sent_in_an_outage_run_afterwards_and_none_is_lost(world: Shop) -> None:
    signal = world.directory / "signal"
    with world.worker() as worker:
        before = [f"before {number}" for number in range(5)]
        for order in before:
            shop.record.delay(order)
        shop.record_later.delay("from a worker", str(signal))
        world.wait_for(*before, "from a worker begins")

        world.primary.kill9()
        signal.touch()
        meanwhile = [f"meanwhile {number}" for number in range(20)]
        for order in meanwhile:
            shop.record.delay(order)
        # The backlog has them: nobody could have received them.
        assert not set(meanwhile) & world.orders()

        world.primary.restart()
        shop.record.delay("after")
        world.wait_for(*before, *meanwhile, "from a worker", "after")
        worker.terminate()
        assert worker.wait(PATIENCE_S) == 0, world.log.read_text()
    assert "Traceback" not in world.log.read_text()


def left(side: ServedBroker) -> int:
    with administration(side.connection_string()) as admin:
        return admin.get_queue_runtime_properties("celery").total_message_count or 0


def test_with_a_twin_the_worker_goes_on_while_the_primary_is_down(world: Shop) -> None:
    world.settings.write_text(SETTINGS + TWINS)
    with administration(world.primary.connection_string()) as admin:
        admin.create_queue("celery")
    made = run_twinbus("twins", "create", "--pair", "eu")
    assert made.returncode == 0, made.stderr
    with world.worker() as worker:
        shop.record.delay("before")
        world.wait_for("before")
        # A task whose acknowledgement the kill catches would run again.
        world.wait(lambda: left(world.primary) == 0)
        world.primary.kill9()
        meanwhile = [f"meanwhile {number}" for number in range(20)]
        for order in meanwhile:
            shop.record.delay(order)
        world.wait_for(*meanwhile)

        world.primary.restart()
        shop.record.delay("after")
        world.wait_for("after")
        worker.terminate()
        assert worker.wait(PATIENCE_S) == 0, world.log.read_text()
    assert "Traceback" not in world.log.read_text()
    # One worker: nothing ran twice, and the twin is empty.
    assert sorted(world.book.read_text().splitlines()) == sorted(["before", *meanwhile, "after"])
    assert (left(world.primary), left(world.secondary)) == (0, 0)
