"""Accepted sockets whose request is not there yet: no task and no thread for each of them.

Most clients send their request at once and in one piece, and those that mean ill send a part of it and no more. For
both there is nothing to do but to wait. What has to be answered, TLS above all, is somebody else's to go on with.
"""

from __future__ import annotations

import socket as socket_module
from collections.abc import Callable
from typing import Any

from .._native import Opened, ServerOpening
from .admission import Entry

__all__ = ["PendingHandshake", "has_unread"]


class PendingHandshake:
    """An accepted socket, and what has come from it.

    Attributes:
        sock: The socket.
        address: Of its other end.
        deadline: When the opening handshake must be complete, ``None`` for no limit.
        opening: What the bytes that were received were given to, with all of them; ``None`` if there is none.
        data: Bytes that are to be given to one, empty for the end of the stream; ``None`` if nothing came.
        entry: Its place in the gate, ``None`` if it did not have to wait.
        is_silent: Whether nothing has come from it yet.
        is_lost: Whether its client has gone, without a request that could be answered.

    Args:
        sock: An accepted non-blocking socket.
        address: Of its other end.
        deadline: As above.
        drop: Called to close it at once while it waits.
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
        """Return whether it has sent what nobody has read yet."""
        return has_unread(self.sock)

    def drop(self) -> None:
        """Close it at once."""
        if self._drop is not None:
            self._drop(self)

    @property
    def is_complete(self) -> bool:
        """Whether the request is there."""
        return self.opening is not None and self.opening.done

    def finish(self) -> Opened | None:
        """Return what the request has opened, ``None`` if it is not there."""
        return self.opening.finish() if self.opening is not None and self.opening.done else None

    def look(self) -> bool:
        """Return whether its client has gone, also if the request is there: nobody would get the answer.

        One that has only ended its own direction of the stream is there.
        """
        if self.is_complete:
            try:
                self.sock.recv(1, socket_module.MSG_PEEK)
            except ConnectionError:
                self.opening, self.data, self.is_lost = None, b"", True
            except OSError:
                pass  # it has sent nothing more, as a rule
        return self.is_lost

    @property
    def is_bare(self) -> bool:
        """Whether nothing came behind the request, once that is there: no message of the client's."""
        return self._received.endswith(b"\r\n\r\n")

    def receive(self, data: bytes, make_opening: Callable[[], ServerOpening] | None) -> bool:
        """Take what came; return whether there is nothing to do but to wait for more.

        Args:
            data: What came.
            make_opening: Makes what it is given to; ``None`` with TLS, of which the first record is awaited.
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
        # A request is at most 16 KiB, and after the first few bytes that cannot be one this is over.
        self._received += data
        try:
            self.opening.feed(data)
        except Exception:
            # Told where errors are told, by who is given the same once more.
            self.opening, self.data = None, self._received
            return False
        return not self.opening.done


def _is_part_of_record(data: bytes) -> bool:
    # RFC 8446, section 5.1: the type, here that of a handshake, two bytes of version, two of length.
    return data[:1] == b"\x16" and len(data) < 5 + int.from_bytes(data[3:5], "big")


def has_unread(sock: socket_module.socket) -> bool:
    """Return whether a non-blocking socket has something to read: bytes, the end or an error.

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
