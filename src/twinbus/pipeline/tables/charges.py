"""The table of charges: operations by day, namespace, entity, cause, stage and direction.

docs/costs.md states the rules.

    stage              what the call was for                                direction
    send_primary       a send, or a forward of the syphon                   in
    receive_primary    a receive by a consumer                              out
    send_backlog       a divert to a backlog queue                          in
    receive_backlog    a message that came out of a backlog queue           out
    send_twin          a divert to a twin                                   in
    receive_twin       a receive from a twin, by a consumer or the syphon   out
    poll               a receive that found nothing                         none
    ping               a ping                                               in
    settlement         complete, defer, dead-letter, abandon, release       none
    renew, management  a lock renewed; any other call                       none

A moved message is charged four of them (the two of the backlog or the twin, and the two of the
primary); a direct one two, and one that a consumer received from a twin the two of the twin. Rows
keep the outcome and the view, so that what is counted is decided on the sums: `counted` has the
rule. Money is put on the sums of whole months, for a price has tiers of a month.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from twinbus.cost.arithmetic import CHARGED_THOUGH_FAILED, UNCHARGED
from twinbus.pipeline import functions as F
from twinbus.pipeline.tables.conservation import in_backlog
from twinbus.pipeline.tables.records import (
    LABEL,
    destination_of,
    is_twin,
    joined,
    label_of,
    units_of,
)
from twinbus.pipeline.tables.schemas import CHARGES, DELIVERIES, day_of, field

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

SUMS: Final = ("operations", "units", "bytes")
KEYS: Final = tuple(name for name in CHARGES.fieldNames() if name not in SUMS)

NOT_CALLS: Final = (*sorted(UNCHARGED), "expire")
"""Operations that cost nothing: changes of state, and messages that expired."""

_STAGES: Final = {
    "divert": "send_backlog",
    "forward": "send_primary",
    "ping": "ping",
    "complete": "settlement",
    "defer": "settlement",
    "dead_letter": "settlement",
    "abandon": "settlement",
    "release": "settlement",
    "renew": "renew",
}
_INWARD: Final = ("send_primary", "send_backlog", "send_twin", "ping")
_RECEIVES: Final = ("receive_primary", "receive_twin")
_OUTWARD: Final = (*_RECEIVES, "receive_backlog")

DIRECT: Final = ("send_primary", "receive_primary")
BY_BACKLOG: Final = ("send_backlog", "receive_backlog")
BY_TWIN: Final = ("send_twin", "receive_twin")
MESSAGE_STAGES: Final = (*BY_BACKLOG, *BY_TWIN, *DIRECT)
"""The charged stages of messages by the documentation: a direct one has two, and so has one by a
twin; one that the syphon moved has two more."""


def charges(tallies: DataFrame) -> DataFrame:
    """Sum operations, units and bytes as recorded: of every outcome, and in both views."""
    about = F.coalesce("entity", "backlog_queue", F.lit(""))
    calls = tallies.where(~F.col("operation").isin(*NOT_CALLS)).select(
        day_of(F.col("at_ms")).alias("day"),
        # A call without an entity belongs to no pair.
        F.when(about != "", label_of()).otherwise(F.lit("")).alias(LABEL),
        field("namespace"),
        # A poll has a backlog queue and no entity.
        about.alias("entity"),
        field("cause"),
        "operation",
        _stage().alias("stage"),
        field("outcome"),
        field("view"),
        *("records", "units", "bytes"),
    )
    return _summed(calls.withColumn("assumed", F.lit(False)))


def counted(table: DataFrame) -> DataFrame:
    """Return the clients' rows that are charged, by the rule of `cost.arithmetic.is_charged`.

    A call that failed is not, unless it is a ping. Both are assumptions: what Azure charges for a
    refused call is not published.
    """
    is_charged = (F.col("outcome") != "failed") | F.col("operation").isin(*CHARGED_THOUGH_FAILED)
    return table.where((F.col("view") == "client") & is_charged)


def deliveries(journeys: DataFrame) -> DataFrame:
    """Count messages that their destination acknowledged, by day: a consumer receives them."""
    delivered = journeys.where(F.col("acknowledged") & F.col("delivered_ms").isNotNull())
    moved = F.col("forwards") > 0
    # The broker does not say who received from a twin: the syphon did, if it brought it home.
    by_broker = F.col("broker_received") & ~(F.col("twinned") & moved)
    return (
        delivered.groupBy(
            day_of(F.col("delivered_ms")).alias("day"),
            *(LABEL, "destination"),
            moved.alias("moved"),
            "twinned",
            (F.col("received") | by_broker).alias("received"),
        )
        .agg(
            F.count("*").alias("messages"),
            F.sum(units_of(F.col("size_bytes"))).alias("units"),
            F.sum("size_bytes").alias("bytes"),
        )
        .select(*DELIVERIES.fieldNames())
    )


def receives_of(deliveries: DataFrame) -> DataFrame:
    """Return charges for the receives of these deliveries, marked as assumed.

    A message whose receipt is recorded needs none.
    """
    at_twin = F.col("twinned") & ~F.col("moved")
    summed = (
        deliveries.where(~F.col("received"))
        .withColumn("stage", F.when(at_twin, "receive_twin").otherwise("receive_primary"))
        .groupBy("day", LABEL, F.col("destination").alias("entity"), "stage")
        .agg(
            F.sum("messages").alias("operations"),
            F.sum("units").alias("units"),
            F.sum("bytes").alias("bytes"),
        )
    )
    return summed.withColumns(
        {
            "namespace": F.lit(""),
            "cause": F.lit("consumer"),
            "operation": F.lit("receive"),
            "direction": F.lit("out"),
            "outcome": F.lit("ok"),
            "view": F.lit("client"),
            "assumed": F.lit(True),
        }
    ).select(*CHARGES.fieldNames())


def with_receives(table: DataFrame, deliveries: DataFrame) -> DataFrame:
    """Return the counted charges, with receives by consumers from the best source.

    For each destination and day: the broker, if its view has any; else the consumers themselves, if
    they kept a ledger; else one is assumed for each message delivered that day whose receipt is not
    recorded on another day.
    """
    placed = _placed(table)
    mine = counted(placed)
    by_consumers = mine.where(_received())
    by_broker = _by_broker(placed)
    seen = by_broker.select("day", LABEL, "destination").distinct()
    known = by_consumers.select("day", LABEL, "destination").union(seen).distinct()
    rest = _but_at(by_consumers, seen)
    recorded = mine.where(~_received()).unionByName(by_broker).unionByName(rest)
    return recorded.select(*CHARGES.fieldNames()).unionByName(
        receives_of(_but_at(deliveries, known))
    )


def _placed(table: DataFrame) -> DataFrame:
    """Return rows with their destination, and with the label of its clients."""
    placed = table.withColumn("destination", destination_of(F.col("entity")))
    # A request of a person's command names the namespace, which may be the secondary.
    is_sure = (F.col("view") == "client") & F.col("stage").isin(*MESSAGE_STAGES, "ping")
    return joined(placed, ["destination"], is_sure & (F.col(LABEL) != ""), otherwise=F.lit(""))


def _by_broker(placed: DataFrame) -> DataFrame:
    """Return the receives by consumers that the broker recorded.

    It does not know which of its entities are twins, nor that a syphon receives from them: clients
    do, and what the syphon received there is taken off. If the broker has another name for the
    secondary than the clients, the twin is in the one of its two namespaces that is not the
    primary.
    """
    stage, is_client = F.col("stage"), F.col("view") == "client"
    by_broker = _received() & (F.col("view") == "broker") & (F.col("outcome") != "failed")
    by_syphon = is_client & (F.col("operation") == "backlog_receive") & (stage == "receive_twin")
    namespace, place = F.lower("namespace"), F.Window.partitionBy("destination", LABEL)
    known = F.max(F.when(is_client & stage.isin(*BY_TWIN), namespace)).over(place)
    names = F.collect_set(F.when(by_broker, namespace)).over(place)
    others = F.array_except(F.col("names"), F.array(F.col(LABEL)))
    one_other = (F.size("names") == 2) & (F.size(others) == 1)
    twin = F.when(F.array_contains(F.col("names"), F.col("known")), F.col("known")).when(
        F.col("known").isNotNull() & one_other, F.get(others, F.lit(0))
    )
    found = (
        placed.withColumns(
            {
                "known": known,
                "names": names,
                "is_seen": F.max(by_broker).over(F.Window.partitionBy("destination", LABEL, "day")),
            }
        )
        .withColumn("twin", twin)
        .where(
            by_broker
            | (by_syphon & (F.col("outcome") != "failed") & F.col("is_seen"))
            & F.col("twin").isNotNull()
        )
    )
    is_twin_row = by_syphon | F.coalesce(namespace == F.col("twin"), F.lit(False))
    signed = {name: F.when(by_syphon, -F.col(name)).otherwise(F.col(name)) for name in SUMS}
    return found.withColumns(
        {
            "namespace": F.when(by_syphon, F.col("twin")).otherwise(F.col("namespace")),
            "stage": F.when(is_twin_row, F.lit("receive_twin")).otherwise(stage),
            "operation": F.lit("receive"),
            "cause": F.lit("consumer"),
            "view": F.lit("broker"),
            **signed,
        }
    ).select(*placed.columns)


def _but_at(rows: DataFrame, places: DataFrame) -> DataFrame:
    """Return rows of other destinations and days; a place without a label stands for all pairs."""
    one, other = rows.alias("one"), F.broadcast(places).alias("other")
    same = F.col("other.destination") == F.col("one.destination")
    same &= F.col("other.day") == F.col("one.day")
    same &= F.col(f"other.{LABEL}").isin(F.lit(""), F.col(f"one.{LABEL}"))
    return one.join(other, same, "left_anti")


def receives_by_view(table: DataFrame) -> DataFrame:
    """Return the units that receivers recorded (`client`) and that the broker sent (`broker`)."""
    placed = _placed(table)
    received = counted(placed).where(_received()).unionByName(_by_broker(placed))
    return received.groupBy("view").agg(F.sum("units").alias("units"))


def beside_model(table: DataFrame, deliveries: DataFrame) -> DataFrame:
    """Return the units of each stage of messages, as counted and by the documented model.

    The model: four stages for a delivered message that the syphon moved, two for any other; of the
    backlog or of the twin, by where it was. A message that still waits has been charged one stage
    and is in no model yet. `table` is what `with_receives` gives.
    """
    assumed = F.when(F.col("assumed"), F.col("units")).otherwise(0)
    facts = (
        table.where(F.col("stage").isin(*MESSAGE_STAGES))
        .groupBy("stage")
        .agg(F.sum("units").alias("units"), F.sum(assumed).alias("assumed_units"))
    )
    of_direct, of_backlog, of_twin, home_from_twin = (
        F.array(*map(F.lit, stages))
        for stages in (DIRECT, (*BY_BACKLOG, *DIRECT), BY_TWIN, (*BY_TWIN, *DIRECT))
    )
    at_twin = F.when(F.col("moved"), home_from_twin).otherwise(of_twin)
    stages = F.when(F.col("twinned"), at_twin).when(F.col("moved"), of_backlog).otherwise(of_direct)
    model = (
        deliveries.select(F.explode(stages).alias("stage"), "units")
        .groupBy("stage")
        .agg(F.sum("units").alias("model_units"))
    )
    joined = facts.join(model, "stage", "full")
    units = ("units", "assumed_units", "model_units")
    return joined.fillna(dict.fromkeys(units, 0)).select("stage", *units)


def monthly(table: DataFrame) -> DataFrame:
    """Rows for `bill.MonthlySum`: the price of a unit depends on how many its month had."""
    size, direction = F.col("bytes"), F.col("direction")
    return table.groupBy(
        F.date_format("day", "yyyy-MM").alias("month"), "cause", "operation", "assumed"
    ).agg(
        F.sum("operations").alias("operations"),
        F.sum("units").alias("units"),
        F.sum(F.when(direction == "in", size).otherwise(F.lit(0))).alias("bytes_in"),
        F.sum(F.when(direction == "out", size).otherwise(F.lit(0))).alias("bytes_out"),
    )


def _summed(calls: DataFrame) -> DataFrame:
    stage = F.col("stage")
    direction = F.when(stage.isin(*_INWARD), "in").when(stage.isin(*_OUTWARD), "out")
    # A call without a message is one unit, whatever size it was recorded with.
    is_empty, records = F.col("direction") == "none", F.col("records")
    return (
        calls.withColumn("direction", direction.otherwise("none"))
        .groupBy(*KEYS)
        .agg(
            F.sum(records).alias("operations"),
            F.sum(F.when(is_empty, records).otherwise(F.col("units"))).alias("units"),
            F.sum(F.when(is_empty, F.lit(0)).otherwise(F.col("bytes"))).alias("bytes"),
        )
        .select(*CHARGES.fieldNames())
    )


def _stage() -> Column:
    operation = F.col("operation")
    at_backlog = in_backlog(F.coalesce(F.col("entity"), F.lit("")))
    polled = (operation == "backlog_receive") & (F.col("cause") == "poll")
    # A consumer names the side that it received from.
    from_twin = (operation == "receive") & (field("side") == "secondary") & ~at_backlog
    from_twin |= (operation == "backlog_receive") & is_twin()
    stage = (
        F.when(polled, F.lit("poll"))
        .when(from_twin, F.lit("receive_twin"))
        .when((operation == "divert") & is_twin(), F.lit("send_twin"))
        .when(operation == "backlog_receive", F.lit("receive_backlog"))
    )
    for way in ("send", "receive"):
        stage = stage.when((operation == way) & at_backlog, F.lit(f"{way}_backlog"))
        stage = stage.when(operation == way, F.lit(f"{way}_primary"))
    for name, found in _STAGES.items():
        stage = stage.when(operation == name, F.lit(found))
    return stage.otherwise(F.lit("management"))


def _received() -> Column:
    """Return whether a row is about receives by consumers."""
    return F.col("stage").isin(*_RECEIVES) & (F.col("operation") == "receive")
