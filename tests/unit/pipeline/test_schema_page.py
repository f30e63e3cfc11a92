"""The comments of the tables: every column has one, and the page in docs/ shows them."""

from __future__ import annotations

from tests.schema_page import PAGE, page
from twinbus.pipeline.store.layout import stored_schemas
from twinbus.pipeline.tables import comments


def test_the_page_is_what_the_schemas_say() -> None:
    assert PAGE.read_text() == page(), "run: python -m tests.schema_page"


def test_every_table_and_column_has_a_comment_and_none_is_left_over() -> None:
    schemas = stored_schemas()
    assert comments.TABLES.keys() == schemas.keys()
    assert all(one.metadata["comment"] for schema in schemas.values() for one in schema)
    own = {(table, name) for table, columns in comments._COUNTED.items() for name in columns}
    there = {(table, name) for table, schema in schemas.items() for name in schema.fieldNames()}
    assert own <= there
    assert comments._COLUMNS.keys() == {name for _, name in there - own}
