"""Writing to a descriptor, here and now."""

from __future__ import annotations

import os
import select

__all__ = ["write_all"]


def write_all(descriptor: int, data: bytes) -> None:
    """Write all of something, whatever mode the descriptor is in.

    Args:
        descriptor: Number of a file descriptor.
        data: The bytes.
    """
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(descriptor, view) :]
        except BlockingIOError:
            select.select([], [descriptor], [])
