"""Handlers of servers of every kind: which functions can be one, and what is said when one has failed.

It calls no handler: the servers do, each in its way.
"""

from __future__ import annotations

import dis
import inspect
import logging
import types
from typing import Any

from ..exceptions import ConnectionClosed

__all__ = ["check_async_handler", "not_awaitable", "tell_end"]

# What gives None: the second one in CPython 3.12 and 3.13, the third one from 3.15 on, else the first one.
_CONSTANTS = ("LOAD_CONST", "RETURN_CONST", "LOAD_COMMON_CONSTANT")

_HINT = "it must be a coroutine function, with async def; wirespeed.sync.serve takes plain functions"


def check_async_handler(handler: object) -> None:
    """Raise TypeError for what can be no handler on an event loop.

    A plain function may return a coroutine; one that returns nothing cannot be awaited, whatever it does.

    Args:
        handler: What the user passed.
    """
    if not callable(handler):
        raise TypeError(f"handler must be a coroutine function, not {type(handler).__name__}")
    function = handler.__func__ if isinstance(handler, types.MethodType) else handler
    if isinstance(function, types.FunctionType) and _returns_nothing(function.__code__):
        raise TypeError(f"handler {function.__qualname__} is a plain function: {_HINT}")


def not_awaitable(result: object) -> TypeError:
    """Return what to raise for a handler on an event loop that was called and returned no awaitable.

    Args:
        result: What it returned.
    """
    return TypeError(f"handler returned {type(result).__name__}: {_HINT}")


def _returns_nothing(code: types.CodeType) -> bool:
    """Return whether the code of a function surely gives its caller nothing to await."""
    if code.co_flags & (inspect.CO_COROUTINE | inspect.CO_ITERABLE_COROUTINE):
        return False
    if code.co_flags & (inspect.CO_GENERATOR | inspect.CO_ASYNC_GENERATOR):
        return True
    found = False
    before: dis.Instruction | None = None
    for instruction in dis.get_instructions(code):
        # Instructions differ between versions of Python: what is not understood may return anything.
        if instruction.opname.startswith("RETURN_"):
            constant = instruction if instruction.opname == "RETURN_CONST" else before
            is_none = constant is not None and constant.opname in _CONSTANTS
            if not is_none or constant.argval is not None or instruction.is_jump_target:  # type: ignore[union-attr]
                return False
            found = True
        before = instruction
    return found


def tell_end(connection: Any, exc: Exception) -> None:
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
