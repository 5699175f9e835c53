"""An accepted socket whose request has not arrived yet, without a task or thread of its own.

Most clients send their request at once in one piece; malicious ones send a part of it. For both it is enough to wait.
Once the request, the first TLS record or an error is there, another part of the server continues.
"""

from __future__ import annotations

import socket as socket_module
from collections.abc import Callable
from typing import Any

from .._native import Opened, ServerOpening
from .eviction import Entry

__all__ = ["PendingHandshake", "has_unread"]


class PendingHandshake:
    """An accepted socket and the bytes received from it.

    Attributes:
        sock: The socket.
        address: Address of the peer.
        deadline: Time by which the opening handshake must be complete, ``None`` for no limit.
        opening: The parser that has all received bytes; ``None`` without one.
        data: Bytes to pass to a parser, empty for the end of the stream; ``None`` if nothing was received.
        entry: Entry in the handshake limiter, ``None`` if it did not have to wait.
        is_silent: Whether nothing was received yet.
        is_lost: Whether the client has disconnected without a request that could be answered.

    Args:
        sock: An accepted non-blocking socket.
        address: Address of the peer.
        deadline: See above.
        drop: Called to close the socket at once while it waits.
    """

    __slots__ = (
        "_drop", "_received", "address", "data", "deadline", "entry", "is_lost", "is_silent", "opening", "sock",
    )  # fmt: skip

    def __init__(
        self,
        sock: socket_module.socket,
        address: Any,
        deadline: float | None = None,
        drop: Callable[[PendingHandshake], None] | None = None,
    ) -> None:
        self.sock = sock
        self.address = address
        self.deadline = deadline
        self.opening: ServerOpening | None = None
        self.data: bytes | None = None
        self.entry: Entry | None = None
        self.is_silent = True
        self.is_lost = False
        self._received = b""
        self._drop = drop

    def has_unread(self) -> bool:
        """Return whether the socket has unread input."""
        return has_unread(self.sock)

    def drop(self) -> None:
        """Close the socket at once."""
        if self._drop is not None:
            self._drop(self)

    @property
    def is_complete(self) -> bool:
        """Whether the request is complete."""
        return self.opening is not None and self.opening.done

    def finish(self) -> Opened | None:
        """Return the result of a complete request, ``None`` if it is not complete."""
        return self.opening.finish() if self.opening is not None and self.opening.done else None

    def check_lost(self) -> bool:
        """Return whether the client has disconnected. If so, a complete request is dropped too.

        A client that has only shut down its sending side is still connected.
        """
        if self.is_complete:
            try:
                self.sock.recv(1, socket_module.MSG_PEEK)
            except ConnectionError:
                self.opening, self.data, self.is_lost = None, b"", True
            except OSError:
                pass  # usually BlockingIOError: no more input
        return self.is_lost

    @property
    def is_request_only(self) -> bool:
        """Whether no bytes follow the complete request, so no message was sent with it."""
        return self._received.endswith(b"\r\n\r\n")

    def receive(self, data: bytes, make_opening: Callable[[], ServerOpening] | None) -> bool:
        """Process received bytes; return whether to wait for more.

        Args:
            data: The bytes.
            make_opening: Creates the parser; ``None`` with TLS, where the first record is awaited instead.
        """
        self.is_silent = self.is_silent and not data
        self.is_lost = not data
        if make_opening is None:
            self._received += data
            self.data = self._received
            return bool(data) and _is_part_of_record(self._received)
        if not data:
            self.data = data
            return False
        if self.opening is None:
            self.opening = make_opening()
        # At most 16 KiB: the parser raises at the first bytes that cannot belong to a request.
        self._received += data
        try:
            self.opening.feed(data)
        except Exception:
            # `reception` parses the bytes again and reports the error.
            self.opening, self.data = None, self._received
            return False
        return not self.opening.done


def _is_part_of_record(data: bytes) -> bool:
    # RFC 8446, section 5.1: one byte type (22, handshake), two bytes version, two bytes length.
    return data[:1] == b"\x16" and len(data) < 5 + int.from_bytes(data[3:5], "big")


def has_unread(sock: socket_module.socket) -> bool:
    """Return whether a non-blocking socket has input: bytes, the end of the stream or an error.

    Args:
        sock: The socket.
    """
    try:
        sock.recv(1, socket_module.MSG_PEEK)
    except (BlockingIOError, InterruptedError):
        return False
    except OSError:
        pass
    return True
