"""The blocking server: runs the handler in a thread for every connection."""

from __future__ import annotations

import contextlib
import functools
import selectors
import socket as socket_module
import threading
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any

from .._connection import State, construct
from .._net.binding import EXHAUSTED, RETRY_DELAY, Place
from .._options.server import ServerOptions, check_close_frame
from .._server.accept import Accept, AcceptedSocket, AcceptErrors, accepting
from .._server.log import log_handler_error, log_refusal
from .._server.negotiate import LINGER_TIMEOUT, negotiation, reception, refuse
from .._server.server import AcceptedBase, ServerBase
from ..close_codes import CloseCode
from ..typing import Self
from ._accept import EVICTION_DELAY, HandshakeLimiter, PendingHandshakes, drop_thread, negotiate, receive_request
from ._connection import Connection

__all__ = ["Handler", "Server", "ServerConnection"]

Handler = Callable[["ServerConnection"], None]

# Sockets to accept before the thread serves other events: requests that arrived, threads that ended.
_ACCEPTED_AT_ONCE = 64


class ServerConnection(AcceptedBase, Connection):
    """The connection of a server, which is passed to its handler.

    ``process_request`` and ``process_response`` receive it during the opening handshake. Its state is then
    ``CONNECTING``, and it cannot send or receive.

    Attributes:
        server: The server.
        username: Set by :func:`basic_auth`.
        handler: Set by :func:`route`.
        handler_kwargs: Set by :func:`route`.
    """

    server: Server
    username: str
    handler: Callable[..., None]
    handler_kwargs: Mapping[str, Any]


class Server(ServerBase):
    """A WebSocket server, created by :func:`wirespeed.sync.serve`. It is listening already.

    1. Run: :meth:`serve_forever` accepts connections.
    2. Stop: :meth:`shutdown`, or use it as a context manager, which calls it.

    Attributes:
        logger: The logger given to ``serve``.
        socket: The first listening socket.
    """

    _limiter: HandshakeLimiter

    def __init__(
        self,
        place: Place,
        handler: Handler,
        options: ServerOptions,
    ) -> None:
        super().__init__(handler, options, ServerConnection)
        self._listeners = place.bind(
            [
                socket_module.getaddrinfo(host, place.port, place.family, socket_module.SOCK_STREAM, 0, place.flags)
                for host in place.hosts
            ]
        )
        self.socket = self._listeners.sockets[0]
        try:
            for sock in self._listeners.sockets:
                sock.listen(options.backlog)
            # Wakes the thread in serve_forever.
            self._woken, self._waker = socket_module.socketpair()
        except BaseException:
            self._listeners.close()
            raise
        self._woken.setblocking(False)
        self._waker.setblocking(False)
        # Protects all attributes below. Reentrant, because a signal handler may run in a thread that holds it.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._acceptor: threading.Thread | None = None
        # Whether the thread in serve_forever waits until a handshake or thread has ended.
        self._paused = False
        self._starting: set[threading.Thread] = set()
        self._limiter = HandshakeLimiter(self._lock, options.max_pending, self.logger, self._freed, self._wake_for_log)
        self._errors = AcceptErrors(self._limiter)
        self._pending_handshakes: PendingHandshakes | None = None
        self._threads: set[threading.Thread] = set()
        # Refused connections, with the time until which their clients may read the response during a shutdown.
        self._refused: dict[ServerConnection, float] = {}
        self._waiting: set[threading.Thread] = set()
        # Threads that close connections, from calls of `shutdown` that were left by an exception.
        self._closers: list[threading.Thread] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.shutdown()

    # Status.

    @property
    def sockets(self) -> tuple[socket_module.socket, ...]:
        """The listening sockets; empty once the server is shut down."""
        return () if self._is_closing else self._listeners.sockets

    @property
    def connections(self) -> set[ServerConnection]:
        """The open connections, in a new set."""
        with self._lock:
            connections = list(self._connections)
        return {connection for connection in connections if connection._state == State.OPEN}

    def fileno(self) -> int:
        """Return the descriptor of the first listening socket, -1 once it is closed."""
        return self.socket.fileno()

    # Accepting.

    def serve_forever(self) -> None:
        """Accept connections until :meth:`shutdown` is called in another thread or a signal handler.

        After an exception, such as ``KeyboardInterrupt``, it may be called again.

        Raises:
            OSError: A listening socket failed.
            RuntimeError: Another thread is running this method.
        """
        with self._lock:
            if self._acceptor is not None:
                raise RuntimeError("serve_forever is running in another place already")
            if self._is_closing:
                return
            self._acceptor = threading.current_thread()
        try:
            self._log_listening()
            with selectors.DefaultSelector() as selector:
                try:
                    self._accept_all(selector)
                finally:
                    self._release()
        except (OSError, ValueError):
            # A signal handler has closed the sockets.
            if not self._is_closing:
                raise
        finally:
            with self._lock:
                self._acceptor = None
                self._paused = False
                self._pending_handshakes = None
                self._limiter.finish()
                if self._is_closing:
                    self._close_sockets()
                self._changed.notify_all()

    def _accept_all(self, selector: selectors.BaseSelector) -> None:
        selector.register(self._woken, selectors.EVENT_READ)
        pending_handshakes = PendingHandshakes(
            selector, self._options.open_timeout, self._limiter, self._make_handshake
        )
        self._pending_handshakes = pending_handshakes
        accepts = {sock: accepting(sock) for sock in self._listeners.sockets}
        watching = False
        # Seconds for which accepting is paused; new connections wait in the queue of the system.
        rest = 0.0
        while True:
            with self._lock:
                if self._is_closing:
                    return
                rest = max(rest, self._limiter.delay())
                self._paused = rest > 0
            if watching == (rest > 0):
                watching = not watching
                for sock in self._listeners.sockets:
                    if watching:
                        selector.register(sock, selectors.EVENT_READ)
                    else:
                        selector.unregister(sock)
            waits = (rest, pending_handshakes.timeout(), self._limiter.log_due(), self._limiter.trim())
            limits = [seconds for seconds in waits if seconds]
            ready = selector.select(min(limits) if limits else None)
            rest = 0.0
            for key, _ in ready:
                if isinstance(key.data, AcceptedSocket):
                    if pending_handshakes.readable(key.data):
                        rest = max(rest, self._start_thread(key.data))
                elif key.fileobj is self._woken:
                    with contextlib.suppress(BlockingIOError):
                        self._woken.recv(4096)
            while (expired := pending_handshakes.expired()) is not None:
                self._start_thread(expired)
            listening = {key.fd for key, _ in ready if key.data is None}
            for sock, accept in accepts.items():
                if not rest and sock.fileno() in listening:
                    rest = self._accept_some(accept, pending_handshakes)

    def _accept_some(self, accept: Accept, pending_handshakes: PendingHandshakes) -> float:
        """Accept some waiting connections; return for how many seconds to pause."""
        for _ in range(_ACCEPTED_AT_ONCE):
            if self._is_closing or self._limiter.delay():
                break
            try:
                client = accept()
                if client is None:
                    break
            except OSError as exc:
                with self._lock:
                    # If a thread holds the descriptor to be freed, it wakes this thread when it has ended.
                    self._paused = self._paused or exc.errno in EXHAUSTED
                    delay = self._errors.delay_after(exc, str(exc))
                if delay is None:
                    raise
                if delay:
                    return delay
                continue
            self._errors.lost = 0
            accepted = pending_handshakes.add(*client)
            if accepted is not None and (rest := self._start_thread(accepted)):
                return rest
        return 0.0

    def _start_thread(self, accepted: AcceptedSocket) -> float:
        """Start a thread for a client; return for how many seconds to pause accepting."""
        if accepted.check_lost():
            # The client has disconnected: log it here, so that such clients cause no threads.
            self._open(accepted)
            return 0.0
        thread = threading.Thread(target=self._serve, args=(accepted,))
        drop = functools.partial(drop_thread, accepted.sock)
        with self._lock:
            if accepted.handshake.is_complete:
                # It now waits for the application, so it is not a pending handshake any more.
                self._limiter.leave(accepted.key)
                accepted.key = None
            elif accepted.key is None:
                accepted.key = self._limiter.enter(accepted.address, accepted.sock, drop)
            else:
                self._limiter.replace(accepted.key, drop)
            self._threads.add(thread)
            self._starting.add(thread)
        try:
            thread.start()
        except BaseException as exc:
            # Interrupted by a signal handler, the thread may have started all the same.
            with self._lock:
                is_new = isinstance(exc, RuntimeError) or not self._changed.wait_for(
                    lambda: thread not in self._starting, RETRY_DELAY
                )
                if is_new:
                    self._starting.discard(thread)
                    self._threads.discard(thread)
                    self._limiter.leave(accepted.key)
                    self._changed.notify_all()
                    accepted.sock.close()
            if isinstance(exc, RuntimeError):
                return self._errors.pause(str(exc), False)
            raise
        with self._lock:
            self._starting.discard(thread)
        return 0.0

    def _release(self) -> None:
        """Start threads for all pending handshakes."""
        while self._pending_handshakes is not None and (accepted := self._pending_handshakes.release()) is not None:
            self._start_thread(accepted)

    def _freed(self) -> None:
        if self._paused:
            self._wake()

    def _wake_for_log(self) -> None:
        # The accepting thread checks the log before it waits; waking it would end a pause early.
        if threading.current_thread() is not self._acceptor:
            self._wake()

    def _wake(self) -> None:
        # If the buffer is full, the thread wakes anyway; if it is closed, no thread is waiting.
        with contextlib.suppress(OSError):
            self._waker.send(b"\0")

    # Shutting down.

    def shutdown(self, close_connections: bool = True, code: int = CloseCode.GOING_AWAY, reason: str = "") -> None:
        """Shut the server down, and wait until all handlers have returned.

        It stops accepting, refuses pending handshakes with status 503 and closes open connections. Any thread may call
        it, more than once. When a handler calls it, it does not wait for that handler, nor for other handlers that call
        it. If a signal handler raises, the exception leaves this method, connections continue to close, and the next
        call waits for the rest.

        Args:
            close_connections: Whether to close the open connections. If not, it waits until they end.
            code: Close code for them.
            reason: Close reason for them.

        Raises:
            ProtocolError: The code or the reason is not allowed in a close frame.
        """
        check_close_frame(code, reason)
        me = threading.current_thread()
        with self._lock:
            first = not self._is_closing
            if first:
                self.logger.info("server closing")
            self._is_closing = True
            if close_connections and self._close_frame is None:
                self._close_frame = (code, reason)
            self._wake()
            if self._acceptor is me:
                # This is a signal handler in the accepting thread: start the threads that it waits for.
                self._release()
            else:
                # The accepting thread may itself be in `shutdown`, in a signal handler: it does not accept either.
                self._changed.wait_for(lambda: self._acceptor is None or self._acceptor in self._waiting)
            self._close_sockets()
        if close_connections:
            # Connections that open from now on see `_close_frame`.
            self._close_all(self.connections, code, reason)
        self._wait_for_handlers(me)
        if first:
            self.logger.info("server closed")

    def _close_sockets(self) -> None:
        self._listeners.close()
        # While serve_forever runs, the waker stays open: a signal handler may have interrupted the thread, which must
        # be woken if it waits again.
        if self._acceptor is None:
            self._woken.close()
            self._waker.close()

    def _close_all(self, connections: set[ServerConnection], code: int, reason: str) -> None:
        """Close connections at the same time, each within its ``close_timeout``."""

        def close(connection: ServerConnection) -> None:
            try:
                connection.close(code, reason)
            except Exception:
                connection.logger.error("closing a connection failed (%s)", connection._label, exc_info=True)

        with self._lock:
            closers, self._closers = self._closers, []
        # Close in other threads if possible: an exception in this thread must be one of a signal handler.
        threadless = []
        try:
            for connection in connections:
                closers.append(threading.Thread(target=close, args=(connection,)))
                try:
                    closers[-1].start()
                except RuntimeError:  # there are too many threads, or the interpreter ends
                    closers.pop()
                    threadless.append(connection)
            for connection in threadless:
                connection.close(code, reason)
            while closers:
                if closers[-1].ident is not None:  # otherwise a signal handler prevented its start
                    closers[-1].join()
                closers.pop()
        except BaseException:
            with self._lock:
                self._closers += closers
            raise

    def _wait_for_handlers(self, me: threading.Thread) -> None:
        seen: set[threading.Thread] = set()

        def is_over() -> bool:
            left = set(self._threads)
            if me in left:
                # Two handlers must not wait for each other.
                left -= self._waiting
            if me is self._acceptor:
                left -= self._starting  # this is a signal handler, and they start after it
            seen.update(left)
            return not left

        with self._lock:
            self._waiting.add(me)
            self._changed.notify_all()
            due = time.monotonic() + HandshakeLimiter.closing_timeout if self._options.open_timeout is None else None
            try:
                while not is_over():
                    limits = [self._drop_refused()]
                    if due is not None and (left := due - time.monotonic()) > 0:
                        limits.append(left)
                    elif due is not None:
                        # Handshakes must end within a limit, even without an open_timeout.
                        due = None
                        self._limiter.close_all()
                    self._changed.wait(min((limit for limit in limits if limit is not None), default=None))
            finally:
                self._waiting.discard(me)
            over = seen - self._threads
        self._limiter.finish()
        for thread in over:
            thread.join()

    def _drop_refused(self) -> float | None:
        """Abort refused connections whose time is over; return the seconds until the next one, ``None`` for none."""
        now = time.monotonic()
        for connection in [connection for connection, until in self._refused.items() if until <= now]:
            del self._refused[connection]
            connection.abort()
        return min(self._refused.values()) - now if self._refused else None

    # Connections, each in its own thread.

    def _serve(self, accepted: AcceptedSocket) -> None:
        me = threading.current_thread()
        try:
            with self._lock:
                self._starting.discard(me)
                self._changed.notify_all()
            connection = self._open(accepted)
            if connection is not None:
                self._handle(connection)
        finally:
            with self._lock:
                self._threads.discard(me)
                self._changed.notify_all()
                if self._paused:
                    self._wake()

    def _handle(self, connection: ServerConnection) -> None:
        with self._lock:
            self._connections.add(connection)
            close_frame = self._close_frame
        try:
            if close_frame is not None:
                connection.close(*close_frame)
            else:
                self._run_handler(connection)
        except Exception as exc:
            # Raised by a subclass that overrides closing.
            log_handler_error(connection, exc)
        finally:
            with self._lock:
                self._connections.discard(connection)

    def _run_handler(self, connection: ServerConnection) -> None:
        logged: Exception | None = None
        try:
            with connection:
                try:
                    self._handler(connection)
                except Exception as exc:
                    # Log before closing, which takes time.
                    log_handler_error(connection, exc)
                    logged = exc
                    raise
        except Exception as exc:
            if exc is not logged:
                raise
        finally:
            # Break the cycle: the traceback of the exception refers to this frame.
            logged = None

    def _open(self, accepted: AcceptedSocket) -> ServerConnection | None:
        """Perform the opening handshake; return ``None`` if it failed, which is logged."""
        connection: ServerConnection | None = None
        options = self._options
        sock, remote = accepted.sock, accepted.address
        is_kept = True
        try:
            with sock:
                try:
                    if sock.family != getattr(socket_module, "AF_UNIX", None):
                        sock.setsockopt(socket_module.IPPROTO_TCP, socket_module.TCP_NODELAY, 1)
                    local = sock.getsockname()
                    if accepted.handshake.is_complete:
                        opened = accepted.handshake.finish()
                    else:
                        steps = reception(accepted, self._ssl.native, options, self._limiter)
                        opened = receive_request(sock, accepted.deadline, steps)
                finally:
                    # Before closing the descriptor or passing it on: afterwards the limiter must not touch it.
                    is_kept = self._limiter.leave(accepted.key)
                if not is_kept:
                    return None
                sock.settimeout(None)
                opened._adopt(sock.detach())
            addresses = {"local_address": local, "remote_address": remote}
            try:
                made = construct(self._create_connection, ServerConnection, opened, logger=self.logger, **addresses)
            except Exception:
                # If the handshake is still unused, send the client a response.
                with contextlib.suppress(RuntimeError):
                    connection = ServerConnection(opened, logger=self.logger, **addresses)
                    refuse(connection)
                    self._linger(connection)
                raise
            connection = made
            connection.server = self
            error = negotiate(negotiation(connection, options, self._limiter, lambda: self._is_closing))
            if error is None:
                self._log_open(connection)
                return connection
            log_refusal(connection, error, self._limiter)
            self._linger(connection)
        except BaseException as exc:
            if is_kept:
                self._opening_failed(accepted, connection, exc)
            if not isinstance(exc, Exception):
                raise
        return None

    def _linger(self, connection: ServerConnection) -> None:
        """Send the response of a refusal, and give the client time to read it."""

        def drop() -> float:
            connection.abort()
            return EVICTION_DELAY

        with self._lock:
            self._refused[connection] = time.monotonic() + LINGER_TIMEOUT
            key = self._limiter.enter(connection.remote_address, None, drop, evict=False)
            self._changed.notify_all()
        try:
            connection.close()
        finally:
            connection.abort()
            with self._lock:
                self._refused.pop(connection, None)
                self._limiter.leave(key)
