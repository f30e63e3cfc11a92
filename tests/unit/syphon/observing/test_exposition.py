"""The metrics of a syphon, as Prometheus' own parser reads them."""

from __future__ import annotations

from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from tests.unit.syphon.observing.test_health import QUEUE, states
from twinbus.pairing.observing import metrics as pair_metrics
from twinbus.syphon.observing.depth import MeasuredQueue
from twinbus.syphon.observing.exposition import FAMILIES, SyphonFigures, exposition


def scraped(**changes: Any) -> dict[tuple[str, ...], float]:
    """Return the value of each series, by name and label values."""
    given = {
        "pair": "contoso",
        "queues": states(completed=7),
        "is_paused": False,
        "is_healthy": True,
        "unrecorded": 0,
        "depths": {},
        "unix_s": 1_000.0,
        **changes,
    }
    text = exposition(SyphonFigures(**given))
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_every_family_can_be_scraped() -> None:
    depths = {QUEUE: MeasuredQueue(3, 1, 400.0), "empty": MeasuredQueue(0, 0, None)}
    blocked = states(completed=7, problems={"primary": "gone"}, held={"orders": "full"})
    found = scraped(depths=depths, queues=blocked, is_paused=True, is_healthy=False)
    of = ("contoso", QUEUE)
    assert found == {
        ("twinbus_syphon_paused", "contoso"): 1,
        ("twinbus_syphon_healthy", "contoso"): 0,
        ("twinbus_ledger_unrecorded_total", "contoso"): 0,
        ("twinbus_syphon_messages_total", *of, "forwarded"): 0,
        ("twinbus_syphon_messages_total", *of, "completed"): 7,
        ("twinbus_syphon_messages_total", *of, "dead_lettered"): 0,
        ("twinbus_syphon_in_flight", *of): 5,
        ("twinbus_syphon_held_destinations", *of): 1,
        ("twinbus_syphon_blocked", *of, "primary"): 1,
        ("twinbus_backlog_messages", *of, "waiting"): 3,
        ("twinbus_backlog_messages", *of, "dead-lettered"): 1,
        ("twinbus_backlog_oldest_seconds", *of): 600,
        ("twinbus_backlog_messages", "contoso", "empty", "waiting"): 0,
        ("twinbus_backlog_messages", "contoso", "empty", "dead-lettered"): 0,
        ("twinbus_backlog_oldest_seconds", "contoso", "empty"): 0,
    }


def test_a_name_with_quotes_and_newlines_stays_one_label() -> None:
    found = scraped(queues={'a"} 1\n\\b': states()[QUEUE]})
    assert ("twinbus_syphon_in_flight", "contoso", 'a"} 1\n\\b') in found


def test_what_a_pair_measures_too_has_the_same_name_text_and_labels() -> None:
    shared = {name.removesuffix("_total") for name in FAMILIES} & pair_metrics.FAMILIES.keys()
    assert len(shared) == 5
    depths = {QUEUE: MeasuredQueue(3, 1, 400.0)}
    text = exposition(
        SyphonFigures(
            pair="contoso", queues=states(), is_paused=False, is_healthy=True, unrecorded=0,
            depths=depths, unix_s=0.0,
        )
    )  # fmt: skip
    for family in text_string_to_metric_families(text):
        if family.name in shared:
            kind, words, *labels = pair_metrics.FAMILIES[family.name]
            assert family.documentation == words
            assert family.type == kind("name", "text").type
            assert list(family.samples[0].labels) == ["pair", *labels]
