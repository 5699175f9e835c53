"""Logs the traffic of a connection at level DEBUG, in the format of uvicorn with the address of the client in front.

A received message is logged when the application receives it, a sent message after sending. Values that are or may be
credentials are masked. Connections that are opened while the level is higher are not logged.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from .._redaction import mask_header, mask_query, printable
from ..asyncio import Listener
from ..asyncio._connection import Connection
from ..close_codes import CloseCode
from ..datastructures import Request, Response
from ..exceptions import ConnectionClosed

__all__ = ["TrafficLog", "traffic_log"]

# Logged characters of a text message, and bytes of a binary message: one line on most screens.
_TEXT = 75
_BYTES = 24


class TrafficLog(Listener):
    """The debug log of one connection. As its listener, it receives pings and pongs.

    Args:
        logger: The logger.
        prefix: Beginning of each line.
    """

    def __init__(self, logger: logging.Logger, prefix: str) -> None:
        self._logger = logger
        self._prefix = prefix

    def request(self, request: Request, headers: Iterable[tuple[bytes, bytes]] | None) -> None:
        """Log a request.

        Args:
            request: The request.
            headers: All headers, if ``request`` contains only some of them; otherwise ``None``.
        """
        self._log(f"< {request.method} {printable(mask_query(request.path))} {request.protocol}")
        if headers is None:
            self._fields("<", request.headers.raw_items())
        else:
            self._fields("<", ((name.decode("latin-1"), value.decode("latin-1")) for name, value in headers))

    def response(self, response: Response) -> None:
        """Log the response to the request.

        Args:
            response: The response.
        """
        self._log(f"> HTTP/1.1 {response.status_code} {printable(response.reason_phrase)}".rstrip())
        self._fields(">", response.headers.raw_items())
        if response.status_code == 101:
            self._log("= connection is OPEN")
        elif response.body:
            self._log(f"> [body] [{len(response.body)} bytes]")

    def receiving(self, receive: Callable[[], Awaitable[str | bytes]]) -> Callable[[], Awaitable[str | bytes]]:
        """Return a function that receives a message and logs it.

        Args:
            receive: Function that receives a message.
        """

        async def receive_and_show() -> str | bytes:
            message = await receive()
            self.received(message)
            return message

        return receive_and_show

    def received(self, message: str | bytes) -> None:
        """Log a message of the client.

        Args:
            message: The message.
        """
        self._log(f"< {_message(message)}")

    def sending(self, send: Callable[[Any], Awaitable[None]]) -> Callable[[Any], Awaitable[None]]:
        """Return a function that sends a message and logs it.

        Args:
            send: Function that sends a message.
        """

        async def send_and_show(message: Any) -> None:
            await send(message)
            self._log(f"> {_message(message)}")

        return send_and_show

    def not_sent(self, message: Any) -> None:
        """Log a message that is discarded, because the client has closed.

        Args:
            message: The message.
        """
        self._log(f"x {_message(message)} not sent: the client has closed")

    def on_ping(self, ws: Connection, data: bytes) -> None:
        """Log a ping and the pong that answers it."""
        self._log(f"< PING {_control(data)}")
        self._log(f"> PONG {_control(data)}")

    def on_pong(self, ws: Connection, data: bytes) -> None:
        """Log a pong."""
        self._log(f"< PONG {_control(data)}")

    def closed(self, error: ConnectionClosed) -> None:
        """Log how a connection has ended.

        Args:
            error: Exception that calls of the connection raise.
        """
        frames = [("<", error.rcvd), (">", error.sent)]
        for mark, frame in frames if error.rcvd_then_sent else reversed(frames):
            if frame is not None:
                size = 0 if frame.code == CloseCode.NO_STATUS_RCVD else 2 + len(frame.reason.encode())
                self._log(f"{mark} CLOSE {frame} [{_size(size)}]")
        cause = error.__cause__
        why = f": {printable(str(cause) or type(cause).__name__)}" if cause is not None else ""
        self._log(f"= connection is CLOSED{why}")

    def _fields(self, mark: str, fields: Iterable[tuple[str, str]]) -> None:
        for name, value in fields:
            self._log(f"{mark} {name}: {printable(mask_header(name, value))}")

    def _log(self, line: str) -> None:
        self._logger.debug("%s%s", self._prefix, line)


def traffic_log(logger: logging.Logger, prefix: str) -> TrafficLog | None:
    """Return the debug log of a new connection; ``None`` if the level DEBUG is disabled.

    Args:
        logger: The logger.
        prefix: Beginning of each line.
    """
    return TrafficLog(logger, prefix) if logger.isEnabledFor(logging.DEBUG) else None


def _message(message: str | bytes | bytearray | memoryview) -> str:
    if isinstance(message, str):
        shown = repr(message if len(message) <= _TEXT else message[:_TEXT] + "...")
        return f"TEXT {shown} [{_size(len(message.encode(errors='surrogatepass')))}]"
    shown, is_text = _bytes(memoryview(message).tobytes())
    return f"BINARY {shown} [{'text, ' if is_text else ''}{_size(memoryview(message).nbytes)}]"


def _control(data: bytes) -> str:
    shown, is_text = _bytes(data)
    return f"{shown} [{'text' if is_text else 'binary'}, {_size(len(data))}]"


def _bytes(data: bytes) -> tuple[str, bool]:
    """Return the logged form of a payload, and whether it is text."""
    if data.isascii() and data.decode().isprintable():
        text = data.decode()
        return repr(text if len(text) <= _TEXT else text[:_TEXT] + "..."), True
    return data[:_BYTES].hex(" ") + (" ..." if len(data) > _BYTES else ""), False


def _size(count: int) -> str:
    return "1 byte" if count == 1 else f"{count} bytes"
