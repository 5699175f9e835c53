"""Shows the rates of an engine: on the whole terminal, or as lines."""

from __future__ import annotations

import collections
import contextlib
import logging
import sys
import threading
import time
from types import TracebackType
from typing import TYPE_CHECKING, Any

from ..engine import Engine
from ._engine_rates import Rates
from ._writing import write_all

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["View"]

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
        self._screen = _screen() if terminal else None
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


def _screen() -> Any:
    """Return a function that shows rates on a terminal; ``None`` if ``rich`` is not installed."""
    try:
        import rich  # noqa: F401 - to know whether it is there
    except ImportError:
        return None
    from ._engine_screen import screen

    return screen
