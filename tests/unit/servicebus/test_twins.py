"""The mark of twins, and the mark of messages in them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twinbus.servicebus.twins import (
    ATTEMPTS_MAX,
    DIVERT_MARK_MAX,
    DivertMark,
    is_listed,
    is_named,
    is_of_secondary,
    is_twin_of,
    is_unfinished_twin_of,
    marked_label,
    own_number,
    read_divert_mark,
    secondary_number,
    twin_mark,
    unfinished_mark,
)


@pytest.mark.parametrize(
    ("metadata", "expected"),
    [
        (None, False),
        ("", False),
        (" \n", False),
        (twin_mark("contoso"), True),
        (f"  {twin_mark('contoso')}\nowned by the orders team", True),
        (twin_mark("contoso2"), False),
        (f"not {twin_mark('contoso')}", False),
    ],
)
def test_only_the_mark_of_this_label_makes_a_twin(metadata: str | None, expected: bool) -> None:
    assert is_twin_of(metadata, "contoso") is expected


def test_an_unfinished_twin_is_known_and_not_a_twin() -> None:
    mark = f"{unfinished_mark('contoso')} by Ann"
    assert is_unfinished_twin_of(mark, "contoso")
    assert not is_unfinished_twin_of(mark, "fabrikam")
    assert not is_twin_of(mark, "contoso")
    assert not is_unfinished_twin_of(twin_mark("contoso"), "contoso")


@pytest.mark.parametrize(
    ("metadata", "label"),
    [
        (None, None),
        ("owned by the orders team", None),
        (f"see {twin_mark('contoso')}", None),
        (f"{twin_mark('contoso')} by Ann", "contoso"),
        (unfinished_mark("fabrikam"), "fabrikam"),
    ],
)
def test_the_label_of_a_mark(metadata: str | None, label: str | None) -> None:
    assert marked_label(metadata) == label


@given(
    st.text("abc;=.-unanswered/1", min_size=1, max_size=60),
    st.integers(0, 10**14),
    st.integers(1, ATTEMPTS_MAX),
)
def test_a_mark_is_read_as_it_was_written(label: str, since: int, attempts: int) -> None:
    marked = DivertMark(label, since, attempts)
    assert read_divert_mark(marked.text()) == marked
    assert read_divert_mark(marked.text().encode()) == marked


def test_a_mark_without_an_unanswered_attempt() -> None:
    assert read_divert_mark("contoso") == DivertMark("contoso")


@pytest.mark.parametrize(
    "value",
    [None, 7, True, "", b"", "x" * (DIVERT_MARK_MAX + 1), ";unanswered=1", "a;unanswered=",
     "a;unanswered=-1", "a;unanswered=1e3", "a;unanswered=" + "9" * 16, "a;unanswered=\u0663",
     "a;unanswered=1/", "a;unanswered=1/0", "a;unanswered=1/1000", "a;unanswered=1/2/3"],
)  # fmt: skip
def test_foreign_values_are_no_mark(value: object) -> None:
    assert read_divert_mark(value) is None


def test_numbers_of_the_secondary_find_their_way_back() -> None:
    # The sequence numbers of a partitioned entity have the partition in their top 16 bits.
    for number in (1, 2**48 * 15 + 7, 2**53):
        assert not is_of_secondary(number)
        known = secondary_number(number)
        assert (is_of_secondary(known), own_number(known)) == (True, number)
        assert known < 2**63


@pytest.mark.parametrize(
    ("twins", "path", "listed", "named"),
    [
        (None, "orders", False, False),
        (["orders"], "orders", True, True),
        (["Orders"], "orders", True, True),
        (["orders"], "ORDERS/", True, True),
        (["orders"], "orders2", False, False),
        (["orders*"], "orders2", True, False),
        (["orders?"], "orders", False, False),
        (["shop/*"], "shop/eu/orders", True, False),
        (["*", "orders"], "orders", True, True),
        ("*", "orders", True, False),
    ],
)
def test_an_entity_is_listed_by_its_name_or_by_a_pattern(
    twins: list[str] | str | None, path: str, listed: bool, named: bool
) -> None:
    assert is_listed(twins, path) is listed
    assert is_named(twins, path) is named
