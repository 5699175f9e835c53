"""Making connections by what users pass as ``create_connection``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from .._native import AsyncConnection, BlockingConnection, Opened

__all__ = ["construct"]

_T = TypeVar("_T")


def construct(factory: Callable[..., Any], kind: type[_T], opened: Opened, **arguments: Any) -> _T:
    """Make a connection. If that fails, one that was made by half is closed; ``opened`` is left to the caller.

    Args:
        factory: A class, or a function.
        kind: What it must make.
        opened: What the opening handshake has opened.
        **arguments: Further arguments.

    Raises:
        TypeError: It makes something else.
        Exception: What it raises.
    """
    made: Any = None
    try:
        if isinstance(factory, type) and factory.__init__ is not object.__init__:  # type: ignore[misc]
            # As the class does when it is called. But what its __init__ raises leaves the connection in our
            # hands.
            made = factory.__new__(factory, opened, **arguments)
            if isinstance(made, factory):
                made.__init__(opened, **arguments)  # type: ignore[misc]
        else:
            made = factory(opened, **arguments)
        if not isinstance(made, kind):
            raise TypeError(f"create_connection must return a {kind.__name__}, not {type(made).__name__}")
    except BaseException:
        if isinstance(made, (AsyncConnection, BlockingConnection)):
            made.abort()
        raise
    return made
