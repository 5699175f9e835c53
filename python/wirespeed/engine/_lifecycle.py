"""What those who run an engine need: its end without haste, signals, its log, its certificate.

All that serves is native; here are what Python alone has: signals, event loops, ``logging``.
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
import select
import signal
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

from .._native import NativeDraining, NativeEngine, NativeHandoff, NativeLogs
from .._options.common import check_type
from ..tls import TLS
from ._arguments import check_count, checked_seconds, checked_tls
from ._ending import LAST, Interrupted, Patience, interrupting
from ._log import Log

__all__ = ["Drained", "EngineLifecycle", "begin_logging"]

STUCK_AFTER = 5.0
"""Seconds that a thread of the engine may be busy without a pause until ``/health`` says so."""

PAGE_TOKEN = 16
"""Characters of the page's token, at least: nobody is to guess it."""

LEFT_OUT_PAUSE = 1.0
"""Seconds between two looks whether something that was left out is to be told."""


@dataclasses.dataclass(frozen=True)
class Drained:
    """How the sessions of an engine have ended.

    Attributes:
        ended: How many by the closing handshake, or by themselves.
        cut: How many were cut off when the time was over.
    """

    ended: int
    cut: int


class EngineLifecycle(NativeEngine):
    """What an engine has for those who run it: see :class:`wirespeed.engine.Engine`."""

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
        if page is not None and len(page) < PAGE_TOKEN:
            raise ValueError(
                f"page must be a token of {PAGE_TOKEN} characters at least: it lets its owner disconnect clients"
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
        # How often SIGTERM has come and nothing was done about it yet; whether something was.
        self._to_end: collections.deque[None] = collections.deque()
        self._ending = False
        # What SIGTERM does where this engine has no handler for it, and of which process that is the handler.
        self._before: Callable[[int, FrameType | None], Any] | int | None = None
        self._process = 0
        self._patience = Patience()
        self._to_interrupt = False
        self._tls = tls
        if tls is not None:
            self._renew(*_sources(tls))

    def reload_tls(self, ssl: TLS | None = None) -> None:
        """Use another certificate, for clients that come from now on.

        The files of ``ssl`` are looked at anyway, once a second at most, when clients come: of the settings that are in
        use, and of no others.

        Args:
            ssl: Settings; the default is to read the files of those that the engine has.

        Raises:
            OSError: A file cannot be read.
            RuntimeError: The engine has no TLS.
            TypeError: ``ssl`` is no TLS settings.
            ValueError: The certificate or its key is not valid, or the settings are not those of a server; what was
                used before stays in use.
        """
        if self._tls is None:
            raise RuntimeError("the engine has no TLS")
        if ssl is not None:
            checked_tls(ssl)
        # A copy reads the files again.
        tls = dataclasses.replace(self._tls if ssl is None else ssl)
        self._set_tls(checked_tls(tls), *_sources(tls))
        self._tls = tls

    # ---- the end ----

    def drain(
        self,
        timeout: float | None = None,
        *,
        batch: int | None = None,
        notice: float = 0,
        code: int = 1012,
        reason: str = "service restart",
    ) -> Drained:
        """End without haste: accept nobody, close the sessions a few at a time, and stop when the last one is over.

        From now on ``/ready`` is answered with 503. Batches are half a second apart, or closer if need be, so that the
        clients do not all connect elsewhere at once. Those who iterate over events get all that there are.

        Args:
            timeout: Seconds that it takes at most: who is left then is cut off. The default is ``drain_timeout``.
            batch: Sessions that are closed at once, as far as the time allows. The default is ``drain_batch``.
            notice: Seconds before anything else happens, in which clients are still accepted: for load balancers that
                ask ``/ready``.
            code: The close code; 1012 says that the service restarts.
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
        """Do the same as :meth:`drain` without blocking the event loop.

        Args:
            timeout: As there.
            batch: As there.
            notice: As there.
            code: As there.
            reason: As there.
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
        self._patience.end(time.monotonic() + notice + timeout)
        return draining

    def _end(self) -> None:
        """Stop; before, close the sessions, as far as their clients do their part soon."""
        try:
            # RFC 6455 7.4.1, 1001: "a server going down".
            self._leave(1001, LAST)
        finally:
            self.stop()

    # ---- signals ----

    @contextlib.contextmanager
    def draining_on_sigterm(self, wanted: bool = True) -> Iterator[None]:
        """Have SIGTERM drain the engine, and a second one stop it: a context for whoever iterates over batches.

        Also while the engine starts. Only in the main thread; the handler that there was before has its place again at
        the end.

        Args:
            wanted: Whether to do anything at all.
        """
        if not wanted or threading.current_thread() is not threading.main_thread():
            yield
            return
        previous = signal.signal(signal.SIGTERM, self._on_sigterm)
        if previous != self._on_sigterm:
            self._before, self._process = previous, os.getpid()
        try:
            yield
        finally:
            signal.signal(signal.SIGTERM, signal.SIG_DFL if previous is None else previous)
            if not self._started:
                self._to_end.clear()

    def _on_sigterm(self, _number: int, _frame: object) -> None:
        if self._process != os.getpid():
            # A child that the interpreter knows nothing of: see `_restore_sigterm`.
            signal.signal(signal.SIGTERM, signal.SIG_DFL if self._before is None else self._before)
            os.kill(os.getpid(), signal.SIGTERM)
            return
        if self._to_interrupt:
            self._to_interrupt = False
            raise Interrupted
        # It interrupts whatever this thread does, so it takes no lock, as starting a `threading.Thread` would.
        self._to_end.append(None)
        self._process_shutdown_requests()

    def _process_shutdown_requests(self) -> None:
        # Called by whoever is told, and at the end of the start: before that there is nothing to drain.
        while self._started and self._to_end:
            try:
                self._to_end.popleft()
            except IndexError:
                return  # another thread was faster
            # In a thread: the events that come meanwhile are handled by this one.
            target = self._stop_at_once if self._ending else self.drain
            self._ending = True
            _thread.start_new_thread(self._end_by, (target,))

    def _end_by(self, target: Callable[[], object]) -> None:
        try:
            target()
        except Exception:
            self._logger.exception("the engine has not ended as it should")

    def _stop_at_once(self) -> None:
        self._patience.end(time.monotonic())
        self.stop()

    def _begin_hearing_of_a_handoff(self) -> None:
        # The engine drains by itself once another one has taken over, and handlers are waited for here.
        handoff = self._handed_over()
        if handoff is not None:
            # A daemon, as that of the log.
            arguments = (handoff, self._patience)
            threading.Thread(target=_end_in_time, args=arguments, name="wirespeed-ending", daemon=True).start()

    @contextlib.contextmanager
    def _leaving_handlers(self, after: float = 0) -> Iterator[None]:
        """Interrupt what is called here, once the engine has ended and `after` seconds more, where that can be."""
        # Elsewhere there is no signal that would.
        main = threading.current_thread() is threading.main_thread()
        if not main or signal.getsignal(signal.SIGTERM) != self._on_sigterm:
            yield
            return

        def interrupt() -> bool:
            # Another handler that the application has set meanwhile would not know what it is for.
            self._to_interrupt = signal.getsignal(signal.SIGTERM) == self._on_sigterm
            return self._to_interrupt

        with interrupting(self._patience, interrupt, after, self._logger):
            yield

    # ---- the log ----

    def _begin_logging(self) -> None:
        self._warn_of_open_metrics()
        begin_logging(self._logs(), self._logger)

    def _warn_of_open_metrics(self) -> None:
        if self._metrics_token is not None:
            return
        places = [] if self._metrics_path is None else [place for place in self.addresses if isinstance(place, tuple)]
        if (inside := self.metrics_address) is not None:
            places.append(inside)
        for host, port in places:
            if _is_public(host):
                text = "the metrics at %s port %d are for everybody: set metrics_token, or listen at 127.0.0.1"
                self._logger.warning(text, host, port)


def _is_public(host: str) -> bool:
    """Whether more than this machine and private networks may reach what listens at an address."""
    address = ipaddress.ip_address(host)
    return address.is_unspecified or address.is_global


def _restore_sigterm() -> None:
    """In a child, which has the handler by `fork`, and not the engine: it ends as it would without.

    Not by the handler: in a child of another thread than the main one, CPython 3.13 calls none.
    """
    handler, engines = signal.getsignal(signal.SIGTERM), set()
    # Of several engines, one may have the handler before another's, and that one the one before its own.
    while isinstance(engine := getattr(handler, "__self__", None), EngineLifecycle):
        handler = signal.SIG_DFL if engine in engines else engine._before
        engines.add(engine)
    if engines:
        signal.signal(signal.SIGTERM, signal.SIG_DFL if handler is None else handler)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_restore_sigterm)


def _end_in_time(handoff: NativeHandoff, patience: Patience) -> None:
    """Say when the engine ends, once another one has taken over."""
    seconds = handoff.wait()
    if seconds is not None:
        patience.end(time.monotonic() + seconds)


def begin_logging(logs: NativeLogs, logger: Log) -> None:
    """Log what native threads tell, in a thread that ends with them.

    Args:
        logs: Where they tell it.
        logger: Where it is logged.
    """
    # A daemon that waits for a descriptor: neither what tells nor the interpreter waits for it.
    threading.Thread(target=_log, args=(logs, logs.bell(), logger), name="wirespeed-log", daemon=True).start()


def _log(logs: NativeLogs, bell: int, logger: Log) -> None:
    """Log what there is, until the engine ends."""
    try:
        rung = b"\0"
        poll = select.poll()  # `select` fails with descriptors from 1,024 on
        poll.register(bell, select.POLLIN)
        while rung:
            while not poll.poll(LEFT_OUT_PAUSE * 1000 if logs.has_left_out else None):
                _log_some(logs, logger)
            rung = os.read(bell, 4096)
            _log_some(logs, logger)
    finally:
        os.close(bell)


def _log_some(logs: NativeLogs, logger: Log) -> None:
    for level, text, left_out in logs.take():
        if left_out:
            logger.log(level, "%s (and %d more since the last time)", text, left_out)
        else:
            logger.log(level, "%s", text)


# ---- the certificate ----

Source = tuple[str | None, bytes]
"""A file, if it is one, and what it says."""


def _sources(tls: TLS) -> tuple[Source, Source, list[Source], list[bytes], str | None, str | None]:
    """Return where TLS settings are from, as the native core takes it."""
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
