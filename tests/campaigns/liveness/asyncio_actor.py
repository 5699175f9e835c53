"""Actors on an event loop: each is a task that makes one call after the other."""

from __future__ import annotations

import asyncio
import collections
import contextlib

from .asyncio_calls import Calls
from .plan import Step
from .record import Call, Record

__all__ = ["Actor"]


class Actor:
    """A task that makes calls one after the other.

    Args:
        number: The number in its messages.
        record: The record of its calls.
        calls: Makes them.
    """

    def __init__(self, number: int, record: Record, calls: Calls) -> None:
        self.record = record
        self.calls = calls
        self.number = number
        self.steps: collections.deque[Step] = collections.deque()
        self.call: Call | None = None
        self.ending = False
        self.waiting: asyncio.Future[None] | None = None
        self.task = asyncio.ensure_future(self._work())

    def give(self, step: Step) -> None:
        self.steps.append(step)
        self._wake()

    def end(self) -> None:
        self.ending = True
        self._wake()

    def cancel(self) -> None:
        # An actor without a call is not cancelled: that would not test the connection.
        if self.call is not None:
            self.call.cancelling = True
            self.task.cancel()

    def _wake(self) -> None:
        if self.waiting is not None and not self.waiting.done():
            self.waiting.set_result(None)

    async def _work(self) -> None:
        while True:
            while self.steps:
                await self._do(self.steps.popleft())
            if self.ending:
                return
            self.waiting = asyncio.get_running_loop().create_future()
            # A call that completes despite its cancellation leaves the cancellation pending.
            with contextlib.suppress(asyncio.CancelledError):
                await self.waiting

    async def _do(self, step: Step) -> None:
        record = self.record
        link = record.links[step.link]
        if (before := step.get("before")) is not None:
            link.peer.do(before)
        self.call = call = Call(len(record.calls), self.number, step)
        record.calls.append(call)
        try:
            await self.calls.make(call, link)
            call.result = "returned"
        except asyncio.CancelledError:
            call.result = "cancelled"
            if (uncancel := getattr(self.task, "uncancel", None)) is not None:
                uncancel()  # since Python 3.11
        except Exception as exc:
            call.raised(exc, link.state)
            if isinstance(exc, UnicodeDecodeError):
                link.take(self.number, exc.object)  # the message was assigned to the call, which could not decode it
            link.lost += call.receives and call.result == "interrupted"
        finally:
            self.call = None
