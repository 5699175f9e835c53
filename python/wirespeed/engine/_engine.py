"""The engine, its arguments, and the calls that a user makes. The native core serves the sessions."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar

from .._native import JWT, Batch, Connected, Disconnected, EngineLimits, Invalid, Message
from .._options.common import check_subprotocols, check_type
from ..tls import TLS
from ..typing import Self
from ._arguments import check_count, checked_seconds, checked_tls
from ._broker import BrokerPolicy, BrokerStatus, Notices
from ._event_loop import iterate, wait_for_engine
from ._handlers import Handlers, SessionQueues, ThreadDispatcher, is_coroutine_function
from ._lifecycle import GRACE_PERIOD, EngineLifecycle
from ._routes import Policy, RatePolicy, Routing

if TYPE_CHECKING:
    from .._native import ServerTLS

__all__ = ["Engine", "Event"]

Event: TypeAlias = Connected | Message | Invalid | Disconnected
"""An event of a session."""

Handler = TypeVar("Handler", bound=Callable[..., Any])

MAX_THREADS = 4096
"""The maximum number of threads that call handlers."""

MAX_WORKERS = 256
"""The maximum number of worker threads of an engine."""


class Engine(EngineLifecycle, Routing):
    """A multi-threaded WebSocket server.

    It serves while it is used as a context manager, or between :meth:`start` and :meth:`stop`. It can be started once.
    At the end of ``with`` and ``async with``, it closes its sessions with code 1001 (going away), and waits at most a
    second for the closing handshakes; ``async with`` does not block the event loop meanwhile.

    1. Create it, add routes with :meth:`route`, :meth:`echo` and :meth:`relay`, and handlers with :meth:`on_message`
       and the other decorators.
    2. Call :meth:`run` or :meth:`serve`, which call the handlers; or start it, and iterate over :meth:`batches` or, on
       an event loop, the engine itself.
    3. Send with :meth:`publish`, :meth:`broadcast` and :meth:`Session.send`, from any thread. Wait for capacity with
       :meth:`room` or :meth:`wait_for_room`.
    4. :meth:`drain` shuts down gracefully, and :meth:`stop` at once.

    Args:
        host: The IPv4 or IPv6 address to listen on; ``None``: only on ``path``.
        port: The port; 0, the default, chooses a free one, see :attr:`addresses`.
        path: The path of a Unix socket to listen on.
        reuse_port: Whether other processes of this user may listen on the same port and get a share of the clients. By
            default, :meth:`start` fails if the port is in use. With two or more workers, processes that start later are
            not kept out: the system lets processes of the same user that set ``SO_REUSEPORT`` join the port.
        ssl: TLS settings with certificate and key; the default is no encryption.
        auth: Verifies the tokens of clients: a client without a valid token gets 401 or 403. The default is no
            authentication.
        workers: The number of threads that serve sessions, at most 256; 0, the default, is one for each core.
        origins: Allowed origins of web pages, as browsers send them: ``["https://example.com"]``; ``["*"]``: all.
            Values that no browser sends are refused: wildcards, paths, a slash at the end. The default allows the host
            that the request names. Clients that send no Origin are not browsers, and may connect.
        subprotocols: Supported subprotocols, in order of preference: the first one that the client offers is chosen.
        compression: Whether permessage-deflate is accepted. The default is False, as it costs memory and time.
        codec: The codec of routes without a codec of their own; see :meth:`route`. By default messages are not decoded.
        max_size: The maximum size of a received message in bytes, 1 MiB by default; ``None``: no limit.
        max_fragments: The maximum number of frames of a received message, 4,096 by default; ``None``: no limit.
        open_timeout: Seconds from the connection to the end of the opening handshake, 10 by default.
        ping_interval: Seconds between pings, 20 by default; ``None``: no pings.
        ping_timeout: Seconds without progress after an unanswered ping, 20 by default, after which the session is
            closed with code 1011. ``None`` disables the timeout.
        close_timeout: Seconds for the client's part of the closing handshake, 10 by default.
        outbox_limit: The maximum number of bytes queued for one session, 1 MiB by default.
        total_outbox_limit: The maximum memory of all session queues together in bytes, 1 GiB by default; a message
            queued for several sessions counts once. Above half of it, the limit shrinks for sessions whose clients read
            nothing. Above all of it, the policy applies to the sessions with the largest queues, which are disconnected
            if nothing else helps.
        policy: What happens beyond the limit: ``"disconnect"``, the default, ends the session with code 1013;
            ``"drop_oldest"`` and ``"drop_newest"`` drop messages, and ``"conflate"`` the queued one with the same key.
        mailbox_limit: The maximum number of sent bytes queued for one worker, 16 MiB by default; further calls are
            refused. :meth:`has_room` returns false once an eighth of ``outbox_limit`` is queued there.
        max_subscriptions: The maximum number of topics and patterns of one session, 1,024 by default.
        busy_poll: Seconds that an idle worker polls before it sleeps. This lowers latency, and keeps a core busy for
            each worker. The default is 0.0.
        max_events: The maximum number of events waiting to be taken, 65,536 by default. Reading stops beyond it.
        max_event_bytes: The maximum size of the messages in waiting events, 64 MiB by default.
        health: Whether ``/health`` and ``/ready`` answer plain HTTP requests; or a tuple of their two paths.
        metrics: Host and port of a separate listener for ``/metrics`` (Prometheus), ``/health`` and ``/ready``.
        metrics_path: A path for the metrics on the listeners of clients. There is none by default, as strangers could
            read it.
        metrics_token: The token that metrics require as ``Authorization: Bearer``, on all listeners.
        ready_without_broker: Whether ``/ready`` answers 200 while the broker is not connected. The default is 503, as
            sessions of this engine then miss messages of others.
        page: The token of the live page at ``/_wirespeed/``; there is no page by default.
        handoff: A Unix socket over which the next engine receives the listeners of this one, so that no client is
            refused during a restart; this engine then drains. An engine that is using the socket at the start of this
            one hands its listeners over.
        drain_timeout: The maximum duration of :meth:`drain` in seconds, 30 by default.
        drain_batch: The number of sessions that :meth:`drain` closes at once, 100 by default.
        max_connections: The maximum number of sessions; some descriptors always stay in reserve. No limit by default.
            Further clients get 503 and ``Retry-After``.
        max_pending: The maximum number of handshakes open for longer than a second, 1,024 by default. Beyond it, the
            engine closes the one that has been idle longest, of the address with the most of them.
        max_connections_per_address: The maximum number of sessions of one address, or of one /64 network for IPv6.
            Further clients get 429 and ``Retry-After``. No limit by default.
        connections_per_second_per_address: The maximum rate of new connections of one address, likewise.
        connection_burst_per_address: How many of these connections may arrive at once; the default is one second's
            worth.
        max_sessions_per_user: The maximum number of sessions of one user, by the ``sub`` of their tokens, likewise.
        retry_after: The value of ``Retry-After`` in seconds, 5 by default, where no rate determines it.
        proxy_protocol: Networks of proxies whose connections begin with a PROXY header, version 1 or 2:
            ``["10.0.0.0/8"]``; ``"unix"`` stands for the Unix socket. ``True``: those of ``trusted_proxies``. A
            connection from there without the header is closed. :attr:`Session.remote_address` and all limits use the
            address in the header.
        trusted_proxies: Networks of proxies whose header names the client, likewise. The client is the last address in
            the header that is in none of these networks.
        forwarded_header: The name of that header: ``"x-forwarded-for"``, the default, or ``"forwarded"`` (RFC 7239). It
            must be the one that the proxies write, because clients can forge the other.
        max_messages_per_second: The maximum rate of messages received from one session; no limit by default.
        message_burst: How many messages may arrive at once; the default is one second's worth.
        max_bytes_per_second: The maximum rate of payload bytes received from one session.
        byte_burst: How many bytes may arrive at once. A larger message is accepted, but delays the next ones.
        rate_policy: What happens beyond the rates: ``"delay"``, the default, reads later, so that nothing is lost and
            the client is slowed down; ``"drop"`` drops messages; ``"disconnect"`` ends the session with code 1008.
        topics_by_default: The topics of sessions without a token, or whose token names none: ``"all"``, the default, or
            ``"none"``. :meth:`Session.allow` adds topics.
        broker: The URL of a broker that connects this engine with others: ``"nats://host:4222"``,
            ``"redis://host:6379"``, ``"redis+sentinel://host:26379/name"``, ``"redis+cluster://host:6379"`` or, within
            this process, ``"memory://name"``. Credentials precede the host as ``user:password@``, or follow as
            ``?creds=file`` or ``?nkey=file`` for NATS. ``tls://`` and ``rediss://`` use TLS. Published and broadcast
            messages then reach the sessions of all engines. There is no broker by default.
        broker_prefix: Precedes the names of topics at the broker, with a dot between them; ``"wirespeed"`` by default.
            Engines of one application share it. It must not be empty or begin with ``$`` or ``_``, so that clients
            cannot read messages of other programs at the broker.
        broker_limit: The maximum number of bytes queued for the broker, 16 MiB by default.
        broker_policy: What happens to messages beyond that: ``"drop_newest"``, the default, and ``"drop_oldest"`` drop
            them for other engines, and count them; ``"raise"`` raises ``BlockingIOError``, and no session gets the
            message.

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
        """Start to serve.

        Raises:
            OSError: An address cannot be listened on.
            RuntimeError: The engine was started before.
        """
        self._start(self._fallback_tag())
        try:
            self._start_logging()
            self._watch_for_handoff()
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
        """Decorator: call a function with each new session. For :meth:`run` and :meth:`serve`."""
        self._handlers.set("connect", handler)
        return handler

    def on_message(self, handler: Handler) -> Handler:
        """Decorator: call a function with each message: session and ``str``, ``bytes`` or decoded object."""
        self._handlers.set("message", handler)
        return handler

    def on_invalid(self, handler: Handler) -> Handler:
        """Decorator: call a function with the session, a message that its codec cannot decode, and the error.

        The session is closed with code 1007 nevertheless, unless its route has ``close_invalid=False``.
        """
        self._handlers.set("invalid", handler)
        return handler

    def on_disconnect(self, handler: Handler) -> Handler:
        """Decorator: call a function with an ended session, the close code and the reason."""
        self._handlers.set("disconnect", handler)
        return handler

    def on_broker(self, handler: Handler) -> Handler:
        """Decorator: call a function with each :class:`BrokerEvent`.

        It is called while events are taken: by :meth:`run`, :meth:`serve`, or an iteration over the batches. Only
        ``async for`` and :meth:`serve` support a coroutine function.
        """
        self._handlers.set("broker", handler)
        return handler

    @property
    def broker_status(self) -> BrokerStatus | None:
        """The status of the broker; ``None`` without a broker."""
        status = self._broker_status()
        return None if status is None else BrokerStatus(**status)

    async def serve(self, *, max_handlers: int = 1000, signals: bool = True) -> None:
        """Call the handlers on this event loop until the engine is stopped; start it if necessary.

        Handlers of one session run one after the other, in order. If a handler raises, the exception is logged, and its
        session closed with code 1011. Cancelling this coroutine stops the engine and cancels running handlers. Handlers
        that have not returned a second after the time of :meth:`drain`, or after a second SIGTERM, are cancelled as
        well.

        Args:
            max_handlers: The maximum number of running handlers, 1,000 by default. At the limit, no events are taken,
                so that the engine eventually stops reading. If more events wait for running handlers, the sessions with
                the most waiting events are not read.
            signals: Whether SIGTERM drains the engine, if the loop runs in the main thread.

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
        queues = SessionQueues(self._handlers, self._logger, max_handlers)
        loop = asyncio.get_running_loop()
        try:
            with self._handler_deadline.notifying(lambda at: loop.call_soon_threadsafe(queues.end_at, at)):
                async with contextlib.aclosing(self.__aiter__()) as batches:
                    async for batch in batches:
                        await queues.handle(batch)
                await queues.finish()
        except BaseException:
            # No other code takes its events.
            await asyncio.get_running_loop().run_in_executor(None, self._end)
            await queues.cancel()
            raise

    def run(self, *, threads: int = 0, signals: bool = True) -> None:
        """Call the handlers until the engine is stopped or interrupted; start it if necessary.

        If any handler is a coroutine function, this runs :meth:`serve` on a new event loop. Handlers that have not
        returned a second after the time of :meth:`drain`, or after a second SIGTERM, are abandoned: those in this
        thread are interrupted, if SIGTERM drains the engine, and those in other threads are not waited for.

        Args:
            threads: The number of threads that call handlers, for each session in order; 0, the default: this thread
                calls all of them.
            signals: Whether SIGTERM drains the engine, if this is the main thread; a second one stops it.

        Raises:
            RuntimeError: There are no handlers; or some are coroutine functions, and an event loop is running in this
                thread: use ``await engine.serve()``.
            ValueError: ``threads`` is out of range, or there are coroutine functions, which do not run on threads.
        """
        self._check_handlers()
        check_count("threads", threads, 0, MAX_THREADS)
        if self._handlers.awaits:
            if threads:
                raise ValueError("threads: handlers that are coroutine functions run on an event loop")
            if asyncio._get_running_loop() is not None:
                raise RuntimeError("an event loop runs in this thread already: use `await engine.serve()`")
            # Set up before the loop exists. The loop cancels handlers first, so this interrupts later.
            with self.draining_on_sigterm(signals), self._interrupting_handlers(after=GRACE_PERIOD):
                asyncio.run(self.serve(signals=signals))
            return
        with self.draining_on_sigterm(signals):
            self._call_in_threads(threads)

    def _call_in_threads(self, threads: int) -> None:
        if not self._started:
            self.start()
        dispatcher = ThreadDispatcher(self._handlers, self._logger, threads)
        with self._handler_deadline.notifying(dispatcher.end_at):
            try:
                with self._interrupting_handlers():
                    for batch in self.batches():
                        dispatcher.handle(batch)
                        del batch
            finally:
                self._end()
                dispatcher.finish()

    @property
    def has_handlers(self) -> bool:
        """Whether there are handlers for :meth:`run` and :meth:`serve`."""
        return bool(self._handlers)

    def _check_handlers(self) -> None:
        if not self._handlers:
            raise RuntimeError("there are no handlers: use engine.on_message, or iterate over engine.batches()")

    async def room(self, topic: str | None = None) -> None:
        """Wait on an event loop until there is capacity for messages to a topic or, without one, to all sessions.

        Args:
            topic: As for :meth:`has_room`.

        Raises:
            InvalidState: The engine has stopped.
            ValueError: The topic is not valid.
        """
        await wait_for_engine(self, topic)

    def batches(self, *, max_events: int = 1024, timeout: float | None = None) -> Iterator[Batch]:
        """Iterate over batches of events until the engine is stopped.

        Several threads may iterate: each event goes to one of them.

        Args:
            max_events: The maximum number of events in a batch.
            timeout: Seconds without events after which an empty batch is yielded; ``None``: no empty batches.

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
            notified = self._notices is not None and self._notices.dispatch(self._handlers.broker)
            # Notices of the broker end the wait as well.
            if batch or (timeout is not None and not notified):
                yield batch
            del batch  # released before the next wait

    def __aiter__(self) -> AsyncGenerator[Batch, None]:  # noqa: PYI058 - contextlib.aclosing() closes it
        """Iterate over batches of at most 1,024 events until the engine is stopped.

        Several tasks may iterate, on one or several event loops, and threads in :meth:`batches` as well: each event
        goes to one of them. A task that is cancelled while it waits has taken no event.

        Raises:
            RuntimeError: The engine has not started.
        """
        return iterate(self, self._notices, lambda: self._handlers.broker)
