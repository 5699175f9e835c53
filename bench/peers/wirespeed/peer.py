"""wirespeed, its asyncio client: awaited, iterated over, in batches, in callbacks."""

from __future__ import annotations

import asyncio
import functools
from typing import Any

from models.abilities import Abilities, Patience, Watched, check_deflate
from models.asynchronous import Callbacks, main
from models.awaiting import Awaiting, text_report
from models.callbacks import Course


@functools.cache
def tls(ca: str | None) -> Any:
    """Returns the native TLS settings, one object for all connections."""
    import wirespeed

    return wirespeed.TLS(ca=ca)


async def open_with(url: str, ca: str | None, **options: Any) -> Any:
    """Connects with native TLS, without what raw sockets do not do: compression, keepalive, limits."""
    import wirespeed

    plain: dict[str, Any] = {"compression": None, "ping_interval": None}
    return await wirespeed.connect(
        url,
        ssl=tls(ca) if url.startswith("wss:") else None,
        max_size=None,
        max_queue=None,
        max_queue_bytes=None,
        proxy=None,
        **(plain | options),
    )


async def connect(url: str, ca: str | None, size: int) -> Awaiting:
    """Connects for awaiting."""
    return awaiting(await open_with(url, ca))


async def at_once(url: str, ca: str | None, size: int) -> Awaiting:
    """Connects so that each message goes to the system by the call that sends it."""
    return awaiting(await open_with(url, ca, coalesce=False))


def awaiting(ws: Any) -> Awaiting:
    """Returns what the loops drive of a connection."""
    return Awaiting(
        ws,
        send=ws.send,
        recv=ws.recv,
        report=text_report(ws.send, ws.recv),
        send_text=ws.send,
        flush=ws.flush,
        messages=ws,
        recv_many=ws.recv_many,
        close=ws.close,
    )


async def deflate(url: str, ca: str | None, size: int) -> Awaiting:
    """Connects with compression as the library does by default: level 6, memory level 5, any window."""
    ws = await open_with(url, ca, compression="deflate")
    check_deflate(ws.response.headers.get("Sec-WebSocket-Extensions"))
    return awaiting(ws)


async def watch(url: str, ca: str | None, patience: Patience) -> Watched:
    """Connects with the library's keepalive: told at the end of `ping_timeout`, `close_timeout` is not waited for."""
    import wirespeed

    ws = await open_with(
        url, ca, ping_interval=patience.interval, ping_timeout=patience.timeout, close_timeout=patience.timeout
    )
    return Watched(ws, ws.recv, lambda told: isinstance(told, wirespeed.ConnectionClosedError))


async def serve() -> tuple[str, object]:
    """Serves without compression, keepalive and limits."""
    import wirespeed

    async def echo(ws: Any) -> None:
        async for message in ws:
            await ws.send(message)

    server = await wirespeed.serve(echo, "127.0.0.1", 0, compression=None, ping_interval=None, max_size=None)
    return f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}/", server


async def listen(url: str, ca: str | None, size: int, course: Course) -> object:
    """Starts the course. A callback cannot wait: sending has no limit, as in the other libraries that call back."""
    listener = LISTENERS[course.workload](course)
    return await open_with(url, ca, listener=listener, zero_copy=course.views, write_limit=1 << 30)


def round_trip(course: Course) -> Any:
    """Returns the listener of the round trips."""
    from wirespeed import ClientConnection, Listener

    messages, expected, again = course.messages, course.expected, course.again
    remaining = course.count

    class RoundTrip(Listener):
        def on_open(self, ws: ClientConnection) -> None:
            ws.send_nowait(messages[0])

        def on_message(self, ws: ClientConnection, message: bytes | memoryview) -> None:
            nonlocal remaining
            if expected[remaining & 1] != message:
                course.fail()
                return
            remaining -= 1
            if remaining or (remaining := again()):
                ws.send_nowait(messages[remaining & 1])

        def on_close(self, ws: ClientConnection, code: int, reason: str) -> None:
            course.fail("the connection ended")

    return RoundTrip()


def pipelined(course: Course) -> Any:
    """Returns the listener of the pipelined messages."""
    from wirespeed import ClientConnection, Listener

    messages, expected, again = course.messages, course.expected, course.again
    remaining = course.count
    send: Any = None

    class Pipelined(Listener):
        def on_open(self, ws: ClientConnection) -> None:
            nonlocal send
            send = ws.send_nowait
            for number in range(course.window):
                send(messages[number & 1])

        def on_message(self, ws: ClientConnection, message: bytes | memoryview) -> None:
            nonlocal remaining, send
            if expected[remaining & 1] != message:
                course.fail()
                return
            remaining -= 1
            if remaining or (remaining := again()):
                send(messages[~remaining & 1])
            else:
                send = course.late

        def on_close(self, ws: ClientConnection, code: int, reason: str) -> None:
            course.fail("the connection ended")

    return Pipelined()


def stream_in(course: Course) -> Any:
    """Returns the listener of the stream."""
    from wirespeed import ClientConnection, Listener

    over = course.over
    remaining = course.count

    class StreamIn(Listener):
        def on_message(self, ws: ClientConnection, message: bytes | memoryview) -> None:
            nonlocal remaining
            remaining -= 1
            if not remaining:
                remaining = over(message)

        def on_close(self, ws: ClientConnection, code: int, reason: str) -> None:
            course.fail("the connection ended")

    return StreamIn()


@functools.cache
def sending() -> Any:
    """Returns the class of listeners that take one message when asked for, and tell when writing may go on."""
    from wirespeed import ClientConnection, Listener

    class Sending(Listener):
        __slots__ = ("ended", "received", "resumed")

        def __init__(self) -> None:
            self.received: asyncio.Future[Any] | None = None
            self.resumed: asyncio.Future[None] | None = None
            self.ended = False

        def on_message(self, ws: ClientConnection, message: Any) -> None:
            if self.received is not None:
                self.received.set_result(message)
                self.received = None

        def recv(self) -> asyncio.Future[Any]:
            self.received = self.promise()
            return self.received

        def promise(self) -> asyncio.Future[Any]:
            promise = asyncio.get_running_loop().create_future()
            if self.ended:
                promise.set_exception(ConnectionError("the connection ended"))
            return promise

        def on_close(self, ws: ClientConnection, code: int, reason: str) -> None:
            self.ended = True
            for promise in (self.received, self.resumed):
                if promise is not None and not promise.done():
                    promise.set_exception(ConnectionError("the connection ended"))

        def on_writable(self, ws: ClientConnection) -> None:
            if self.resumed is not None:
                self.resumed.set_result(None)
                self.resumed = None

        def writable(self) -> asyncio.Future[None]:
            self.resumed = self.promise()
            return self.resumed

    return Sending


async def connect_listener(url: str, ca: str | None, size: int) -> Awaiting:
    """Connects for the workloads that send without an answer, or rest."""
    listener = sending()()
    ws = await open_with(url, ca, listener=listener)
    return Awaiting(
        ws,
        send=ws.send_nowait,
        recv=listener.recv,
        report=text_report(ws.send_nowait, listener.recv),
        send_text=ws.send_nowait,
        flush=ws.flush,
        writable=listener.writable,
        close=ws.close,
    )


LISTENERS = {"round-trip": round_trip, "pipelined": pipelined, "stream-in": stream_in}

ABILITIES = Abilities(
    deflate=deflate,
    closed={"recv": "wirespeed:ConnectionClosed", "send": "wirespeed:ConnectionClosed"},
    watch=watch,
    serve=serve,
    at_once=at_once,
)

if __name__ == "__main__":
    main(
        "wirespeed",
        "wirespeed",
        {"await": connect, "iterate": connect, "many": connect, "callbacks": Callbacks(listen, connect_listener)},
        abilities={"await": ABILITIES},
    )
