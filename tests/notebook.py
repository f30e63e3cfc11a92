"""Runs the notebook in docs/ without Jupyter.

    python -m tests.notebook

writes its outputs into the file. `tests/spark/test_other_tools.py` holds that they are up to date.
"""

from __future__ import annotations

import ast
import json
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

NOTEBOOK = Path(__file__).resolve().parents[1] / "docs" / "outage.ipynb"

Document = dict[str, Any]


def code_cells(document: Document) -> list[Document]:
    """The cells that are run."""
    return [cell for cell in document["cells"] if cell["cell_type"] == "code"]


def run(document: Document) -> list[str]:
    """What each code cell prints."""
    names: dict[str, Any] = {}
    printed = []
    for cell in code_cells(document):
        output = StringIO()
        with redirect_stdout(output):
            exec(compile(ast.parse("".join(cell["source"])), "cell", "exec"), names)
        printed.append(output.getvalue())
    return printed


def printed_in(document: Document) -> list[str]:
    """What each code cell printed when its outputs were written."""
    return [
        "".join("".join(output["text"]) for output in cell["outputs"])
        for cell in code_cells(document)
    ]


def with_outputs(document: Document) -> Document:
    """The document after it was run; changes it in place."""
    for number, (cell, text) in enumerate(zip(code_cells(document), run(document), strict=True), 1):
        cell["execution_count"] = number
        stream = {"name": "stdout", "output_type": "stream", "text": text.splitlines(keepends=True)}
        cell["outputs"] = [stream] if text else []
    return document


if __name__ == "__main__":
    ran = with_outputs(json.loads(NOTEBOOK.read_text()))
    NOTEBOOK.write_text(json.dumps(ran, indent=1, ensure_ascii=False) + "\n")
