"""Connections are counted in all, and by address while their clients have put no token."""

from __future__ import annotations

import pytest

from twinbus.broker.access.admission import Admission, ConnectionLimits
from twinbus.errors import BrokerStartError


def test_connections_in_all_are_bounded_whoever_opens_them() -> None:
    admission = Admission(ConnectionLimits(connections=2))
    for host in ("192.0.2.1", "192.0.2.2"):
        assert admission.why_not(host) is None
        admission.enter(host)
        admission.trust(host)
    assert "2 connections are open (--connections-max)" in str(admission.why_not("192.0.2.3"))
    admission.leave("192.0.2.1", trusted=True)
    assert admission.why_not("192.0.2.3") is None


def test_strangers_are_bounded_for_each_address_and_leave_room_for_others() -> None:
    admission = Admission(ConnectionLimits(strangers_per_address=2))
    for _ in range(2):
        admission.enter("192.0.2.1")
    assert "2 connections of its address" in str(admission.why_not("192.0.2.1"))
    assert admission.why_not("192.0.2.2") is None
    admission.trust("192.0.2.1")
    assert admission.why_not("192.0.2.1") is None
    admission.enter("192.0.2.1")
    admission.leave("192.0.2.1")
    assert admission.why_not("192.0.2.1") is None


def test_all_addresses_of_one_ipv6_site_count_as_one() -> None:
    admission = Admission(ConnectionLimits(strangers_per_address=1))
    admission.enter("2001:db8:1:2::5")
    assert admission.why_not("2001:db8:1:2:ffff::9%eth0") is not None
    assert admission.why_not("2001:db8:1:3::5") is None


@pytest.mark.parametrize(
    ("option", "given"),
    [
        ("--connections-max", {"connections": 0}),
        ("--strangers-max", {"strangers_per_address": -1}),
        ("--open-limit", {"open_s": 0}),
        ("--token-limit", {"token_s": float("nan")}),
    ],
)
def test_a_limit_of_nothing_is_refused(option: str, given: dict[str, float]) -> None:
    with pytest.raises(BrokerStartError, match=f"{option} is above 0"):
        ConnectionLimits(**given)  # type: ignore[arg-type]
