"""The asyncio client, by calls and by callbacks. All connections are made on one event loop, as in a program."""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections.abc import AsyncIterator, Coroutine
from typing import Any, TypeVar

import wirespeed

from . import libraries
from .certificate import Certificate
from .errors import Limit, RunError, interrupted_after
from .testees import OPEN_TIMEOUT, Testee

__all__ = ["AwaitingTestee", "ListeningTestee", "new_loop"]

T = TypeVar("T")

# Seconds for a cancelled connection to close: more than the default close_timeout.
GRACE = 15.0


class AwaitingTestee(Testee):
    """A client whose calls are awaited."""

    def __init__(self, library: str, port: str | None, loop: str, certificate: Certificate | None) -> None:
        super().__init__()
        self._port = port
        self._ssl = libraries.trusting(certificate)
        self._connect, self._closed = libraries.asynchronous(library, port)
        self._loop = new_loop(loop)
        self._loop.set_exception_handler(self._note)

    def ask(self, uri: str, limit: Limit) -> str:
        async def main() -> str:
            async with self._connection(uri) as ws:
                return await ws.recv()

        return self._run(main(), limit)

    def echo(self, uri: str, limit: Limit) -> None:
        async def main() -> None:
            async with self._connection(uri) as ws:
                with contextlib.suppress(self._closed):
                    while True:
                        await ws.send(await ws.recv())

        self._run(main(), limit)

    def drain(self, uri: str, limit: Limit) -> None:
        async def main() -> None:
            async with self._connection(uri, limit.seconds) as ws:
                with contextlib.suppress(self._closed):
                    while True:
                        await ws.recv()

        self._run(main(), limit)

    def close(self) -> None:
        # After an interrupt, or when the loop has stopped turning.
        if tasks := asyncio.all_tasks(self._loop):
            for task in tasks:
                task.cancel()
            with interrupted_after(2 * GRACE, RunError("the event loop cannot be closed")):
                self._loop.run_until_complete(asyncio.wait(tasks, timeout=GRACE))
        # An exception that was never retrieved is reported when it is collected.
        gc.collect()
        self._loop.close()

    @contextlib.asynccontextmanager
    async def _connection(self, uri: str, open_timeout: float = OPEN_TIMEOUT, **options: Any) -> AsyncIterator[Any]:
        ws = await self._connect(uri, open_timeout=open_timeout, ping_interval=None, **self._ssl, **options)
        try:
            if self._port is not None and ws.port != self._port:
                raise RunError(f"the connection uses the port {ws.port!r}, not {self._port!r}")
            yield ws
        finally:
            await ws.close()

    def _run(self, main: Coroutine[Any, Any, T], limit: Limit) -> T:
        # The signal is for a loop that no longer turns.
        with interrupted_after(limit.seconds + 2 * GRACE, limit.error()):
            return self._loop.run_until_complete(_within(main, limit))

    def _note(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self.problems.append(f"{context['message']}: {context.get('exception')!r}")


class Echo(wirespeed.Listener):
    """Echoes each message."""

    def on_message(self, ws: Any, message: str | bytes) -> None:
        ws.send_nowait(message)


class ListeningTestee(AwaitingTestee):
    """A client whose messages go to callbacks."""

    def echo(self, uri: str, limit: Limit) -> None:
        async def main() -> None:
            async with self._connection(uri, listener=Echo(), write_limit=libraries.ALL_OF_A_CASE) as ws:
                with contextlib.suppress(self._closed):
                    await ws.wait_closed()

        self._run(main(), limit)


async def _within(main: Coroutine[Any, Any, T], limit: Limit) -> T:
    task = asyncio.ensure_future(main)
    await asyncio.wait({task}, timeout=limit.seconds)
    if not task.done():
        task.cancel()
        await asyncio.wait({task}, timeout=GRACE)
        raise limit.error()
    return task.result()


def new_loop(name: str) -> asyncio.AbstractEventLoop:
    """Returns an event loop of the named kind."""
    if name == "uvloop":
        import uvloop

        return uvloop.new_event_loop()
    if name == "wirespeed":
        return wirespeed.new_event_loop()
    return asyncio.new_event_loop()
