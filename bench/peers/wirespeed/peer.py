"""wirespeed, its asyncio client: awaited, iterated over, in batches, in callbacks. Its compression has level 6."""

from __future__ import annotations

import asyncio
import functools
from typing import Any

from models.callbacks import Course
from models.connection import Client, Connection
from models.interface import Interface
from models.peer import main
from models.program import Library


def native_tls(url: str, ca: str | None) -> Any:
    """Returns the library's own TLS settings, one object for all connections."""
    return _tls(ca) if url.startswith("wss:") else None


@functools.cache
def _tls(ca: str | None) -> Any:
    import wirespeed

    return wirespeed.TLS(ca=ca)


LIMITS = {"max_queue": None, "max_queue_bytes": None}
LIBRARY = Interface("wirespeed", "wirespeed", "wirespeed", LIMITS, native_tls)


async def at_once(url: str, ca: str | None, size: int) -> Connection:
    """Connects so that each message goes to the system by the call that sends it."""
    return await LIBRARY.connect(url, ca, size, coalesce=False)


async def listen(url: str, ca: str | None, size: int, course: Course) -> object:
    """Starts the course. A callback cannot wait: sending has no limit, as in the other libraries that call back."""
    listener = replying(course) if course.replies else streaming(course)
    return await LIBRARY.open(url, ca, listener=listener, zero_copy=course.views, write_limit=1 << 30)


def replying(course: Course) -> Any:
    """Returns the listener of messages and their replies."""
    from wirespeed import ClientConnection, Listener

    take = course.take
    send: Any = None

    class Replying(Listener):
        def on_open(self, ws: ClientConnection) -> None:
            nonlocal send
            send = ws.send_nowait
            for number in range(course.window):
                send(course.messages[number & 1])

        def on_message(self, ws: ClientConnection, message: bytes | memoryview) -> None:
            expected, answer = take()
            if expected != message:
                course.fail()
            elif answer is not None or (answer := course.answer()) is not None:
                send(answer)

        def on_close(self, ws: ClientConnection, code: int, reason: str) -> None:
            course.fail("the connection ended")

    return Replying()


def streaming(course: Course) -> Any:
    """Returns the listener of the stream."""
    from wirespeed import ClientConnection, Listener

    take = course.take

    class Streaming(Listener):
        def on_message(self, ws: ClientConnection, message: bytes | memoryview) -> None:
            if take():
                course.over(message)

        def on_close(self, ws: ClientConnection, code: int, reason: str) -> None:
            course.fail("the connection ended")

    return Streaming()


@functools.cache
def sending() -> Any:
    """Returns the class of listeners that take one message when asked for, and tell when writing may go on."""
    from wirespeed import ClientConnection, Listener

    class Sending(Listener):
        __slots__ = ("ended", "received", "resumed")

        def __init__(self) -> None:
            self.received: asyncio.Future[Any] | None = None
            self.resumed: asyncio.Future[Any] | None = None
            self.ended = False

        def on_message(self, ws: ClientConnection, message: Any) -> None:
            if self.received is not None:
                self.received.set_result(message)
                self.received = None

        def on_writable(self, ws: ClientConnection) -> None:
            if self.resumed is not None:
                self.resumed.set_result(None)
                self.resumed = None

        def on_close(self, ws: ClientConnection, code: int, reason: str) -> None:
            self.ended = True
            for promise in (self.received, self.resumed):
                if promise is not None and not promise.done():
                    promise.set_exception(ConnectionError("the connection ended"))

        def promise(self) -> asyncio.Future[Any]:
            promise = asyncio.get_running_loop().create_future()
            if self.ended:
                promise.set_exception(ConnectionError("the connection ended"))
            return promise

        def recv(self) -> asyncio.Future[Any]:
            self.received = self.promise()
            return self.received

        def writable(self) -> asyncio.Future[Any]:
            # Several tasks may wait.
            self.resumed = self.resumed or self.promise()
            return self.resumed

    return Sending


async def connect(url: str, ca: str | None, size: int) -> Connection:
    """Connects for the workloads that send without an answer, or rest."""
    listener = sending()()
    ws = await LIBRARY.open(url, ca, listener=listener)
    send = ws.send_nowait
    how = {"flush": ws.flush, "writable": listener.writable, "close": ws.close}
    return Connection(ws, send, listener.recv, send_text=send, **how)


if __name__ == "__main__":
    styles = {style: LIBRARY.client_of(style, at_once=at_once) for style in ("await", "iterate", "many")}
    styles["callbacks"] = Client(connect, listen=listen)
    main(Library("wirespeed", "wirespeed"), styles)
