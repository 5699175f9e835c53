"""Reads messages to send from the standard input, as lines or blocks, without a prompt."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator

from ._status import CommandError, Status
from ._worker import Worker

__all__ = ["read_blocks", "read_lines"]

_STDIN = 0

_BLOCK = 2**16


async def read_blocks() -> AsyncIterator[list[bytes]]:
    """Yield blocks of the standard input as they arrive, one at a time."""
    worker = Worker("stdin")
    while block := await worker.call(_read):
        yield [block]


async def read_lines() -> AsyncIterator[list[str]]:
    """Yield the lines of the standard input without line ends, in lists of lines that arrived together.

    Raises:
        CommandError: A line is not UTF-8.
    """
    number = 0
    begun: list[bytes] = []
    async for (block,) in read_blocks():
        *lines, rest = block.split(b"\n")
        if lines:
            lines[0] = b"".join([*begun, lines[0]])
            begun.clear()
            decoded, good = _decode(lines)
            number += len(decoded)
            yield decoded
            if not good:
                raise _not_text(number + 1)
        begun.append(rest)
    if last := b"".join(begun):
        decoded, good = _decode([last])
        yield decoded
        if not good:
            raise _not_text(number + 1)


def _read() -> bytes:
    try:
        return os.read(_STDIN, _BLOCK)
    except OSError:
        # The stream was closed before the start, or its terminal is gone.
        return b""


def _decode(lines: list[bytes]) -> tuple[list[str], bool]:
    decoded = []
    for line in lines:
        try:
            decoded.append(line.removesuffix(b"\r").decode())
        except UnicodeDecodeError:
            return decoded, False
    return decoded, True


def _not_text(number: int) -> CommandError:
    return CommandError(Status.DATA, f"line {number} of the standard input is not UTF-8: --binary sends any bytes")
