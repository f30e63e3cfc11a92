"""Each verb on each Spark, classic and over Connect, as a table: `make spark-matrix`.

python -m tests.spark.matrix PYTHON… [--mode classic|connect] [--only VERB]… [--output json]

Each PYTHON is that of an environment with one Spark. The exit status is 1 if a cell fails; the
tracebacks of such a cell go to standard error.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import Any, Final

from tests.spark.matrix_cells import MODES, VERBS

LIMIT_S: Final = 3_600.0
"""For one Spark in one mode; some minutes on an idle machine."""

Cell = dict[str, Any]


def main(words: Sequence[str]) -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("pythons", nargs="+", metavar="PYTHON")
    parser.add_argument("--mode", choices=MODES, action="append")
    parser.add_argument("--only", choices=VERBS, action="append", default=[])
    parser.add_argument("--output", choices=("text", "json"), default="text")
    given = parser.parse_args(words)
    cells = []
    for python in given.pythons:
        for mode in given.mode or MODES:
            for cell in _cells(python, mode, given.only):
                _say(f"{cell['spark']} {mode} {cell['verb']}: {cell['result']}, {cell['told']}")
                cells.append(cell)
    told = json.dumps(cells) if given.output == "json" else "\n".join(_table(cells))
    sys.stdout.write(f"{told}\n")
    return int(any(cell["result"] == "fails" for cell in cells))


def _cells(python: str, mode: str, only: Sequence[str]) -> Iterator[Cell]:
    """The cells of one Spark and mode, as they come; one that fails if it ends early."""
    with subprocess.Popen(
        [python, "-m", "tests.spark.matrix_cells", mode, *only], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        missing = list(only or VERBS)
        for line in process.stdout:
            cell: Cell = json.loads(line)
            missing.remove(cell["verb"])
            yield cell
    for verb in missing:
        ended = f"its process ended with status {process.returncode}"
        yield {"spark": python, "mode": mode, "verb": verb, "result": "fails", "told": ended}


def _table(cells: Sequence[Cell]) -> Iterator[str]:
    """The cells as Markdown, and the reasons of those that do not pass."""
    columns = list(dict.fromkeys((cell["spark"], cell["mode"]) for cell in cells))
    results = {(cell["spark"], cell["mode"], cell["verb"]): cell["result"] for cell in cells}
    yield "| | " + " | ".join(" ".join(column) for column in columns) + " |"
    yield "|---" * (len(columns) + 1) + "|"
    for verb in dict.fromkeys(cell["verb"] for cell in cells):
        row = (results.get((*column, verb), "") for column in columns)
        yield f"| {verb} | " + " | ".join(row) + " |"
    for cell in cells:
        if cell["result"] != "passes":
            yield f"{cell['spark']} {cell['mode']} {cell['verb']}: {cell['told']}"


def _say(text: str) -> None:
    sys.stderr.write(f"spark-matrix: {text}\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
