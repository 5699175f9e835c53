"""The course of a workload that runs in callbacks: messages, checks, warm-up and window.

The callback itself is the peer's: each library calls it with arguments of its own, and another call from there to a
common one would cost as much as some of what is measured. Every callback does the same. It counts `remaining` down from
`count`; what follows at zero is here:

- `round_trip`, begun by sending the first message: the payload must equal `expected[remaining & 1]`, else `fail`;
  `remaining -= 1`; at zero `remaining = again()`; unless that is zero too, sends `messages[remaining & 1]`. `again`
  may exchange the two messages, in both lists.
- `pipelined`, begun by sending `window` messages in turns: the same, but answers each payload with the message that it
  equals; once `again()` has returned zero, calls `late()` for each reply that is still to come.
- `stream_in`: takes the payload; `remaining -= 1`; at zero `remaining = over(payload)`.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Awaitable, Callable

from models.content import ContentError, Stream, two_messages
from models.latency import WINDOW_SHARE, Latencies
from models.program import STEP_SECONDS, gate, result
from models.usage import Usage

__all__ = ["WORKLOADS", "Course", "Listen", "measure"]

WORKLOADS = ("round-trip", "stream-in", "pipelined")

# From this size on a view of the library's buffer costs less than a copy of the payload, comparing included.
VIEW_BYTES = 4096


class Course:
    """One window of one workload.

    Attributes:
        workload: which.
        messages: the two that take turns.
        expected: what the payloads are compared with, in the same order: bytes, or, if `views`, bytearrays, which
            compare with a memoryview many times faster.
        views: whether the payloads are to be taken as memoryviews.
        count: the messages of the step that runs.
        window: the messages that are under way at once, when pipelined.
    """

    def __init__(self, options: argparse.Namespace) -> None:
        self.workload: str = options.workload
        self.messages = two_messages(options.size)
        self.views = options.size >= VIEW_BYTES
        self.expected = [bytearray(message) if self.views else message for message in self.messages]
        self.count = 2
        self.window: int = options.window or 0
        self._options = options
        self._stream = Stream(max(8, options.size), bytearray if self.views else bytes)
        self._latencies = Latencies()
        self._timing = False
        self._sent = 0
        self._total = 0
        self._late = 0
        self._since: Usage | None = None
        self._used: Usage | None = None
        self._end = time.perf_counter() + options.warmup
        self._step = time.perf_counter()
        self._over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._settled: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def again(self) -> int:
        """Ends a step; returns the messages of the next one, 0 if the window is over."""
        if self._timing:
            return self._next_alone()
        now = time.perf_counter()
        if self._since is None:
            if now - self._step < STEP_SECONDS / 2:
                self.count *= 2
            elif now >= self._end:
                gate(self._options)
                self.begin()
                self._since = Usage.now(self._options.server_pid)
                self._end = self._since.wall + self._options.seconds
            self._step = time.perf_counter()
            return self.count
        self._total += self.count
        if now < self._end:
            return self.count
        self._used = Usage.now(self._options.server_pid) - self._since
        if self._options.workload == "round-trip":
            self._timing = True
            self._end = time.perf_counter() + self._options.seconds * WINDOW_SHARE
            return self._alone()
        return self._finish()

    def _next_alone(self) -> int:
        """Ends a round trip that is timed alone; returns the next one, 0 if that was the last."""
        self._latencies.add(time.perf_counter_ns() - self._sent)
        if time.perf_counter() < self._end and not self._latencies.full:
            return self._alone()
        return self._finish()

    def _alone(self) -> int:
        """Begins a round trip that is timed alone."""
        # A step of one would always send the same message.
        self.messages.reverse()
        self.expected.reverse()
        self._sent = time.perf_counter_ns()
        return 1

    def _finish(self) -> int:
        if not self._over.done():
            self._over.set_result(None)
        return 0

    def begin(self) -> None:
        """Told that the warm-up is over."""

    def figures(self) -> dict[str, object]:
        """Returns further figures of the window."""
        return self._latencies.figures(self._options) if self._timing else {}

    def over(self, payload: object) -> int:
        """Ends a step of a stream; returns the messages of the next one, less than 0 if nobody counts any more."""
        try:
            self._stream.check(payload, self.count)
        except ContentError as error:
            self.fail(str(error))
            return -1
        return self.again() or -1

    def late(self, *arguments: object) -> None:
        """Takes note of a reply that came after the window."""
        self._late += 1
        if self._late == self.window - 1 and not self._settled.done():
            self._settled.set_result(None)

    def fail(self, reason: str = "a reply differs from the message that was sent") -> None:
        """Ends the window without a figure."""
        for future in (self._over, self._settled):
            if not future.done():
                future.set_exception(ContentError(reason))

    async def outcome(self) -> dict[str, object]:
        """Waits for the end of the window, and of what is still to come."""
        await self._over
        if self.workload == "pipelined":
            await self._settled
        assert self._used is not None
        return result(self._total, self._used, **self.figures())


Listen = Callable[[str, str | None, int, Course], Awaitable[object]]
"""Connects to a URL, trusting the CA in a PEM file if given, for messages of a size, and starts the course there.

Returns what must be kept for the connection to stay open.
"""


async def measure(
    listen: Listen, options: argparse.Namespace, course_class: Callable[[argparse.Namespace], Course] = Course
) -> dict[str, object]:
    """Runs the workload that the options name, in a course of this class."""
    course = course_class(options)
    connection = await listen(options.url, options.ca, options.size, course)
    outcome = await course.outcome()
    del connection
    return outcome
