"""Closing a connection from code that cannot await: ``__del__``, and coroutines that are closed or collected."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import inspect
import opcode
from collections.abc import AsyncGenerator, Awaitable
from types import FrameType
from typing import TYPE_CHECKING

from ._tasks import current_task

if TYPE_CHECKING:
    from ._connection import Connection

__all__ = ["can_suspend", "leave"]

_COROUTINES = inspect.CO_COROUTINE | inspect.CO_ITERABLE_COROUTINE | inspect.CO_ASYNC_GENERATOR | inspect.CO_GENERATOR

# Opcodes of an await: SEND with its cache, YIELD_VALUE and RESUME; in Python 3.10 YIELD_FROM.
_SEND, _YIELD_VALUE, _YIELD_FROM = (opcode.opmap.get(name) for name in ("SEND", "YIELD_VALUE", "YIELD_FROM"))

# Coroutine functions of a loop that asyncio.run calls after the tasks have ended.
_SHUTDOWN = ("shutdown_asyncgens", "shutdown_default_executor")


def can_suspend(frame: FrameType) -> bool:
    """Return whether a coroutine that handles ``GeneratorExit`` may await something.

    It may if a task awaits ``aclose()`` of an asynchronous generator. It may not if the coroutine is closed by
    ``close()`` or collected as garbage. If neither is certain, the result is ``False``.

    Args:
        frame: The frame of the coroutine.
    """
    try:
        task = current_task()
    except RuntimeError:
        return False
    if task is None:
        return False
    coroutine = task.get_coro()
    root = getattr(coroutine, "cr_frame", None)
    while frame is not root:
        caller = frame.f_back
        if caller is None or not caller.f_code.co_flags & _COROUTINES:
            # The task of loop.shutdown_asyncgens, or of a collected generator, runs aclose() itself.
            owners = gc.get_referents(coroutine) if root is None else []
            return any(getattr(owner, "ag_frame", None) is frame for owner in owners)
        if not _awaits(caller):
            return False
        frame = caller
    return True


def _awaits(frame: FrameType) -> bool:
    """Return whether a frame is suspended at an await rather than at a call."""
    code, at = frame.f_code.co_code, frame.f_lasti
    before, here, after = (code[place] if 0 <= place < len(code) else -1 for place in (at - 2, at, at + 2))
    # After an exception was thrown in, the position is behind YIELD_VALUE in 3.13, and before YIELD_FROM in 3.10.
    return here in (_SEND, _YIELD_VALUE, _YIELD_FROM) or before in (_SEND, _YIELD_VALUE) or after == _YIELD_FROM


def leave(connection: Connection, code: int) -> None:
    """Begin to close a connection without waiting. The event loop sends the queued messages, then closes it.

    ``asyncio.run`` waits for the end of the connection before it returns, unless it is already closing asynchronous
    generators.

    Args:
        connection: The connection.
        code: Close code.
    """
    connection._leave(code)
    loop = connection._loop
    if asyncio._get_running_loop() is not loop or _is_shutting_down(loop):
        return
    over = connection._closed_future()
    if over is None:
        return
    # asyncio.run cancels the remaining tasks when main() returns, but closes asynchronous generators and waits for
    # them.
    waiting = _wait_when_closed(over)
    _step(waiting.__anext__())
    over.add_done_callback(lambda _: _step(waiting.aclose()))


def _is_shutting_down(loop: asyncio.AbstractEventLoop) -> bool:
    """Return whether the loop has begun to close asynchronous generators: it warns of generators that begin later."""
    called: bool | None = getattr(loop, "_asyncgens_shutdown_called", None)
    if called is None:
        # uvloop does not have this attribute.
        coroutines = [task.get_coro() for task in asyncio.all_tasks(loop)]
        return any(getattr(coroutine, "__name__", None) in _SHUTDOWN for coroutine in coroutines)
    return called


def _step(generating: Awaitable[None]) -> None:
    # RuntimeError: the loop is already closing the generator.
    with contextlib.suppress(StopIteration, RuntimeError):
        generating.__await__().__next__()


async def _wait_when_closed(over: asyncio.Future[None]) -> AsyncGenerator[None, None]:
    try:
        yield
    finally:
        if not over.done():
            await asyncio.wait([over])
