"""Handles SIGINT and SIGTERM: the first signal ends the command properly, the next one at once."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING

from ._status import Status

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Stop"]


class Stop:
    """Context manager that replaces the handlers of SIGINT and SIGTERM.

    Attributes:
        future: Done when the command must end, with its exit status.
        force: Called for further signals.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._handled: list[int] = []
        self.future: asyncio.Future[Status] = self._loop.create_future()
        self.force: Callable[[], object] = lambda: None

    @property
    def requested(self) -> bool:
        """Whether the command must end."""
        return self.future.done()

    @property
    def status(self) -> Status:
        """The exit status."""
        return self.future.result()

    def request(self, status: Status) -> None:
        """Request the end; a second call forces it.

        Args:
            status: The exit status.
        """
        if self.requested:
            self.force()
        else:
            self.future.set_result(status)

    def __enter__(self) -> Self:
        for number, status in ((signal.SIGINT, Status.INTERRUPTED), (signal.SIGTERM, Status.TERMINATED)):
            # On a loop without signal handlers, Ctrl-C raises KeyboardInterrupt.
            with contextlib.suppress(NotImplementedError):
                self._loop.add_signal_handler(number, self.request, status)
                self._handled.append(number)
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for number in self._handled:
            self._loop.remove_signal_handler(number)
