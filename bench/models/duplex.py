"""Both directions of one connection at the same time: one task sends to the sink, another takes the stream.

Blocking peers have a thread each for that, if their library says that it may be used so.
"""

from __future__ import annotations

import argparse
import asyncio
import threading
from collections.abc import Awaitable, Callable
from itertools import repeat
from typing import TYPE_CHECKING, Any

from models import stepping
from models.awaiting import Awaiting, Connect, Loop, Step
from models.content import ContentError, Sink, Stream, payload_of, two_messages

if TYPE_CHECKING:
    from models import blocking

__all__ = ["BLOCKING", "LOOPS"]

# What the sender hands over between two looks at whether to go on.
PART_BYTES = 1 << 16


class _Counts:
    """What went either way.

    Attributes:
        stream: what arrives.
        sink: what was sent.
        part: what the sender sends without looking up.
        over: set for the sender to come to its end.
    """

    def __init__(self, encode: Callable[[bytes], Any], options: argparse.Namespace) -> None:
        self.stream = Stream(options.size, encode)
        self.sink = Sink(options.size)
        self.part = two_messages(options.size) * max(1, min(512, PART_BYTES // options.size // 2))
        self.over = False
        self._text = payload_of(encode)
        self._told = 0

    def sent(self) -> int:
        """Returns how many messages were sent since it was asked last."""
        before, self._told = self._told, self.sink.sent
        return self._told - before

    def is_answer(self, message: Any) -> bool:
        """Tells whether this is the sink's answer, and checks it; it must be the stream's next message otherwise."""
        if self.stream.takes(message):
            return False
        text = self._text(message)
        if not isinstance(text, (str, bytes)) or text[:1] not in ("{", b"{"):
            self.stream.check(message, 1)
        self.sink.check(text)
        return True


class _Duplex:
    """A connection that is used in both directions, by tasks."""

    def __init__(self, connection: Awaiting, options: argparse.Namespace) -> None:
        if connection.drain is not None:
            raise ContentError("only an answer tells when this library has caught up, and the stream is in its way")
        if connection.send_text is None:
            raise ContentError("this peer does not say how its library sends a text message")
        self._connection = connection
        self._send_text: Callable[[str], Awaitable[object] | None] = connection.send_text
        self._counts = _Counts(connection.encode, options)
        self._sender: asyncio.Task[None] | None = None

    def prepare(self, count: int) -> Step:
        """Returns a step that takes so many messages of the stream."""
        recv, counts = self._connection.recv, self._counts

        async def step() -> int:
            if self._sender is None:
                counts.over = False
                self._sender = asyncio.create_task(self._send())
            message = None
            for _ in repeat(None, count):
                message = await recv()
            counts.stream.check(message, count)
            return count + counts.sent()

        return step

    async def finish(self) -> int:
        """Ends sending; takes the stream until the sink has answered. Returns what was counted meanwhile."""
        assert self._sender is not None
        counts, recv, received = self._counts, self._connection.recv, 0
        counts.over = True
        while not self._sender.done():
            counts.stream.check(await recv(), 1)
            received += 1
        await self._sender
        self._sender = None
        pending = self._send_text("report")
        if pending is not None:
            await pending
        while not counts.is_answer(await recv()):
            received += 1
        return received + counts.sent()

    async def _send(self) -> None:
        counts, send = self._counts, self._connection.send
        while not counts.over:
            for message in counts.part:
                pending = send(message)
                if pending is not None:
                    await pending
            counts.sink.sent += len(counts.part)
            # A library that never has to wait would leave the receiver none.
            await asyncio.sleep(0)


async def _duplex(connect: Connect, style: str, options: argparse.Namespace) -> Loop:
    duplex = _Duplex(await connect(options.url, options.ca, options.size), options)
    return Loop(duplex.prepare, duplex.finish)


class _DuplexThreads:
    """A connection that is used in both directions, by two threads."""

    def __init__(self, connection: blocking.Blocking, options: argparse.Namespace) -> None:
        if connection.send_text is None:
            raise ContentError("this peer does not say how its library sends a text message")
        self._connection = connection
        self._send_text: Callable[[str], object] = connection.send_text
        self._counts = _Counts(lambda message: connection.encode(message)[1], options)
        self._sender: threading.Thread | None = None
        self._failure: Exception | None = None

    def prepare(self, count: int) -> stepping.Step:
        """Returns a step that takes so many messages of the stream."""
        recv, counts = self._connection.recv, self._counts

        def step() -> int:
            if self._sender is None:
                counts.over = False
                self._sender = threading.Thread(target=self._send, daemon=True)
                self._sender.start()
            message = None
            for _ in repeat(None, count):
                message = recv()
            counts.stream.check(message, count)
            return count + counts.sent()

        return step

    def finish(self) -> int:
        """Ends sending; takes the stream until the sink has answered. Returns what was counted meanwhile."""
        assert self._sender is not None
        counts, recv, received = self._counts, self._connection.recv, 0
        counts.over = True
        while self._sender.is_alive():
            counts.stream.check(recv(), 1)
            received += 1
        self._sender = None
        if self._failure is not None:
            raise self._failure
        self._send_text("report")
        while not counts.is_answer(recv()):
            received += 1
        return received + counts.sent()

    def _send(self) -> None:
        counts, send = self._counts, self._connection.send
        try:
            while not counts.over:
                for message in counts.part:
                    send(message)
                counts.sink.sent += len(counts.part)
        except Exception as error:
            self._failure = error


def _duplex_blocking(connect: blocking.Connect, options: argparse.Namespace) -> stepping.Loop:
    duplex = _DuplexThreads(connect(options.url, options.ca, options.size), options)
    return stepping.Loop(duplex.prepare, duplex.finish)


LOOPS = {"duplex": _duplex}
BLOCKING = {"duplex": _duplex_blocking}
