"""The share of each client in what the gateway holds."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from twinbus.gateway.shares import EVERYONE_BYTES, Share, Shares

MAX = 64 * 1024 * 1024
PIECE = 100_000


def fill(shares: Shares, share: Share) -> int:
    """Let a client send until it is stopped; what it holds then."""
    while not shares.take(share, PIECE):
        pass
    return share.size_bytes


def test_a_client_alone_is_stopped_at_half_of_the_bound() -> None:
    held = fill(Shares(MAX), Share())
    assert MAX // 2 <= held <= MAX // 2 + PIECE


def test_a_client_that_holds_little_is_not_stopped_by_sixty_that_hold_all_they_can() -> None:
    shares, small = Shares(MAX), Share()
    held = [fill(shares, Share()) for _ in range(60)]
    assert max(held) == held[0] <= MAX // 2 + PIECE
    assert shares.size_bytes <= MAX + 60 * (EVERYONE_BYTES + PIECE)
    for _ in range(1_000):
        assert not shares.take(small, 20_000)
        assert not shares.give_back(small, 20_000)


def test_a_client_is_read_again_when_half_of_its_share_was_answered() -> None:
    shares, share = Shares(MAX), Share()
    fill(shares, share)
    before = share.size_bytes
    while not shares.give_back(share, PIECE):
        assert share.size_bytes > 0
    assert before // 4 < share.size_bytes < before // 1.4
    assert not share.is_paused


@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(1, 3_000_000)), max_size=200),
    st.integers(EVERYONE_BYTES, MAX),
)
def test_whatever_clients_send_who_is_stopped_holds_more_than_its_own_and_reads_on_in_the_end(
    sends: list[tuple[int, int]], bytes_max: int
) -> None:
    shares, clients = Shares(bytes_max), [Share() for _ in range(5)]
    held: list[tuple[Share, int]] = []
    for number, size in sends:
        share = clients[number]
        if share.is_paused:
            continue
        held.append((share, size))
        if shares.take(share, size):
            assert share.size_bytes > EVERYONE_BYTES
    # Each may be passed once, by what was under way when it was stopped.
    assert shares.size_bytes <= bytes_max + 5 * (3_000_000 + EVERYONE_BYTES)
    for share, size in held:
        shares.give_back(share, size)
    assert shares.size_bytes == 0
    assert not any(share.is_paused or share.size_bytes for share in clients)
