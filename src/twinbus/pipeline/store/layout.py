"""Which tables are kept, and their columns."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Final

from pyspark.sql.types import LongType, StructField, StructType

from twinbus.pipeline.tables import schemas
from twinbus.pipeline.tables.bronze import STORED_RECORDS
from twinbus.pipeline.tables.comments import commented
from twinbus.pipeline.tables.gold import NOTABLE, GoldTable, gold_tables

TABLES: Final = "_tables"
"""The directory of the tables in that of their ledger, unless another place is named."""

BRONZE: Final = "bronze"
"""Every record."""

JOURNEYS: Final = "journeys"
"""What each batch says of its messages."""

SUMS: Final = "sums"
"""All gold tables together, where people are told of them."""

STORED_JOURNEYS: Final = StructType(
    [*schemas.JOURNEYS.fields, StructField("key_hash", LongType(), nullable=False)]
)


def kept_tables() -> tuple[GoldTable, ...]:
    """Every table of sums that is kept, with the messages that can be named."""
    return (*gold_tables(), NOTABLE)


def stored_schemas() -> dict[str, StructType]:
    """The columns of every stored table, by name, each with its comment."""
    gold = {table.name: table.schema for table in kept_tables()}
    schemas = {BRONZE: STORED_RECORDS, JOURNEYS: STORED_JOURNEYS, **gold}
    return {name: commented(name, schema) for name, schema in schemas.items()}


def signature_of(tables: Sequence[GoldTable]) -> str:
    """A digest of names and columns: tables of other columns cannot be added to."""
    told = "\n".join(f"{table.name} {table.keys} {table.schema.json()}" for table in tables)
    return hashlib.sha256(told.encode()).hexdigest()[:16]
