"""Helpers that open asyncio connections."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from .asyncio_tools import SETTINGS
from .checks import no_leaks

__all__ = ["ONE_PORT", "Connect", "echo", "fails"]

# The fixtures ``connect`` and ``unix_connect``.
Connect = Callable[..., Any]

# The settings of a module whose tests end when the connection is open: then the I/O backend is not in use yet.
ONE_PORT = list({setting.loop: setting for setting in reversed(SETTINGS)}.values())


async def echo(ws: Any, message: str = "hello") -> None:
    """Exchanges a message with an echo server."""
    await ws.send(message)
    assert await ws.recv() == message


def fails(
    run: Callable[..., Any], expected: Any, connecting: Callable[[], Any], match: str | None = None
) -> BaseException:
    """Connects unsuccessfully, and returns the exception. Nothing must be left.

    Args:
        run: Runs a coroutine function.
        expected: The exception.
        connecting: Calls ``connect``.
        match: A pattern of the text.
    """

    async def main() -> None:
        async with connecting():
            pass

    with no_leaks():
        with pytest.raises(expected, match=match) as raised:
            run(main)
        error: BaseException = raised.value
        # It would keep objects alive that must be freed.
        error.__traceback__ = None
        return error
