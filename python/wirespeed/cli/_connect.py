"""Runs ``wirespeed connect``: opens the connection, exchanges messages, ends on signals."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import math
import os
import signal
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

from .. import TLS, ClientConnection, State, connect
from .. import run as run_loop
from .._redaction import mask_user_info, printable
from ..exceptions import ConnectionClosed, ConnectionClosedError, InvalidHandshake, InvalidStatus, WebSocketException
from . import _trace as trace
from ._common import CommandError, Status, describe, limit
from ._terminal import Interrupted, Prompt, Screen, Settings, check_json, read_blocks, read_lines

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Session", "Stop", "run"]


def run(arguments: argparse.Namespace) -> Status:
    """Connect, exchange messages, and return the exit status.

    Args:
        arguments: The parsed command line.

    Raises:
        CommandError: The command line is wrong, or the connection could not be opened.
    """
    typed, terminal = os.isatty(0), os.isatty(1)
    # See no-color.org: every value except the empty one.
    color = not (arguments.no_color or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb")
    try:
        options = _connect_options(arguments)
    except (OSError, ValueError) as exc:
        raise CommandError(Status.USAGE, describe(exc)) from None
    settings = Settings(
        uri=arguments.uri,
        options=options,
        json=arguments.json,
        binary=arguments.binary,
        wait=0 if typed else arguments.wait,
        count=arguments.count,
        verbose=arguments.verbose,
        interactive=typed and terminal,
        terminal=terminal,
        color=color and terminal,
        note_color=color and os.isatty(2),
        prompt=os.environ.get("TERM") != "dumb",
    )
    return run_loop(_converse(settings))


async def _converse(settings: Settings) -> Status:
    prompt, hint = _make_prompt(settings)
    screen = Screen(settings, prompt)
    with Stop() as stop:
        connecting = asyncio.ensure_future(_connect(settings, screen))
        ends: set[asyncio.Future[Any]] = {connecting, stop.future}
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        if not connecting.done():
            connecting.cancel()
            await asyncio.wait({connecting})
        if connecting.cancelled():
            return stop.status
        ws = connecting.result()
        stop.force = ws.abort
        try:
            if settings.verbose:
                await screen.note(*trace.opening(ws))
            if settings.interactive:
                await screen.note(f"connected to {_masked_uri(settings)}, Ctrl-D closes{hint}")
            return await Session(ws, settings, screen, prompt, stop).run()
        finally:
            ws.abort()


def _make_prompt(settings: Settings) -> tuple[Prompt | None, str]:
    if not (settings.interactive and settings.prompt):
        return None, ""
    try:
        return Prompt(), ""
    except ImportError:
        return None, '; for history and line editing: pip install "wirespeed[cli]"'


async def _connect(settings: Settings, screen: Screen) -> ClientConnection:
    options = dict(settings.options)
    if settings.verbose:
        options["listener"] = trace.Watcher(screen)
    try:
        return await connect(settings.uri, **options)
    except (OSError, InvalidHandshake) as exc:
        if settings.verbose and isinstance(exc, InvalidStatus):
            await screen.note(*trace.response(exc.response))
        raise CommandError(Status.FAILED, f"cannot connect to {_masked_uri(settings)}: {describe(exc)}") from None
    except (TypeError, ValueError, WebSocketException) as exc:
        raise CommandError(Status.USAGE, describe(exc)) from None


def _masked_uri(settings: Settings) -> str:
    return printable(mask_user_info(settings.uri))


def _connect_options(arguments: argparse.Namespace) -> dict[str, Any]:
    options: dict[str, Any] = {
        "additional_headers": [pair for pair in arguments.header if pair[0].lower() not in _OWN_HEADERS],
        "subprotocols": arguments.subprotocol,
        "origin": arguments.origin,
        "max_size": arguments.max_size,
        "proxy": None if arguments.proxy == "none" else arguments.proxy,
        "open_timeout": limit(arguments.timeout),
        "close_timeout": limit(arguments.timeout),
        "ping_interval": limit(arguments.ping or math.inf),
    }
    for name, value in arguments.header:
        if name.lower() in _OWN_HEADERS:
            options[_OWN_HEADERS[name.lower()]] = value
    if arguments.uri.lower().startswith("wss:"):
        options["ssl"] = _tls(arguments)
    return options


_OWN_HEADERS = {"user-agent": "user_agent_header", "origin": "origin"}
"""Headers for which ``connect`` has an argument. As additional headers they would be sent twice."""


def _tls(arguments: argparse.Namespace) -> TLS:
    return TLS(ca=arguments.ca, cert=arguments.cert, key=arguments.key, verify=not arguments.insecure)


class Session:
    """Sends the input, shows received messages, and determines the exit status.

    Args:
        ws: The connection.
        settings: The settings of the command line.
        screen: The output.
        prompt: The source of messages, ``None`` for the standard input.
        stop: Notified of signals.
    """

    def __init__(
        self, ws: ClientConnection, settings: Settings, screen: Screen, prompt: Prompt | None, stop: Stop
    ) -> None:
        self._ws = ws
        self._settings = settings
        self._screen = screen
        self._prompt = prompt
        self._stop = stop
        self._loop = asyncio.get_running_loop()
        # Time when a message was sent or received last; None while received messages are written.
        self._last: float | None = self._loop.time()

    async def run(self) -> Status:
        """Send and receive until one of them, or a signal, ends the session; return the exit status.

        Raises:
            CommandError: The session ended with an error.
        """
        receiving = asyncio.ensure_future(self._receive())
        sending = asyncio.ensure_future(self._send())
        try:
            await self._wait_for_first(receiving, sending)
            if sending.done() and not receiving.done():
                await self._wait_for_replies(sending, receiving)
            closed_by_client = self._ws.state is State.OPEN
            await self._ws.close()
            if not self._stop.requested:
                # Show messages that arrived before the close frame.
                await self._wait_for_first(receiving)
        finally:
            for task in (sending, receiving):
                task.cancel()
            await asyncio.wait({sending, receiving})
        await self._show_end(closed_by_client)
        return self._exit_status(sending, receiving, closed_by_client)

    async def _wait_for_first(self, *tasks: asyncio.Future[None], timeout: float | None = None) -> None:
        """Return when one of the tasks has ended or a signal has arrived."""
        ends: set[asyncio.Future[Any]] = {*tasks, self._stop.future}
        await asyncio.wait(ends, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)

    # Receiving

    async def _receive(self) -> None:
        """Show messages until the connection is closed or ``count`` is reached."""
        left = self._settings.count
        while left is None or left > 0:
            try:
                if self._settings.verbose:
                    messages = [await trace.receive(self._ws, self._screen)]
                else:
                    messages = await self._ws.recv_many(1024 if left is None else min(left, 1024))
            except ConnectionClosedError:
                raise
            except ConnectionClosed:
                return
            self._last = None
            await self._screen.show(messages)
            self._last = self._loop.time()
            if left is not None:
                left -= len(messages)

    async def _wait_for_replies(self, sending: asyncio.Future[None], receiving: asyncio.Future[None]) -> None:
        """After the end of the input, wait until no message has arrived for ``wait`` seconds."""
        if sending.exception() is None:
            wait = self._settings.wait
        elif isinstance(sending.exception(), ConnectionClosed):
            wait = math.inf  # the connection is closed, and receiving ends soon
        else:
            return
        if self._last is not None:
            self._last = self._loop.time()
        while not receiving.done() and not self._stop.requested:
            left = wait if self._last is None else self._last + wait - self._loop.time()
            if left <= 0:
                return
            await self._wait_for_first(receiving, timeout=None if math.isinf(left) else left)

    # Sending

    async def _send(self) -> None:
        """Send the input until its end."""
        async with contextlib.aclosing(self._read()) as batches:
            await self._send_all(batches)

    async def _send_all(self, batches: AsyncIterator[Sequence[str | bytes]]) -> None:
        async for batch in batches:
            messages: list[str | bytes] = []
            refusal = None
            for message in batch:
                refusal = self._refuse(message)
                if refusal is not None:
                    break
                messages.append(message.encode() if self._settings.binary and isinstance(message, str) else message)
            if messages:
                await self._ws.send_many(messages)
                if self._settings.verbose:
                    await self._screen.note(*map(trace.sent, messages))
            if refusal is not None:
                if not self._settings.interactive:
                    raise CommandError(Status.DATA, refusal)
                await self._screen.note(refusal, error=True)

    def _refuse(self, message: str | bytes) -> str | None:
        """Return why a message cannot be sent, ``None`` if it can."""
        try:
            if isinstance(message, str):
                # A terminal may pass bytes that are not UTF-8.
                message.encode()
            if self._settings.json:
                check_json(message)
        except UnicodeError:
            return "not sent, because it is not UTF-8"
        except ValueError as exc:
            return f"not sent, because it is not JSON: {exc}"
        return None

    async def _read(self) -> AsyncGenerator[Sequence[str | bytes], None]:
        if self._prompt is not None:
            # Closed in every case, because it controls the keyboard.
            async with contextlib.aclosing(self._prompt.read_lines()) as entered:
                try:
                    async for lines in entered:
                        yield lines
                except Interrupted:
                    self._stop.request(Status.INTERRUPTED)
        elif self._settings.binary and not self._settings.interactive:
            async for blocks in read_blocks():
                yield blocks
        else:
            async for lines in read_lines():
                # Empty lines of a terminal are ignored.
                yield [line for line in lines if line] if self._settings.interactive else lines

    # The end

    async def _show_end(self, closed_by_client: bool) -> None:
        closed = self._closed()
        lines: list[str] = []
        if closed is not None and self._settings.verbose:
            lines = trace.closing(closed)
        elif closed is not None and self._settings.interactive and not closed_by_client:
            lines = [f"closed by the server: {closed.rcvd or 'no close frame received'}"]
        showing = asyncio.ensure_future(self._screen.note(*lines))
        # After a signal, do not wait for a blocked pipe.
        await asyncio.wait({showing}, timeout=0.5 if self._stop.requested else None)
        showing.cancel()

    def _closed(self) -> ConnectionClosed | None:
        """Return the exception that calls raise; ``None`` if the connection could not be closed in time."""
        try:
            if self._ws.state is State.CLOSED:
                self._ws.send_nowait(b"")
        except ConnectionClosed as exc:
            return exc
        return None

    def _exit_status(
        self, sending: asyncio.Future[None], receiving: asyncio.Future[None], closed_by_client: bool
    ) -> Status:
        """Return the exit status, or raise the exception that determines it."""
        lost: ConnectionClosed | None = None
        for task in (sending, receiving):
            error = None if task.cancelled() else task.exception()
            if isinstance(error, BrokenPipeError):
                return Status.BROKEN_PIPE
            if isinstance(error, ConnectionClosedError):
                lost = error
            elif isinstance(error, OSError):
                raise CommandError(Status.FAILED, f"cannot write to the standard output: {describe(error)}")
            elif error is not None and not isinstance(error, ConnectionClosed):
                raise error
        if self._stop.requested:
            return self._stop.status
        # After a close frame of this end, errors of the server do not matter.
        if lost is not None and not closed_by_client:
            raise CommandError(Status.LOST, f"connection closed: {printable(str(lost))}")
        return Status.OK


class Stop:
    """Context manager that replaces the handlers of SIGINT and SIGTERM.

    Attributes:
        future: Done when the command must end, with its exit status.
        force: Called for further signals.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._handled: list[int] = []
        self.future: asyncio.Future[Status] = self._loop.create_future()
        self.force: Callable[[], object] = lambda: None

    @property
    def requested(self) -> bool:
        """Whether the command must end."""
        return self.future.done()

    @property
    def status(self) -> Status:
        """The exit status."""
        return self.future.result()

    def request(self, status: Status) -> None:
        """Request the end; a second call forces it.

        Args:
            status: The exit status.
        """
        if self.requested:
            self.force()
        else:
            self.future.set_result(status)

    def __enter__(self) -> Self:
        for number, status in ((signal.SIGINT, Status.INTERRUPTED), (signal.SIGTERM, Status.TERMINATED)):
            # On a loop without signal handlers, Ctrl-C raises KeyboardInterrupt.
            with contextlib.suppress(NotImplementedError):
                self._loop.add_signal_handler(number, self.request, status)
                self._handled.append(number)
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for number in self._handled:
            self._loop.remove_signal_handler(number)
