"""Prometheus series made of plain samples, for pairs, syphons and the broker; one text format.

It needs `prometheus_client`, which the extras `broker`, `console` and `telemetry` bring.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from prometheus_client import generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

COUNTER, GAUGE = CounterMetricFamily, GaugeMetricFamily

Families = Mapping[str, tuple[Any, ...]]
"""By name: kind, text, and the labels besides the owner. The name of a counter lacks `_total`."""

Sample = tuple[Any, ...]
"""Name of a series, its value, and the values of its labels besides the owner."""


def metrics_of(
    families: Families, owner: str, samples: Iterable[tuple[str, Iterable[Sample]]]
) -> list[Metric]:
    """Return every family with its samples, which come by the value of the label `owner`."""
    made = {
        name: kind(name, text, labels=[owner, *labels])
        for name, (kind, text, *labels) in families.items()
    }
    for owned_by, found in samples:
        for name, value, *labels in found:
            made[name].add_metric([owned_by, *labels], value)
    return list(made.values())


def text_of(metrics: Iterable[Metric]) -> bytes:
    return generate_latest(_Collected(metrics))


class _Collected(Collector):
    def __init__(self, metrics: Iterable[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> Iterable[Metric]:
        return self._metrics
