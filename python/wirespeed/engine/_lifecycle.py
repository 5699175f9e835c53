"""Operation of an engine: draining, signals, the deadline of handlers, certificates.

The native core serves the sessions. This module adds signals and event loops.
"""

from __future__ import annotations

import _thread
import asyncio
import collections
import contextlib
import dataclasses
import ipaddress
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

from .._native import NativeDraining, NativeEngine, NativeHandoff
from .._options.common import check_type
from ..tls import TLS
from ._arguments import check_count, checked_seconds, checked_tls
from ._log import Log, start_logging

__all__ = ["Drained", "EngineLifecycle", "GRACE_PERIOD", "HandlerDeadline", "Interrupted", "interrupt_at_deadline"]

STUCK_AFTER = 5.0
"""Seconds that a worker may be busy without a pause until ``/health`` reports it as stuck."""

MIN_PAGE_TOKEN = 16
"""The minimum length of the page's token, so that it cannot be guessed."""


@dataclasses.dataclass(frozen=True)
class Drained:
    """How the sessions of an engine have ended.

    Attributes:
        ended: The number that ended by the closing handshake, or by themselves.
        cut: The number that were cut off at the deadline.
    """

    ended: int
    cut: int


class EngineLifecycle(NativeEngine):
    """The operation of an engine, as a base of :class:`wirespeed.engine.Engine`."""

    _drain_timeout: float
    _drain_batch: int
    _tls: TLS | None
    _metrics_path: str | None
    _metrics_token: str | None

    def _set_up_operations(
        self,
        tls: TLS | None,
        *,
        health: bool | tuple[str, str],
        metrics: tuple[str, int] | None,
        metrics_path: str | None,
        metrics_token: str | None,
        page: str | None,
        ready_without_broker: bool,
        handoff: str | os.PathLike[str] | None,
        drain_timeout: float,
        drain_batch: int,
    ) -> None:
        if health is True:
            health = ("/health", "/ready")
        alive, ready = health or (None, None)
        for name, token in (("metrics_token", metrics_token), ("page", page)):
            # RFC 6750 2.1: visible characters of ASCII.
            check_type(name, token, str, "a str or None")
            if token is not None and not (token and token.isascii() and token.isprintable() and " " not in token):
                raise ValueError(f"{name} must be a token: visible characters of ASCII")
        if page is not None and len(page) < MIN_PAGE_TOKEN:
            raise ValueError(
                f"page must be a token of {MIN_PAGE_TOKEN} characters at least: it lets its owner disconnect clients"
            )
        self._operate(
            {
                "health": alive,
                "ready": ready,
                "metrics": metrics,
                "metrics_path": metrics_path,
                "metrics_token": metrics_token,
                "page": page,
                "ready_without_broker": ready_without_broker,
                "stuck_after": STUCK_AFTER,
                "handoff": None if handoff is None else os.fspath(handoff),
                "drain_timeout": drain_timeout,
                "drain_batch": drain_batch,
            }
        )
        self._drain_timeout, self._drain_batch = drain_timeout, drain_batch
        self._metrics_path, self._metrics_token = metrics_path, metrics_token
        self._logger = Log(logging.getLogger("wirespeed.engine"))
        self._started = False
        # SIGTERMs that were not processed yet; and whether one was processed.
        self._shutdown_requests: collections.deque[None] = collections.deque()
        self._shutting_down = False
        # The previous handler of SIGTERM, and the process in which this engine replaced it.
        self._previous_handler: Callable[[int, FrameType | None], Any] | int | None = None
        self._handler_process = 0
        self._handler_deadline = HandlerDeadline()
        self._interrupt_next = False
        self._tls = tls
        if tls is not None:
            self._renew(*_sources(tls))

    def reload_tls(self, ssl: TLS | None = None) -> None:
        """Replace the certificate for new connections.

        The files of the settings in use are also reloaded automatically: at most once a second, when clients connect.

        Args:
            ssl: New settings; by default, the files of the current settings are read again.

        Raises:
            OSError: A file cannot be read.
            RuntimeError: The engine has no TLS.
            TypeError: ``ssl`` is not a TLS object.
            ValueError: The certificate or its key is not valid, or the settings are not for a server. The previous
                certificate stays in use.
        """
        if self._tls is None:
            raise RuntimeError("the engine has no TLS")
        if ssl is not None:
            checked_tls(ssl)
        # A copy reads the files again.
        tls = dataclasses.replace(self._tls if ssl is None else ssl)
        self._set_tls(checked_tls(tls), *_sources(tls))
        self._tls = tls

    # ---- draining ----

    def drain(
        self,
        timeout: float | None = None,
        *,
        batch: int | None = None,
        notice: float = 0,
        code: int = 1012,
        reason: str = "service restart",
    ) -> Drained:
        """Shut down gracefully: stop accepting clients, close sessions in batches, and stop after the last one.

        From now on ``/ready`` answers 503. Batches are half a second apart, or closer if the time requires it, so that
        clients do not all reconnect elsewhere at once. Iterations over events get all remaining ones.

        Args:
            timeout: The maximum duration in seconds, after which the remaining sessions are cut off. The default is
                ``drain_timeout``.
            batch: The number of sessions closed at once, if the time permits. The default is ``drain_batch``.
            notice: Seconds before the first step, in which clients are still accepted, for load balancers that poll
                ``/ready``.
            code: The close code; 1012 means that the service restarts.
            reason: The reason in the close frame.

        Raises:
            ProtocolError: The code must not be sent, or the reason is too long.
            RuntimeError: The engine has not started.
        """
        draining = self._drain_with(timeout, batch, notice, code, reason)
        while (pause := draining.step()) is not None:
            time.sleep(pause)
        self.stop()
        return Drained(*draining.drained)

    async def adrain(
        self,
        timeout: float | None = None,
        *,
        batch: int | None = None,
        notice: float = 0,
        code: int = 1012,
        reason: str = "service restart",
    ) -> Drained:
        """Shut down as :meth:`drain` does, without blocking the event loop.

        Args:
            timeout: As for :meth:`drain`.
            batch: As for :meth:`drain`.
            notice: As for :meth:`drain`.
            code: As for :meth:`drain`.
            reason: As for :meth:`drain`.
        """
        draining = self._drain_with(timeout, batch, notice, code, reason)
        while (pause := draining.step()) is not None:
            await asyncio.sleep(pause)
        await asyncio.get_running_loop().run_in_executor(None, self.stop)
        return Drained(*draining.drained)

    def _drain_with(
        self, timeout: float | None, batch: int | None, notice: float, code: int, reason: str
    ) -> NativeDraining:
        timeout = self._drain_timeout if timeout is None else timeout
        batch = self._drain_batch if batch is None else batch
        check_count("batch", batch)
        timeout, notice = checked_seconds("timeout", timeout), checked_seconds("notice", notice)
        draining = self._begin_drain(timeout, batch, notice, code, reason)
        self._handler_deadline.end(time.monotonic() + notice + timeout)
        return draining

    def _end(self) -> None:
        """Close the sessions, wait shortly for their closing handshakes, and stop."""
        try:
            # RFC 6455 7.4.1, 1001: "a server going down".
            self._leave(1001, GRACE_PERIOD)
        finally:
            self.stop()

    # ---- signals ----

    @contextlib.contextmanager
    def draining_on_sigterm(self, wanted: bool = True) -> Iterator[None]:
        """Context for code that iterates over batches: SIGTERM drains the engine, and a second SIGTERM stops it.

        It may be entered before the engine starts. It has an effect only in the main thread, and restores the previous
        handler at its end.

        Args:
            wanted: Whether it has any effect.
        """
        if not wanted or threading.current_thread() is not threading.main_thread():
            yield
            return
        previous = signal.signal(signal.SIGTERM, self._on_sigterm)
        if previous != self._on_sigterm:
            self._previous_handler, self._handler_process = previous, os.getpid()
        try:
            yield
        finally:
            signal.signal(signal.SIGTERM, signal.SIG_DFL if previous is None else previous)
            if not self._started:
                self._shutdown_requests.clear()

    def _on_sigterm(self, _number: int, _frame: object) -> None:
        if self._handler_process != os.getpid():
            # In a forked child that ran no Python hooks; see `_restore_sigterm`.
            signal.signal(signal.SIGTERM, signal.SIG_DFL if self._previous_handler is None else self._previous_handler)
            os.kill(os.getpid(), signal.SIGTERM)
            return
        if self._interrupt_next:
            self._interrupt_next = False
            raise Interrupted
        # This interrupts arbitrary code of the thread, so it takes no lock, as starting a `threading.Thread` would.
        self._shutdown_requests.append(None)
        self._process_shutdown_requests()

    def _process_shutdown_requests(self) -> None:
        # Called for each signal, and at the end of the start, before which nothing can be drained.
        while self._started and self._shutdown_requests:
            try:
                self._shutdown_requests.popleft()
            except IndexError:
                return  # another thread was faster
            # In a new thread, as this one continues to handle events.
            target = self._stop_now if self._shutting_down else self.drain
            self._shutting_down = True
            _thread.start_new_thread(self._run_shutdown, (target,))

    def _run_shutdown(self, target: Callable[[], object]) -> None:
        try:
            target()
        except Exception:
            self._logger.exception("the engine has not ended as it should")

    def _stop_now(self) -> None:
        self._handler_deadline.end(time.monotonic())
        self.stop()

    def _watch_for_handoff(self) -> None:
        # The engine drains by itself after a handoff; this thread sets the deadline for handlers.
        handoff = self._handoff_signal()
        if handoff is not None:
            # A daemon thread, as that of the log.
            arguments = (handoff, self._handler_deadline)
            threading.Thread(target=_end_after_handoff, args=arguments, name="wirespeed-ending", daemon=True).start()

    @contextlib.contextmanager
    def _interrupting_handlers(self, after: float = 0) -> Iterator[None]:
        """Interrupt the code in this context `after` seconds after the end of the engine, where possible."""
        # Other threads cannot be interrupted by a signal.
        main = threading.current_thread() is threading.main_thread()
        if not main or signal.getsignal(signal.SIGTERM) != self._on_sigterm:
            yield
            return

        def interrupt() -> bool:
            # A handler that the application installed meanwhile could not interpret the signal.
            self._interrupt_next = signal.getsignal(signal.SIGTERM) == self._on_sigterm
            return self._interrupt_next

        with interrupt_at_deadline(self._handler_deadline, interrupt, after, self._logger):
            yield

    # ---- the log ----

    def _start_logging(self) -> None:
        self._warn_about_public_metrics()
        start_logging(self._logs(), self._logger)

    def _warn_about_public_metrics(self) -> None:
        if self._metrics_token is not None:
            return
        places = [] if self._metrics_path is None else [place for place in self.addresses if isinstance(place, tuple)]
        if (inside := self.metrics_address) is not None:
            places.append(inside)
        for host, port in places:
            if _is_public(host):
                text = (
                    "the metrics at %s port %d are readable by every client: set metrics_token, or listen at 127.0.0.1"
                )
                self._logger.warning(text, host, port)


def _is_public(host: str) -> bool:
    """Return whether an address may be reachable from outside this machine and private networks."""
    address = ipaddress.ip_address(host)
    return address.is_unspecified or address.is_global


def _restore_sigterm() -> None:
    """Restore SIGTERM in a forked child, which inherits the handler, but not the engine's threads.

    The handler itself does not suffice: CPython 3.13 calls none in a child that another thread than the main one
    forked.
    """
    handler, engines = signal.getsignal(signal.SIGTERM), set()
    # With several engines, each may have replaced the handler of another.
    while isinstance(engine := getattr(handler, "__self__", None), EngineLifecycle):
        handler = signal.SIG_DFL if engine in engines else engine._previous_handler
        engines.add(engine)
    if engines:
        signal.signal(signal.SIGTERM, signal.SIG_DFL if handler is None else handler)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_restore_sigterm)


def _end_after_handoff(handoff: NativeHandoff, deadline: HandlerDeadline) -> None:
    """Set the deadline for handlers once another engine has taken over."""
    seconds = handoff.wait()
    if seconds is not None:
        deadline.end(time.monotonic() + seconds)


# ---- the certificate ----

Source = tuple[str | None, bytes]
"""The path of the file, if any, and its content."""


def _sources(tls: TLS) -> tuple[Source, Source, list[Source], list[bytes], str | None, str | None]:
    """Return the sources of TLS settings, as arguments for the native core."""
    arguments = tls._native_arguments()
    cert_pem, key_pem = arguments["cert_pem"] or b"", arguments["key_pem"] or b""
    cert = _file(tls.cert)
    key = cert if tls.key is None else _file(tls.key)
    authorities = [] if tls.ca is None else list(tls.ca) if isinstance(tls.ca, tuple) else [tls.ca]
    client_ca: list[Source] = []
    if arguments["verify"]:
        client_ca = [(_file(one), pem) for one, pem in zip(authorities, arguments["ca_pem"], strict=True)]
    return (
        (cert, cert_pem),
        (key, key_pem),
        client_ca,
        arguments["alpn"],
        arguments["min_version"],
        arguments["max_version"],
    )


def _file(source: Any) -> str | None:
    """Return the path of a PEM file; ``None`` for PEM text and for directories."""
    if source is None or (isinstance(source, (str, bytes)) and "-----BEGIN" in os.fsdecode(source)):
        return None
    path = os.path.abspath(os.fsdecode(source))
    return path if os.path.isfile(path) else None


GRACE_PERIOD = 1.0
"""Seconds that handlers get after the end of the engine, in which they learn about sessions that were cut off."""


class Interrupted(BaseException):
    """Raised in the main thread to leave a handler, as :class:`KeyboardInterrupt` would."""


class HandlerDeadline:
    """The time until which handlers are waited for when an engine ends: unlimited until :meth:`end` sets it.

    It knows no handlers: their callers register a callback, which abandons or cancels them.
    """

    def __init__(self) -> None:
        # Callbacks under it must take no other lock. It is reentrant, as a signal handler may call `end`.
        self._lock = threading.RLock()
        self._at: float | None = None
        self._callbacks: list[Callable[[float], object]] = []

    def end(self, at: float) -> None:
        """Set when the engine ends, by the monotonic clock; the earliest call counts. From any thread."""
        at += GRACE_PERIOD
        with self._lock:
            if self._at is not None and self._at <= at:
                return
            self._at = at
            for callback in list(self._callbacks):
                callback(at)

    @contextlib.contextmanager
    def notifying(self, callback: Callable[[float], object]) -> Iterator[None]:
        """Have a function called, in any thread, with the deadline, once it is known."""
        with self._lock:
            self._callbacks.append(callback)
            if self._at is not None:
                callback(self._at)
        try:
            yield
        finally:
            with self._lock:
                self._callbacks.remove(callback)


@contextlib.contextmanager
def interrupt_at_deadline(
    deadline: HandlerDeadline, interrupt: Callable[[], bool], after: float, logger: Log
) -> Iterator[None]:
    """Leave this context when the deadline has passed, even during a call. For the main thread.

    Args:
        deadline: The deadline.
        interrupt: Prepares the handler of SIGTERM to raise :class:`Interrupted`; false: it cannot.
        after: Additional seconds.
        logger: Logs the interruption.
    """
    # Protects `over` against the interrupting thread: no signal is sent after the context has ended.
    lock = threading.Lock()
    over = threading.Event()
    thread = threading.get_ident()

    def wait(at: float) -> None:
        # Repeated, because the interrupted code may catch the exception.
        while not over.wait(max(at - time.monotonic(), 0)):
            with lock:
                if not over.is_set() and interrupt():
                    signal.pthread_kill(thread, signal.SIGTERM)
            at = time.monotonic() + GRACE_PERIOD

    def callback(at: float) -> None:
        threading.Thread(target=wait, args=(at + after,), name="wirespeed-end", daemon=True).start()

    left = False
    try:
        with deadline.notifying(callback):
            yield
    except Interrupted:
        left = True
    finally:
        while not _is_settled(over, lock):
            pass
    if left:
        logger.error("a handler has not returned in time: it was interrupted")


def _is_settled(over: threading.Event, lock: threading.Lock) -> bool:
    try:
        over.set()
        with lock:
            pass
        time.sleep(0)  # a signal that was sent before is handled here
    except Interrupted:
        return False
    return True
