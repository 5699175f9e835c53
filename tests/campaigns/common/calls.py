"""One program for both kinds of API: an async function whose calls may be blocking ones, which never wait."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterable
from typing import Any, TypeVar

T = TypeVar("T")


def complete(coroutine: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine that waits only inside of blocking calls, without an event loop; returns its result."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        result: T = stop.value
        return result
    finally:
        coroutine.close()
    raise RuntimeError("the coroutine of blocking calls waits for an event loop")


async def attempt(call: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """Makes a call, and awaits its result if it is an awaitable."""
    result = call(*arguments, **options)
    return await result if isinstance(result, Awaitable) else result


async def as_async(items: Iterable[T]) -> AsyncGenerator[T, None]:
    """Iterates over a blocking iterable, which is closed in the end if it is a generator."""
    try:
        for item in items:
            yield item
    finally:
        if (close := getattr(items, "close", None)) is not None:
            close()
