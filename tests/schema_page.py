"""Writes docs/schema.md from the schemas of the tables: python -m tests.schema_page.

`tests/unit/pipeline/test_schema_page.py` holds that the page is up to date.
"""

from __future__ import annotations

from pathlib import Path

from twinbus.pipeline.store.layout import kept_tables, stored_schemas
from twinbus.pipeline.tables.comments import TABLES

PAGE = Path(__file__).resolve().parents[1] / "docs" / "schema.md"

_HEAD = """\
# The tables and their columns

This page is for users who query the tables: every stored table, every column, its type and its
meaning. [Tables](tables.md) says how they are made and how other tools read them. The comments are
also in the catalog of the tables (Delta's log), and in the schemas of the DataFrames that
`twinbus.pipeline.read_tables` returns.

Sums are marked: of several rows with the same other columns, add them up.

`python -m tests.schema_page` writes this page from the schemas in `twinbus.pipeline.tables`.
"""


def page() -> str:
    """The text of the page."""
    sums = {table.name: table.sums for table in kept_tables()}
    parts = [_HEAD]
    for name, schema in stored_schemas().items():
        rows = [
            f"| `{one.name}` | {one.dataType.simpleString()}"
            f"{', sum' if one.name in sums.get(name, ()) else ''} | {one.metadata['comment']} |"
            for one in schema
        ]
        head = ["| column | type | meaning |", "|---|---|---|"]
        parts.append("\n".join([f"## {name}", "", TABLES[name], "", *head, *rows, ""]))
    return "\n".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page())
