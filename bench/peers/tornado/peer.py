"""tornado, its WebSocket client: awaited, in callbacks."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from models.callbacks import Course
from models.connection import Client, Connection, check_deflate, tls_context
from models.peer import main
from models.program import Library

ENDED = "the connection ended"
OnMessage = Callable[[Any], object]


async def open_with(url: str, ca: str | None, on_message: OnMessage | None = None, **options: Any) -> Any:
    """Connects with the defaults, in which compression and keepalive are off, without a delay of small writes."""
    from tornado.httpclient import HTTPRequest
    from tornado.websocket import websocket_connect

    request = HTTPRequest(url, ssl_options=tls_context(url, ca))
    ws = await websocket_connect(request, on_message_callback=on_message, max_message_size=1 << 30, **options)
    ws.protocol.set_nodelay(True)
    return ws


def connection(ws: Any, send: Any) -> Connection:
    """Returns what the loops drive of a connection."""

    async def close() -> None:
        # Nothing can be awaited but the None that follows the server's close frame.
        ws.close(1000)
        while await ws.read_message() is not None:
            pass

    return Connection(ws, send, ws.read_message, send_text=ws.write_message, close=close)


async def connect(url: str, ca: str | None, size: int) -> Connection:
    """Connects for awaiting."""
    ws = await open_with(url, ca)
    return connection(ws, partial(ws.write_message, binary=True))


async def deflate(url: str, ca: str | None, size: int) -> Connection:
    """Connects with compression as the library does by default: zlib's level 6, memLevel 8, any window."""
    ws = await open_with(url, ca, compression_options={})
    check_deflate(ws.headers.get("Sec-WebSocket-Extensions"))
    return connection(ws, ws.write_message)


async def listen(url: str, ca: str | None, size: int, course: Course) -> object:
    """Starts the course. What `write_message` returns is not awaited: a callback cannot."""
    ws: Any = None
    callback = replying if course.replies else streaming
    ws = await open_with(url, ca, callback(course, lambda message: ws.write_message(message, True)))
    for number in range(course.window if course.replies else 0):
        ws.write_message(course.messages[number & 1], True)
    return ws


def replying(course: Course, send: OnMessage) -> OnMessage:
    """Returns the callback of messages and their replies."""
    take = course.take

    def on_message(message: Any) -> None:
        expected, answer = take()
        if expected != message:
            course.fail(ENDED if message is None else None)
        elif answer is not None or (answer := course.answer()) is not None:
            send(answer)

    return on_message


def streaming(course: Course, send: OnMessage) -> OnMessage:
    """Returns the callback of the stream."""
    take = course.take

    def on_message(message: Any) -> None:
        if message is None:
            course.fail(ENDED)
        elif take():
            course.over(message)

    return on_message


if __name__ == "__main__":
    # `read_message` reports a close by None, not by an exception.
    closed = {"send": "tornado.websocket:WebSocketClosedError"}
    styles = {
        "await": Client(connect, deflate=deflate, closed=closed),
        "callbacks": Client(connect, listen=listen),
    }
    main(Library("tornado", "tornado"), styles)
