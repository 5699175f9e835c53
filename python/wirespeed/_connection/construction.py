"""Creates connections with the ``create_connection`` argument of the user."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from .._native import AsyncConnection, BlockingConnection, Opened

__all__ = ["construct"]

_T = TypeVar("_T")


def construct(factory: Callable[..., Any], kind: type[_T], opened: Opened, **arguments: Any) -> _T:
    """Create a connection. If that fails, a partly constructed connection is aborted; the caller keeps ``opened``.

    Args:
        factory: A class or a function.
        kind: Class of which the result must be an instance.
        opened: The completed opening handshake.
        **arguments: Further arguments.

    Raises:
        TypeError: The result has a wrong type.
        Exception: The exception of ``factory``.
    """
    made: Any = None
    try:
        if isinstance(factory, type) and factory.__init__ is not object.__init__:  # type: ignore[misc]
            # Same as calling the class, but keeps the object if its __init__ raises, to abort it.
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
