"""The outcomes that a call may have, for any arguments."""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Iterator
from typing import Any

from wirespeed.exceptions import WebSocketException

# The documented exceptions. UnicodeError is a ValueError, BlockingIOError and TimeoutError are an OSError.
DOCUMENTED = (TypeError, ValueError, BufferError, OverflowError, WebSocketException, OSError)

# Beginnings of the texts of the documented RuntimeErrors about wrong use.
RUNTIME = (
    "this is executing already",
    "this was awaited already",
    "messages go to the listener",
    "a message of fragments is being sent",
    "the session's path requires no token",
    "the session subscribes to",
    "the engine has",
    "the engine is",
    "the publisher is closed",
    "generator raised StopIteration",
    "async generator raised",
    "dictionary changed size during iteration",
    "generator already executing",
    "anext(): asynchronous generator is already running",
    "coroutine raised StopIteration",
    # Raised by the generated object.
    "multi-dimensional sub-views are not implemented",
)


class Mine(Exception):
    """An exception of a generated object."""


class Misbehaved(AssertionError):
    """A call had an outcome that it must not have."""


class Record:
    """Collects violations within callbacks, where no exception can propagate."""

    def __init__(self) -> None:
        self.problems: list[str] = []

    @contextlib.contextmanager
    def calling(self, what: str) -> Iterator[None]:
        """Suppresses allowed exceptions and records others."""
        try:
            yield
        except BaseException as exc:
            if not may_be(exc):
                text = "".join(traceback.format_exception(type(exc), exc, exc.__traceback__)[-6:])
                self.problems.append(f"{what}: {text}")
            # No frame may keep the caller's awaitable alive.
            exc.__traceback__ = None

    def check(self) -> None:
        """Raises the recorded violation."""
        if self.problems:
            raise Misbehaved("\n".join(self.problems))


def may_be(exc: BaseException) -> bool:
    """Returns whether an exception is documented, or raised by the generated object."""
    if isinstance(exc, Mine):
        return True
    if isinstance(exc, RuntimeError) and not isinstance(exc, WebSocketException):
        return isinstance(exc, RecursionError) or str(exc).startswith(RUNTIME)
    # numpy and other libraries have such subclasses, but none is loaded here.
    return (isinstance(exc, DOCUMENTED) and not isinstance(exc, AssertionError)) or isinstance(exc, StopAsyncIteration)


def describe(value: Any) -> str:
    """Returns the type of a value, because its repr may run any code."""
    return type(value).__name__
