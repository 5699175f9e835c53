"""Runs ``wirespeed engine``, and shows its rates: on the whole terminal, or as lines."""

from __future__ import annotations

import argparse
import collections
import contextlib
import errno
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any

from ..engine import Engine
from ._common import PORT, CommandError, Status, describe, limit, load, server_tls, write_all

if TYPE_CHECKING:
    from rich.console import Console, Group
    from typing_extensions import Self

__all__ = ["Rates", "View", "draw", "run", "screen", "size"]

ENGINE_ARGUMENTS = {
    "host": "host",
    "port": "port",
    "unix": "path",
    "workers": "workers",
    "origin": "origins",
    "subprotocol": "subprotocols",
    "compression": "compression",
    "metrics": "metrics",
    "handoff": "handoff",
    "drain": "drain_timeout",
}
"""Options that are passed to the engine, with the names of its arguments."""

LEVELS = (logging.WARNING, logging.INFO, logging.DEBUG)


def run(arguments: argparse.Namespace) -> Status:
    """Serve until a signal arrives.

    Args:
        arguments: The parsed command line.

    Raises:
        CommandError: The command line is wrong, or the engine cannot listen.
    """
    found = None if arguments.app is None else load(arguments.app)
    engine = _engine(found, arguments)
    view = View(engine, sys.stdout.isatty() and not arguments.plain, arguments.interval)
    level = LEVELS[min(arguments.verbose, 2)]
    logging.basicConfig(handlers=[view.log_handler()], format="%(asctime)s %(levelname)s %(message)s", level=level)
    logging.getLogger("wirespeed").setLevel(min(level, logging.INFO))
    # The handlers are set before the address is printed: a program that reads the address may send a signal at once.
    with engine.draining_on_sigterm(), _draining_on_sigint():
        try:
            engine.start()
        except OSError as exc:
            raise CommandError(Status.FAILED, _listen_error(exc)) from None
        with contextlib.suppress(OSError):  # the standard output need not be open
            lines = (f"listening on {place}\n" for place in _addresses(engine, arguments.cert is not None))
            write_all(1, "".join(lines).encode())
        with view:
            _serve(engine)
    return Status.OK


def _engine(found: Any, arguments: argparse.Namespace) -> Engine:
    if isinstance(found, Engine):
        options_set = [name for name in _set_options(arguments) if name not in ("interval", "plain")]
        if options_set:
            option = f"--{options_set[0].replace('_', '-')}"
            raise CommandError(Status.USAGE, f"{option}: {arguments.app} is an Engine with its own settings")
        return found
    if found is not None and (not callable(found) or isinstance(found, type)):
        raise CommandError(Status.USAGE, f"{arguments.app} is neither an Engine nor a function that sets one up")
    try:
        engine = Engine(**_options(arguments))
    except (OSError, TypeError, ValueError) as exc:
        raise CommandError(Status.USAGE, describe(exc)) from None
    if found is None:
        engine.echo("/")
        engine.echo("/{*rest}")
    else:
        found(engine)
    return engine


def _set_options(arguments: argparse.Namespace) -> list[str]:
    """Return the options of the engine that the command line sets."""
    names = [*ENGINE_ARGUMENTS, "cert", "key", "client_ca", "timeout", "ping"]
    options_set = [name for name in names if getattr(arguments, name) is not None]
    return options_set if arguments.max_size is ... else [*options_set, "max_size"]


def _options(arguments: argparse.Namespace) -> dict[str, Any]:
    options: dict[str, Any] = {
        name: value for option, name in ENGINE_ARGUMENTS.items() if (value := getattr(arguments, option)) is not None
    }
    if arguments.unix is None or "host" in options or "port" in options:
        options.setdefault("host", "127.0.0.1")
        options.setdefault("port", PORT)
    if options.get("host") == "localhost":
        options["host"] = "127.0.0.1"
    if arguments.max_size is not ...:
        options["max_size"] = arguments.max_size
    if arguments.timeout is not None:
        # An engine does not support infinite timeouts.
        timeout = limit(arguments.timeout)
        if timeout is None:
            raise CommandError(Status.USAGE, "--timeout: a number of seconds, not inf")
        options["open_timeout"] = options["close_timeout"] = timeout
    if arguments.ping is not None:
        options["ping_interval"] = limit(arguments.ping) or None
    if (tls := server_tls(arguments)) is not None:
        options["ssl"] = tls
    return options


def _serve(engine: Engine) -> None:
    if engine.has_handlers:
        engine.run()
        return
    try:
        with engine.draining_on_sigterm():
            for _ in engine.batches():
                pass
    finally:
        engine.stop()


@contextlib.contextmanager
def _draining_on_sigint() -> Iterator[None]:
    """Let Ctrl-C drain the engine, as SIGTERM does."""

    def end(_number: int, _frame: object) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    previous: Callable[..., Any] | int | None = signal.signal(signal.SIGINT, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)


def _addresses(engine: Engine, secure: bool) -> Iterator[str]:
    """Yield the URIs and socket paths of the engine."""
    for address in engine.addresses:
        if isinstance(address, tuple):
            host, port = address
            yield f"{'wss' if secure else 'ws'}://{f'[{host}]' if ':' in host else host}:{port}"
        else:
            yield os.fspath(address)


def _listen_error(exc: OSError) -> str:
    text = f"cannot listen: {describe(exc)}"
    return f"{text} (--port chooses another)" if exc.errno == errno.EADDRINUSE else text


RECORDS = 8
"""Number of log lines below the rates."""


class View:
    """Context manager that shows the rates of an engine.

    Args:
        engine: The engine; it must be started when the context is entered.
        terminal: Whether the output is a terminal.
        interval: Seconds between two readings; 0 to show nothing, ``None`` for the default.
    """

    def __init__(self, engine: Engine, terminal: bool, interval: float | None) -> None:
        self._engine = engine
        self._screen = _available_screen() if terminal else None
        self._interval = (1.0 if self._screen else 10.0) if interval is None else interval
        self._records: collections.deque[str] = collections.deque(maxlen=RECORDS)
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def log_handler(self) -> logging.Handler:
        """Return the handler for the log: the screen, or the standard error."""
        if self._screen is None or not self._interval:
            return logging.StreamHandler(sys.stderr)
        return _RecordHandler(self._records)

    def __enter__(self) -> Self:
        if self._interval:
            self._thread = threading.Thread(target=self._show, name="wirespeed-view", daemon=True)
            self._thread.start()
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._over.set()
        # With a timeout, because the thread may be blocked in writing to a pipe.
        if self._thread is not None:
            self._thread.join(2)

    def _show(self) -> None:
        # If the output is closed, stop showing rates without ending the command.
        with contextlib.suppress(OSError):
            rates = Rates(self._engine.stats(), time.monotonic())
            if self._screen is None:
                while not self._over.wait(self._interval):
                    rates.update(self._engine.stats(), time.monotonic())
                    write_all(1, f"{time.strftime('%H:%M:%S')}  {rates.line()}\n".encode())
                return
            with self._screen() as show:
                while not self._over.wait(self._interval):
                    rates.update(self._engine.stats(), time.monotonic())
                    show(rates, list(self._records), self._engine)


class _RecordHandler(logging.Handler):
    def __init__(self, records: collections.deque[str]) -> None:
        super().__init__()
        self._records = records

    def emit(self, record: logging.LogRecord) -> None:
        self._records.append(self.format(record))


def _available_screen() -> Any:
    """Return a function that shows rates on a terminal; ``None`` if ``rich`` is not installed."""
    try:
        import rich  # noqa: F401 - to know whether it is there
    except ImportError:
        return None
    return screen


Figures = dict[str, Any]


class Rates:
    """Differences between two readings, per second.

    Attributes:
        now: The last reading.
        seconds: Seconds between the last two readings.
    """

    def __init__(self, figures: Figures, at: float) -> None:
        self.now = self._before = figures
        self._at = at
        self.seconds = 0.0

    def update(self, figures: Figures, at: float) -> None:
        """Add a reading.

        Args:
            figures: The result of ``engine.stats()``.
            at: Its time in seconds.
        """
        self._before, self.now = self.now, figures
        self.seconds, self._at = at - self._at, at

    def __call__(self, name: str, worker: int | None = None) -> float:
        """Return the increase of a counter per second.

        Args:
            name: Name of the counter.
            worker: Number of a worker, ``None`` for all workers.
        """
        if not self.seconds:
            return 0
        now, before = self._pair(worker)
        return float(now[name] - before[name]) / self.seconds

    def p99(self, name: str, worker: int | None = None) -> str:
        """Return the 99th percentile of a duration since the previous reading, as text.

        Args:
            name: Name of the histogram.
            worker: Number of a worker, ``None`` for all workers.
        """
        now, before = self._pair(worker)
        buckets = now[name]["buckets"]
        past = [0] * len(buckets) if now is before else [count for _, count in before[name]["buckets"]]
        counts = [(bound, count - less) for (bound, count), less in zip(buckets, past, strict=True)]
        wanted = sum(count for _, count in counts) * 0.99
        if not wanted:
            return "-"
        for bound, count in counts:
            wanted -= count
            if wanted <= 0 and bound is not None:
                return f"{bound * 1000:g} ms"
        return "> 5 s"

    def _pair(self, worker: int | None) -> tuple[Figures, Figures]:
        if worker is None:
            return self.now, self._before
        return self.now["workers"][worker], self._before["workers"][worker]

    def line(self) -> str:
        """Return the rates in one line."""
        return (
            f"sessions {self.now['sessions']:,}"
            f"  in {self('messages_received'):,.0f}/s {size(self('bytes_received'))}/s"
            f"  out {self('messages_sent'):,.0f}/s {size(self('bytes_sent'))}/s"
            f"  dropped {self.now['messages_dropped']:,}"
            f"  refused {self.now['handshakes_failed']:,}"
            f"  lag {self.p99('loop_lag')}"
        )


def size(count: float) -> str:
    """Return a number of bytes as text with a unit."""
    for unit, name in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if count >= unit:
            return f"{count / unit:.1f} {name}"
    return f"{count:.0f} B"


Show = Callable[[Rates, list[str], Engine], None]


@contextlib.contextmanager
def screen(console: Console | None = None) -> Iterator[Show]:
    """Use the whole terminal; restore it at the end.

    Args:
        console: The console; by default the standard output.

    Yields:
        A function that shows the rates and the last lines of the log.
    """
    from rich.console import Console
    from rich.live import Live

    with Live(console=console or Console(), screen=True, auto_refresh=False) as live:
        yield lambda rates, records, engine: live.update(draw(rates, records, engine), refresh=True)


def draw(rates: Rates, records: list[str], engine: Engine) -> Group:
    """Return the content of the screen.

    Args:
        rates: The rates.
        records: The last lines of the log.
        engine: The engine.
    """
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    now = rates.now
    places = ", ".join(f"{at[0]}:{at[1]}" if isinstance(at, tuple) else str(at) for at in engine.addresses)
    title = Text.assemble(("wirespeed engine", "bold"), f"  {places}  {len(now['workers'])} workers")
    table = Table(expand=True, box=None, pad_edge=False, header_style="dim")
    table.add_column("")
    for name in ("sessions", "in/s", "bytes in/s", "out/s", "bytes out/s", "outbox", "mailbox", "lag p99"):
        table.add_column(name, justify="right", no_wrap=True)
    for worker, of in [(None, now), *enumerate(now["workers"])]:
        table.add_row(
            "all" if worker is None else str(worker),
            f"{of['sessions']:,}",
            f"{rates('messages_received', worker):,.0f}",
            size(rates("bytes_received", worker)),
            f"{rates('messages_sent', worker):,.0f}",
            size(rates("bytes_sent", worker)),
            size(of["outbox_bytes"]),
            size(of["mailbox_bytes"]),
            rates.p99("loop_lag", worker),
            style="bold" if worker is None else "",
        )
    lost = [(name.replace("_", " "), count) for name, count in now["handshakes_failed_by_reason"].items() if count]
    refused = ", ".join(f"{name} {count:,}" for name, count in lost) or "none"
    rest = Text.assemble(
        ("connections ", "dim"), f"{now['connections']:,}",
        ("   opened/s ", "dim"), f"{rates('sessions_opened'):,.0f}",
        ("   events waiting ", "dim"), f"{now['events_waiting']:,}",
        ("   dropped ", "dim"), (f"{now['messages_dropped']:,}", "red" if now["messages_dropped"] else ""),
        ("   publish p99 ", "dim"), rates.p99("publish_latency"),
        ("\nno session: ", "dim"), refused,
    )  # fmt: skip
    # Log lines may contain text of peers, so they are shown without markup.
    log = Text("\n".join(records), style="dim", overflow="ellipsis", no_wrap=True)
    return Group(title, Text(), table, Text(), rest, Text(), log)
