"""The comments of the tables: every column has one, and the page of the site shows them."""

from __future__ import annotations

from docs_pages import schema_page
from twinbus.pipeline.tables import gold
from twinbus.pipeline.tables.gold import stored_schemas


def test_the_page_has_every_column_with_its_comment() -> None:
    sections = dict(part.split("\n", 1) for part in schema_page().split("\n## ")[1:])
    assert sections.keys() == stored_schemas().keys()
    for name, schema in stored_schemas().items():
        for column in schema:
            line = f"| `{column.name}` | {column.dataType.simpleString()}"
            assert line in sections[name]
            assert column.metadata["comment"] in sections[name]


def test_every_table_and_column_has_a_comment_and_none_is_left_over() -> None:
    schemas = stored_schemas()
    assert gold.TABLE_COMMENTS.keys() == schemas.keys()
    assert all(one.metadata["comment"] for schema in schemas.values() for one in schema)
    own = {(table, name) for table, columns in gold._COUNTED.items() for name in columns}
    there = {(table, name) for table, schema in schemas.items() for name in schema.fieldNames()}
    assert own <= there
    assert gold._COLUMNS.keys() == {name for _, name in there - own}
