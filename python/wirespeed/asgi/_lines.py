"""Lines of the log that show what goes over a connection, at level DEBUG.

They are those of uvicorn's own implementation, each with the address of the client in front. A message is shown when
the application receives it, or has sent it. Values that are credentials, or may be, are masked. A connection that is
opened while the level is higher has none of this.
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

__all__ = ["Lines", "lines_for"]

# Characters of a text, and bytes of a binary message, that are shown: a line on most screens.
_TEXT = 75
_BYTES = 24


class Lines(Listener):
    """The lines of one connection. As its listener, it is told of pings and pongs.

    Args:
        logger: Where they go.
        prefix: What they begin with.
    """

    def __init__(self, logger: logging.Logger, prefix: str) -> None:
        self._logger = logger
        self._prefix = prefix

    def request(self, request: Request, headers: Iterable[tuple[bytes, bytes]] | None) -> None:
        """Show a request.

        Args:
            request: The request.
            headers: All headers, if the request has not; ``None`` if it has.
        """
        self._note(f"< {request.method} {printable(mask_query(request.path))} {request.protocol}")
        if headers is None:
            self._fields("<", request.headers.raw_items())
        else:
            self._fields("<", ((name.decode("latin-1"), value.decode("latin-1")) for name, value in headers))

    def response(self, response: Response) -> None:
        """Show the answer to a request.

        Args:
            response: The answer.
        """
        self._note(f"> HTTP/1.1 {response.status_code} {printable(response.reason_phrase)}".rstrip())
        self._fields(">", response.headers.raw_items())
        if response.status_code == 101:
            self._note("= connection is OPEN")
        elif response.body:
            self._note(f"> [body] [{len(response.body)} bytes]")

    def receiving(self, receive: Callable[[], Awaitable[str | bytes]]) -> Callable[[], Awaitable[str | bytes]]:
        """Return what receives messages and shows them.

        Args:
            receive: What receives them.
        """

        async def receive_and_show() -> str | bytes:
            message = await receive()
            self.received(message)
            return message

        return receive_and_show

    def received(self, message: str | bytes) -> None:
        """Show a message of the client.

        Args:
            message: The message.
        """
        self._note(f"< {_message(message)}")

    def sending(self, send: Callable[[Any], Awaitable[None]]) -> Callable[[Any], Awaitable[None]]:
        """Return what sends messages and shows them.

        Args:
            send: What sends them.
        """

        async def send_and_show(message: Any) -> None:
            await send(message)
            self._note(f"> {_message(message)}")

        return send_and_show

    def not_sent(self, message: Any) -> None:
        """Show a message that goes nowhere.

        Args:
            message: The message.
        """
        self._note(f"x {_message(message)} not sent: the client has closed")

    def on_ping(self, ws: Connection, data: bytes) -> None:
        """Show a ping, and the pong that answers it."""
        self._note(f"< PING {_control(data)}")
        self._note(f"> PONG {_control(data)}")

    def on_pong(self, ws: Connection, data: bytes) -> None:
        """Show a pong."""
        self._note(f"< PONG {_control(data)}")

    def closed(self, error: ConnectionClosed) -> None:
        """Show how a connection has ended.

        Args:
            error: What its calls raise.
        """
        frames = [("<", error.rcvd), (">", error.sent)]
        for mark, frame in frames if error.rcvd_then_sent else reversed(frames):
            if frame is not None:
                size = 0 if frame.code == CloseCode.NO_STATUS_RCVD else 2 + len(frame.reason.encode())
                self._note(f"{mark} CLOSE {frame} [{_size(size)}]")
        cause = error.__cause__
        why = f": {printable(str(cause) or type(cause).__name__)}" if cause is not None else ""
        self._note(f"= connection is CLOSED{why}")

    def _fields(self, mark: str, fields: Iterable[tuple[str, str]]) -> None:
        for name, value in fields:
            self._note(f"{mark} {name}: {printable(mask_header(name, value))}")

    def _note(self, line: str) -> None:
        self._logger.debug("%s%s", self._prefix, line)


def lines_for(logger: logging.Logger, prefix: str) -> Lines | None:
    """Return the lines of a new connection; ``None`` if nobody wants them.

    Args:
        logger: Where they go.
        prefix: What they begin with.
    """
    return Lines(logger, prefix) if logger.isEnabledFor(logging.DEBUG) else None


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
    """Return what is shown of a payload, and whether it is shown as text."""
    if data.isascii() and data.decode().isprintable():
        text = data.decode()
        return repr(text if len(text) <= _TEXT else text[:_TEXT] + "..."), True
    return data[:_BYTES].hex(" ") + (" ..." if len(data) > _BYTES else ""), False


def _size(count: int) -> str:
    return "1 byte" if count == 1 else f"{count} bytes"
