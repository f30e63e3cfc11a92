"""Bronze: the lines of a ledger as records, and what is no record set aside and counted.

A line is judged on its own: a torn one, a file of a later version or a foreign file in the folder
never cost a record of another line.

    torn       it begins as a record does and is cut off: a crash, or a writer at work
    newer      it is of a later version than this Twinbus reads
    foreign    anything else: damaged, or not ours

Files are `<process>-<number>.jsonl`, or `.jsonl.open` while they are written (`ledger.files`), or
`.jsonl.gz`. Lines about the writer of a file (`ledger.facts`) are neither records nor set aside.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from pyspark.errors import AnalysisException
from pyspark.sql import functions as F
from pyspark.sql.types import DateType, StringType, StructField, StructType

from twinbus.ledger.record import FILE_SUFFIX, OPEN_SUFFIX, REQUIRED, VERSION, WRITER, LedgerError
from twinbus.pipeline.tables.schemas import CORRUPT, LEDGER, day_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

ENDED_FILES: Final = f"*{FILE_SUFFIX}"
"""They never change again: a stream takes each of them once."""

OPEN_FILES: Final = f"*{FILE_SUFFIX}{OPEN_SUFFIX}"
ALL_FILES: Final = f"*{FILE_SUFFIX}{{,{OPEN_SUFFIX},.gz}}"

REASONS: Final = ("torn", "newer", "foreign")
"""Why a line is set aside."""

LINES: Final = StructType([*LEDGER.fields, StructField(CORRUPT, StringType())])
"""A line as Spark reads it: one that is no JSON of the schema is in the column `CORRUPT`."""

STORED_RECORDS: Final = StructType([*LEDGER.fields, StructField("day", DateType())])
"""Records as they are stored, by day and pair."""

READING: Final = {
    "mode": "PERMISSIVE",
    "columnNameOfCorruptRecord": CORRUPT,
    "encoding": "UTF-8",
    "lineSep": "\n",
}
"""How Spark is to read lines, in a batch and in a stream."""

_BEGINNING: Final = '{"v":'

BOUNDS: Final = {
    # Up to the year 2999: reports also name times after the last one, and dates end with 9999.
    "at_ms": 32_503_679_999_999,
    "size_bytes": 1 << 40,
    "unrecorded": 1 << 40,
}
"""The most that a number may be (the least is 0): past these, sums would overflow and take the
good records with them."""


def read_ledger(
    spark: SparkSession,
    ledger: Path | str,
    *,
    files: str = ALL_FILES,
    refused: Collection[str] = (),
) -> DataFrame:
    """Every line of a ledger in a directory or at a Hadoop URL, as `LINES`.

    `files` is a pattern for the names to read, `refused` are names to leave out. Keep the lines
    (`cache`) or write them before they are counted: a query of a few columns reads only those, and
    does not see what is wrong with the others.
    """
    location = location_of(ledger, files)
    try:
        lines = spark.read.json(location, schema=LINES, pathGlobFilter=files, **READING)
        return without_files(lines, refused)
    except AnalysisException as error:
        if error.getCondition() != "PATH_NOT_FOUND":
            raise
        raise LedgerError(f"there is no ledger at {ledger}: nothing is there") from None


def location_of(ledger: Path | str, files: str = ALL_FILES) -> str:
    """The ledger's place as Spark wants it; an error if it is a directory without such files."""
    location = str(ledger)
    if "://" in location:
        return location
    directory = Path(location).absolute()
    if not any(any(directory.glob(pattern)) for pattern in _alternatives(files)):
        raise LedgerError(f"there is no ledger at {directory}: no file {files} is there")
    # A local path, whatever Spark's default file system is, and no pattern.
    return "file:" + re.sub(r"([\\{}\[\]*?,])", r"\\\1", str(directory))


def without_files(lines: DataFrame, refused: Collection[str]) -> DataFrame:
    """The lines of the files that count; names are not those of paths, in which Spark escapes."""
    if not refused:
        return lines
    names = {form for name in refused for form in (name, quote(name))}
    return lines.where(~F.col("_metadata.file_name").isin(*sorted(names)))


def reason() -> Column:
    """Why a line is set aside, one of `REASONS`; null for a record; `WRITER` for a line about the
    ledger itself, which is neither.
    """
    whole = F.col(CORRUPT).isNull() & (F.col("v") == VERSION)
    for name in REQUIRED:
        whole &= F.col(name).isNotNull()
    for name, most in BOUNDS.items():
        whole &= F.coalesce(F.col(name), F.lit(0)).between(0, most)
    line = F.col(CORRUPT)
    # Only asked of lines that are no record: they may take their time.
    json = F.try_parse_json(line)
    version = F.coalesce(F.try_variant_get(json, "$.v", "bigint"), F.col("v"))
    begins = F.startswith(line, F.lit(_BEGINNING)) | F.startswith(F.lit(_BEGINNING), line)
    # The column `v` is null in a line that is no record, and so would be the answer.
    return (
        F.when(F.coalesce(whole & (F.col("operation") == WRITER), F.lit(False)), F.lit(WRITER))
        .when(F.coalesce(whole, F.lit(False)), F.lit(None))
        .when(F.coalesce(version > VERSION, F.lit(False)), F.lit("newer"))
        .when(json.isNull() & F.coalesce(begins, F.lit(False)), F.lit("torn"))
        .otherwise(F.lit("foreign"))
    )


def records_of(lines: DataFrame) -> DataFrame:
    """The records among the lines, as `schemas.LEDGER`."""
    return lines.where(reason().isNull()).drop(CORRUPT)


def stored(records: DataFrame) -> DataFrame:
    """Records with the day that they are stored by."""
    return records.withColumn("day", day_of(F.col("at_ms")))


def line_counts(why: Column) -> list[Column]:
    """For one pass over lines: how many are records, and how many there are of each reason."""
    return [
        F.count_if(why.isNull()).alias("records"),
        *(F.count_if(why == one).alias(one) for one in REASONS),
    ]


def set_aside(counts: Mapping[str, int]) -> dict[str, int]:
    """What `line_counts` came to, the reasons that occurred."""
    return {one: counts[one] for one in REASONS if counts[one]}


def _alternatives(files: str) -> list[str]:
    """A pattern with one `{a,b}` as those without: Python's does not know them."""
    found = re.fullmatch(r"(.*)\{(.*)\}(.*)", files)
    if found is None:
        return [files]
    before, choices, after = found.groups()
    return [f"{before}{choice}{after}" for choice in choices.split(",")]
