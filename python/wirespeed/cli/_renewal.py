"""Reloads the certificate of a running server when its files change."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING

from .. import Server
from ..tls import Stamp, stamp
from ._status import describe

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Renewal"]

INTERVAL = 1.0
"""Seconds between two checks of the files, which take some system calls each."""


class Renewal:
    """Context manager that reloads the certificate of a server on SIGHUP, and when its files have changed.

    If that fails, the server keeps the old certificate, and the reason is logged.

    Args:
        server: The started server. It uses :class:`wirespeed.TLS`.
        files: Paths of certificate, key and authorities.
        logger: Logger for the result.
        interval: Seconds between two checks of the files.
    """

    def __init__(
        self, server: Server, files: Sequence[str], logger: logging.Logger, *, interval: float = INTERVAL
    ) -> None:
        self._server = server
        self._files = files
        self._logger = logger
        self._interval = interval
        self._loop = asyncio.get_running_loop()
        self._used_stamp = self._current_stamp()

    def __enter__(self) -> Self:
        self._loop.add_signal_handler(signal.SIGHUP, self.read)
        self._watching = self._loop.create_task(self._watch())
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._watching.cancel()
        self._loop.remove_signal_handler(signal.SIGHUP)

    def read(self) -> None:
        """Read the files, for connections accepted from now on."""
        # Store the state first, so that a change during reading is noticed.
        self._used_stamp = self._current_stamp()
        try:
            self._server.reload_ssl()
        except (OSError, ValueError) as exc:
            self._logger.warning("the certificate cannot be read again, the old one stays in use: %s", describe(exc))
        else:
            self._logger.info("the certificate was read again")

    async def _watch(self) -> None:
        before = self._used_stamp
        while True:
            await asyncio.sleep(self._interval)
            now = self._current_stamp()
            # Certificate and key are usually written one after the other: read them when they have stopped changing.
            if now == before and now != self._used_stamp:
                self.read()
            before = now

    def _current_stamp(self) -> Stamp:
        return stamp(self._files)
