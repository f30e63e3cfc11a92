"""The checker of the kill test finds what it is there to find."""

from __future__ import annotations

import pytest

from tests.end_to_end.history import History, SessionHistory

pytestmark = pytest.mark.end_to_end


def exchanged(history: History, *keys: str) -> None:
    """Messages that were sent, received and completed without trouble."""
    for key in keys:
        history.attempt(key)
        history.acknowledge(key)
        history.arrive(key)
        history.ask(key)
        history.confirm(key)


def test_a_history_without_trouble_has_no_problems() -> None:
    history = History("q")
    exchanged(history, "a", "b")
    history.attempt("never acknowledged")
    history.attempt("waiting")
    history.acknowledge("waiting")
    history.arrive("waiting")
    assert history.problems() == []


def test_a_lost_message_is_found() -> None:
    history = History("q")
    exchanged(history, "a")
    history.attempt("b")
    history.acknowledge("b")
    assert history.problems() == ["q: b was acknowledged and is lost"]


def test_a_resurrected_message_is_found() -> None:
    history = History("q")
    exchanged(history, "a")
    history.arrive("a")
    assert history.problems() == ["q: a came back after its completion was confirmed"]


def test_a_completion_without_an_answer_may_have_happened_or_not() -> None:
    for comes_back in (False, True):
        history = History("q")
        history.attempt("a")
        history.acknowledge("a")
        history.arrive("a")
        history.ask("a")
        if comes_back:
            history.arrive("a")
        assert history.problems() == []


def test_an_invented_message_and_half_a_batch_are_found() -> None:
    history = History("q")
    history.arrive("a")
    history.attempt("b", "c")
    history.arrive("c")
    assert history.problems() == ["q: a was never sent", "q: 1 of the 2 of batch b are there"]


def test_messages_deleted_on_their_way_are_forgiven_up_to_a_number() -> None:
    history = History("q", may_vanish=1)
    for key in ("a", "b"):
        history.attempt(key)
        history.acknowledge(key)
    history.take("a")
    assert history.problems() == []
    history.may_vanish = 0
    assert history.problems() == ["q: b was acknowledged and is lost"]
    history.take("a")
    assert "q: a came back after its completion was confirmed" in history.problems()


def test_a_session_out_of_order_is_found() -> None:
    history = SessionHistory("s")
    for key in ("0", "1", "2"):
        history.attempt(key)
        history.acknowledge(key)
    history.accept()
    history.arrive("0")
    history.ask("0")
    history.accept()
    history.arrive("2")
    assert history.problems() == ["s: 2 came before [1]", "s: 1 was acknowledged and is lost"]
    history.arrive("1")
    assert history.problems() == ["s: 2 came before [1]", "s: 1 came after 2"]
