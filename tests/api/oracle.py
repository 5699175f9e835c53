"""What may come of a call, whatever it was given."""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Iterator
from typing import Any

from wirespeed.exceptions import WebSocketException

__all__ = ["Mine", "Misbehaved", "Record"]

# What the documentation names. UnicodeError is a ValueError, BlockingIOError and TimeoutError are an OSError.
DOCUMENTED = (TypeError, ValueError, BufferError, OverflowError, WebSocketException, OSError)

# Beginnings of the texts of the RuntimeErrors that are documented: who uses something in a way it is not meant for.
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
    # Of the object that was given.
    "multi-dimensional sub-views are not implemented",
)


class Mine(Exception):
    """What an object raises that was given."""


class Misbehaved(AssertionError):
    """Something came of a call that must not."""


class Record:
    """What went wrong within callbacks, where no exception can get out."""

    def __init__(self) -> None:
        self.problems: list[str] = []

    @contextlib.contextmanager
    def calling(self, what: str) -> Iterator[None]:
        """Let out nothing that may be; note what may not."""
        try:
            yield
        except BaseException as exc:
            if not may_be(exc):
                text = "".join(traceback.format_exception(type(exc), exc, exc.__traceback__)[-6:])
                self.problems.append(f"{what}: {text}")
            # What the caller waits for to hang in nobody's frame.
            exc.__traceback__ = None

    def check(self) -> None:
        """Raise what was noted."""
        if self.problems:
            raise Misbehaved("\n".join(self.problems))


def may_be(exc: BaseException) -> bool:
    """Whether an exception is one that is documented, or the given object's own."""
    if isinstance(exc, Mine):
        return True
    if isinstance(exc, RuntimeError) and not isinstance(exc, WebSocketException):
        return isinstance(exc, RecursionError) or str(exc).startswith(RUNTIME)
    # numpy and others have such subclasses, but none of them is here.
    return (isinstance(exc, DOCUMENTED) and not isinstance(exc, AssertionError)) or isinstance(exc, StopAsyncIteration)


def describe(value: Any) -> str:
    """The type of a value, as its repr may do anything."""
    return type(value).__name__
