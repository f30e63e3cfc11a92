"""Cables that fail in ways that no switch inside a server does: nothing accepted is lost."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cables.subjects import SUBJECTS
from tests.cables.world import FAULTS

SHORT_S, LONG_S = 5.0, 60.0
SHORT = ("one way, to the primary", "cut every 3 s")
"""The others take longer to end."""

LOCK_S, LONG_LOCK_S = 5.0, 60.0

END_S = 600.0
"""No promise: an end of patience."""

OWN = ("unshare", "--net", "--mount")
"""What a world needs of its own."""

pytestmark = pytest.mark.end_to_end


def missing() -> str | None:
    """Why there can be no cable here."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if not Path("/dev/net/tun").exists():
        return "a cable needs /dev/net/tun"
    if absent := [name for name in ("ip", "unshare") if shutil.which(name) is None]:
        return f"{' and '.join(absent)} is not installed"
    tried = subprocess.run([*OWN, "true"], check=False, capture_output=True)
    return "this system makes no network and mount namespaces" if tried.returncode else None


@pytest.fixture(scope="module", autouse=True)
def root() -> None:
    if why := missing():
        pytest.skip(why)


def suffered(subject: str, fault: str, fault_s: float, lock_s: float = LOCK_S) -> dict[str, Any]:
    """What the fault did to the subject, in a world of its own; also a row of the table."""
    words = [sys.executable, "-m", "tests.cables", subject, fault, str(fault_s), str(lock_s)]
    ended = subprocess.run(
        [*OWN, *words],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=END_S,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-4_000:]
    result: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    sys.stdout.write(
        f"{subject:12} {fault:32} accepted {result['accepted']:6,}  refused {result['refused']:4,}"
        f"  lost {result['lost']}  held {result['held']}  late {result['late']}"
        f"  longest {result['longest_s']:5.1f} s\n"
    )
    return result


def hold(result: dict[str, Any]) -> None:
    assert result["struck"] > 0
    assert result["accepted"] > 0
    assert result["lost"] == 0
    assert result["held"] == 0
    assert result["late"] == 0


@pytest.mark.parametrize("fault", SHORT)
def test_a_bad_cable_loses_nothing_and_every_call_ends(fault: str) -> None:
    hold(suffered("pair", fault, SHORT_S))


@pytest.mark.soak
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("subject", SUBJECTS)
def test_no_bad_cable_takes_anything_from_anybody(subject: str, fault: str) -> None:
    hold(suffered(subject, fault, SHORT_S))


@pytest.mark.soak
@pytest.mark.parametrize("fault", FAULTS)
def test_a_cable_that_is_bad_for_long_loses_nothing(fault: str) -> None:
    hold(suffered("pair", fault, LONG_S))


@pytest.mark.soak
@pytest.mark.parametrize("fault", FAULTS)
def test_nothing_is_lost_with_a_long_lock_either(fault: str) -> None:
    hold(suffered("pair", fault, SHORT_S, LONG_LOCK_S))
