"""Bronze: reads the lines of a ledger as records, and rejects and counts all other lines.

Each line is judged alone, and `core.lines` has the reasons.

Files are `<process>-<number>.jsonl`, or `.jsonl.open` while they are written (`ledger.files`), or
`.jsonl.gz`. Lines about the writer of a file (`ledger.facts`) are neither records nor rejected.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from pyspark.errors import AnalysisException
from pyspark.sql import functions as F
from pyspark.sql.types import DateType, LongType, StringType, StructField, StructType

from twinbus.ledger.record import FILE_SUFFIX, OPEN_SUFFIX, REQUIRED, VERSION, WRITER, LedgerError
from twinbus.pipeline.core.lines import BEGINNING, BOUNDS, REASONS
from twinbus.pipeline.tables.schemas import CORRUPT, LEDGER

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

OPEN_FILES: Final = f"*{FILE_SUFFIX}{OPEN_SUFFIX}"
ALL_FILES: Final = f"*{FILE_SUFFIX}{{,{OPEN_SUFFIX},.gz}}"

LINES: Final = StructType([*LEDGER.fields, StructField(CORRUPT, StringType())])
"""A line as Spark reads it; a line that does not fit the schema is in the column `CORRUPT`."""

STORED_RECORDS: Final = StructType(
    [
        *(StructField(one.name, one.dataType, one.name not in REQUIRED) for one in LEDGER),
        StructField("day", DateType(), nullable=False),
        StructField("file", StringType()),
        StructField("batch", LongType()),
        StructField("taken_ms", LongType()),
    ]
)
"""Records as they are stored, with their day, and with the file and the batch that brought them.

Tables of earlier versions have null in the last three.
"""

READING: Final = {
    "mode": "PERMISSIVE",
    "columnNameOfCorruptRecord": CORRUPT,
    "encoding": "UTF-8",
    "lineSep": "\n",
}
"""Options for Spark's reader."""


def read_ledger(
    spark: SparkSession,
    ledger: Path | str,
    *,
    files: str = ALL_FILES,
    refused: Collection[str] = (),
) -> DataFrame:
    """Return every line of a ledger in a directory or at a Hadoop URL, as `LINES`.

    `files` is a pattern for the names to read, `refused` are names to leave out. Cache or write the
    lines before counting: a query of a few columns reads only those, and does not notice errors in
    others.
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
    """Return the ledger's place for Spark; LedgerError for a directory without such files."""
    location = str(ledger)
    if "://" in location:
        return location
    directory = Path(location).absolute()
    if not any(any(directory.glob(pattern)) for pattern in _alternatives(files)):
        raise LedgerError(f"there is no ledger at {directory}: no file {files} is there")
    # A local path, whatever Spark's default file system is, and no pattern.
    return "file:" + re.sub(r"([\\{}\[\]*?,])", r"\\\1", str(directory))


def without_files(lines: DataFrame, refused: Collection[str]) -> DataFrame:
    """Return the lines of all files but the refused ones, whose names Spark may escape."""
    if not refused:
        return lines
    names = {form for name in refused for form in (name, quote(name))}
    return lines.where(~F.col("_metadata.file_name").isin(*sorted(names)))


def reason() -> Column:
    """Return why a line is rejected, one of `REASONS`; null for a record; `WRITER` for a line about
    the ledger itself, which is neither.
    """
    whole = F.col(CORRUPT).isNull() & (F.col("v") == VERSION)
    for name in REQUIRED:
        whole &= F.col(name).isNotNull()
    for name, most in BOUNDS.items():
        whole &= F.coalesce(F.col(name), F.lit(0)).between(0, most)
    line = F.col(CORRUPT)
    # Computed only for rejected lines, so it may be slow.
    json = F.try_parse_json(line)
    version = F.coalesce(F.try_variant_get(json, "$.v", "bigint"), F.col("v"))
    begins = F.startswith(line, F.lit(BEGINNING)) | F.startswith(F.lit(BEGINNING), line)
    # The column `v` is null in a rejected line, and so would be the result.
    return (
        F.when(F.coalesce(whole & (F.col("operation") == WRITER), F.lit(False)), F.lit(WRITER))
        .when(F.coalesce(whole, F.lit(False)), F.lit(None))
        .when(F.coalesce(version > VERSION, F.lit(False)), F.lit("newer"))
        .when(json.isNull() & F.coalesce(begins, F.lit(False)), F.lit("torn"))
        .otherwise(F.lit("foreign"))
    )


def file_name() -> Column:
    """Return the name of the file that a line is from."""
    name = F.col("_metadata.file_name")
    # Spark escapes names as in a URL, where a plus is a plus.
    plain = F.url_decode(F.replace(name, F.lit("+"), F.lit("%2B")))
    return F.when(F.contains(name, F.lit("%")), plain).otherwise(name)


def records_of(lines: DataFrame) -> DataFrame:
    return lines.where(reason().isNull()).drop(CORRUPT)


def line_counts(why: Column) -> list[Column]:
    """Return aggregates over lines: the number of records, and of each reason."""
    return [
        F.count_if(why.isNull()).alias("records"),
        *(F.count_if(why == one).alias(one) for one in REASONS),
    ]


def rejected(counts: Mapping[str, int]) -> dict[str, int]:
    """Return the counts of rejected lines; reasons without lines are left out."""
    return {one: counts[one] for one in REASONS if counts[one]}


def _alternatives(files: str) -> list[str]:
    """Expand one `{a,b}` group; Python's glob has none."""
    found = re.fullmatch(r"(.*)\{(.*)\}(.*)", files)
    if found is None:
        return [files]
    before, choices, after = found.groups()
    return [f"{before}{choice}{after}" for choice in choices.split(",")]
