"""Each way on its own, by the stamps of the server: one message at a time, or a sliding window of them under way."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from itertools import repeat
from typing import TYPE_CHECKING, Any

from models import awaiting, stepping
from models.callbacks import Course
from models.content import ContentError, unwrapping
from models.stamps import Stamps

if TYPE_CHECKING:
    from models import blocking

__all__ = ["BLOCKING", "COURSES", "LOOPS", "OneWayCourse"]


async def _one_way(connect: awaiting.Connect, style: str, options: argparse.Namespace) -> awaiting.Loop:
    connection = await connect(options.url, options.ca, options.size)
    stamps = Stamps(options.size)
    payload = unwrapping(connection.encode, options.size)
    send, recv, clock = connection.send, connection.recv, time.monotonic_ns

    def prepare(count: int) -> awaiting.Step:
        async def step() -> int:
            for _ in repeat(None, count):
                pending = send(stamps.message())
                if pending is not None:
                    await pending
                reply = await recv()
                now = clock()
                stamps.take(payload(reply), now)
            return count

        return step

    return awaiting.Loop(prepare, begin=stamps.clear, figures=_figures(stamps))


async def _one_way_window(connect: awaiting.Connect, style: str, options: argparse.Namespace) -> awaiting.Loop:
    connection = await connect(options.url, options.ca, options.size)
    stamps = Stamps(options.size)
    payload = unwrapping(connection.encode, options.size)
    send, recv, clock = connection.send, connection.recv, time.monotonic_ns
    for _ in repeat(None, options.window):
        pending = send(stamps.message())
        if pending is not None:
            await pending

    def prepare(count: int) -> awaiting.Step:
        async def step() -> int:
            for _ in repeat(None, count):
                reply = await recv()
                now = clock()
                stamps.take(payload(reply), now)
                pending = send(stamps.message())
                if pending is not None:
                    await pending
            return count

        return step

    async def settle() -> None:
        for _ in repeat(None, options.window):
            reply = await recv()
            stamps.take(payload(reply), clock())

    return awaiting.Loop(prepare, begin=stamps.clear, settle=settle, figures=_figures(stamps))


def _figures(stamps: Stamps) -> Any:
    async def figures(seconds: float) -> dict[str, object]:
        return stamps.figures()

    return figures


def _one_way_blocking(connect: blocking.Connect, options: argparse.Namespace) -> stepping.Loop:
    connection = connect(options.url, options.ca, options.size)
    stamps = Stamps(options.size, lambda message: connection.encode(message)[0])
    payload = unwrapping(lambda message: connection.encode(message)[1], options.size)
    send, recv, clock = connection.send, connection.recv, time.monotonic_ns

    def prepare(count: int) -> stepping.Step:
        def step() -> int:
            for _ in repeat(None, count):
                send(stamps.message())
                reply = recv()
                now = clock()
                stamps.take(payload(reply), now)
            return count

        return step

    return stepping.Loop(prepare, begin=stamps.clear, figures=lambda seconds: stamps.figures())


def _one_way_window_blocking(connect: blocking.Connect, options: argparse.Namespace) -> stepping.Loop:
    connection = connect(options.url, options.ca, options.size)
    stamps = Stamps(options.size, lambda message: connection.encode(message)[0])
    payload = unwrapping(lambda message: connection.encode(message)[1], options.size)
    send, recv, clock = connection.send, connection.recv, time.monotonic_ns
    for _ in repeat(None, options.window):
        send(stamps.message())

    def take() -> None:
        reply = recv()
        stamps.take(payload(reply), clock())

    def prepare(count: int) -> stepping.Step:
        def step() -> int:
            for _ in repeat(None, count):
                reply = recv()
                now = clock()
                stamps.take(payload(reply), now)
                send(stamps.message())
            return count

        return step

    def settle() -> None:
        for _ in repeat(None, options.window):
            take()

    return stepping.Loop(prepare, begin=stamps.clear, settle=settle, figures=lambda seconds: stamps.figures())


class OneWayCourse(Course):
    """The callbacks of `round_trip` and `pipelined` at /stamp: each message they send is new, each reply is timed.

    What they take for lists of messages builds the next one, or checks a reply.

    Attributes:
        stamps: the messages and their replies.
    """

    def __init__(self, options: argparse.Namespace) -> None:
        super().__init__(options)
        windowed = options.workload == "one-way-window"
        self.workload = "pipelined" if windowed else "round-trip"
        self.window = options.window if windowed else 1
        self.stamps = Stamps(options.size)
        self.messages: Any = _Calling(self.stamps.message)
        due = _Due(self)
        self.expected: Any = _Calling(lambda: due)

    def take(self, payload: Any) -> bool:
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
        return not self._course.take(payload)

    __hash__ = None  # type: ignore[assignment]


LOOPS = {"one-way": _one_way, "one-way-window": _one_way_window}
BLOCKING = {"one-way": _one_way_blocking, "one-way-window": _one_way_window_blocking}
COURSES = {"one-way": OneWayCourse, "one-way-window": OneWayCourse}
