"""Faults that only a proxy can perform, and where they strike."""

from __future__ import annotations

import pytest

from twinbus.broker.faults import Fault, FaultPlan, FrameAt, fault_from_json
from twinbus.broker.refusals import ArgumentInvalid

NOW_MS = 1_000_000
SENT = FrameAt("out", "to_service", "transfer")
SETTLED = FrameAt("out", "to_service", "disposition")


def decided(fault: Fault, stage: object, at: FrameAt) -> bool:
    plan = FaultPlan(lambda: 0.0, proxy=True)
    plan.add(fault)
    return plan.decide(stage, "orders", NOW_MS, at) is not None  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "details",
    [
        {"kind": "detach"},
        {"kind": "half_open"},
        {"kind": "delay", "delay_ms": 1, "link": "a"},
        {"kind": "hang", "direction": "to_client"},
        {"kind": "hang", "frame": "flow"},
    ],
)
def test_a_broker_refuses_what_only_a_proxy_has(details: dict[str, object]) -> None:
    fault = fault_from_json(details, NOW_MS)
    with pytest.raises(ArgumentInvalid, match="only `twinbus faults proxy` has"):
        FaultPlan(lambda: 0.0).add(fault)
    assert FaultPlan(lambda: 0.0, proxy=True).add(fault) == 1


@pytest.mark.parametrize(
    ("details", "text"),
    [
        ({"kind": "hang", "direction": "up"}, "direction of a fault is to_service or to_client"),
        ({"kind": "hang", "frame": "open"}, "frame of a fault is one of attach, flow"),
        ({"kind": "throttle", "frame": "flow"}, "a throttle fault strikes no chosen frame"),
    ],
)
def test_a_selector_that_is_none_is_refused(details: dict[str, object], text: str) -> None:
    with pytest.raises(ArgumentInvalid, match=text):
        fault_from_json(details, NOW_MS)


def test_a_selector_narrows_a_fault_to_a_link_a_direction_and_a_frame() -> None:
    assert decided(Fault(kind="hang", link="o*"), "send", SENT)
    assert not decided(Fault(kind="hang", link="o"), "send", SENT)
    assert not decided(Fault(kind="hang", direction="to_client"), "send", SENT)
    assert decided(Fault(kind="hang", frame="disposition"), None, SETTLED)
    assert not decided(Fault(kind="hang"), None, SETTLED)
    assert not decided(Fault(kind="hang", frame="disposition"), "send", SENT)


def test_a_fault_with_a_direction_strikes_open_links_and_no_new_connection() -> None:
    one_way = Fault(kind="half_open", direction="to_client")
    assert decided(one_way, "open", FrameAt("out"))
    assert not decided(Fault(kind="hang", direction="to_client"), "connect", FrameAt())
