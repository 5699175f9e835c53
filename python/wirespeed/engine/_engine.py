"""What a user makes and iterates over; all that serves is native."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar

from .._native import Connected, Disconnected, Message, NativeEngine
from .._options.server import native_server_tls
from ._handlers import Handlers, Lanes, Pool

if TYPE_CHECKING:
    from typing_extensions import Self

    from .._native import JWT, ServerTLS
    from ..tls import TLS

__all__ = ["Engine", "Event"]

Event: TypeAlias = Connected | Message | Disconnected
"""What has happened to a session."""

Handler = TypeVar("Handler", bound=Callable[..., Any])

Policy: TypeAlias = Literal["disconnect", "drop_oldest", "drop_newest", "conflate"]


class Engine(NativeEngine):
    """A WebSocket server of many threads.

    It serves while it is used as a context manager, or between :meth:`start` and :meth:`stop`. ``with`` and
    ``async with`` are the same but for who waits at the end. It cannot be started twice.

    Args:
        host: Address to listen at, IPv4 or IPv6; ``None``: only at ``path``.
        port: Its port; 0, the default, is one that is free, see :attr:`addresses`.
        path: A Unix socket to listen at.
        ssl: TLS settings with certificate and key; the default is not to encrypt.
        auth: Who clients are, by their tokens: whoever has no good one is answered with 401 or 403. The default is to
            let in everybody.
        workers: Threads that serve; 0, the default, is one for each core.
        origins: Whose pages may connect, as browsers write it: ``["https://example.com"]``; ``["*"]``: all. The
            default is those of the host that the request names. Clients that send no Origin are no browsers, and may
            connect.
        subprotocols: Subprotocols, the preferred one first: the first that the client offers is chosen.
        compression: Whether permessage-deflate is accepted. The default is not to: it costs memory and time.
        max_size: Bytes of the largest message that a client may send, 1 MiB by default; ``None``: no limit.
        open_timeout: Seconds that a client may take from its connection to its session, 10 by default.
        ping_interval: Seconds between pings, 20 by default; ``None``: none are sent.
        ping_timeout: Seconds that a pong may take, 20 by default; ``None``: any time.
        close_timeout: Seconds that a client may take to do its part of the closing, 10 by default.
        outbox_limit: Bytes that may wait for one session, 1 MiB by default.
        policy: What becomes of what is more: ``"disconnect"``, the default, ends the session with code 1013;
            ``"drop_oldest"`` and ``"drop_newest"`` drop messages, ``"conflate"`` the one with the same key.
        mailbox_limit: Bytes of what is sent that may wait for one thread, 4 MiB by default: then there is no room, and
            at four times that whoever does not wait is refused.
        max_subscriptions: Topics and patterns that one session may subscribe to, 1,024 by default.
        max_events: Events that may wait to be taken, 65,536 by default: while there are more, nothing is read.
        max_event_bytes: The same in bytes of their messages, 64 MiB by default.
        max_connections: Clients at most; the default is as many as there are descriptors.

    Raises:
        ValueError: An argument is not valid; the text names it.
    """

    def __init__(
        self,
        host: str | None = None,
        port: int = 0,
        *,
        path: str | os.PathLike[str] | None = None,
        ssl: TLS | None = None,
        auth: JWT | None = None,
        workers: int = 0,
        origins: Sequence[str] | None = None,
        subprotocols: Sequence[str] = (),
        compression: bool = False,
        max_size: int | None = 2**20,
        open_timeout: float = 10,
        ping_interval: float | None = 20,
        ping_timeout: float | None = 20,
        close_timeout: float = 10,
        outbox_limit: int = 2**20,
        policy: Policy = "disconnect",
        mailbox_limit: int = 4 * 2**20,
        max_subscriptions: int = 1024,
        max_events: int = 65_536,
        max_event_bytes: int = 64 * 2**20,
        max_connections: int | None = None,
    ) -> None:
        native = None if ssl is None else native_server_tls(ssl)
        listen: list[tuple[str | None, int, str | None, ServerTLS | None]] = []
        if host is not None:
            listen.append((host, port, None, native))
        if path is not None:
            listen.append((None, 0, os.fspath(path), native))
        if not listen:
            raise ValueError("an engine needs a host, a path, or both to listen at")
        self._configure(
            listen,
            auth=auth,
            workers=workers,
            origins=origins,
            subprotocols=subprotocols,
            compression=compression,
            max_size=max_size,
            open_timeout=open_timeout,
            ping_interval=ping_interval,
            ping_timeout=ping_timeout,
            close_timeout=close_timeout,
            outbox_limit=outbox_limit,
            policy=policy,
            mailbox_limit=mailbox_limit,
            max_subscriptions=max_subscriptions,
            max_events=max_events,
            max_event_bytes=max_event_bytes,
            max_connections=max_connections,
        )
        self._routed = False
        self._started = False
        self._handlers = Handlers()
        self._logger = logging.getLogger("wirespeed.engine")

    def echo(self, path: str) -> None:
        """Answer the messages at a path with themselves, without Python.

        Args:
            path: ``"/echo"``; ``{name}`` stands for any segment, ``{*name}`` for all that follow.

        Raises:
            ValueError: The path is none, or another one stands in its way.
            RuntimeError: The engine has started.
        """
        self._route(path, "echo")

    def route(self, path: str) -> None:
        """Make the clients of a path sessions, whose events come in batches. Without any, all paths are such.

        Args:
            path: As for :meth:`echo`.

        Raises:
            ValueError: The path is none, or another one stands in its way.
            RuntimeError: The engine has started.
        """
        self._route(path, "events")
        self._routed = True

    def start(self) -> None:
        """Begin to serve.

        Raises:
            OSError: An address cannot be listened at.
            RuntimeError: It has started before.
        """
        if not self._routed:
            self._route("/", "events")
            self._route("/{*rest}", "events")
            self._routed = True
        super().start()
        self._started = True

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    async def __aenter__(self) -> Self:
        self.start()
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await asyncio.get_running_loop().run_in_executor(None, self.stop)

    def on_connect(self, handler: Handler) -> Handler:
        """Have a function called with each new session; a decorator. For :meth:`run` and :meth:`serve`."""
        self._handlers.set("connect", handler)
        return handler

    def on_message(self, handler: Handler) -> Handler:
        """Have a function called with the session and the message, ``str`` or ``bytes``; a decorator."""
        self._handlers.set("message", handler)
        return handler

    def on_disconnect(self, handler: Handler) -> Handler:
        """Have a function called with a session that is over, the close code and the reason; a decorator."""
        self._handlers.set("disconnect", handler)
        return handler

    async def serve(self, *, max_handlers: int = 1000) -> None:
        """Call the handlers, on this event loop, until the engine is stopped; start it if it has not started.

        Those of one session are called one after the other, in order; a handler that raises is logged, and its session
        closed with code 1011. Cancelled, it stops the engine, and cancels the handlers that are under way.

        Args:
            max_handlers: Handlers that may be under way or due, 1,000 by default: while there are more, no events are
                taken, and in the end nothing is read.

        Raises:
            RuntimeError: There are no handlers.
        """
        self._check_handlers()
        if not self._started:
            self.start()
        lanes = Lanes(self._handlers, self._logger, max_handlers)
        try:
            async with contextlib.aclosing(self.__aiter__()) as batches:
                async for batch in batches:
                    await lanes.handle(batch)
            await lanes.finish()
        except asyncio.CancelledError:
            await asyncio.get_running_loop().run_in_executor(None, self.stop)
            await lanes.cancel()
            raise

    def run(self, *, threads: int = 0) -> None:
        """Call the handlers until the engine is stopped or interrupted; start it if it has not started.

        With a coroutine function among them it is :meth:`serve` on an event loop of its own.

        Args:
            threads: Threads that call the handlers, those of one session one after the other, in order; 0, the default:
                this one calls them all.

        Raises:
            RuntimeError: There are no handlers.
            ValueError: Coroutine functions do not run on threads.
        """
        self._check_handlers()
        if self._handlers.awaits:
            if threads:
                raise ValueError("threads: handlers that are coroutine functions run on an event loop")
            asyncio.run(self.serve())
            return
        if not self._started:
            self.start()
        pool = Pool(self._handlers, self._logger, threads)
        try:
            for batch in self.batches():
                pool.handle(batch)
        finally:
            self.stop()
            pool.finish()

    def _check_handlers(self) -> None:
        if not self._handlers:
            raise RuntimeError("there are no handlers: use engine.on_message, or iterate over engine.batches()")

    def batches(self, *, max_events: int = 1024, timeout: float | None = None) -> Iterator[list[Event]]:
        """Iterate over what happens, in lists, until the engine is stopped.

        Several threads may do so: each event goes to one of them.

        Args:
            max_events: Events of one list at most.
            timeout: Seconds after which an empty list comes if nothing has happened; ``None``: none comes.

        Raises:
            RuntimeError: The engine has not started.
        """
        while (batch := self._take(max_events, timeout)) is not None:
            yield batch

    async def __aiter__(self) -> AsyncGenerator[list[Event], None]:
        """Iterate over what happens, in lists of 1,024 events at most, until the engine is stopped. By one task."""
        loop = asyncio.get_running_loop()
        bell = self._bell()
        rung: asyncio.Event = asyncio.Event()
        loop.add_reader(bell, rung.set)
        try:
            while (batch := self._take(1024, 0)) is not None:
                if batch:
                    yield batch
                    continue
                rung.clear()
                self._silence()
                # What came between the look and now has rung before.
                batch = self._take(1024, 0)
                if batch is None:
                    return
                if batch:
                    yield batch
                else:
                    await rung.wait()
        finally:
            loop.remove_reader(bell)
