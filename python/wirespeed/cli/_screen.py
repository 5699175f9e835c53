"""Writes the output of ``wirespeed connect``: messages to the standard output, the rest to the standard error."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections import deque
from collections.abc import Sequence

from ._json_text import check_json, pretty_json
from ._prompt import Prompt
from ._settings import Settings
from ._worker import Worker
from ._writing import write_all

__all__ = ["Screen"]

_STDOUT = 1
_STDERR = 2

# Characters that move the cursor, change colors or the title, or reverse the direction of text: a server must not
# control the terminal.
_UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")

_GREEN, _RED, _DIM = "32", "31", "2"

_SHOWN_BYTES = 512


class Screen:
    """Writes the output of the command.

    Args:
        settings: The settings of the command line.
        prompt: The prompt to write above, ``None`` without one.
    """

    def __init__(self, settings: Settings, prompt: Prompt | None) -> None:
        self._settings = settings
        self._prompt = prompt
        # One worker for each stream, because one of them may be blocked.
        self._workers = {_STDOUT: Worker("stdout"), _STDERR: Worker("stderr")}
        # Notes to be written without waiting. If there are too many, the oldest are dropped.
        self._notes: deque[str] = deque(maxlen=1000)
        self._noting: asyncio.Task[None] | None = None

    async def show(self, messages: Sequence[str | bytes]) -> None:
        """Write messages to the standard output; return when they are written.

        Args:
            messages: The messages.

        Raises:
            OSError: They cannot be written; ``BrokenPipeError`` if the reader has closed the pipe.
        """
        if self._notes:
            await self.note()
        await self._write(_STDOUT, b"".join(map(self._format, messages)))

    async def note(self, *lines: str, error: bool = False) -> None:
        """Write lines to the standard error; return when they are written.

        Args:
            *lines: The lines.
            error: Whether the lines report an error.
        """
        earlier = [*self._notes]
        self._notes.clear()
        text = "".join(self._note(line, _DIM) for line in earlier)
        text += "".join(self._note(line, _RED if error else _DIM) for line in lines)
        # A closed standard error does not end the command.
        with contextlib.suppress(OSError):
            await self._write(_STDERR, text.encode())

    def note_soon(self, *lines: str) -> None:
        """Write lines to the standard error later, before any other output, without waiting.

        Args:
            *lines: The lines.
        """
        self._notes.extend(lines)
        if self._noting is None or self._noting.done():
            self._noting = asyncio.ensure_future(self.note())

    def _note(self, line: str, code: str) -> str:
        return self._paint(_clean(line), code, self._settings.note_color) + "\n"

    async def _write(self, descriptor: int, data: bytes) -> None:
        if not data:
            return
        if self._prompt is None:
            await self._workers[descriptor].call(write_all, descriptor, data)
        else:
            await self._prompt.print_above(lambda: write_all(descriptor, data))

    def _format(self, message: str | bytes) -> bytes:
        if self._settings.binary and not self._settings.terminal:
            return message.encode() if isinstance(message, str) else message
        text = _json_text(message) if self._settings.json else None
        if text is not None:
            text = pretty_json(self._make_safe(text), color=self._settings.color)
        elif isinstance(message, str):
            text = self._paint(self._make_safe(message), _GREEN, self._settings.color and self._settings.interactive)
        elif self._settings.terminal:
            text = _describe_bytes(message)
        else:
            # The reader of the pipe gets the bytes unchanged.
            return message + b"\n"
        mark = self._paint("< ", _GREEN, self._settings.color) if self._settings.interactive else ""
        return f"{mark}{text}\n".encode()

    def _make_safe(self, text: str) -> str:
        return _clean(text) if self._settings.terminal else text

    @staticmethod
    def _paint(text: str, code: str, color: bool) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if color and text else text


def _json_text(message: str | bytes) -> str | None:
    """Return the text of a message if it is JSON, otherwise ``None``."""
    try:
        text = message if isinstance(message, str) else message.decode()
        check_json(text)
    except ValueError:
        return None
    return text


def _clean(text: str) -> str:
    return _UNSAFE.sub(lambda match: ascii(match[0])[1:-1], text)


def _describe_bytes(data: bytes) -> str:
    shown = data[:_SHOWN_BYTES].hex(" ")
    return f"[{len(data)} bytes] {shown}{' ...' if len(data) > _SHOWN_BYTES else ''}"
