"""Iterators over the messages of a connection that are generators, as in websockets, but as fast as the connection."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator
from types import TracebackType
from typing import Any, NoReturn

__all__ = ["AsyncMessages", "Messages"]


def _stop() -> NoReturn:
    raise StopIteration


async def _stop_async() -> NoReturn:
    raise StopAsyncIteration


def _raised(kind: Any, value: BaseException | None, traceback: TracebackType | None) -> BaseException:
    """Return the exception for the arguments of ``throw``."""
    exc: BaseException = kind if isinstance(kind, BaseException) else value if value is not None else kind()
    return exc if traceback is None else exc.with_traceback(traceback)


class AsyncMessages(AsyncGenerator[Any, None]):
    """The messages of an asyncio connection. Closing the generator ends the iteration, but not the connection.

    Args:
        connection: The connection.
    """

    # A slot, so that each step calls the method of the connection directly.
    __slots__ = ("__anext__",)

    def __init__(self, connection: Any) -> None:
        self.__anext__ = connection.__anext__  # type: ignore[method-assign]

    async def asend(self, _value: None) -> Any:
        """Receive the next message."""
        return await self.__anext__()

    async def athrow(  # type: ignore[override]
        self, kind: Any, value: BaseException | None = None, traceback: TracebackType | None = None, /
    ) -> NoReturn:
        """End the iteration with an exception."""
        self.__anext__ = _stop_async  # type: ignore[method-assign]
        raise _raised(kind, value, traceback)

    async def aclose(self) -> None:
        """End the iteration."""
        self.__anext__ = _stop_async  # type: ignore[method-assign]


class Messages(Generator[Any, None, None]):
    """The messages of a blocking connection. Closing the generator ends the iteration, but not the connection.

    Args:
        connection: The connection.
    """

    __slots__ = ("__next__",)

    def __init__(self, connection: Any) -> None:
        self.__next__ = connection.__next__  # type: ignore[method-assign]

    def send(self, _value: None) -> Any:
        """Receive the next message."""
        return self.__next__()

    def throw(  # type: ignore[override]
        self, kind: Any, value: BaseException | None = None, traceback: TracebackType | None = None, /
    ) -> NoReturn:
        """End the iteration with an exception."""
        self.__next__ = _stop  # type: ignore[method-assign]
        raise _raised(kind, value, traceback)

    def close(self) -> None:
        """End the iteration."""
        self.__next__ = _stop  # type: ignore[method-assign]
