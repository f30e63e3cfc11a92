"""The syphon sends to exactly the paths that a namespace can give to a queue or topic."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from twinbus.broker.engine.names import check_name, check_path
from twinbus.broker.refusals import Refusal
from twinbus.transfer.entity_names import is_entity_name

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


@given(PATHS)
@example("a" * 260)
@example("a" * 261)
@example("orders/Subscriptions/all")
@example("Subscriptions")
@example("orders/../others")
@example(".")
def test_the_syphon_and_the_broker_agree_on_names(path: str) -> None:
    assert is_entity_name(path) == broker_takes(path)


@pytest.mark.parametrize("end", ["-", "--", "_", ".", "~", "a", "0"])
def test_a_part_may_begin_and_end_with_any_character_of_names(end: str) -> None:
    """MassTransit/Fault--Orders/OrderPlaced-- is a topic of MassTransit, on Azure too."""
    for path in (f"Fault{end}Orders/Placed{end}", f"{end}orders", f"{end}"):
        assert is_entity_name(path) == (path != ".")
        assert broker_takes(path) == (path != ".")
    if end != "~":
        check_name("subscription", f"{end}all{end}")
        check_name("rule", f"{end}all{end}")


@given(PATHS)
def test_no_name_has_a_dollar_an_empty_part_or_a_character_beyond_ascii(path: str) -> None:
    if is_entity_name(path):
        assert "$" not in path
        assert "" not in path.split("/")
        assert path.isascii()
        assert path.isprintable()
        assert " " not in path
