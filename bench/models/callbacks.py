"""The course of a workload that runs in callbacks: messages, checks, warm-up and window.

The callback itself is the peer's: each library calls it with arguments of its own, and another call from there to a
common one would cost as much as some of what is measured. Every callback does the same. It counts nothing: `take`,
which is compiled, says what is due, as `repeat` and lists say it to the loops of what awaits:

- `replies`, begun by sending `window` of `messages` in turns: `expected, answer = take()`; the payload must equal
  `expected`, else `fail`; where there is no answer, a step is over, and `answer()` returns one; unless that is None
  too, sends it.
- else, a stream: takes the payload; where `take()` is true, a step is over: `over(payload)`.

Compiled callbacks count: `remaining`, from `count` down; at zero it becomes what `again()` or `over(payload)` returns.
A reply equals `expected[remaining & 1]`, and is answered with `answers[remaining & 1]` when it was counted; `again` may
exchange the two. After a zero, each reply that is still to come calls `late`.
"""

import argparse
import asyncio
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, cycle, repeat
from typing import Any

from models.content import ContentError, Stream, two_messages
from models.latency import WINDOW_SHARE, Latencies
from models.program import STEP_SECONDS, Window
from models.stamps import Stamps

__all__ = ["WORKLOADS", "Course", "measure"]

# From this size on a view of the library's buffer costs less than a copy of the payload, comparing included.
VIEW_BYTES = 4096


class Course:
    """One window of one workload.

    Attributes:
        replies: whether each message is answered, else there is a stream.
        messages: the two that take turns.
        expected: what the payloads are compared with, in the same order: bytes, or, if `views`, bytearrays, which
            compare with a memoryview many times faster.
        answers: what is sent when a reply has come, by the number of the reply.
        take: says of a reply what it equals, and what answers it, None at the end of a step; of a message of a stream
            whether it ends a step.
        views: whether the payloads are to be taken as memoryviews.
        count: the messages of the step that runs.
        window: the messages that are under way at once.
    """

    def __init__(self, options: argparse.Namespace) -> None:
        self.replies: bool = options.workload != "stream-in"
        self.window: int = options.window if options.workload in ("pipelined", "one-way-window") else 1
        self.views = options.size >= VIEW_BYTES
        self.messages: Any = two_messages(options.size)
        self.expected: Any = [bytearray(message) if self.views else message for message in self.messages]
        # One step on from what is due, and so many messages ahead as are under way: an even number changes nothing.
        self.answers: Any = self.messages if self.window % 2 else self.messages[::-1]
        self.count = 2
        self._options = options
        self._stream = Stream(max(8, options.size), bytearray if self.views else bytes)
        self._latencies = Latencies()
        self._timing = self._ended = False
        self._step_of_replies = self._replies()
        self.take: Callable[[], Any] = chain.from_iterable(self._steps() if self.replies else self._marks()).__next__
        self._sent = self._total = self._late = 0
        self._window: Window | None = None
        self._end = self._step = 0.0
        self._over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._settled: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def again(self) -> int:
        """Ends a step; returns the messages of the next one, 0 if the window is over."""
        if self._timing:
            self._latencies.add(time.perf_counter_ns() - self._sent)
            return self._alone() if time.perf_counter() < self._end and not self._latencies.full else self.finish()
        now = time.perf_counter()
        if self._window is None:
            if not self._step:
                # Until here the library was imported, and has connected.
                self._end = now + self._options.warmup
            elif now - self._step < STEP_SECONDS / 2:
                self.count *= 2
                self._step_of_replies = self._replies()
            elif now >= self._end:
                self.begin()
                self._window = Window(self._options)
            self._step = time.perf_counter()
            return self.count
        self._total += self.count
        if now < self._window.end:
            return self.count
        self._window.stop()
        if self._options.workload == "round-trip":
            self._timing = True
            self._end = time.perf_counter() + self._options.seconds * WINDOW_SHARE
            return self._alone()
        return self.finish()

    def answer(self) -> Any:
        """Ends a step of replies; returns the message that begins the next one, None if the window is over."""
        if self._ended:
            self.late()
            return None
        count = self.again()
        return self.answers[count & 1] if count else None

    def _replies(self) -> list[tuple[Any, Any]]:
        """Returns what the replies of a step equal, and their answers; the end of the step has none."""
        one, other = zip(self.expected, reversed(self.answers), strict=True)
        return [one, other] * (self.count // 2 - 1) + [one, (other[0], None)]

    def _steps(self) -> Iterator[Iterable[object]]:
        while not self._ended:
            yield self._step_of_replies
        yield cycle([(expected, None) for expected in self.expected])

    def _marks(self) -> Iterator[Iterable[object]]:
        """Yields for each message of each step whether it is the last."""
        while not self._ended:
            yield repeat(False, self.count - 1)
            yield (True,)
        yield repeat(False)

    def _alone(self) -> int:
        """Begins a round trip that is timed alone."""
        # A step of one would always send the same message.
        self.messages.reverse()
        self.expected.reverse()
        self._step_of_replies = [(self.expected[1], None)]
        self._sent = time.perf_counter_ns()
        return 1

    def finish(self) -> int:
        """Ends the course; there are no more messages."""
        self._ended = True
        if not self._over.done():
            self._over.set_result(None)
        return 0

    def begin(self) -> None:
        """Told that the warm-up is over."""

    def figures(self) -> dict[str, object]:
        """Returns further figures of the window."""
        return self._latencies.figures() if self._timing else {}

    def over(self, payload: object) -> int:
        """Ends a step of a stream; returns the messages of the next one, less than 0 if counting has ended."""
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

    def fail(self, reason: str | None = None) -> None:
        """Ends the window without a figure; without a reason, because of a reply that was none."""
        self._ended = True
        reason = reason or "a reply differs from the message that was sent"
        for future in (self._over, self._settled):
            if not future.done():
                future.set_exception(ContentError(reason))

    async def outcome(self) -> dict[str, object]:
        """Waits for the end of the window, and of what is still to come."""
        await self._over
        if self.window > 1:
            await self._settled
        assert self._window is not None
        return self._window.result(self._total, **self.figures())


class OneWayCourse(Course):
    """The callbacks of replies at /stamp: each message they send is new, each reply is timed.

    What they take for a list of messages builds the next one, what they compare a reply with checks it.

    Attributes:
        stamps: the messages and their replies.
    """

    def __init__(self, options: argparse.Namespace) -> None:
        super().__init__(options)
        self.stamps = Stamps(options.size)
        self.messages = _Calling(self.stamps.message)
        # Each message is built when it is sent.
        self.take = repeat((_Due(self), None)).__next__
        self._ends = chain.from_iterable(self._marks())

    def answer(self) -> Any:
        """Returns the next message, None if the window is over."""
        if self._ended:
            self.late()
            return None
        return None if next(self._ends) and not self.again() else self.stamps.message()

    def _replies(self) -> list[tuple[Any, Any]]:
        return []

    def check(self, payload: Any) -> bool:
        """Checks a reply that has just come; returns whether it is right."""
        now = time.monotonic_ns()
        try:
            self.stamps.take(payload, now)
        except ContentError as error:
            self.fail(str(error))
            return False
        return True

    def begin(self) -> None:
        """Forgets the warm-up."""
        self.stamps.clear()

    def figures(self) -> dict[str, object]:
        """Returns how long each way took."""
        return self.stamps.figures()


class _Calling:
    """Looks like a list of two messages; each look at it is a call."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self._call = call

    def __getitem__(self, index: int) -> Any:
        return self._call()


class _Due:
    """What a callback compares a payload with."""

    def __init__(self, course: OneWayCourse) -> None:
        self._course = course

    def __ne__(self, payload: object) -> bool:
        return not self._course.check(payload)

    __hash__ = None  # type: ignore[assignment]


WORKLOADS = {
    **dict.fromkeys(("round-trip", "stream-in", "pipelined"), Course),
    **dict.fromkeys(("one-way", "one-way-window"), OneWayCourse),
}


async def measure(listen: Any, options: argparse.Namespace) -> dict[str, object]:
    """Runs the workload that the options name: `listen` is a `Client`'s."""
    course = WORKLOADS[options.workload](options)
    connection = await listen(options.url, options.ca, options.size, course)
    outcome = await course.outcome()
    del connection
    return outcome
