"""Writes to a descriptor with blocking calls."""

from __future__ import annotations

import os
import select

__all__ = ["write_all"]


def write_all(descriptor: int, data: bytes) -> None:
    """Write all bytes, whether or not the descriptor is non-blocking.

    Args:
        descriptor: The file descriptor.
        data: The bytes.
    """
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(descriptor, view) :]
        except BlockingIOError:
            select.select([], [descriptor], [])
