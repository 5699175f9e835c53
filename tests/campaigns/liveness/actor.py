"""Actors: tasks of a loop or threads, each of which makes one call after the other."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import threading

from campaigns.common.calls import complete

from .calls import Calls
from .plan import Step
from .record import Call, Poke, Record


async def perform(call: Call, record: Record, calls: Calls) -> None:
    """Makes a call, and records it and its outcome."""
    with record.lock:
        call.order = len(record.calls)
        record.calls.append(call)
    link = record.links[call.step.link]
    try:
        await calls.make(call, link)
        call.result = "returned"
    except asyncio.CancelledError:
        call.result = "cancelled"
        if (uncancel := getattr(asyncio.current_task(), "uncancel", None)) is not None:
            uncancel()  # since Python 3.11
    except (Exception, Poke) as exc:
        call.raised(exc, link.state)
        if isinstance(exc, UnicodeDecodeError):
            link.take(call.actor, exc.object)  # the message was assigned to the call, which could not decode it
        link.lost += call.receives and call.result == "interrupted"


class TaskActor:
    """A task that makes calls.

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
                step = self.steps.popleft()
                if (before := step.get("before")) is not None:
                    self.record.links[step.link].peer.do(before)
                self.call = Call(0, self.number, step)
                try:
                    await perform(self.call, self.record, self.calls)
                finally:
                    self.call = None
            if self.ending:
                return
            self.waiting = asyncio.get_running_loop().create_future()
            # A call that completes despite its cancellation leaves the cancellation pending.
            with contextlib.suppress(asyncio.CancelledError):
                await self.waiting


class ThreadActor(threading.Thread):
    """A thread that makes calls, with the arguments of ``TaskActor``. It may hang: waits for it are short."""

    def __init__(self, number: int, record: Record, calls: Calls) -> None:
        super().__init__(name=f"liveness-actor-{number}", daemon=True)
        self.number = number
        self.record = record
        self.calls = calls
        self.steps: collections.deque[Step] = collections.deque()
        self.call: Call | None = None
        self._changed = threading.Condition()
        self._ending = False
        self.start()

    def give(self, step: Step) -> None:
        with self._changed:
            self.steps.append(step)
            self._changed.notify()

    def end(self) -> None:
        """Ends the thread after the running call."""
        with self._changed:
            self._ending = True
            self.steps.clear()
            self._changed.notify()

    def run(self) -> None:
        while True:
            with self._changed:
                self.call = None
                while not self.steps and not self._ending:
                    self._changed.wait()
                if not self.steps:
                    return
                # Both at once: observers find it either waiting or at work.
                call = self.call = Call(0, self.number, self.steps[0])
                self.steps.popleft()
            if (before := call.step.get("before")) is not None:
                self.record.links[call.step.link].peer.do(before)
            complete(perform(call, self.record, self.calls))
