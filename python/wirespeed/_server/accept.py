"""Accepting clients, for both servers: accepted sockets, which may wait for their request, and which are closed.

The rules are native and shared with the engine. Nothing waits here: the subclasses for each API have the timers, the
locks, and the event loop or selector.
"""

from __future__ import annotations

import collections
import functools
import logging
import socket as socket_module
from collections.abc import Callable
from typing import Any

from .._native import HandshakeLimiter, PendingHandshake, accept, origin_of
from .._net.addresses import is_socket_replaced
from .._net.binding import BROKEN, EXHAUSTED, LOST, MAX_LOST_IN_A_ROW, RETRY_DELAY
from ..typing import LoggerLike
from .log import LogThrottle

__all__ = [
    "BURST",
    "GRACE",
    "IDLE_TIME",
    "READ_SIZE",
    "Accept",
    "AcceptErrors",
    "AcceptedSocket",
    "HandshakeLimiterBase",
    "PendingHandshakesBase",
    "accepting",
]

IDLE_TIME = HandshakeLimiter.IDLE_TIME
"""Seconds that a client may be silent when the limit is exceeded."""

GRACE = HandshakeLimiter.GRACE
"""Seconds that a client may be silent when the hard limit is exceeded, or the system is out of descriptors."""

BURST = HandshakeLimiter.BURST
"""The hard limit, as a multiple of the limit."""

READ_SIZE = 2**15
"""Bytes to receive in one call. A request head has at most 16 KiB."""

_EVICTED = "closed a client whose opening handshake did not go on, for others (max_pending=%d): %s, one of %d"

_INTERNET = (socket_module.AF_INET, socket_module.AF_INET6)

# The flags that an accepted socket already has: setting them again changes nothing.
_TYPE = socket_module.SOCK_STREAM | getattr(socket_module, "SOCK_NONBLOCK", 0)

Accept = Callable[[], "tuple[socket_module.socket, Any] | None"]
"""Accepts one waiting connection of a listening socket."""

Drop = Callable[[], "float | None"]
"""Closes a pending handshake; returns in how many seconds its descriptor is free, ``None`` for at once."""


def accepting(listening: socket_module.socket) -> Accept:
    """Return a function that accepts one waiting connection without blocking.

    It returns a non-blocking socket and the address of its peer, or ``None`` if no connection is waiting. It raises
    the other exceptions of ``listening.accept``.

    Args:
        listening: A listening non-blocking socket.
    """
    family, proto = int(listening.family), listening.proto

    def natively() -> tuple[socket_module.socket, Any] | None:
        # Like `listening.accept`, but without the exception for an empty queue, without the call that sets
        # non-blocking mode, and without converting family and type to enumerations.
        accepted = accept(listening.fileno())
        if accepted is None:
            return None
        descriptor, address = accepted
        return socket_module.socket(family, _TYPE, proto, fileno=descriptor), address

    def through_socket() -> tuple[socket_module.socket, Any] | None:
        try:
            sock, address = listening.accept()
        except (BlockingIOError, InterruptedError):
            return None
        sock.setblocking(False)
        return sock, address

    # Use `accept` of the object if it is overridden, or if gevent has replaced the class: its objects wait although
    # the descriptor is non-blocking.
    is_usual = type(listening).accept is socket_module.socket.accept and not is_socket_replaced()
    can_accept = family in _INTERNET and _TYPE != socket_module.SOCK_STREAM
    return natively if is_usual and can_accept else through_socket


class AcceptedSocket:
    """An accepted socket and the state of its opening handshake.

    Attributes:
        sock: The socket, non-blocking.
        address: Address of the peer.
        handshake: The bytes received so far, and their parser.
        deadline: Time by which the opening handshake must be complete, ``None`` for no limit.
        key: Its key in the handshake limiter, ``None`` if it did not have to wait.
    """

    __slots__ = ("address", "deadline", "handshake", "key", "sock")

    def __init__(
        self,
        sock: socket_module.socket,
        address: Any,
        handshake: PendingHandshake,
        deadline: float | None = None,
    ) -> None:
        self.sock = sock
        self.address = address
        self.handshake = handshake
        self.deadline = deadline
        self.key: int | None = None

    def receive(self) -> bool:
        """Receive bytes if there are any; return whether to wait for more.

        Raises:
            BlockingIOError: There are no bytes.
            InterruptedError: A signal arrived.
        """
        try:
            return self.handshake.receive(self.sock.recv(READ_SIZE))
        except (BlockingIOError, InterruptedError):
            raise
        except ConnectionError:
            self.handshake.lose()
        except OSError:
            pass  # the next read raises it again
        return False

    def check_lost(self) -> bool:
        """Return whether the client has disconnected. If so, a complete request is dropped too.

        A client that has only shut down its sending side is still connected.
        """
        if self.handshake.is_complete:
            try:
                self.sock.recv(1, socket_module.MSG_PEEK)
            except ConnectionError:
                self.handshake.lose()
            except OSError:
                pass  # usually BlockingIOError: no more input
        return self.handshake.is_lost


class HandshakeLimiterBase:
    """Limits the opening handshakes that wait for a client, and throttles the log about them.

    1. :meth:`enter` adds a handshake, :meth:`progress` notes input from the client, :meth:`replace` passes it on.
    2. :meth:`trim` closes handshakes above the limit; :meth:`evict_one` frees resources.
    3. :meth:`throttled_log` and :meth:`count` log; :meth:`log_due` writes lines that are due.

    Args:
        clock: Returns the current time.
        limit: Maximum number of pending handshakes.
        logger: Logger for closed handshakes.
    """

    # Seconds that pending handshakes may take once the server closes, if there is no `open_timeout`.
    closing_timeout = 10.0

    def __init__(self, clock: Callable[[], float], limit: int, logger: LoggerLike) -> None:
        self._clock = clock
        self._limit = limit
        self._pending = HandshakeLimiter(limit, IDLE_TIME, GRACE)
        # The address of each client, how to close its handshake, and whether its request is incomplete.
        self._clients: dict[int, tuple[Any, Drop, bool]] = {}
        self._throttle = LogThrottle(logger)
        # When `log_due` is called next.
        self._due: float | None = None

    def __len__(self) -> int:
        return len(self._clients)

    @property
    def room(self) -> int:
        """The number of handshakes that can be added until the hard limit."""
        return self._pending.room

    def delay(self) -> float:
        """Return for how many seconds no handshake can be added; 0 if one can be added now."""
        return self._pending.delay(self._clock())

    def enter(self, address: Any, sock: socket_module.socket | None, drop: Drop, evict: bool = True) -> int:
        """Add a handshake, and return its key.

        Args:
            address: Address of the client.
            sock: Its socket; ``None`` for a refused client, whose further input is ignored.
            drop: Closes the handshake at once. It has been removed before.
            evict: Whether to close others if the limit is exceeded.
        """
        descriptor = -1 if sock is None else sock.fileno()
        key, evicted = self._pending.enter(address, descriptor, self._clock(), evict)
        self._clients[key] = (address, drop, sock is not None)
        self._evict(evicted)
        if evict:
            self._trim_later()
        return key

    def replace(self, key: int, drop: Drop) -> None:
        """Change how a pending handshake is closed, because another object handles it.

        Args:
            key: Key of the handshake; nothing happens if it was removed.
            drop: Closes the handshake.
        """
        if key in self._clients:
            address, _, is_waiting = self._clients[key]
            self._clients[key] = (address, drop, is_waiting)

    def progress(self, key: int) -> None:
        """Note that input of any size came from a client. The deadline of the handshake limits the total time.

        Args:
            key: Key of the handshake.
        """
        self._pending.progress(key, self._clock())

    def remove(self, key: int) -> bool:
        """Remove a handshake; return whether it was there.

        Args:
            key: Its key.
        """
        self._pending.remove(key)
        return self._clients.pop(key, None) is not None

    def trim(self) -> float | None:
        """Close some handshakes above the limit; return in how many seconds to call again, ``None`` for never."""
        now = self._clock()
        self._evict(self._pending.trim(now))
        return self._pending.trim_in(now)

    def evict_one(self) -> float | None:
        """Close the next victim, to free its descriptor and thread.

        Returns:
            Seconds until that is possible or has an effect; 0 if it is done, ``None`` without pending handshakes.
        """
        eviction = self._pending.evict_one(self._clock())
        if eviction is None:
            return None
        delay, evicted = eviction
        return self._evict(evicted) if evicted else delay

    def close_all(self) -> None:
        """Close all pending handshakes, because the server closes and has waited long enough for them."""
        for key, (address, drop, is_waiting) in list(self._clients.items()):
            if is_waiting and self.remove(key):
                text = "closed a client that had not sent its request when the server closed: %s"
                self.count("closing", logging.WARNING, text, _host_of(address))
                drop()

    def count(self, kind: object, level: int, text: str, *arguments: Any) -> None:
        """Count an event to be logged later: see :meth:`LogThrottle.add`.

        Args:
            kind: Key of the series.
            level: Level of the log line.
            text: Format string of the log line.
            *arguments: Arguments of the format string.
        """
        self._throttle.add(kind, self._clock(), level, text, *arguments)
        self._reschedule_log()

    def throttled_log(self, address: Any, kind: str, level: int, text: str, *arguments: Any) -> None:
        """Log or count an event that a client has caused: see :meth:`LogThrottle.add_from_peer`.

        Args:
            address: Address of the client.
            kind: Kind of event.
            level: Level of the log line.
            text: Format string of the log line.
            *arguments: Arguments of the format string.
        """
        self._throttle.add_from_peer(origin_of(address), kind, self._clock(), level, text, *arguments)
        self._reschedule_log()

    def throttled_log_start(self, address: Any, kind: str, level: int, text: str, *arguments: Any) -> bool:
        """Count an event like :meth:`throttled_log`; return whether it is the first, which the caller must log.

        Args:
            address: Address of the client.
            kind: Kind of event.
            level: Level of the log line.
            text: Format string of the log line.
            *arguments: Arguments of the format string.
        """
        begins = self._throttle.is_first(origin_of(address), kind, self._clock(), level, text, *arguments)
        self._reschedule_log()
        return begins

    def log_due(self) -> float | None:
        """Log all lines that are due; return in how many seconds to call again, ``None`` for never."""
        now = self._clock()
        self._throttle.log_due(now)
        self._due = self._throttle.due
        return None if self._due is None else max(0.001, self._due - now)

    def finish(self) -> None:
        """Log the pending counts."""
        self._throttle.finish()
        self._due = None

    def _evict(self, evicted: list[tuple[int, int]]) -> float:
        """Close handshakes that were removed; return in how many seconds their descriptors are free."""
        delay = 0.0
        try:
            while evicted:
                key, same_origin = evicted.pop(0)
                address, drop, _ = self._clients.pop(key)
                self.count(self, logging.WARNING, _EVICTED, self._limit, _host_of(address), same_origin)
                delay = drop() or 0.0
        finally:
            if evicted:
                self._evict(evicted)  # a signal handler has raised
        return delay

    def _reschedule_log(self) -> None:
        due = self._throttle.due
        if due is not None and (self._due is None or due < self._due):
            self._due = due
            self._schedule_log(due)

    def _trim_later(self) -> None:
        """Arrange that :meth:`trim` is called, if the limit is exceeded."""

    def _schedule_log(self, due: float) -> None:
        """Arrange that :meth:`log_due` is called at a time."""
        raise NotImplementedError


def _host_of(address: Any) -> str:
    """Return an address for logs, without its port."""
    return str(address[0]) if isinstance(address, tuple) else "a Unix socket"


class AcceptErrors:
    """Decides what to do after errors of ``accept``.

    Args:
        limiter: Logs the errors, and closes a pending handshake when the system has run out of resources.

    Attributes:
        lost: Number of connections lost since the last one was accepted. The caller sets it to 0 after each success.
    """

    def __init__(self, limiter: HandshakeLimiterBase) -> None:
        self.lost = 0
        self._limiter = limiter

    def delay_after(self, exc: OSError, problem: str) -> float | None:
        """Return for how many seconds to pause; ``None`` to stop accepting on this socket.

        Args:
            exc: The exception of ``accept``.
            problem: Text for the log.
        """
        if exc.errno in BROKEN:
            return None
        if exc.errno in LOST and self.lost < MAX_LOST_IN_A_ROW:
            self.lost += 1
            text = "a connection was lost before it was accepted: %s"
            self._limiter.count(exc.errno, logging.INFO, text, exc.strerror)
            return 0.0
        self.lost = 0
        return self.pause(problem, exc.errno in EXHAUSTED)

    def pause(self, problem: str, is_exhausted: bool) -> float:
        """Return for how many seconds to pause after the system has refused a resource, and log it.

        Args:
            problem: Text for the log.
            is_exhausted: Whether it has run out of descriptors or memory. Then a pending handshake is closed, which
                frees some.
        """
        self._limiter.count((problem,), logging.ERROR, "cannot accept connections for now: %s", problem)
        delay = self._limiter.evict_one() if is_exhausted else None
        return RETRY_DELAY if delay is None else min(delay, RETRY_DELAY)


class PendingHandshakesBase:
    """The accepted sockets of a server that wait for their request, without a task, a thread or a timer for each.

    Most clients send their request at once in one piece; malicious ones send a part of it. For both it is enough to
    wait. Once the request, the first TLS record or an error is there, another part of the server continues.

    Args:
        clock: Returns the current time.
        open_timeout: Seconds for the opening handshake, ``None`` for no limit.
        limiter: Counts the pending handshakes.
        make_handshake: Creates the parser of a client.
    """

    def __init__(
        self,
        clock: Callable[[], float],
        open_timeout: float | None,
        limiter: HandshakeLimiterBase,
        make_handshake: Callable[[], PendingHandshake],
    ) -> None:
        self._clock = clock
        self._open_timeout = open_timeout
        self._limiter = limiter
        self._make_handshake = make_handshake
        # In the order of their deadlines. An OrderedDict, because the first item is looked up often.
        self._waiting: collections.OrderedDict[AcceptedSocket, None] = collections.OrderedDict()

    def _admit(self, sock: socket_module.socket, address: Any) -> AcceptedSocket | None:
        """Add a socket; return it if it need not wait, because its request or an error is there already."""
        deadline = None if self._open_timeout is None else self._clock() + self._open_timeout
        accepted = AcceptedSocket(sock, address, self._make_handshake(), deadline)
        try:
            if not accepted.receive():
                return accepted
        except (BlockingIOError, InterruptedError):
            pass
        accepted.key = self._limiter.enter(address, sock, functools.partial(self._drop, accepted))
        self._waiting[accepted] = None
        self._watch(accepted)
        return None

    def _receive(self, accepted: AcceptedSocket) -> bool:
        """Receive from a socket; return whether it need not wait any more, and is removed from this object."""
        if accepted not in self._waiting:
            return False  # dropped in this iteration, after it was reported as readable
        try:
            if accepted.receive():
                if accepted.key is not None:
                    self._limiter.progress(accepted.key)
                return False
        except (BlockingIOError, InterruptedError):
            return False
        self._forget(accepted)
        return True

    def _deadline(self) -> float | None:
        """Return the next deadline, ``None`` for never."""
        return next(iter(self._waiting)).deadline if self._waiting else None

    def _take(self, until: float | None = None) -> AcceptedSocket | None:
        """Remove and return the first socket, or ``None``. With ``until``, only if its deadline is not later."""
        if not self._waiting:
            return None
        accepted = next(iter(self._waiting))
        if until is not None and (accepted.deadline is None or accepted.deadline > until):
            return None
        self._forget(accepted)
        return accepted

    def _watch(self, accepted: AcceptedSocket) -> None:
        """Arrange that :meth:`_receive` is called when the socket is readable."""
        raise NotImplementedError

    def _forget(self, accepted: AcceptedSocket) -> None:
        del self._waiting[accepted]

    def _drop(self, accepted: AcceptedSocket) -> None:
        self._forget(accepted)
        accepted.sock.close()
