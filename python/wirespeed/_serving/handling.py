"""Handlers of servers of every kind: which functions can be one, and what is said when one has failed.

It calls no handler: the servers do, each in its way.
"""

from __future__ import annotations

import logging
from typing import Any

from ..exceptions import ConnectionClosed

__all__ = ["check_async_handler", "not_awaitable", "log_handler_error"]

_HINT = "it must be a coroutine function, with async def; wirespeed.sync.serve takes plain functions"


def check_async_handler(handler: object) -> None:
    """Check that a handler of a server on an event loop can be called.

    Whether it returns an awaitable is known when it is called: see ``not_awaitable``.

    Args:
        handler: The handler that the user passed.

    Raises:
        TypeError: It cannot be called.
    """
    if not callable(handler):
        raise TypeError(f"handler must be a coroutine function, not {type(handler).__name__}")


def not_awaitable(result: object) -> TypeError:
    """Return what to raise for a handler on an event loop that was called and returned no awaitable.

    Args:
        result: What it returned.
    """
    return TypeError(f"handler returned {type(result).__name__}: {_HINT}")


def log_handler_error(connection: Any, exc: Exception) -> None:
    """Log what has ended a handler. To be called before the connection is closed, which may take its time.

    Args:
        connection: The connection of the handler.
        exc: What it has raised.
    """
    logger = connection.logger
    # That of another connection, which the handler uses, is a failure like any other.
    if not isinstance(exc, ConnectionClosed) or exc._origin != connection._origin:
        logger.error("connection handler failed (%s)", connection._label, exc_info=exc)
    elif logger.isEnabledFor(logging.DEBUG):
        # It ended while the handler used it: its business.
        logger.debug("connection handler ended by the end of its connection (%s)", connection._label, exc_info=exc)
