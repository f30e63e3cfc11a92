"""The syphon sends to exactly the paths that a namespace can give to a queue or topic."""

from __future__ import annotations

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from twinbus.broker.descriptions import check_name, check_path
from twinbus.broker.refusals import Refusal
from twinbus.servicebus.names import is_entity_name

PARTS = st.one_of(
    st.text(alphabet="aZ0_.-~/", max_size=5),
    st.sampled_from(["orders", "Subscriptions", "$management", "..", "/", " ", "\n", "%24", "ſ"]),
    st.text(max_size=3),
)
PATHS = st.lists(PARTS, max_size=5).map("/".join) | st.lists(PARTS, max_size=5).map("".join)


def broker_takes(path: str) -> bool:
    try:
        check_path("queue", path)
    except Refusal:
        return False
    return True


def follows_the_rule(path: str) -> bool:
    """The rule of Azure in other words: 260 characters, no part that a URL or an address drops."""
    parts = path.lower().split("/")
    has_names = {"", ".", ".."}.isdisjoint(parts) and "subscriptions" not in parts[1:]
    return has_names and re.fullmatch(r"[A-Za-z0-9._~/-]{1,260}", path) is not None


@given(PATHS)
@example("a" * 260)
@example("a" * 261)
@example("orders/Subscriptions/all")
@example("Subscriptions")
@example("orders/../others")
@example(".")
def test_syphon_and_broker_take_the_names_of_the_rule(path: str) -> None:
    assert is_entity_name(path) == broker_takes(path) == follows_the_rule(path)


@pytest.mark.parametrize("end", ["-", "--", "_", ".", "~", "a", "0"])
def test_a_part_may_begin_and_end_with_any_character_of_names(end: str) -> None:
    """MassTransit/Fault--Orders/OrderPlaced-- is a topic of MassTransit, on Azure too."""
    for path in (f"Fault{end}Orders/Placed{end}", f"{end}orders", f"{end}"):
        assert is_entity_name(path) == (path != ".")
        assert broker_takes(path) == (path != ".")
    if end != "~":
        check_name("subscription", f"{end}all{end}")
        check_name("rule", f"{end}all{end}")
