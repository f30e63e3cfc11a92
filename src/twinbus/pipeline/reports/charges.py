"""From the gold tables and a price book to a `ChargesReport`."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from twinbus.cost.arithmetic import SETTLEMENTS, CountingRule, idle_syphon_operations
from twinbus.cost.bill import MonthUse, ServiceTier
from twinbus.cost.bill import bill as month_bill
from twinbus.pipeline import functions as F
from twinbus.pipeline.reports import documents
from twinbus.pipeline.reports.ledger_tables import (
    by_day,
    lines_of,
    of_entity,
    scope_of,
)
from twinbus.pipeline.reports.scope import from_sums, unread, whole_days
from twinbus.pipeline.reports.values import MonthlySum, bill, charges_by_kind, month_uses
from twinbus.pipeline.spark.few_rows import collected
from twinbus.pipeline.spark.kept_rows import kept
from twinbus.pipeline.tables.charges import (
    MESSAGE_STAGES,
    SUMS,
    beside_model,
    monthly,
    receives_by_view,
    with_receives,
)
from twinbus.pipeline.tables.records import LABEL
from twinbus.pipeline.tables.schemas import day_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from decimal import Decimal

    from pyspark.sql import DataFrame, Row

    from twinbus.cost.prices import PriceBook
    from twinbus.pipeline.reports.ledger_tables import LedgerTables
    from twinbus.pipeline.reports.values import Bill

LINES_MAX: Final = 100_000
"""Maximum rows of charges in a report: some tens of MB of CSV. Sums include all rows."""

ENTITIES_MAX: Final = 10_000

POLL_S: Final = 900
"""The documented poll interval of an idle syphon. With another `syphon_poll` the ledger's figure
differs from the model's."""

_TABLES: Final = ("lines", "traffic", "states", "charges", "deliveries")

_STAGE_NAMES: Final = {
    "send_backlog": "send to the backlog",
    "receive_backlog": "receive from the backlog",
    "send_twin": "send to a twin",
    "receive_twin": "receive from a twin",
    "send_primary": "send to the primary",
    "receive_primary": "receive from the primary",
}


def charges_report(
    tables: LedgerTables, request: documents.ReportRequest, prices: PriceBook, rule: CountingRule
) -> documents.ChargesReport:
    tables.bring(*_TABLES)
    scope = scope_of(tables, request, lines_of(tables, request))
    counted, deliveries = _counted(tables, request)
    with kept({"charges": counted}, likely_few=tables.is_small) as there:
        table = there["charges"]
        found = collected(
            {
                "months": monthly(table),
                "lines": _lines(table).limit(LINES_MAX),
                "line_count": _lines(table).agg(F.count("*").alias("rows")),
                "entities": _entities(table).limit(ENTITIES_MAX),
                "entity_count": _entities(table).agg(F.count("*").alias("rows")),
                "receives": receives_by_view(_recorded(tables, request)),
                "days": _days(table, rule),
                "stages": beside_model(table, deliveries),
                "polls": _polls(table),
                "polled": _polled(tables, request),
            }
        )
    sums = [MonthlySum(*row) for row in found["months"]]
    receives = {row["view"]: row["units"] for row in found["receives"]}
    return replace(
        _summary(sums, request, prices, rule, scope),
        by_day=tuple(sorted(documents.DayUnits(*row) for row in found["days"])),
        by_entity=tuple(documents.EntityUnits(*row) for row in found["entities"]),
        entities=found["entity_count"][0]["rows"],
        lines=tuple(documents.ChargeLine(*row) for row in found["lines"]),
        lines_left_out=found["line_count"][0]["rows"] - len(found["lines"]),
        prices=tuple(_prices(month_uses(sums, rule), prices)),
        recorded_receives=receives.get("client", 0),
        broker_receives=receives.get("broker", 0),
        model=tuple(_model(found["stages"], found["polls"][0], found["polled"][0])),
    )


def charges_summary(
    tables: LedgerTables,
    request: documents.ReportRequest,
    prices: PriceBook,
    rule: CountingRule,
    scope: documents.ReportScope,
) -> documents.ChargesReport:
    """The report's sums and bill, without its lines, entities, days, prices and model."""
    tables.bring(*_TABLES)
    rows = monthly(_counted(tables, request)[0]).collect()
    return _summary([MonthlySum(*row) for row in rows], request, prices, rule, scope)


def _counted(tables: LedgerTables, request: documents.ReportRequest) -> tuple[DataFrame, DataFrame]:
    """The charges in scope, with receives, and the deliveries."""
    deliveries = by_day(of_entity(tables.table("deliveries"), request), request)
    return with_receives(_recorded(tables, request), deliveries), deliveries


def _recorded(tables: LedgerTables, request: documents.ReportRequest) -> DataFrame:
    return by_day(of_entity(tables.table("charges"), request, "entity"), request)


def _summary(
    sums: Sequence[MonthlySum],
    request: documents.ReportRequest,
    prices: PriceBook,
    rule: CountingRule,
    scope: documents.ReportScope,
) -> documents.ChargesReport:
    money = bill(sums, prices, rule)
    return documents.ChargesReport(
        scope=scope,
        operations=sum(row.operations for row in sums),
        units=sum(row.units for row in sums),
        bytes_in=sum(row.bytes_in for row in sums),
        bytes_out=sum(row.bytes_out for row in sums),
        by_kind=charges_by_kind(sums),
        bill=money,
        unknown=(*_unknown(money), *unread(scope)),
        assumed=(*whole_days(request), *_assumed(sums, prices), *from_sums(scope)),
    )


def _lines(table: DataFrame) -> DataFrame:
    keys = [name for name in documents.ChargeLine._fields if name not in SUMS]
    summed = table.groupBy(*keys).agg(*(F.sum(name).alias(name) for name in SUMS))
    return summed.select(*documents.ChargeLine._fields).orderBy(*keys)


def _entities(table: DataFrame) -> DataFrame:
    summed = table.groupBy(F.lower("entity").alias("entity"), LABEL).agg(
        F.sum("operations").alias("operations"), F.sum("units").alias("units")
    )
    return summed.select(*documents.EntityUnits._fields).orderBy(
        F.col("units").desc(), "entity", LABEL
    )


def _days(table: DataFrame, rule: CountingRule) -> DataFrame:
    if not rule.count_settlement:
        table = table.where(~F.col("operation").isin(*SETTLEMENTS))
    return table.groupBy("day", "cause").agg(F.sum("units").alias("units"))


def _prices(months: Sequence[MonthUse], prices: PriceBook) -> Iterator[documents.PriceLine]:
    """The cost of the months in each tier, of what the ledger records."""
    for tier in ServiceTier:
        sums: dict[tuple[str, str, str], tuple[int, Decimal | None]] = {}
        for use in months:
            for line in month_bill(use, tier, prices).lines:
                if line.name == "connections":
                    continue
                quantity, amount = sums.get(key := (line.name, line.unit, line.note), (0, None))
                if line.amount is not None:
                    amount = line.amount if amount is None else amount + line.amount
                sums[key] = quantity + line.quantity, amount
        for (name, unit, note), (quantity, amount) in sums.items():
            yield documents.PriceLine(tier.value, name, f"{quantity:,} {unit}", amount, note)


def _polled(tables: LedgerTables, request: documents.ReportRequest) -> DataFrame:
    """Return one row: when the first and the last empty poll ended, in seconds."""
    polled = tables.table("traffic").where(F.col("polls") > 0)
    days = polled.withColumn("day", day_of(F.col("at_s") * 1000))
    return by_day(days, request).agg(F.min("at_s").alias("first_s"), F.max("at_s").alias("last_s"))


def _polls(table: DataFrame) -> DataFrame:
    """Return one row: the polls, and of how many queues."""
    return table.where(F.col("stage") == "poll").agg(
        F.sum("operations").alias("polls"), F.count_distinct("entity").alias("queues")
    )


def _model(stages: Sequence[Row], polled: Row, times: Row) -> Iterator[documents.ModelLine]:
    """The documented arithmetic beside the ledger: the stages of messages, and idle polls."""
    found = {row["stage"]: row for row in stages}
    for stage in MESSAGE_STAGES:
        if stage in found:
            yield _stage(stage, found[stage])
    polls, queues, first_s = polled["polls"], polled["queues"], times["first_s"]
    if polls:
        # A poll is recorded at its end.
        polled_s = 0 if first_s is None else times["last_s"] - first_s + POLL_S
        model = idle_syphon_operations(queue_count=queues, poll_s=POLL_S, period_s=polled_s)
        note = f"one for each of {queues} queues every {POLL_S:g} s, for {polled_s:g} s"
        yield documents.ModelLine("polls that found nothing", model, polls, note)


def _stage(stage: str, row: Any) -> documents.ModelLine:
    assumed = row["assumed_units"]
    note = f"{assumed:,} of them assumed, one for each message without a receipt" if assumed else ""
    return documents.ModelLine(_STAGE_NAMES[stage], row["model_units"], row["units"], note)


def _unknown(money: Bill) -> Iterator[str]:
    if money.bytes_out and money.egress_amount is None:
        yield "what traffic out of the region costs: the price book has no price for it"
    yield "connections, and operations of programs that keep no ledger, are in no figure"


def _assumed(sums: Sequence[MonthlySum], prices: PriceBook) -> Iterator[str]:
    yield "operations that failed are not charged, those without an answer are"
    receives = sum(row.operations for row in sums if row.assumed)
    if receives:
        yield (
            f"{receives:,} receives by consumers, one for each delivered message of entities and"
            " days without recorded receives"
        )
    yield (
        f"prices of {prices.region} of {prices.retrieved}, without discounts or taxes; tiers and"
        " free operations are those of whole months, in which nothing else was done"
    )
    yield "Premium is counted as 1 messaging unit in each of two namespaces for whole months"
    yield (
        "the documented model: an idle syphon polls 10 queues 40 times an hour, 960 a day, 28,800"
        " in 30 days; a message that the syphon moved is charged four stages, another one two"
    )
