"""tornado, its WebSocket client: awaited, in callbacks."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from models.abilities import Abilities, Patience, Watched, check_deflate
from models.asynchronous import Callbacks, main
from models.awaiting import Awaiting, text_report
from models.callbacks import Course
from models.tls import tls_context

OnMessage = Callable[[Any], object]


async def open_with(url: str, ca: str | None, on_message: OnMessage | None = None, **options: Any) -> Any:
    """Connects with the defaults, in which compression and keepalive are off, without a delay of small writes."""
    from tornado.httpclient import HTTPRequest
    from tornado.websocket import websocket_connect

    request = HTTPRequest(url, ssl_options=tls_context(ca) if url.startswith("wss:") else None)
    ws = await websocket_connect(request, on_message_callback=on_message, max_message_size=1 << 30, **options)
    ws.protocol.set_nodelay(True)
    return ws


async def connect(url: str, ca: str | None, size: int) -> Awaiting:
    """Connects for awaiting."""
    ws = await open_with(url, ca)
    return Awaiting(
        ws,
        send=partial(ws.write_message, binary=True),
        recv=ws.read_message,
        report=text_report(ws.write_message, ws.read_message),
        send_text=ws.write_message,
        close=partial(close, ws),
    )


async def close(ws: Any) -> None:
    """Closes; nothing can be awaited but the None that follows the server's close frame."""
    ws.close(1000)
    while await ws.read_message() is not None:
        pass


async def deflate(url: str, ca: str | None, size: int) -> Awaiting:
    """Connects with compression as the library does by default: zlib's level 6, memLevel 8, any window."""
    ws = await open_with(url, ca, compression_options={})
    check_deflate(ws.headers.get("Sec-WebSocket-Extensions"))
    return Awaiting(
        ws,
        send=ws.write_message,
        recv=ws.read_message,
        report=text_report(ws.write_message, ws.read_message),
        close=partial(close, ws),
    )


async def watch(url: str, ca: str | None, patience: Patience) -> Watched:
    """Connects with the library's pings; it then tries a closing handshake for 5 s, which cannot be shortened."""
    ws = await open_with(url, ca, ping_interval=patience.interval, ping_timeout=patience.timeout)
    return Watched(ws, ws.read_message, lambda told: told is None and ws.close_code is None)


async def listen(url: str, ca: str | None, size: int, course: Course) -> object:
    """Starts the course. What `write_message` returns is not awaited: a callback cannot."""
    ws: Any = None
    ws = await open_with(url, ca, CALLBACKS[course.workload](course, lambda message: ws.write_message(message, True)))
    if course.workload != "stream-in":
        for number in range(course.window if course.workload == "pipelined" else 1):
            ws.write_message(course.messages[number & 1], True)
    return ws


def fail(course: Course, message: Any) -> None:
    """Ends a course whose callback got something else than what was due."""
    if message is None:
        course.fail("the connection ended")
    else:
        course.fail()


def round_trip(course: Course, send: OnMessage) -> OnMessage:
    """Returns the callback of the round trips."""
    messages, expected, again = course.messages, course.expected, course.again
    remaining = course.count

    def on_message(message: Any) -> None:
        nonlocal remaining
        if expected[remaining & 1] != message:
            fail(course, message)
            return
        remaining -= 1
        if remaining or (remaining := again()):
            send(messages[remaining & 1])

    return on_message


def pipelined(course: Course, send: OnMessage) -> OnMessage:
    """Returns the callback of the pipelined messages."""
    messages, expected, again = course.messages, course.expected, course.again
    remaining = course.count

    def on_message(message: Any) -> None:
        nonlocal remaining, send
        if expected[remaining & 1] != message:
            fail(course, message)
            return
        remaining -= 1
        if remaining or (remaining := again()):
            send(messages[~remaining & 1])
        else:
            send = course.late

    return on_message


def stream_in(course: Course, send: OnMessage) -> OnMessage:
    """Returns the callback of the stream."""
    over = course.over
    remaining = course.count

    def on_message(message: Any) -> None:
        nonlocal remaining
        remaining -= 1
        if message is None:
            fail(course, message)
        elif not remaining:
            remaining = over(message)

    return on_message


CALLBACKS = {"round-trip": round_trip, "pipelined": pipelined, "stream-in": stream_in}

# `read_message` tells of a close by None, not by an exception.
ABILITIES = Abilities(deflate=deflate, closed={"send": "tornado.websocket:WebSocketClosedError"}, watch=watch)

if __name__ == "__main__":
    styles = {"await": connect, "callbacks": Callbacks(listen, connect)}
    main("tornado", "tornado", styles, abilities={"await": ABILITIES})
