"""From an accepted socket to a connection whose opening handshake is answered, for a thread that waits.

The bytes of each step are moved over the socket here. Who may connect, and what is done with a connection, is not known
here: the server says so.
"""

from __future__ import annotations

import contextlib
import inspect
import socket as socket_module
import time
from collections.abc import Generator
from typing import Any

from .._handshake.negotiation import LINGER, READ_SIZE
from .._native import Opened
from .._serving.reception import Refusal

__all__ = ["negotiate", "receive_request"]


def receive_request(
    sock: socket_module.socket, deadline: float | None, steps: Generator[bytes | None, bytes | None, Opened]
) -> Opened:
    """Drive :func:`wirespeed._serving.reception.reception`; return and raise what that does.

    Args:
        sock: The accepted socket. Its timeout is changed.
        deadline: Time of ``time.monotonic`` by which it must be over, ``None`` for no limit.
        steps: What it has returned.

    Raises:
        OSError: The socket failed.
        TimeoutError: The deadline passed.
    """
    try:
        output = next(steps)
        while True:
            data = None
            if isinstance(output, Refusal):
                _send_last(sock, output)
            else:
                _limit(sock, deadline)
                try:
                    if output is None:
                        data = sock.recv(READ_SIZE)
                    else:
                        sock.sendall(output)
                except TimeoutError:
                    raise _timeout() from None
            output = steps.send(data)
    except StopIteration as stop:
        opened: Opened = stop.value
        return opened


def _limit(sock: socket_module.socket, deadline: float | None) -> None:
    """Let the next call on a socket end by a deadline."""
    if deadline is None:
        sock.settimeout(None)
        return
    left = deadline - time.monotonic()
    if left <= 0:
        raise _timeout()
    sock.settimeout(left)


def _timeout() -> TimeoutError:
    return TimeoutError("timed out while waiting for the request: open_timeout")


def _send_last(sock: socket_module.socket, output: bytes) -> None:
    deadline = time.monotonic() + LINGER
    with contextlib.suppress(OSError):
        _limit(sock, deadline)
        sock.sendall(output)
        sock.shutdown(socket_module.SHUT_WR)
        _limit(sock, deadline)
        while sock.recv(READ_SIZE):
            _limit(sock, deadline)


def negotiate(steps: Generator[Any, Any, Exception | None]) -> Exception | None:
    """Drive :func:`wirespeed._handshake.negotiation.negotiation`; return what that does.

    Args:
        steps: What it has returned.
    """
    try:
        result = next(steps)
        while True:
            if inspect.iscoroutine(result):
                result.close()  # it is refused for its type: no second word about it
            result = steps.send(result)
    except StopIteration as stop:
        error: Exception | None = stop.value
        return error
