"""The TLS settings of the peers that take an `ssl.SSLContext`."""

from __future__ import annotations

import functools
import ssl

__all__ = ["tls_context"]


@functools.cache
def tls_context(ca: str | None) -> ssl.SSLContext:
    """Returns the standard library's default settings, trusting the CA in a PEM file beside the system's.

    The same object for all connections of a process, as a program that opens many would have it.
    """
    context = ssl.create_default_context()
    if ca is not None:
        context.load_verify_locations(ca)
    return context
