"""The official SDKs of four languages, with their defaults, through a gateway in an outage.

Each language has a small program that sends numbered messages one after another, alone and in
batches, with and without ids of their own. All of them send through one gateway while its primary
is killed, hung and restarted. A program without its toolchain is skipped with the reason.
"""

from __future__ import annotations

import pytest

from tests.other_languages.outage_world import LATE, ClientResult, Outages, results_of
from tests.other_languages.toolchains import Program, built_or_skipped, tried

LANGUAGES = ("javascript", "python", "java", "go")
CALLER_PATIENCE_S = 60.0

SHORT = Outages(
    ("killed", "hung", "restarted"),
    # It opens more than the others before its first message, and starts in no time.
    ("go",),
    ("--failover-interval", "10s", "--ping-interval", "1s", "--attempt-timeout", "2s"),
)
LONG = Outages(
    ("killed", "hung", "restarted", "silent") * 3,
    LANGUAGES,
    ("--failover-interval", "10s", "--ping-interval", "5s", "--attempt-timeout", "5s"),
)

# The programs are built first, with an empty cache on a machine that does more.
pytestmark = pytest.mark.timeout(1_800)

Results = dict[str, ClientResult]


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(SHORT, id="short"),
        pytest.param(LONG, id="long", marks=pytest.mark.soak),
    ],
)
def results(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Results:
    """One run for all languages that have a program here."""
    outages: Outages = request.param
    programs = {
        language: program
        for language in LANGUAGES
        if isinstance(program := tried(language), Program)
    }
    return results_of(outages, programs, tmp_path_factory.mktemp("outage"))


def of(results: Results, language: str) -> list[ClientResult]:
    """What became of the clients in this language."""
    built_or_skipped(language)
    return [result for name, result in results.items() if name in (language, LATE + language)]


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_client_loses_nothing_and_sees_no_error(results: Results, language: str) -> None:
    for result in of(results, language):
        assert result.errors == []
        assert result.lost == set()
        assert max(send.ended_s - send.began_s for send in result.sends) < CALLER_PATIENCE_S
        # It has met the outage: a message of each kind went through the backlog.
        assert {
            (send.has_ids, len(send.texts) > 1)
            for send in result.sends
            if result.diverted.issuperset(send.texts)
        } == {(True, True), (True, False), (False, True), (False, False)}


@pytest.mark.parametrize("language", LANGUAGES)
def test_duplicates_come_from_unanswered_attempts_and_have_one_id(
    results: Results, language: str
) -> None:
    for result in of(results, language):
        assert result.duplicates == {}
        # The SDK did not send a message again: then one without an id of its own would have two.
        assert {text: ids for text, ids in result.ids.items() if len(ids) > 1} == {}
        own = {text for send in result.sends if send.has_ids for text in send.texts}
        assert {text for text in own if result.ids[text] != {text}} == set()
