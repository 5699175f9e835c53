"""Checks the handlers of servers, and logs their exceptions. The servers call the handlers themselves."""

from __future__ import annotations

import logging
from typing import Any

from ..exceptions import ConnectionClosed

__all__ = ["check_async_handler", "not_awaitable", "log_handler_error"]

_HINT = "it must be a coroutine function, with async def; wirespeed.sync.serve takes plain functions"


def check_async_handler(handler: object) -> None:
    """Check that the handler of an asyncio server is callable.

    Whether it returns an awaitable is known only after the call: see ``not_awaitable``.

    Args:
        handler: The handler that the user passed.

    Raises:
        TypeError: It is not callable.
    """
    if not callable(handler):
        raise TypeError(f"handler must be a coroutine function, not {type(handler).__name__}")


def not_awaitable(result: object) -> TypeError:
    """Return the exception for a handler of an asyncio server that returned no awaitable.

    Args:
        result: The value that it returned.
    """
    return TypeError(f"handler returned {type(result).__name__}: {_HINT}")


def log_handler_error(connection: Any, exc: Exception) -> None:
    """Log the exception of a handler. Call it before closing the connection, which may take time.

    Args:
        connection: The connection of the handler.
        exc: The exception.
    """
    logger = connection.logger
    # ConnectionClosed of another connection, which the handler uses, is an error like any other.
    if not isinstance(exc, ConnectionClosed) or exc._origin != connection._origin:
        logger.error("connection handler failed (%s)", connection._label, exc_info=exc)
    elif logger.isEnabledFor(logging.DEBUG):
        # The handler was using its connection when it ended, which is normal.
        logger.debug("connection handler ended by the end of its connection (%s)", connection._label, exc_info=exc)
