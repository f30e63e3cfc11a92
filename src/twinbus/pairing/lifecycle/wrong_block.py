"""What a `with` block of the wrong kind raises: `with` for asyncio, `async with` for other code.

Python alone says only that the object supports no such block. Type checkers do not see the methods
here, so they refuse the block too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn


class AsyncOnly:
    """A class for asyncio: `with` raises a TypeError that names the two ways out."""

    if not TYPE_CHECKING:

        def __enter__(self) -> NoReturn:
            raise TypeError(
                f"this {type(self).__name__} is for asyncio: write `async with`, or import"
                " pair_namespaces from twinbus.blocking"
            )

        def __exit__(self, *exc: object) -> None:
            """Never called; Python wants it before it calls `__enter__`."""


class BlockingOnly:
    """A class for code without asyncio: `async with` raises a TypeError that says so."""

    if not TYPE_CHECKING:

        async def __aenter__(self) -> NoReturn:
            raise TypeError(
                f"this {type(self).__name__} is of twinbus.blocking: write `with`, or import"
                " pair_namespaces from twinbus"
            )

        async def __aexit__(self, *exc: object) -> None:
            """Never called; Python wants it before it calls `__aenter__`."""
