"""Describes handshake, frames, pings and the closing as lines of text, for ``--verbose``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .. import ClientConnection, Headers, Listener, Request, Response
from .._redaction import mask_header, printable
from ..exceptions import ConnectionClosed
from ._terminal import Screen

__all__ = ["Watcher", "closing", "opening", "receive", "request", "response", "sent"]

_SHOWN_BYTES = 20


class Watcher(Listener):
    """Shows pings and pongs. Messages are received as without it.

    Args:
        screen: The output.
    """

    def __init__(self, screen: Screen) -> None:
        self._screen = screen

    def on_ping(self, ws: Any, data: bytes) -> None:
        """Show a ping.

        Args:
            ws: The connection.
            data: The payload.
        """
        self._screen.note_soon(f"* received ping {_excerpt(data)}, answered with a pong")

    def on_pong(self, ws: Any, data: bytes) -> None:
        """Show a pong.

        Args:
            ws: The connection.
            data: The payload.
        """
        self._screen.note_soon(f"* received pong {_excerpt(data)}, latency {ws.latency * 1000:.3f} ms")


def opening(ws: ClientConnection) -> list[str]:
    """Describe how a connection was opened.

    Args:
        ws: The connection.
    """
    return [f"* connected from {ws.local_address} to {ws.remote_address}", *request(ws.request), *response(ws.response)]


def request(request: Request) -> list[str]:
    """Describe a request.

    Args:
        request: The request.
    """
    return [f"> GET {printable(request.path, limit=2000)} HTTP/1.1", *_headers(">", request.headers)]


def response(response: Response) -> list[str]:
    """Describe a response.

    Args:
        response: The response.
    """
    status = f"< HTTP/1.1 {response.status_code} {printable(response.reason_phrase)}"
    return [status, *_headers("<", response.headers)]


async def receive(ws: ClientConnection, screen: Screen) -> str | bytes:
    """Receive a message and show its frames.

    Args:
        ws: The connection.
        screen: The output.

    Returns:
        The message.
    """
    texts: list[str] = []
    blocks: list[bytes] = []
    async for fragment in ws.recv_streaming():
        kind = "continuation" if texts or blocks else "text" if isinstance(fragment, str) else "binary"
        if isinstance(fragment, str):
            texts.append(fragment)
        else:
            blocks.append(fragment)
        await screen.note(f"* received {kind} frame, {_size(fragment)}")
    return "".join(texts) if texts else b"".join(blocks)


def sent(message: str | bytes) -> str:
    """Describe a message that was sent.

    Args:
        message: The message.
    """
    return f"* sent {'text' if isinstance(message, str) else 'binary'} message, {_size(message)}"


def closing(closed: ConnectionClosed) -> list[str]:
    """Describe how a connection ended.

    Args:
        closed: Exception that calls of the connection raise.
    """
    lines = []
    if closed.sent is not None:
        lines.append(f"* sent close frame {closed.sent}")
    if closed.rcvd is not None:
        # The order of the lines shows which end has closed.
        lines.insert(0 if closed.rcvd_then_sent else 1, f"* received close frame {closed.rcvd}")
    else:
        lines.append("* no close frame received")
    if closed.__cause__ is not None:
        lines.append(f"* {printable(str(closed.__cause__) or type(closed.__cause__).__name__)}")
    return lines


def _headers(mark: str, headers: Headers) -> Iterator[str]:
    for name, value in headers.raw_items():
        yield f"{mark} {name}: {printable(mask_header(name, value), limit=2000)}"


def _size(message: str | bytes) -> str:
    size = len(message.encode() if isinstance(message, str) else message)
    return "1 byte" if size == 1 else f"{size} bytes"


def _excerpt(data: bytes) -> str:
    if data.isascii() and data.decode().isprintable():
        return repr(data.decode())
    return data[:_SHOWN_BYTES].hex(" ")
