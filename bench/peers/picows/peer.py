"""picows, its callbacks."""

from __future__ import annotations

import asyncio
import functools
import logging
from functools import partial
from typing import Any

from models.callbacks import Course
from models.connection import Client, Connection, tls_context
from models.peer import main
from models.program import Library


async def open_with(listener: Any, url: str, ca: str | None, **options: Any) -> Any:
    """Connects, with the loop's sockets replaced by aiofastnet."""
    from picows import ws_connect

    # As in the benchmark of the library's author: without it, each pause of writing would print a line.
    logging.basicConfig(level=logging.ERROR)
    transport, _ = await ws_connect(
        lambda: listener, url, ssl_context=tls_context(url, ca), use_aiofastnet=True, **options
    )
    return transport


async def listen(url: str, ca: str | None, size: int, course: Course) -> object:
    """Starts the course, as the benchmark of the library's author does: a read buffer that takes a whole message."""
    listener = replying(course) if course.replies else streaming(course)
    return await open_with(listener, url, ca, read_buffer_init_size=size + 1024)


def replying(course: Course) -> Any:
    """Returns the listener of messages and their replies."""
    from picows import WSFrame, WSListener, WSMsgType, WSTransport

    take, views, binary = course.take, course.views, WSMsgType.BINARY
    send: Any = None

    class Replying(WSListener):
        def on_ws_connected(self, transport: WSTransport) -> None:
            nonlocal send
            send = transport.send
            for number in range(course.window):
                send(binary, course.messages[number & 1])

        def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
            payload = frame.get_payload_as_memoryview() if views else frame.get_payload_as_bytes()
            expected, answer = take()
            if expected != payload:
                course.fail()
            elif answer is not None or (answer := course.answer()) is not None:
                send(binary, answer)

        def on_ws_disconnected(self, transport: WSTransport) -> None:
            course.fail("the connection ended")

    return Replying()


def streaming(course: Course) -> Any:
    """Returns the listener of the stream."""
    from picows import WSFrame, WSListener, WSTransport

    take, views = course.take, course.views

    class Streaming(WSListener):
        def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
            payload = frame.get_payload_as_memoryview() if views else frame.get_payload_as_bytes()
            if take():
                course.over(payload)

        def on_ws_disconnected(self, transport: WSTransport) -> None:
            course.fail("the connection ended")

    return Streaming()


@functools.cache
def sending() -> Any:
    """Returns the class of listeners that take one message when asked for, and tell when writing may go on."""
    from picows import WSFrame, WSListener, WSTransport

    class Sending(WSListener):
        __slots__ = ("received", "resumed")

        def __init__(self) -> None:
            self.received: asyncio.Future[bytes] | None = None
            self.resumed: asyncio.Future[None] | None = None

        def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
            if self.received is not None:
                self.received.set_result(frame.get_payload_as_bytes())
                self.received = None

        def recv(self) -> asyncio.Future[bytes]:
            self.received = asyncio.get_running_loop().create_future()
            return self.received

        def pause_writing(self) -> None:
            self.resumed = asyncio.get_running_loop().create_future()

        def resume_writing(self) -> None:
            if self.resumed is not None:
                self.resumed.set_result(None)
                self.resumed = None

        async def drain(self) -> None:
            if self.resumed is not None:
                await self.resumed

    return Sending


async def connect(url: str, ca: str | None, size: int) -> Connection:
    """Connects for the workloads that send without an answer, or rest, with the library's own read buffer, 16 KiB."""
    from picows import WSCloseCode, WSMsgType

    listener = sending()()
    transport = await open_with(listener, url, ca)

    async def close() -> None:
        transport.send_close(WSCloseCode.OK)
        await transport.wait_disconnected()

    send, send_text = partial(transport.send, WSMsgType.BINARY), partial(transport.send, WSMsgType.TEXT)
    kept = (transport, listener)
    return Connection(kept, send, listener.recv, send_text=send_text, drain=listener.drain, close=close)


async def serve() -> tuple[str, object]:
    """Serves as the library's examples do."""
    from picows import WSFrame, WSListener, WSMsgType, WSTransport, ws_create_server

    class Echo(WSListener):
        def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
            if frame.msg_type == WSMsgType.BINARY:
                transport.send(frame.msg_type, frame.get_payload_as_memoryview())

    server = await ws_create_server(lambda request: Echo(), "127.0.0.1", 0)
    return f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}/", server


if __name__ == "__main__":
    client = Client(connect, listen=listen, serve=serve)
    main(Library("picows", "picows", ("aiofastnet",)), {"callbacks": client})
