"""The asyncio server: runs a handler or a listener for every connection."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import signal as signal_module
import socket as socket_module
import sys
import types
from collections.abc import Awaitable, Callable, Coroutine, Generator, Mapping
from types import TracebackType
from typing import Any

from .._connection import State, construct
from .._native import Opened
from .._net.binding import Listeners, Place
from .._options.server import AsyncServerOptions, check_close_frame
from .._server.accept import AcceptedSocket
from .._server.log import log_handler_error, log_handshake_error, log_refusal
from .._server.negotiate import LINGER_TIMEOUT, answer, negotiation, reception, refuse
from .._server.server import AcceptedBase, ServerBase, not_awaitable
from ..close_codes import CloseCode
from ..typing import Self
from ._accept import Acceptor, HandshakeLimiter, HandshakeTask, PendingHandshakes, negotiate, receive_request
from ._connection import Connection, attach, choose_io_backend
from ._tasks import Deadline, TaskDrain, can_suspend, current_task, is_turn_due, yield_to_loop

__all__ = ["Handler", "Server", "ServerConnection"]

Handler = Callable[["ServerConnection"], Awaitable[None]]


class ServerConnection(AcceptedBase, Connection):
    """The connection of a server, which is passed to its handler.

    ``process_request`` and ``process_response`` receive it during the opening handshake. Its state is then
    ``CONNECTING``, and it cannot send or receive.

    Attributes:
        username: Set by :func:`basic_auth`.
        handler: Set by :func:`route`.
        handler_kwargs: Set by :func:`route`.
    """

    username: str
    handler: Callable[..., Awaitable[None]]
    handler_kwargs: Mapping[str, Any]

    @property
    def server(self) -> Server:
        """The server that has accepted the connection."""
        server: Server = self._server
        return server


class Server(ServerBase):
    """A WebSocket server, created by :func:`serve`.

    1. Start: ``await`` it, which returns it, or use it as an asynchronous context manager, which also closes it.
       :meth:`start_serving` accepts connections, if the server was created with ``start_serving=False``.
    2. Run: :meth:`serve_forever`; :meth:`close_on_signals` installs signal handlers.
    3. Stop: :meth:`close`, then :meth:`wait_closed`.

    Attributes:
        logger: The logger given to ``serve``.
    """

    # Set when the server is started.
    _limiter: HandshakeLimiter
    _task_drain: TaskDrain
    _has_factory: bool

    def __init__(
        self,
        place: Place,
        handler: Handler | None,
        options: AsyncServerOptions,
    ) -> None:
        super().__init__(handler, options, ServerConnection)
        self._place = place
        self._options: AsyncServerOptions = options
        self._loop: asyncio.AbstractEventLoop | None = None
        self._acceptor: Acceptor | None = None
        self._pending_handshakes: PendingHandshakes | None = None
        self._serving = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._closing: asyncio.Task[None] | None = None
        self._closed: asyncio.Future[None] | None = None
        self._signals: list[int] = []

    # Starting.

    def __await__(self) -> Generator[Any, None, Self]:
        return self._listen().__await__()

    async def __aenter__(self) -> Self:
        return await self._listen()

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
        if exc_type is not GeneratorExit or can_suspend(sys._getframe()):
            await self.wait_closed()

    async def _listen(self) -> Self:
        if self._loop is not None:
            return self
        self._loop = asyncio.get_running_loop()
        self._closed = self._loop.create_future()
        self._task_drain = TaskDrain(self._loop, self._tasks)
        self._has_factory = self._loop.get_task_factory() is not None
        self._io_backend = choose_io_backend(self._options.io_backend, self._loop)
        self._limiter = HandshakeLimiter(self._loop, self._options.max_pending, self.logger)
        if self._io_backend == "fd":
            open_timeout, make_handshake = self._options.open_timeout, self._make_handshake
            self._pending_handshakes = PendingHandshakes(
                self._loop, open_timeout, self._limiter, make_handshake, self._on_request
            )
        try:
            self._listeners = await self._bind(self._loop)
            self._acceptor = Acceptor(
                self._listeners.sockets, self._options.backlog, self._accepted, self._limiter, self.logger
            )
            if self._is_closing:
                self._stop_listening()
            elif self._options.start_serving:
                await self.start_serving()
        except BaseException:
            self._stop_listening()
            self._loop = self._closed = None
            raise
        return self

    async def _bind(self, loop: asyncio.AbstractEventLoop) -> Listeners:
        place, kind = self._place, socket_module.SOCK_STREAM
        return place.bind(
            [
                await loop.getaddrinfo(host, place.port, family=place.family, type=kind, flags=place.flags)
                for host in place.hosts
            ]
        )

    async def start_serving(self) -> None:
        """Accept connections, if the server was created with ``start_serving=False``."""
        if self._acceptor is None:
            raise RuntimeError("the server is not started: await it first")
        if not self._serving and not self._is_closing:
            self._acceptor.start()
            self._serving = True
            self._log_listening()
        elif is_turn_due():
            await yield_to_loop()

    async def serve_forever(self) -> None:
        """Serve until :meth:`close` is called or this coroutine is cancelled, which closes the server."""
        try:
            await self.start_serving()
            await self.wait_closed()
        except asyncio.CancelledError:
            self.close()
            await self.wait_closed()
            raise

    def close_on_signals(self, *signals: int, code: int = CloseCode.GOING_AWAY, reason: str = "") -> None:
        """Close the server when one of these signals arrives.

        A second signal cancels its handlers, and aborts the connections of its listeners.

        Args:
            *signals: Signal numbers; by default SIGTERM and SIGINT.
            code: As for :meth:`close`.
            reason: As for :meth:`close`.

        Raises:
            ProtocolError: The code or the reason is not allowed in a close frame.
            NotImplementedError: The loop does not support signal handlers.
            RuntimeError: The call is not in the main thread.
        """
        # Check here: a signal handler cannot raise to the caller.
        check_close_frame(code, reason)
        loop = self.get_loop()

        def handle(number: int) -> None:
            self.logger.info("received %s", signal_module.Signals(number).name)
            if self._close_frame is None:
                self.close(code=code, reason=reason)
            else:
                for task in self._tasks:
                    task.cancel()

        for number in signals or (signal_module.SIGTERM, signal_module.SIGINT):
            loop.add_signal_handler(number, handle, number)
            self._signals.append(number)

    # Status.

    def get_loop(self) -> asyncio.AbstractEventLoop:
        """Return the event loop."""
        if self._loop is None:
            raise RuntimeError("the server is not started: await it first")
        return self._loop

    def is_serving(self) -> bool:
        """Return whether the server accepts connections."""
        is_broken = self._acceptor is not None and self._acceptor.is_broken
        return self._serving and not self._is_closing and not is_broken

    @property
    def sockets(self) -> tuple[socket_module.socket, ...]:
        """The listening sockets; empty once the server is closed."""
        return self._listeners.sockets

    @property
    def connections(self) -> set[ServerConnection]:
        """The connections that are open, in a new set."""
        return {connection for connection in self._connections if connection._state == State.OPEN}

    # Closing.

    def close(self, close_connections: bool = True, code: int = CloseCode.GOING_AWAY, reason: str = "") -> None:
        """Begin to close: stop accepting, refuse pending handshakes with status 503, close open connections.

        A second call only closes the connections that the first call has left open.

        Args:
            close_connections: Whether to close the open connections. If not, :meth:`wait_closed` waits until they end.
            code: Close code for them.
            reason: Close reason for them.

        Raises:
            ProtocolError: The code or the reason is not allowed in a close frame.
        """
        check_close_frame(code, reason)
        if self._loop is None:
            return
        if self._loop.is_closed():
            self._abort_all(code)
            return
        if close_connections and self._close_frame is None:
            self._close_frame = (code, reason)
            if self._is_closing:
                self._loop.call_soon(self._close_connections)
        if not self._is_closing:
            self._is_closing = True
            # Not created by the task factory of the loop, which may raise: this task must run.
            self._closing = asyncio.Task(self._close(), loop=self._loop)

    async def wait_closed(self) -> None:
        """Wait until the server is closed: all connections are closed and all handlers have returned.

        When a handler calls it, it does not wait for that handler, nor for other handlers that call it. This does not
        apply to a task that the handler has created: a handler that waits for such a task waits for itself.
        """
        if self._closed is not None:
            task = current_task()
            if task is not None and task in self._tasks and not self._closed.done():
                await self._task_drain.join(task)
            else:
                await asyncio.shield(self._closed)
        if is_turn_due():
            await yield_to_loop()

    async def _close(self) -> None:
        self.logger.info("server closing")
        try:
            self._stop_listening()
            await self._drain_backlog()
            if self._pending_handshakes is not None:
                self._pending_handshakes.release()
            self._close_connections()
            await self._wait_for_tasks()
            for connection in self._connections:
                connection.abort()
        finally:
            self._limiter.finish()
            for number in self._signals:
                with contextlib.suppress(Exception):
                    self.get_loop().remove_signal_handler(number)
            if self._closed is not None and not self._closed.done():
                self._closed.set_result(None)
        self.logger.info("server closed")

    async def _wait_for_tasks(self) -> None:
        try:
            # Handshakes must end within a limit, even without an open_timeout.
            if self._options.open_timeout is None:
                if await self._task_drain.wait_ended(self.get_loop().time() + HandshakeLimiter.closing_timeout):
                    return
                self._limiter.close_all()
            await self._task_drain.wait_ended()
        finally:
            self._task_drain.release()

    def _close_connections(self) -> None:
        if self._close_frame is not None:
            for connection in self.connections:
                connection._begin_close(*self._close_frame)

    def _abort_all(self, code: int) -> None:
        """Close everything at once, because the loop is closed and cannot wait."""
        self._is_closing = True
        if self._acceptor is not None:
            self._acceptor.close_backlog()
        for connection in list(self._connections):
            with contextlib.suppress(RuntimeError):
                connection._leave(code)
        self._listeners.close()

    def _stop_listening(self) -> None:
        if self._acceptor is not None:
            self._acceptor.stop()
        listeners, self._listeners = self._listeners, Listeners()
        listeners.close()

    # Connections.

    async def _drain_backlog(self) -> None:
        """Start the handshakes of all sockets that were accepted before listening stopped."""
        if self._acceptor is not None:
            await self._acceptor.drain_backlog()

    def _accepted(self, sock: socket_module.socket, address: Any) -> None:
        if self._pending_handshakes is None:
            self._start_opening(AcceptedSocket(sock, address, self._make_handshake()))
        else:
            self._pending_handshakes.add(sock, address)

    def _on_request(self, accepted: AcceptedSocket, watched: bool) -> None:
        # Fast path: the request is complete, and neither hooks nor TLS are configured.
        if accepted.handshake.is_complete:
            self._limiter.leave(accepted.key)
            if (
                accepted.handshake.is_request_only
                and self._ssl.native is None
                and not self._is_closing
                and not self._options.has_hooks
            ):
                self._open_at_once(accepted, watched)
                return
        if watched:
            self._ignore(accepted.sock.fileno())
        self._start_opening(accepted)

    def _ignore(self, descriptor: int) -> None:
        if self._pending_handshakes is not None:
            self._pending_handshakes.ignore(descriptor)

    def _open_at_once(self, accepted: AcceptedSocket, watched: bool) -> None:
        sock, address = accepted.sock, accepted.address
        descriptor = sock.fileno()
        connection: ServerConnection | None = None
        try:
            connection, error = self._make_connection(accepted.handshake.finish(), accepted)
            if error is None:
                error = answer(connection, self._options)
            # A connection replaces the watch, unless it is closed already.
            if watched and connection._state == State.CLOSED:
                self._ignore(descriptor)
            connection._attach()
        except BaseException as exc:
            if watched:
                self._ignore(descriptor)
            self._opening_failed(accepted, connection, exc)
            if not isinstance(exc, Exception):
                raise
            return
        if error is None:
            self._log_open(connection)
            self._connections.add(connection)
            self._start(self._handle(connection), accepted, connection)
        else:
            self._start(self._refused(connection, address, error), accepted, connection)

    def _start_opening(self, accepted: AcceptedSocket) -> None:
        task = HandshakeTask(accepted.sock, self._tasks)
        if accepted.handshake.is_complete:
            # It now waits for the application, so it is not a pending handshake any more.
            accepted.key = None
        elif accepted.key is None:
            accepted.key = self._limiter.enter(accepted.address, accepted.sock, task.drop)
        else:
            self._limiter.replace(accepted.key, task.drop)
        task.task = self._start(self._serve(accepted), accepted)

    def _start(
        self,
        coroutine: Coroutine[Any, Any, None],
        accepted: AcceptedSocket,
        connection: ServerConnection | None = None,
    ) -> asyncio.Task[None] | None:
        """Run a coroutine in a task of the server, which must call `_ended`; ``None`` if the task factory raises."""
        try:
            task = self.get_loop().create_task(coroutine)
        except BaseException as exc:
            # The client belongs to no task: release it here.
            coroutine.close()
            self._limiter.leave(accepted.key)
            self._connections.discard(connection)
            self._opening_failed(accepted, connection, exc)
            accepted.sock.close()
            if not isinstance(exc, Exception):
                raise
            return None
        # An eager task may be done already.
        if not task.done():
            self._tasks.add(task)
        return task

    def _began(self) -> None:
        # An eager task runs before create_task returns.
        if self._has_factory:
            task = current_task(self._loop)
            if task is not None:
                self._tasks.add(task)

    def _ended(self) -> None:
        # Pass the loop: none is running when a coroutine is collected as garbage.
        task = current_task(self._loop)
        if task is not None:
            self._tasks.discard(task)

    async def _serve(self, accepted: AcceptedSocket) -> None:
        self._began()
        try:
            connection = await self._open(accepted)
            if connection is not None:
                await self._handle(connection)
        finally:
            self._ended()

    async def _handle(self, connection: ServerConnection) -> None:
        self._began()
        self._connections.add(connection)
        try:
            if self._close_frame is not None:
                # The connection was accepted before the server began to close, and attached afterwards.
                connection._begin_close(*self._close_frame)
                await connection.wait_closed()
            elif self._handler is None:
                await connection.wait_closed()
            else:
                await self._run_handler(self._handler, connection)
        except Exception as exc:
            # The exception of the listener is already logged. Others come from a subclass that overrides closing.
            if exc is not connection._listener_error:
                log_handler_error(connection, exc)
        except asyncio.CancelledError:
            # Cancelled during closing, or by a second signal: do not wait for the closing handshake.
            connection.abort()
            raise
        finally:
            self._connections.discard(connection)
            self._ended()

    async def _run_handler(self, handler: Handler, connection: ServerConnection) -> None:
        logged: Exception | None = None
        try:
            async with connection:
                try:
                    result: Any = handler(connection)
                    if type(result) is not types.CoroutineType and not inspect.isawaitable(result):
                        raise not_awaitable(result)
                    await result
                except Exception as exc:
                    # Log before closing, which takes time and may be cancelled.
                    log_handler_error(connection, exc)
                    logged = exc
                    raise
        except Exception as exc:
            if exc is not logged:
                raise
        finally:
            # Break the cycle: the traceback of the exception refers to this frame.
            logged = None

    async def _open(self, accepted: AcceptedSocket) -> ServerConnection | None:
        """Perform the opening handshake; return ``None`` if it failed, which is logged."""
        connection: ServerConnection | None = None
        options = self._options
        sock, remote = accepted.sock, accepted.address
        left = options.open_timeout if accepted.deadline is None else accepted.deadline - self.get_loop().time()
        try:
            with contextlib.ExitStack() as stack:
                stack.enter_context(sock)
                with Deadline(left):
                    if accepted.handshake.is_complete:
                        opened = accepted.handshake.finish()
                    else:
                        steps = reception(accepted, self._ssl.native, options, self._limiter)
                        opened = await receive_request(sock, steps)
                    # The request is complete, so the limiter must not close the client any more.
                    self._limiter.leave(accepted.key)
                    connection, error = self._make_connection(opened, accepted)
                    if error is None:
                        error = await negotiate(
                            negotiation(connection, options, self._limiter, lambda: self._is_closing)
                        )
                if connection._state == State.CLOSED:
                    return None  # a hook has ended it
                await attach(connection, sock, self.get_loop())
                # The connection owns the socket now.
                stack.pop_all()
            if error is None:
                self._log_open(connection)
                return connection
            await self._refused(connection, remote, error)
        except BaseException as exc:
            self._opening_failed(accepted, connection, exc)
            if not isinstance(exc, Exception):
                raise
        finally:
            self._limiter.leave(accepted.key)
        return None

    async def _refused(self, connection: ServerConnection, remote: Any, error: Exception) -> None:
        """Log a refusal, send the response, and give the client time to read it."""
        key = self._limiter.enter(remote, None, connection.abort)
        try:
            log_refusal(connection, error, self._limiter)
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(connection._wait_for_end(), LINGER_TIMEOUT)
        finally:
            self._limiter.leave(key)
            connection.abort()
            self._ended()

    def _make_connection(self, opened: Opened, accepted: AcceptedSocket) -> tuple[ServerConnection, Exception | None]:
        """Create the connection. If the application raises, return one that sends status 500, and the error."""
        sock, remote = accepted.sock, accepted.address
        # The connection itself finds the local address of an internet socket.
        local = None
        if self._io_backend != "fd":
            local = sock.getsockname()
        else:
            if not (isinstance(remote, tuple) and isinstance(remote[0], str)):
                local = sock.getsockname()
            opened._adopt(sock.detach())
        try:
            try:
                return construct(
                    self._create_connection,
                    ServerConnection,
                    opened,
                    loop=self._loop,
                    logger=self.logger,
                    local_address=local,
                    remote_address=remote,
                    listener=None if self._options.listener is None else self._options.listener(),
                    server=self,
                ), None
            except Exception as exc:
                # If the handshake is still unused, send the client a response.
                addresses = {"local_address": local, "remote_address": remote}
                with contextlib.suppress(RuntimeError):
                    connection = ServerConnection(opened, loop=self._loop, logger=self.logger, server=self, **addresses)
                    log_handshake_error(accepted, connection, exc, self._limiter, self.logger)
                    refuse(connection)
                    return connection, exc
                raise
        except BaseException:
            # A logged traceback may keep it alive for long.
            opened._discard()
            raise
