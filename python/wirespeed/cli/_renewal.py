"""A certificate that is replaced while its server runs: noticed, and read again."""

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
"""Seconds between two looks at the files: half a dozen system calls each."""


class Renewal:
    """A context in which the certificate of a server is read again: when SIGHUP comes, and when its files have changed.

    If that fails, the server keeps what it has, and the log says why.

    Args:
        server: The server, started. It uses :class:`wirespeed.TLS`.
        files: Paths of certificate, key and authorities.
        logger: Where to tell what happened.
        interval: Seconds between two looks at the files.
    """

    def __init__(
        self, server: Server, files: Sequence[str], logger: logging.Logger, *, interval: float = INTERVAL
    ) -> None:
        self._server = server
        self._files = files
        self._logger = logger
        self._interval = interval
        self._loop = asyncio.get_running_loop()
        self._used = self._look()

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
        """Read the files, for the connections that come from now on."""
        # First, so that what changes while they are read is noticed.
        self._used = self._look()
        try:
            self._server.reload_ssl()
        except (OSError, ValueError) as exc:
            self._logger.warning("the certificate cannot be read again, the old one stays in use: %s", describe(exc))
        else:
            self._logger.info("the certificate was read again")

    async def _watch(self) -> None:
        before = self._used
        while True:
            await asyncio.sleep(self._interval)
            now = self._look()
            # Whoever replaces certificate and key writes one after the other: they are read once they rest.
            if now == before and now != self._used:
                self.read()
            before = now

    def _look(self) -> Stamp:
        return stamp(self._files)
