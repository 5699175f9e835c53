"""What a user makes and iterates over; all that serves is native."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar

from .._annotations import Self
from .._native import JWT, Batch, Connected, Disconnected, EngineLimits, Invalid, Message
from .._options.common import check_subprotocols, check_type
from ..tls import TLS
from ._arguments import check_count, checked_seconds, checked_tls
from ._broker import BrokerPolicy, BrokerStatus
from ._ending import LAST
from ._handlers import Handlers, SessionQueues, ThreadDispatcher, is_coroutine_function
from ._iteration import Notices, iterate
from ._lifecycle import EngineLifecycle
from ._rooms import wait_for_engine
from ._routes import Policy, RatePolicy, Routing

if TYPE_CHECKING:
    from .._native import ServerTLS

__all__ = ["Engine", "Event"]

Event: TypeAlias = Connected | Message | Invalid | Disconnected
"""What has happened to a session."""

Handler = TypeVar("Handler", bound=Callable[..., Any])

MAX_THREADS = 4096
"""Threads that may call handlers."""

MAX_WORKERS = 256
"""Threads that an engine may have."""


class Engine(EngineLifecycle, Routing):
    """A WebSocket server of many threads.

    It serves while it is used as a context manager, or between :meth:`start` and :meth:`stop`. At the end of ``with``
    and ``async with`` it closes its sessions with code 1001 (going away), and waits for a second at most until their
    clients have done their part; ``async with`` does not block the event loop meanwhile. It cannot be started twice.

    Args:
        host: Address to listen at, IPv4 or IPv6; ``None``: only at ``path``.
        port: Its port; 0, the default, is one that is free, see :attr:`addresses`.
        path: A Unix socket to listen at.
        reuse_port: Whether other processes of this user may listen at the same port, and get a part of the clients. The
            default is that :meth:`start` fails where anybody listens already. With two workers or more it keeps out
            only those who come before: the system lets whoever asks for ``SO_REUSEPORT`` join them, of the same user.
        ssl: TLS settings with certificate and key; the default is not to encrypt.
        auth: Who clients are, by their tokens: whoever has no good one is answered with 401 or 403. The default is to
            let in everybody.
        workers: Threads that serve, 256 at most; 0, the default, is one for each core.
        origins: Whose pages may connect, as browsers write it: ``["https://example.com"]``; ``["*"]``: all. What no
            browser sends is refused: wildcards, paths, a slash at the end. The default is those of the host that the
            request names. Clients that send no Origin are no browsers, and may
            connect.
        subprotocols: Subprotocols, the preferred one first: the first that the client offers is chosen.
        compression: Whether permessage-deflate is accepted. The default is not to: it costs memory and time.
        codec: What makes objects of messages where :meth:`route` says nothing else: as for that. The default is not to
            decode.
        max_size: Bytes of the largest message that a client may send, 1 MiB by default; ``None``: no limit.
        max_fragments: Frames that it may split one message into, 4,096 by default; ``None``: no limit.
        open_timeout: Seconds that a client may take from its connection to its session, 10 by default.
        ping_interval: Seconds between pings, 20 by default; ``None``: none are sent.
        ping_timeout: Seconds without progress after an unanswered ping, 20 by default: then the session is closed with
            code 1011. ``None`` disables the timeout.
        close_timeout: Seconds that a client may take to do its part of the closing, 10 by default.
        outbox_limit: Bytes that may wait for one session, 1 MiB by default.
        total_outbox_limit: Bytes of memory that may wait for all sessions together, 1 GiB by default; a message that
            waits for many counts once. From half of it on less than ``outbox_limit`` may wait for a session whose
            client takes nothing. Beyond it those who hold most meet the policy, and are cut off if nothing else helps.
        policy: What becomes of what is more: ``"disconnect"``, the default, ends the session with code 1013;
            ``"drop_oldest"`` and ``"drop_newest"`` drop messages, ``"conflate"`` the one with the same key.
        mailbox_limit: Bytes of what is sent that may wait for one thread, 16 MiB by default: whoever sends more is
            refused. There is no room, for those who ask, from an eighth of ``outbox_limit`` on.
        max_subscriptions: Topics and patterns that one session may subscribe to, 1,024 by default.
        busy_poll: Seconds that a thread which has nothing to do looks for something before it sleeps: lower latency, at
            the price of a busy core for each thread. The default is 0.0: it sleeps at once.
        max_events: Events that may wait to be taken, 65,536 by default: while there are more, nothing is read.
        max_event_bytes: The same in bytes of their messages, 64 MiB by default.
        health: Whether ``/health`` and ``/ready`` are answered over HTTP, to who asks for no WebSocket; or their two
            paths.
        metrics: Address and port where ``/metrics`` is answered, for Prometheus, and the two above.
        metrics_path: A path for the metrics where clients connect; the default is none: they tell strangers.
        metrics_token: What ``Authorization: Bearer`` must say for them, wherever they are.
        ready_without_broker: Whether ``/ready`` is answered with 200 though the broker is not connected; the default is
            503, as sessions here miss what others publish.
        page: The token of the live page at ``/_wirespeed/``; the default is that there is none.
        handoff: A Unix socket by which the next engine gets the listeners of this one, so that nobody is refused
            while a service restarts: this one drains then. Whoever is at it when this engine starts gives it his.
        drain_timeout: Seconds that an end takes at most, 30 by default: see :meth:`drain`.
        drain_batch: Sessions that are closed at once then, 100 by default.
        max_connections: Sessions at most, and never those of the last descriptors; the default is no limit. More are
            answered with 503 and ``Retry-After``.
        max_pending: Clients whose request is awaited for longer than a second, 1,024 by default: of more, the one goes
            that was silent longest, of the address that has most.
        max_connections_per_address: Sessions of one address, of IPv6 of its first 64 bits; of more, each is answered
            with 429 and ``Retry-After``. The default is no limit.
        connections_per_second_per_address: New connections of one address, likewise.
        connection_burst_per_address: How many of them may come at once; the default is one second's worth.
        max_sessions_per_user: Sessions of one user, by the ``sub`` of their tokens, likewise.
        retry_after: Seconds that those are told to wait, 5 by default, where no rate says how many.
        proxy_protocol: Networks whose connections begin with a PROXY header, of version 1 or 2: ``["10.0.0.0/8"]``;
            ``"unix"`` in it stands for the Unix socket. ``True``: those of ``trusted_proxies``. A connection from there
            without one is closed. :attr:`Session.remote_address` and all limits go by what it says.
        trusted_proxies: Networks of proxies whose header says for whom they speak, likewise: of all that it names, the
            last one that is in none of these networks.
        forwarded_header: Which header that is: ``"x-forwarded-for"``, the default, or ``"forwarded"`` (RFC 7239). It
            must be the one that the proxies write; clients may have sent the other.
        max_messages_per_second: Messages that one session may send; the default is any number.
        message_burst: How many of them at once; the default is one second's worth.
        max_bytes_per_second: The same in bytes of their payloads.
        byte_burst: How many of them at once. A larger message is not too large, but counts against the next ones.
        rate_policy: What becomes of more: ``"delay"``, the default, reads them later, so that nothing is lost and the
            client cannot send on; ``"drop"`` drops them; ``"disconnect"`` ends the session with code 1008.
        topics_by_default: What sessions may subscribe to and publish on where their token does not say, or without
            one: ``"all"``, the default, or ``"none"``, for :meth:`Session.allow` to add to.
        broker: What connects this engine with others: ``"nats://host:4222"``, ``"redis://host:6379"``,
            ``"redis+sentinel://host:26379/name"``, ``"redis+cluster://host:6379"`` or, within this process,
            ``"memory://name"``; with ``user:password@`` before the host, ``?creds=file`` or ``?nkey=file`` behind that
            of NATS, and TLS as ``tls://``, ``rediss://``. What is published and broadcast here reaches the sessions of
            all. The default is none.
        broker_prefix: Precedes the names of topics at the broker, with a dot between them; ``"wirespeed"`` by default.
            Engines of one application share it. It must not be empty or begin with ``$`` or ``_``, so that clients
            cannot read what other programs have at the broker.
        broker_limit: Bytes that may wait to be sent to the broker, 16 MiB by default.
        broker_policy: What becomes of what is more, while sessions of this engine get everything: ``"drop_newest"``,
            the default, and ``"drop_oldest"`` drop messages and count them; ``"raise"`` raises ``BlockingIOError``, and
            nobody gets the message.

    Raises:
        TypeError: An argument has a wrong type; the text names it.
        ValueError: An argument is not valid; the text names it.
        ImportError: The codec needs msgspec: ``pip install "wirespeed[codecs]"``.
    """

    def __init__(
        self,
        host: str | None = None,
        port: int = 0,
        *,
        path: str | os.PathLike[str] | None = None,
        reuse_port: bool = False,
        ssl: TLS | None = None,
        auth: JWT | None = None,
        workers: int = 0,
        origins: Sequence[str] | None = None,
        subprotocols: Sequence[str] = (),
        compression: bool = False,
        codec: Any = None,
        max_size: int | None = 2**20,
        max_fragments: int | None = 4096,
        open_timeout: float = 10,
        ping_interval: float | None = 20,
        ping_timeout: float | None = 20,
        close_timeout: float = 10,
        outbox_limit: int = 2**20,
        total_outbox_limit: int = 2**30,
        policy: Policy = "disconnect",
        mailbox_limit: int = 16 * 2**20,
        max_subscriptions: int = 1024,
        busy_poll: float = 0.0,
        max_events: int = 65_536,
        max_event_bytes: int = 64 * 2**20,
        max_connections: int | None = None,
        health: bool | tuple[str, str] = True,
        metrics: tuple[str, int] | None = None,
        metrics_path: str | None = None,
        metrics_token: str | None = None,
        page: str | None = None,
        ready_without_broker: bool = False,
        handoff: str | os.PathLike[str] | None = None,
        drain_timeout: float = 30,
        drain_batch: int = 100,
        max_pending: int = 1024,
        max_connections_per_address: int | None = None,
        connections_per_second_per_address: float | None = None,
        connection_burst_per_address: float | None = None,
        max_sessions_per_user: int | None = None,
        retry_after: float = 5,
        proxy_protocol: bool | Sequence[str] = False,
        trusted_proxies: Sequence[str] = (),
        forwarded_header: Literal["x-forwarded-for", "forwarded"] = "x-forwarded-for",
        max_messages_per_second: float | None = None,
        message_burst: float | None = None,
        max_bytes_per_second: float | None = None,
        byte_burst: float | None = None,
        rate_policy: RatePolicy = "delay",
        topics_by_default: Literal["all", "none"] = "all",
        broker: str | None = None,
        broker_prefix: str = "wirespeed",
        broker_limit: int = 16 * 2**20,
        broker_policy: BrokerPolicy = "drop_newest",
    ) -> None:
        check_type("host", host, str, "a str")
        check_type("path", path, (str, os.PathLike), "a path")
        check_count("port", port, 0, 65_535)
        check_count("workers", workers, 0, MAX_WORKERS)
        check_subprotocols(subprotocols)
        check_count("outbox_limit", outbox_limit)
        check_count("total_outbox_limit", total_outbox_limit)
        check_count("mailbox_limit", mailbox_limit)
        check_count("max_subscriptions", max_subscriptions, 0)
        check_count("max_events", max_events)
        check_count("max_event_bytes", max_event_bytes)
        check_count("max_pending", max_pending)
        check_count("drain_batch", drain_batch)
        if max_size is not None:
            check_count("max_size", max_size, 0)
        if max_fragments is not None:
            check_count("max_fragments", max_fragments, 1, 2**32 - 1)
        if max_connections is not None:
            check_count("max_connections", max_connections)
        if max_connections_per_address is not None:
            check_count("max_connections_per_address", max_connections_per_address)
        if max_sessions_per_user is not None:
            check_count("max_sessions_per_user", max_sessions_per_user)
        if ping_interval is not None:
            ping_interval = checked_seconds("ping_interval", ping_interval, zero=False)
        if ping_timeout is not None:
            ping_timeout = checked_seconds("ping_timeout", ping_timeout, zero=False)
        native = None if ssl is None else checked_tls(ssl)
        listen: list[tuple[str | None, int, str | None, ServerTLS | None]] = []
        if host is not None:
            listen.append((host, port, None, native))
        if path is not None:
            listen.append((None, 0, os.fspath(path), native))
        if not listen:
            raise ValueError("an engine needs a host, a path, or both to listen at")
        if isinstance(proxy_protocol, bool):
            if proxy_protocol and not trusted_proxies:
                raise ValueError("proxy_protocol=True needs trusted_proxies, or name the networks")
            proxy_protocol = trusted_proxies if proxy_protocol else ()
        for name, networks in ("proxy_protocol", proxy_protocol), ("trusted_proxies", trusted_proxies):
            if isinstance(networks, str):
                raise TypeError(f"{name} must be a list of networks, not str")
        self._configure(
            listen,
            auth=auth,
            workers=workers,
            origins=origins,
            subprotocols=subprotocols,
            compression=compression,
            max_size=max_size,
            max_fragments=max_fragments,
            open_timeout=checked_seconds("open_timeout", open_timeout, zero=False),
            ping_interval=ping_interval,
            ping_timeout=ping_timeout,
            close_timeout=checked_seconds("close_timeout", close_timeout),
            outbox_limit=outbox_limit,
            total_outbox_limit=total_outbox_limit,
            reuse_port=reuse_port,
            policy=policy,
            mailbox_limit=mailbox_limit,
            max_subscriptions=max_subscriptions,
            busy_poll=checked_seconds("busy_poll", busy_poll),
            max_events=max_events,
            max_event_bytes=max_event_bytes,
            limits=EngineLimits(
                max_connections=max_connections,
                max_pending=max_pending,
                max_connections_per_address=max_connections_per_address,
                connections_per_second_per_address=connections_per_second_per_address,
                connection_burst_per_address=connection_burst_per_address,
                max_sessions_per_user=max_sessions_per_user,
                retry_after=checked_seconds("retry_after", retry_after),
                proxy_protocol=proxy_protocol,
                trusted_proxies=trusted_proxies,
                forwarded_header=forwarded_header,
                max_messages_per_second=max_messages_per_second,
                message_burst=message_burst,
                max_bytes_per_second=max_bytes_per_second,
                byte_burst=byte_burst,
                rate_policy=rate_policy,
                topics_by_default=topics_by_default,
            ),
        )
        self._set_up_operations(
            ssl,
            health=health,
            metrics=metrics,
            metrics_path=metrics_path,
            metrics_token=metrics_token,
            page=page,
            ready_without_broker=ready_without_broker,
            handoff=handoff,
            drain_timeout=checked_seconds("drain_timeout", drain_timeout),
            drain_batch=drain_batch,
        )
        self._notices = None if broker is None else Notices(self, self._logger)
        if broker is not None:
            self._set_broker(broker, broker_prefix, broker_limit, broker_policy)
        self._set_up_routes(codec)
        self._handlers = Handlers()

    def start(self) -> None:
        """Begin to serve.

        Raises:
            OSError: An address cannot be listened at.
            RuntimeError: It has started before.
        """
        self._start(self._fallback_tag())
        try:
            self._begin_logging()
            self._begin_hearing_of_a_handoff()
            self._started = True
            self._process_shutdown_requests()
        except BaseException:
            self.stop()
            raise

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._end()

    async def __aenter__(self) -> Self:
        self.start()
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await asyncio.get_running_loop().run_in_executor(None, self._end)

    def on_connect(self, handler: Handler) -> Handler:
        """Have a function called with each new session; a decorator. For :meth:`run` and :meth:`serve`."""
        self._handlers.set("connect", handler)
        return handler

    def on_message(self, handler: Handler) -> Handler:
        """Have a function called with the session and the message, ``str`` or ``bytes``; a decorator."""
        self._handlers.set("message", handler)
        return handler

    def on_invalid(self, handler: Handler) -> Handler:
        """Have a function called with the session, a message that its codec does not understand, and why; a decorator.

        The session is closed with code 1007 all the same, unless its route keeps such: ``close_invalid=False``.
        """
        self._handlers.set("invalid", handler)
        return handler

    def on_disconnect(self, handler: Handler) -> Handler:
        """Have a function called with a session that is over, the close code and the reason; a decorator."""
        self._handlers.set("disconnect", handler)
        return handler

    def on_broker(self, handler: Handler) -> Handler:
        """Have a function called with what happens to the broker, a :class:`BrokerEvent`; a decorator.

        By whoever takes this engine's events: :meth:`run`, :meth:`serve`, or an iteration over the batches, of which
        only ``async for`` has a use for a coroutine function.
        """
        self._handlers.set("broker", handler)
        return handler

    @property
    def broker_status(self) -> BrokerStatus | None:
        """How it stands with the broker; ``None``: there is none."""
        status = self._broker_status()
        return None if status is None else BrokerStatus(**status)

    async def serve(self, *, max_handlers: int = 1000, signals: bool = True) -> None:
        """Call the handlers, on this event loop, until the engine is stopped; start it if it has not started.

        Those of one session are called one after the other, in order; a handler that raises is logged, and its session
        closed with code 1011. Cancelled, it stops the engine, and cancels the handlers that are under way; so it does
        with those that have not returned a second after the time of :meth:`drain`, or after a second SIGTERM.

        Args:
            max_handlers: Handlers that may be under way, 1,000 by default: while so many are, no events are taken, and
                in the end nothing is read. If more events wait for them, the sessions of which most wait are not read.
            signals: Whether SIGTERM drains the engine, where the loop runs in the main thread.

        Raises:
            RuntimeError: There are no handlers.
            ValueError: ``max_handlers`` is less than 1.
        """
        self._check_handlers()
        check_count("max_handlers", max_handlers)
        with self.draining_on_sigterm(signals):
            await self._serve(max_handlers)

    async def _serve(self, max_handlers: int) -> None:
        if not self._started:
            self.start()
        lanes = SessionQueues(self._handlers, self._logger, max_handlers)
        loop = asyncio.get_running_loop()
        try:
            with self._patience.telling(lambda at: loop.call_soon_threadsafe(lanes.end_at, at)):
                async with contextlib.aclosing(self.__aiter__()) as batches:
                    async for batch in batches:
                        await lanes.handle(batch)
                await lanes.finish()
        except BaseException:
            # Nobody would take its events any more.
            await asyncio.get_running_loop().run_in_executor(None, self._end)
            await lanes.cancel()
            raise

    def run(self, *, threads: int = 0, signals: bool = True) -> None:
        """Call the handlers until the engine is stopped or interrupted; start it if it has not started.

        With a coroutine function among them it is :meth:`serve` on an event loop of its own. Handlers that have not
        returned a second after the time of :meth:`drain`, or after a second SIGTERM, are left: those that this thread
        calls are interrupted, where SIGTERM drains the engine, and those in threads are not waited for.

        Args:
            threads: Threads that call the handlers, those of one session one after the other, in order; 0, the default:
                this one calls them all.
            signals: Whether SIGTERM drains the engine, where this is the main thread; a second one stops it.

        Raises:
            RuntimeError: There are no handlers; or some are coroutine functions, and an event loop runs in this thread
                already: ``await engine.serve()`` uses that one.
            ValueError: There cannot be so many threads, or coroutine functions do not run on threads.
        """
        self._check_handlers()
        check_count("threads", threads, 0, MAX_THREADS)
        if self._handlers.awaits:
            if threads:
                raise ValueError("threads: handlers that are coroutine functions run on an event loop")
            if asyncio._get_running_loop() is not None:
                raise RuntimeError("an event loop runs in this thread already: use `await engine.serve()`")
            # Before there is a loop; handlers are cancelled first.
            with self.draining_on_sigterm(signals), self._leaving_handlers(after=LAST):
                asyncio.run(self.serve(signals=signals))
            return
        with self.draining_on_sigterm(signals):
            self._call_in_threads(threads)

    def _call_in_threads(self, threads: int) -> None:
        if not self._started:
            self.start()
        pool = ThreadDispatcher(self._handlers, self._logger, threads)
        with self._patience.telling(pool.end_at):
            try:
                with self._leaving_handlers():
                    for batch in self.batches():
                        pool.handle(batch)
                        del batch
            finally:
                self._end()
                pool.finish()

    @property
    def has_handlers(self) -> bool:
        """Whether there are handlers for :meth:`run` and :meth:`serve`."""
        return bool(self._handlers)

    def _check_handlers(self) -> None:
        if not self._handlers:
            raise RuntimeError("there are no handlers: use engine.on_message, or iterate over engine.batches()")

    async def room(self, topic: str | None = None) -> None:
        """Wait, on an event loop, until there is room for what is published to a topic, or sent to everybody.

        Args:
            topic: As for :meth:`has_room`.

        Raises:
            InvalidState: The engine has stopped.
            ValueError: It is no topic.
        """
        await wait_for_engine(self, topic)

    def batches(self, *, max_events: int = 1024, timeout: float | None = None) -> Iterator[Batch]:
        """Iterate over what happens, in batches, until the engine is stopped.

        Several threads may do so: each event goes to one of them.

        Args:
            max_events: Events of one batch at most.
            timeout: Seconds after which an empty batch comes if nothing has happened; ``None``: none comes.

        Raises:
            RuntimeError: The engine has not started.
            ValueError: ``max_events`` is less than 1, or ``timeout`` is negative.
        """
        check_count("max_events", max_events)
        if timeout is not None:
            timeout = checked_seconds("timeout", timeout)
        if is_coroutine_function(self._handlers.broker):
            raise RuntimeError("on_broker has a coroutine function: use `async for batch in engine`")
        while (batch := self._take(max_events, timeout)) is not None:
            told = self._notices is not None and self._notices.tell(self._handlers.broker)
            # What has happened to the broker ends the wait too.
            if batch or (timeout is not None and not told):
                yield batch
            del batch  # nothing of it is kept while waiting

    def __aiter__(self) -> AsyncGenerator[Batch, None]:  # noqa: PYI058 - contextlib.aclosing() closes it
        """Iterate over what happens, in lists of 1,024 events at most, until the engine is stopped.

        Several tasks may do so, on one event loop or on several, beside threads in :meth:`batches`: each event goes to
        one of them. A task that is cancelled while it waits has taken nothing.

        Raises:
            RuntimeError: The engine has not started.
        """
        return iterate(self, self._notices, lambda: self._handlers.broker)
