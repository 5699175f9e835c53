"""One session of ``wirespeed connect``, from the open connection to the exit status."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from typing import Any

from .. import ClientConnection, State
from .._redaction import printable
from ..exceptions import ConnectionClosed, ConnectionClosedError
from . import _trace as trace
from ._json_text import check_json
from ._prompt import Interrupted, Prompt
from ._screen import Screen
from ._settings import Settings
from ._source import read_blocks, read_lines
from ._status import CommandError, Status, describe
from ._stop import Stop

__all__ = ["Session"]


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
