"""Registers the tables in a catalog, as external Delta tables: `publish` for notebooks and jobs.

Only the address is registered: each later set is in the catalog at once. Names and comments of the
columns are those in the tables' own logs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from urllib.parse import unquote, urlsplit

from twinbus.ledger.record import LedgerError
from twinbus.pipeline.store.lake import SETS, Snapshot

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from twinbus.pipeline.store.store import TableStore

_NO_DELTA: Final = ("DATA_SOURCE_NOT_FOUND", "DELTA_CONFIGURE_SPARK_SESSION")


def registered(store: TableStore, snapshot: Snapshot, schema: str) -> list[str]:
    """Register the tables of a snapshot, and `sets`, in a schema; return their names."""
    return [_register(store, schema, table) for table in (SETS, *sorted(snapshot.versions))]


def _register(store: TableStore, schema: str, table: str) -> str:
    name, place = f"{schema}.{table}", f"{store.place}/{table}"
    try:
        store.session.sql(
            f"CREATE TABLE IF NOT EXISTS {name} USING delta LOCATION {_text(place)}"
        ).collect()
        found = _location(store.session, name)
    except Exception as error:
        # By its text: a classic session raises what Java raised.
        if any(one in str(error) for one in _NO_DELTA):
            raise LedgerError(
                f"{name} was not made: this session has no Delta; start it with the jars of"
                " io.delta:delta-spark, Delta's extension and its catalog"
            ) from error
        raise
    if _plain(found) != _plain(place):
        raise LedgerError(
            f"{name} is another table, at {found or 'no place of its own'}: name another schema, or"
            " drop that table"
        )
    return name


def _location(spark: SparkSession, name: str) -> str:
    """Return the address of a table or view of a catalog; "" if it has none."""
    rows = spark.sql(f"DESCRIBE TABLE EXTENDED {name}").collect()
    return next((row["data_type"] for row in rows if row["col_name"] == "Location"), "")


def _text(text: str) -> str:
    """Return a text as SQL."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def _plain(place: str) -> tuple[str, str, str]:
    """Return an address in one form: catalogs write `file:///a%20b` for `file:/a b`."""
    parts = urlsplit(place)
    return parts.scheme or "file", parts.netloc, unquote(parts.path).rstrip("/")
