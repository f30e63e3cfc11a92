"""What a person reads of a report: golden texts, tables and pages of hand-made instances."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from tests.unit.console.pages import assert_self_contained
from tests.unit.console.report import ledger_reports as made
from twinbus.console.report.availability_sheet import availability_sheet
from twinbus.console.report.charges_sheet import charges_sheet
from twinbus.console.report.sheets import conservation_sheet, csv_of, reconciliation_sheet, sheet_of
from twinbus.console.sheet import Bars, OutageChart, page_of, text_of
from twinbus.pipeline.reports.documents import NamedMessage, ReportVerdict, Sends

if TYPE_CHECKING:
    from twinbus.pipeline.reports.documents import LedgerReport

EVERY = [
    made.CONSERVED,
    made.LOST,
    made.UNDECIDED,
    made.CHARGES,
    made.AVAILABLE,
    made.STILL_OVER,
    made.ENDED_OVER,
    made.AGREED,
    made.DIFFERENT,
    made.ONE_VIEW,
]


@pytest.mark.parametrize(
    ("report", "verdict", "headline"),
    [
        (
            made.CONSERVED,
            ReportVerdict.GOOD,
            "nothing lost: 12,034 accepted = 12,030 delivered + 4 waiting",
        ),
        *(
            (
                holed,
                ReportVerdict.UNKNOWN,
                made.NOT_KNOWN,
            )
            for holed in (
                replace(made.CONSERVED, nameless=1),
                replace(made.CONSERVED, incomplete=("moved and not accepted",)),
                replace(made.CONSERVED, scope=replace(made.SCOPE, rejected={"torn": 1})),
                replace(made.CONSERVED, scope=replace(made.CONSERVED.scope, missing=("a file",))),
                replace(made.CONSERVED, scope=replace(made.SCOPE, rejected={"foreign": 1})),
                replace(made.CONSERVED, scope=replace(made.SCOPE, rejected={"newer": 1})),
                replace(made.CONSERVED, scope=replace(made.SCOPE, rejected={}, unrecorded=7)),
            )
        ),
        (
            made.LOST,
            ReportVerdict.BAD,
            "2 LOST: 12,034 accepted = 12,029 delivered + 2 dead-lettered + 1 expired + 2 lost",
        ),
        (
            made.UNDECIDED,
            ReportVerdict.UNKNOWN,
            "not known whether anything is lost: 12,034 accepted = 12,000 delivered + 34 undecided",
        ),
        (
            replace(made.CONSERVED, total=made.balance("", 0), entities=()),
            ReportVerdict.GOOD,
            "nothing lost: no message was accepted",
        ),
        (
            replace(
                made.LOST,
                total=made.balance("", 40, waiting=None, lost=None, undecided=1, delivered=38),
                lost_at_least=1,
            ),
            ReportVerdict.BAD,
            "at least 1 LOST: 40 accepted = 38 delivered + 1 lost + 1 undecided",
        ),
        (
            made.CHARGES,
            ReportVerdict.GOOD,
            (
                "0.020080 USD for 25,100 billed operations once the month's free ones are used up;"
                " 0.00 USD if these were its only ones"
            ),
        ),
        (
            made.AVAILABLE,
            ReportVerdict.GOOD,
            "2 failovers of 2 entities: 2,000 sends saved, 3 raised; all are back",
        ),
        (
            made.ENDED_OVER,
            ReportVerdict.GOOD,
            "1 failover of 1 entity: 1,500 sends saved, 3 raised; none is failed over now",
        ),
        (
            made.STILL_OVER,
            ReportVerdict.UNKNOWN,
            "STILL FAILED OVER: orders; 1,500 sends saved, 3 raised so far",
        ),
        (
            made.AGREED,
            ReportVerdict.GOOD,
            (
                "both views agree on 11,500 operations; the broker counts 1 more (divert),"
                " explained below"
            ),
        ),
        (
            made.DIFFERENT,
            ReportVerdict.BAD,
            "1 difference between the clients' view and the broker's, in 11,500 operations",
        ),
        (
            made.ONE_VIEW,
            ReportVerdict.UNKNOWN,
            "not known: the ledger has no record of the broker's view",
        ),
        # What is missing can tell that a message is not lost, or why the views differ.
        (
            replace(made.LOST, scope=replace(made.SCOPE, missing=("a file",))),
            ReportVerdict.UNKNOWN,
            (
                "not known whether anything is lost: 12,034 accepted = 12,029 delivered +"
                " 2 dead-lettered + 1 expired + 2 lost"
            ),
        ),
        (
            replace(
                made.CONSERVED,
                total=made.balance("", 0),
                entities=(),
                incomplete=("moved and not accepted",),
            ),
            ReportVerdict.UNKNOWN,
            "not known whether anything is lost: no record of an accepted message was read",
        ),
        (
            replace(made.DIFFERENT, scope=replace(made.SCOPE, missing=("a file",))),
            ReportVerdict.UNKNOWN,
            "not known: 1 difference in 11,500 operations, and records are missing",
        ),
        *(
            (
                holed,
                ReportVerdict.UNKNOWN,
                "not known: 0 differences in 11,500 operations, and records are missing",
            )
            for holed in (
                replace(made.AGREED, scope=made.SCOPE),
                replace(made.AGREED, is_compared=False),
                replace(made.AGREED, scope=replace(made.AGREED.scope, unrecorded=1)),
            )
        ),
    ],
)
def test_the_first_line_is_the_answer(
    report: LedgerReport, verdict: ReportVerdict, headline: str
) -> None:
    sheet = sheet_of(report)
    assert (sheet.verdict, sheet.headline) == (verdict, headline)
    assert text_of(sheet).splitlines()[0] == headline


def test_conservation_says_what_is_lost_by_id_and_what_to_do() -> None:
    assert (
        text_of(conservation_sheet(made.LOST))
        == """\
2 LOST: 12,034 accepted = 12,029 delivered + 2 dead-lettered + 1 expired + 2 lost
lost: o-17, o-18
2 messages dead-lettered: twinbus backlog dead-letters list
orders: 120 messages stayed in the backlog for up to 1 h 30 min; duplicates are detected for\
 10 min only, so copies of these were not recognised

By entity
  entity    accepted  delivered  waiting  dead-lettered  expired  lost  received  duplicates  raised
  orders      10,000      9,996        0              2        0     2     9,996           3       7
  payments     2,034      2,033        0              0        1     0     2,033           0       0
  all         12,034     12,029        0              2        1     2    12,029           3       7

Not delivered
  fate           entity    message id  accepted (UTC)
  lost           orders    o-17        2026-11-16 00:00:05
  lost           orders    o-18        2026-11-16 00:00:05
  expired        payments  p-3         2026-11-16 00:00:06
  dead-lettered  orders    o-99        2026-11-16 00:00:07
  dead-lettered  orders    �[31m<b>    –

Duplicates by window
  messages  why
         1  a send that had no answer was done again elsewhere
         2  the syphon forwarded it twice

Duplicates
  entity  message id  times  window
  orders  o-5             2  ambiguous
  orders  o-6             2  syphon
  orders  o-7             3  syphon

Read
  ledger /var/lib/app/ledger
  48,120 records from 2026-11-16 00:00:00 to 2026-11-16 01:00:00 UTC
  3 lines rejected: 2 foreign, 1 torn
  peeked into the backlog queues at 2026-11-16 01:00:01 UTC
"""
    )


def test_what_nobody_knows_is_called_unknown_and_not_0() -> None:
    text = text_of(conservation_sheet(made.UNDECIDED))
    orders = next(line for line in text.splitlines() if line.startswith("  orders"))
    assert orders.split() == (
        ["orders", "10,000", "9,966", "unknown", "unknown", "0", "unknown", "34"]
    )
    assert "set TWINBUS_SECONDARY, or say --peek" in text
    assert "Unknown\n  waiting and dead-lettered: no process peeked" in text


def test_what_is_lost_for_certain_is_shown_where_more_may_be() -> None:
    row = made.balance("orders", 40, waiting=None, lost=None, undecided=2, delivered=37)
    report = replace(made.LOST, total=row._replace(entity=""), entities=(row,), lost_at_least=1)
    text = text_of(conservation_sheet(report))
    orders = next(line for line in text.splitlines() if line.startswith("  orders  "))
    assert "≥ 1" in orders
    assert "lost: 1 of 40" in page_of(conservation_sheet(report), "")


def test_charges_put_model_and_assumptions_beside_the_figures() -> None:
    assert (
        text_of(charges_sheet(made.CHARGES))
        == """\
0.020080 USD for 25,100 billed operations once the month's free ones are used up; 0.00 USD if these\
 were its only ones
prices: standard-uksouth-2026-10-05; 5,000 settlements (complete, defer, dead-letter, abandon,\
 release) not counted: --settlement counted has them in
8.6 MB out of the namespaces: not priced, the book has no price for traffic out of the region

By cause
  cause                               operation           calls  units of 64 KB
  sends to the primary                send               10,000          10,060
  syphon: receive, forward, complete  complete            5,000           5,000
  syphon: receive, forward, complete  forward             5,000           5,000
  syphon: polls that found nothing    backlog_receive        40              40
  receivers: receive, settle, renew   receive (assumed)  10,000          10,000
  all                                                    30,040          30,100

Money by tier
  tier      what                   quantity        amount
  Standard  Messaging Operations     25,100  0.020080 USD  past free
  Premium   Messaging Unit        2 x 730 h  1,354.15 USD  a month, 1 unit

The documented arithmetic, and the fact
  what                            by the model  in the ledger
  idle polls of 10 queues in 1 h            40             40  one in 15 minutes and queue

By entity
  entity   calls  units of 64 KB
  orders  30,000          30,060
  (none)      40              40

Assumed
  one receive for each delivered message

Read
  ledger /var/lib/app/ledger
  48,120 records from 2026-11-16 00:00:00 to 2026-11-16 01:00:00 UTC
  asked for entity orders, from 2026-11-16 00:00:00, before 2026-11-18 00:00:00
  3 lines rejected: 2 foreign, 1 torn
"""
    )


def test_availability_has_each_failover_with_its_times() -> None:
    text = text_of(availability_sheet(made.AVAILABLE))
    assert text.startswith(
        "2 failovers of 2 entities: 2,000 sends saved, 3 raised; all are back\n"
        "time to detect (first failure to failover): 1 min\n"
        "time failed over (failover to return): half within 14 min, 95 % within 15 min,"
        " 99 % within 15 min, the longest 15 min (2 times)\n"
        "longest receive gap (nothing received although a message was due): 1 min 11 s\n"
        "the backlog was deepest at 2026-11-16 00:26:00: 2,000 messages\n"
        "2,000 messages came home in 4 min (started minutes count whole): at least"
        " 8 a second\n"
    )
    windows = text[text.index("Failovers\n") :].splitlines()[2:4]
    assert windows[0].split() == (
        "orders 2026-11-16 00:11:00 2026-11-16 00:26:00 1 min 15 min 1,500 1 min 11 s web-1".split()
    )
    # No consumer of the other entity kept a ledger.
    assert windows[1].split()[-2:] == ["–", "web-1"]
    assert "unknown" in windows[1]  # when its first send failed is not in the ledger


def test_sends_to_twins_are_named_in_the_chart() -> None:
    words = []
    for twins, backlog in ((0, 7), (5, 7), (5, 0)):
        sends = (Sends(made.BEGAN_S, 10, backlog, twins),)
        drawn: Any = availability_sheet(replace(made.AVAILABLE, sends=sends)).charts[0]
        assert drawn.data["sends"] == [(made.BEGAN_S, 10, backlog + twins)]
        words.append(drawn.data["diverted"])
    assert words == ["to the backlog", "to the backlog or a twin", "to a twin"]


def test_conservation_says_what_is_at_a_twin_and_which_copies_nobody_saw() -> None:
    total = made.balance("", 12_034, waiting=4)._replace(at_twin=30, second_copies=1)
    text = text_of(conservation_sheet(replace(made.CONSERVED, total=total)))
    assert "30 messages of the delivered went to a twin, and no record says that they left" in text
    assert "1 second copy of messages completed without being handed out" in text
    header = text[text.index("By entity\n") :].splitlines()[1]
    assert "at a twin" in header
    assert "second copies" in header
    assert "at a twin" not in text_of(conservation_sheet(made.CONSERVED))


def test_a_failover_that_has_not_ended_says_so() -> None:
    assert "not yet" in text_of(availability_sheet(made.STILL_OVER))
    assert ", process ended" in text_of(availability_sheet(made.ENDED_OVER))


def test_reconciliation_names_what_differs() -> None:
    text = text_of(reconciliation_sheet(made.DIFFERENT))
    assert "-1           1  the client had no answer" in text
    assert "+1           0  not explained" in text


@pytest.mark.parametrize(
    ("report", "table"),
    [
        (
            made.CHARGES,
            (
                "day,namespace,entity,cause,stage,direction,operation,assumed,operations,units,bytes,"
                "primary_label\n"
                "2026-11-16,contoso,orders,application,send_primary,in,send,false,10000,10060,18000000,\n"
                "2026-11-17,,orders,consumer,receive_primary,out,receive,true,10000,10000,9000000,\n"
            ),
        ),
        (
            made.AVAILABLE,
            (
                "entity,pair,process,suspect_at,failed_over_at,recovered_at,detect_ms,lasted_ms,"
                "sends_saved,receive_gap_ms,reason\n"
                "orders,contoso,web-1,2026-11-16T00:10:00.000Z,2026-11-16T00:11:00.000Z,"
                "2026-11-16T00:26:00.000Z,60000,900000,1500,71500,no success for 60 s\n"
                "payments,contoso,web-1,,2026-11-16T00:12:00.000Z,2026-11-16T00:26:00.000Z,,840000,"
                "500,,\n"
            ),
        ),
        (
            made.UNDECIDED,
            (
                "entity,accepted,delivered,waiting,dead_lettered,expired,lost,undecided,received,"
                "duplicates,raised,primary_label,at_twin,second_copies,redeliveries\n"
                "orders,10000,9966,,,0,,34,,,0,,0,0,0\n"
                "payments,2034,2034,,,0,0,0,,,0,,0,0,0\n"
            ),
        ),
        (
            made.DIFFERENT,
            (
                "entity,operation,clients,broker,only_clients,only_broker,explained,primary_label\n"
                "orders,send,10000,10000,0,0,0,\n"
                "orders,divert,1500,1500,1,0,0,\n"
            ),
        ),
    ],
)
def test_csv_is_one_table_and_an_empty_cell_is_unknown(report: LedgerReport, table: str) -> None:
    assert csv_of(report) == table


def test_an_entity_that_two_primaries_have_is_shown_with_its_primary() -> None:
    here, there = (
        made.balance("orders", 10, lost=1)._replace(primary_label="contoso"),
        made.balance("orders", 10)._replace(primary_label="fabrikam"),
    )
    lost = NamedMessage("orders", "o-1", "lost", made.BEGAN_MS, "contoso")
    report = replace(made.LOST, entities=(here, there), messages=(lost,))
    text = text_of(sheet_of(report))
    assert "orders (contoso)" in text
    assert "orders (fabrikam)" in text
    alone = text_of(sheet_of(replace(report, entities=(here,))))
    assert "orders" in alone
    assert "contoso" not in alone


def test_no_cell_of_a_csv_is_a_formula() -> None:
    row = made.balance("=cmd()", 1)
    assert "\n'=cmd(),1," in csv_of(replace(made.CONSERVED, entities=(row,)))


@pytest.mark.parametrize("report", EVERY)
def test_json_is_one_document_with_everything(report: LedgerReport) -> None:
    document = json.loads(json.dumps(report.as_json()))
    assert document["report"] == report.kind
    assert document["verdict"] == report.verdict
    assert document["scope"]["records"] == 48_120
    assert document["unknown"] == list(report.unknown)


def test_json_keeps_amounts_exact_and_days_readable() -> None:
    document = made.CHARGES.as_json()
    assert document["bill"]["amount_past_free"] == "0.02008"
    assert document["by_day"][0] == {"day": "2026-11-16", "cause": "application", "units": 6_060}
    assert document["prices"][1]["amount"] == "1354.15"


@pytest.mark.parametrize("report", EVERY)
def test_a_page_is_well_formed_and_loads_nothing(report: LedgerReport) -> None:
    sheet = sheet_of(report)
    page = page_of(sheet, "Twinbus 0, now")
    assert_self_contained(page)
    assert page.index(sheet.headline.split("'")[0]) < page.index('class="tiles"')
    for table in sheet.tables:
        assert (f"<h2>{table.title}</h2>" in page) == bool(table.rows)


def test_a_page_shows_hostile_ids_as_text() -> None:
    page = page_of(conservation_sheet(made.LOST), "")
    assert "\x1b" not in page
    assert "<b>" not in page.split("</style>")[1].split('class="tiles"')[0]
    assert "[31m&lt;b&gt;" in page


def test_colours_of_answers_differ() -> None:
    kinds = [
        page_of(conservation_sheet(report), "")
        .split('class="headline" data-level="')[1]
        .split('"')[0]
        for report in (made.CONSERVED, made.LOST, made.UNDECIDED)
    ]
    assert kinds == ["healthy", "unprotected", "attention"]


def test_a_share_that_is_small_is_drawn_and_one_of_nothing_is_not() -> None:
    row = made.balance("orders", 1_000_000, lost=1, delivered=999_999)
    (chart,) = conservation_sheet(replace(made.LOST, entities=(row,))).charts
    page = page_of(conservation_sheet(replace(made.LOST, entities=(row,))))
    assert isinstance(chart, Bars)
    assert 'class="series-lost" style="flex:0.0001" title="lost: 1 of 1,000,000"></i>' in page
    assert 'style="flex:99.9999" title="delivered: 999,999 of 1,000,000"></i>' in page
    assert ": 0 of" not in page


def test_days_are_bars_with_their_causes_and_their_total() -> None:
    page = page_of(charges_sheet(made.CHARGES))
    days = page[page.index("Billed operations by day (UTC)") : page.index("<h2>By cause")]
    assert "<span>2026-11-16</span>" in days
    assert "<span>16,060</span>" in days
    assert "sends to the primary: 6,060 of 16,060" in days
    assert 'style="width:100.0%"' in days


def test_the_chart_of_failovers_has_a_band_for_each_and_ends_with_the_records() -> None:
    (chart,) = availability_sheet(made.AVAILABLE).charts
    assert isinstance(chart, OutageChart)
    data: Any = chart.data
    assert [label for *_, label in data["bands"]] == ["orders failed over", "payments failed over"]
    assert [label for _, label in data["markers"]].count("orders back") == 1
    assert max(age for _, age in data["ages"]) > 0
    still: Any = availability_sheet(made.STILL_OVER).charts[0]
    assert still.data["bands"][0][1] == still.data["to"]
    many = replace(made.AVAILABLE, windows=made.AVAILABLE.windows * 3)
    crowded: Any = availability_sheet(many).charts[0]
    assert crowded.data["markers"] == []
