"""OpenSSL's error queue of this thread, which may affect another connection than the failed one.

A failing call reports the first error in the thread's queue. From OpenSSL 3.6 on those of system calls are there as
well, and ``ssl`` leaves them behind when it raises them: https://github.com/python/cpython/issues/148594. From then on
every connection of that thread that only wants to read more raises them again.
"""

from __future__ import annotations

import contextlib
import functools
import socket
import ssl
import threading

import pytest

from .certificates import Certificates

__all__ = ["forget_errors", "leave_error"]


@functools.cache
def _context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    return context


def forget_errors() -> None:
    """Clears the queue: a handshake begins with that."""
    with contextlib.suppress(ssl.SSLWantReadError):
        _context().wrap_bio(ssl.MemoryBIO(), ssl.MemoryBIO()).do_handshake()


def leave_error(certificates: Certificates) -> None:
    """Leaves an error of a connection whose pipe is broken, if OpenSSL and ``ssl`` do."""
    ours, theirs = socket.socketpair()
    serving = threading.Thread(
        target=lambda: certificates.server_context().wrap_socket(theirs, server_side=True).close()
    )
    serving.start()
    with certificates.client_context().wrap_socket(ours, server_hostname="localhost") as sock:
        serving.join()
        # Older ones take it for the end of the stream.
        with pytest.raises((BrokenPipeError, ssl.SSLEOFError)):
            sock.send(b"nobody reads this")
