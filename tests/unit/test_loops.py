"""Coroutines run to their end, wherever the caller is."""

from __future__ import annotations

import asyncio

import pytest

from twinbus.loops import run_anywhere


async def answer() -> int:
    await asyncio.sleep(0)
    return 42


async def failure() -> int:
    raise ValueError("no answer")


def test_a_coroutine_is_run_with_and_without_a_loop_around_the_caller() -> None:
    async def cell() -> int:
        return run_anywhere(answer())

    assert run_anywhere(answer()) == asyncio.run(cell()) == 42


def test_what_it_raises_is_raised() -> None:
    async def cell() -> int:
        return run_anywhere(failure())

    with pytest.raises(ValueError, match="no answer"):
        asyncio.run(cell())
