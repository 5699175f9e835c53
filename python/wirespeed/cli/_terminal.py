"""Input and output of ``wirespeed connect``: the prompt, the standard streams, JSON in colors."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import os
import queue
import re
import threading
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from ._common import CommandError, Status, write_all

if TYPE_CHECKING:
    from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

__all__ = [
    "Interrupted",
    "Prompt",
    "Screen",
    "Settings",
    "Worker",
    "check_json",
    "pretty_json",
    "read_blocks",
    "read_lines",
]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings of the command line and the environment.

    Attributes:
        uri: URI to connect to.
        options: Keyword arguments of ``wirespeed.connect``.
        json: Whether messages are JSON.
        binary: Whether to send binary messages.
        wait: Seconds without a message after the end of the input until the connection is closed.
        count: Number of messages until the connection is closed; ``None`` for no limit.
        verbose: Whether to show handshake, frames, pings and the closing.
        interactive: Whether both input and output are a terminal.
        terminal: Whether the standard output is a terminal.
        color: Whether to use colors on the standard output.
        note_color: Whether to use colors on the standard error.
        prompt: Whether the terminal can show a prompt.
    """

    uri: str
    options: dict[str, Any]
    json: bool
    binary: bool
    wait: float
    count: int | None
    verbose: bool
    interactive: bool
    terminal: bool
    color: bool
    note_color: bool
    prompt: bool


class Interrupted(Exception):
    """Ctrl-C was pressed on an empty line."""


class Prompt:
    """A prompt on the terminal that is the standard input and output.

    It stays active from the first line to the last, so that no key is lost.

    Args:
        text: Text before the line.

    Raises:
        ImportError: prompt_toolkit is not installed.
    """

    def __init__(self, text: str = "> ") -> None:
        from prompt_toolkit import PromptSession
        from prompt_toolkit.history import FileHistory, History, InMemoryHistory

        path = _history_file()
        history: History = InMemoryHistory() if path is None else FileHistory(str(path))
        self._text = text
        # None marks the end of the input.
        self._entered: asyncio.Queue[str | None] = asyncio.Queue()
        self._session: PromptSession[str] = PromptSession(
            text, history=history, key_bindings=self._key_bindings(), reserve_space_for_menu=0
        )

    async def read_lines(self) -> AsyncGenerator[list[str], None]:
        """Yield the entered lines, one at a time, until Ctrl-D. Empty lines are skipped.

        Raises:
            Interrupted: Ctrl-C was pressed on an empty line.
        """
        # SIGINT of other processes is handled by the command.
        running = asyncio.ensure_future(self._session.prompt_async(handle_sigint=False))
        running.add_done_callback(lambda _: self._entered.put_nowait(None))
        try:
            while (line := await self._entered.get()) is not None:
                yield [line]
            with contextlib.suppress(EOFError):
                await running
        finally:
            running.cancel()
            # Retrieves the exception of the prompt, if it ended at the same time.
            await asyncio.gather(running, return_exceptions=True)

    async def print_above(self, write: Callable[[], None]) -> None:
        """Remove the prompt, write to the terminal, and show the prompt again.

        Args:
            write: The function that writes.
        """
        app = self._session.app
        while app.is_running and app.is_done:
            # The prompt is about to be drawn for the last time.
            await asyncio.sleep(0)
        if app.is_running:
            # Not run_in_terminal, which releases the keyboard meanwhile.
            app.renderer.erase()
            write()
            app.renderer.reset()
            app.invalidate()
        else:
            write()

    def _key_bindings(self) -> KeyBindings:
        from prompt_toolkit.enums import DEFAULT_BUFFER
        from prompt_toolkit.filters import has_focus
        from prompt_toolkit.key_binding import KeyBindings

        bindings = KeyBindings()
        # Not during a search in the history.
        typing = has_focus(DEFAULT_BUFFER)

        @bindings.add("enter", filter=typing)
        def enter(event: KeyPressEvent) -> None:
            line = event.current_buffer.text
            if line:
                event.current_buffer.reset(append_to_history=True)
                event.current_buffer.load_history_if_not_yet_loaded()
                event.app.renderer.erase()
                event.app.output.write(f"{self._text}{line}\n")
                event.app.output.flush()
                event.app.renderer.reset()
                self._entered.put_nowait(line)

        @bindings.add("c-c", filter=typing)
        def interrupt(event: KeyPressEvent) -> None:
            if event.current_buffer.text:
                event.current_buffer.reset()
            else:
                event.app.exit(exception=Interrupted())

        return bindings


def _history_file() -> Path | None:
    """Return the path of the history, readable by the user only, because messages may contain passwords."""
    chosen = os.environ.get("WIRESPEED_HISTORY")
    if chosen == "":
        return None
    try:
        state = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
        path = state / "wirespeed" / "history" if chosen is None else Path(chosen)
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.touch(mode=0o600)
    except (OSError, RuntimeError):
        # The home directory does not exist or is not writable.
        return None
    return path


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


_TOKEN = re.compile(r'("(?:[^"\\]|\\.)*")(\s*:)?|([\[{])\s*([\]}])?|([\]}])|(,)|([^\s\[\]{},:"]+)|:')

_COLORS = {"key": "34", "string": "32", "number": "36", "literal": "35"}


def check_json(text: str | bytes) -> None:
    """Check that a text is JSON (RFC 8259).

    Args:
        text: The text.

    Raises:
        ValueError: It is not JSON; the message contains the position.
    """
    try:
        # Numbers are not converted, because they may have more digits than Python allows.
        json.loads(text, parse_int=len, parse_float=len, parse_constant=_refuse)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def pretty_json(text: str, *, color: bool) -> str:
    """Return JSON with one value on each line.

    Args:
        text: JSON that was checked with :func:`check_json`.
        color: Whether to add colors for a terminal.
    """
    out: list[str] = []
    depth = 0
    for string, colon, opening, empty, closing, comma, other in _TOKEN.findall(text):
        if string:
            out.append(_paint(string, "key" if colon else "string", color) + (": " if colon else ""))
        elif opening:
            out.append(opening + empty)
            if not empty:
                depth += 1
                out.append(_line(depth))
        elif closing:
            depth -= 1
            out.append(_line(depth) + closing)
        elif comma:
            out.append(comma + _line(depth))
        elif other:
            out.append(_paint(other, "literal" if other.isalpha() else "number", color))
    return "".join(out)


def _line(depth: int) -> str:
    return "\n" + "  " * depth


def _paint(text: str, kind: str, color: bool) -> str:
    return f"\x1b[{_COLORS[kind]}m{text}\x1b[0m" if color else text


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


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


T = TypeVar("T")


class Worker:
    """A thread that runs one blocking call after another, beside the event loop. The process can end during a call.

    A blocked pipe must not prevent a connection from answering pings. The standard streams cannot be made non-blocking,
    because other processes share them.

    Args:
        name: Name of the thread.
    """

    def __init__(self, name: str) -> None:
        self._loop = asyncio.get_running_loop()
        self._calls: queue.SimpleQueue[tuple[Callable[[], Any], asyncio.Future[Any]]] = queue.SimpleQueue()
        # A daemon thread, because Python would wait for other threads, which may be blocked.
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)

    async def call(self, function: Callable[..., T], *arguments: Any) -> T:
        """Call a function in the thread and return its result.

        Args:
            function: The function.
            *arguments: Its arguments.
        """
        if not self._thread.is_alive():
            self._thread.start()
        future: asyncio.Future[T] = self._loop.create_future()
        self._calls.put((lambda: function(*arguments), future))
        return await future

    def _work(self) -> None:
        while True:
            call, future = self._calls.get()
            result = error = None
            try:
                result = call()
            except Exception as exc:
                error = exc
            # If the loop is closed, no task waits for the result.
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(_set_result, future, result, error)


def _set_result(future: asyncio.Future[Any], result: Any, error: Exception | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)
