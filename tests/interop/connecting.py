"""Opening asyncio connections, as many tests do it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from .asyncio_tools import SETTINGS
from .checks import no_leaks

__all__ = ["ONE_PORT", "echo", "fails"]

# The settings of a module whose tests end where the connection is open: then the port is not in use yet.
ONE_PORT = list({setting.loop: setting for setting in reversed(SETTINGS)}.values())


async def echo(ws: Any, message: str = "hello") -> None:
    """Exchange a message with a server that sends back what it gets."""
    await ws.send(message)
    assert await ws.recv() == message


def fails(
    run: Callable[..., Any], expected: Any, connecting: Callable[[], Any], match: str | None = None
) -> BaseException:
    """Connect in vain, and return the exception. Nothing is left.

    Args:
        run: Runs a coroutine function.
        expected: What is raised.
        connecting: Calls ``connect``.
        match: What the text says.
    """

    async def main() -> None:
        async with connecting():
            pass

    with no_leaks():
        with pytest.raises(expected, match=match) as raised:
            run(main)
        error: BaseException = raised.value
        # It would keep alive what must be gone.
        error.__traceback__ = None
        return error
