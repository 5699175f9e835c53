"""Opens connected sockets with blocking calls, without threads.

The blocking client calls it, for the server or for a proxy. It knows nothing above TCP.
"""

from __future__ import annotations

import errno
import math
import os
import selectors
import socket
import time

from .._native import ConnectedSocket
from .._net.addresses import (
    HAPPY_EYEBALLS_DELAY,
    UNIX_RETRY,
    Address,
    Failures,
    Race,
    Wait,
    attempts,
    from_infos,
    interleave_families,
    is_socket_replaced,
    numeric_address,
    resolution_error,
    system_error,
)

__all__ = ["dial", "dial_address", "dial_unix"]


def dial_address(host: str, port: int, *, deadline: float | None, family: int = 0) -> ConnectedSocket | None:
    """Connect to a TCP server by its numeric address, without a resolver.

    Args:
        host: Host name or address.
        port: Port.
        deadline: Time of ``time.monotonic`` by which the connection must be open, ``None`` for no limit.
        family: ``socket.AF_INET`` or ``socket.AF_INET6`` to use only such an address, 0 for both.

    Returns:
        A socket in blocking mode with ``TCP_NODELAY``; ``None`` if the host is not a numeric address, or if the program
        has replaced ``socket.socket``. Use :func:`dial` then.

    Raises:
        OSError: The connection failed; the type tells the reason, such as ``ConnectionRefusedError``.
        TimeoutError: The deadline has passed.
    """
    if is_socket_replaced():
        return None
    try:
        attempt = ConnectedSocket.begin(host, port, family)
    except OSError as exc:
        raise Failures(f"{host}:{port}").single_error(host, port, exc) from None
    if attempt is None:
        return None
    error = attempt.wait(None if deadline is None else deadline - time.monotonic())
    if error is None:
        raise TimeoutError(Failures(f"{host}:{port}").timeout_text())
    if error:
        raise Failures(f"{host}:{port}").single_error(host, port, system_error(error))
    return attempt


def dial(
    host: str,
    port: int,
    *,
    deadline: float | None,
    local_addr: tuple[str, int] | None = None,
    family: int = 0,
    proto: int = 0,
    flags: int = 0,
    happy_eyeballs_delay: float | None = HAPPY_EYEBALLS_DELAY,
    interleave: int = 1,
) -> socket.socket:
    """Connect to a TCP server, trying all its addresses (Happy Eyeballs, RFC 8305).

    Name resolution takes the time that the system needs; the deadline is checked after it.

    Args:
        host: Host name or address.
        port: Port.
        deadline: Time of ``time.monotonic`` by which the connection must be open, ``None`` for no limit.
        local_addr: Host and port to connect from, ``None`` to let the system choose.
        family: ``socket.AF_INET`` or ``socket.AF_INET6`` to use only these addresses, 0 for both.
        proto: As for ``socket.getaddrinfo``.
        flags: As for ``socket.getaddrinfo``.
        happy_eyeballs_delay: Seconds after which the next address is tried while an attempt is still under way,
            ``None`` to wait until the attempt fails.
        interleave: Number of addresses of the first family before one of the other family, 0 to keep the order of
            the resolver.

    Returns:
        A socket in blocking mode with ``TCP_NODELAY``.

    Raises:
        OSError: No address could be connected to; the text lists all attempts. If all failed for the same reason, the
            type tells it, such as ``ConnectionRefusedError``.
        socket.gaierror: The name could not be resolved.
        TimeoutError: The deadline has passed.
    """
    addresses = interleave_families(_resolve(host, port, family=family, proto=proto, flags=flags), interleave)
    local = None
    if local_addr is not None:
        local = _resolve(*local_addr, family=family, proto=proto, flags=flags | socket.AI_PASSIVE)
    failures = Failures(f"{host}:{port}")
    steps = attempts(Race(addresses, happy_eyeballs_delay), failures, local, time.monotonic)
    ready: list[socket.socket] | None = None
    try:
        while ready or deadline is None or time.monotonic() < deadline:
            wait = next(steps) if ready is None else steps.send(ready)
            ready = _writable(wait, deadline)
    except StopIteration as stop:
        sock: socket.socket = stop.value
        sock.setblocking(True)
        return sock
    finally:
        steps.close()
    raise TimeoutError(failures.timeout_text())


def dial_unix(path: str | bytes | os.PathLike[str] | os.PathLike[bytes], *, deadline: float | None) -> socket.socket:
    """Connect to a server on a Unix socket.

    Args:
        path: Path of the socket.
        deadline: Time of ``time.monotonic`` by which the connection must be open, ``None`` for no limit.

    Returns:
        A socket in blocking mode.

    Raises:
        OSError: The connection failed.
        TimeoutError: The deadline has passed.
    """
    path = os.fspath(path)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        # Linux returns EAGAIN on a non-blocking socket while the queue of the server is full, and has no event for
        # room in it: https://man7.org/linux/man-pages/man2/connect.2.html
        sock.setblocking(deadline is None)
        while (error := sock.connect_ex(path)) == errno.EAGAIN:
            if deadline is not None and time.monotonic() >= deadline:
                raise TimeoutError(Failures(os.fsdecode(path)).timeout_text())
            time.sleep(UNIX_RETRY)
        if error:
            raise system_error(error, os.fsdecode(path))
        sock.setblocking(True)
    except BaseException:
        sock.close()
        raise
    return sock


def _writable(wait: Wait, deadline: float | None) -> list[socket.socket]:
    """Return the sockets that can be written to; an empty list after the time of ``wait`` or the deadline."""
    until = wait.until if deadline is None else min(wait.until, deadline)
    with selectors.DefaultSelector() as selector:
        for sock in wait.socks:
            # Windows reports a failed connection as an exceptional event, which selectors includes.
            selector.register(sock, selectors.EVENT_WRITE, sock)
        events = selector.select(None if until == math.inf else max(0, until - time.monotonic()))
    return [key.data for key, _ in events]


def _resolve(host: str, port: int, *, family: int, proto: int, flags: int) -> list[Address]:
    if not (proto or flags) and (addresses := numeric_address(host, port, family)):
        return addresses
    try:
        infos = socket.getaddrinfo(host, port, family, socket.SOCK_STREAM, proto, flags)
    except socket.gaierror as exc:
        raise resolution_error(host, exc) from None
    return from_infos(host, infos)
