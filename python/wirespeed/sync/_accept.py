"""The opening handshake of a server in a thread: moves bytes over the accepted socket.

The rules are in :mod:`wirespeed._server.reception` and :mod:`wirespeed._server.negotiate`; the server calls both
functions.
"""

from __future__ import annotations

import contextlib
import inspect
import socket as socket_module
import time
from collections.abc import Generator
from typing import Any

from .._native import Opened
from .._server.negotiate import LINGER_TIMEOUT, READ_SIZE
from .._server.reception import Refusal

__all__ = ["negotiate", "receive_request"]


def receive_request(
    sock: socket_module.socket, deadline: float | None, steps: Generator[bytes | None, bytes | None, Opened]
) -> Opened:
    """Run :func:`wirespeed._server.reception.reception`; return its result, and raise its exceptions.

    Args:
        sock: The accepted socket. Its timeout is changed.
        deadline: Time of ``time.monotonic`` at which to stop, ``None`` for no limit.
        steps: The generator that it returned.

    Raises:
        OSError: The socket failed.
        TimeoutError: The deadline has passed.
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
    """Set the timeout of a socket so that its next call ends at the deadline."""
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
    deadline = time.monotonic() + LINGER_TIMEOUT
    with contextlib.suppress(OSError):
        _limit(sock, deadline)
        sock.sendall(output)
        sock.shutdown(socket_module.SHUT_WR)
        _limit(sock, deadline)
        while sock.recv(READ_SIZE):
            _limit(sock, deadline)


def negotiate(steps: Generator[Any, Any, Exception | None]) -> Exception | None:
    """Run :func:`wirespeed._server.negotiate.negotiation`; return its result.

    Args:
        steps: The generator that it returned.
    """
    try:
        result = next(steps)
        while True:
            if inspect.iscoroutine(result):
                result.close()  # avoids the warning about a coroutine that was never awaited
            result = steps.send(result)
    except StopIteration as stop:
        error: Exception | None = stop.value
        return error
