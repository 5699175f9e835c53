"""The blocking client."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from . import libraries
from .certificate import Certificate
from .errors import Limit, interrupted_after
from .testees import OPEN_TIMEOUT, Testee

__all__ = ["BlockingTestee"]


class BlockingTestee(Testee):
    """A client with blocking calls."""

    def __init__(self, library: str, certificate: Certificate | None) -> None:
        super().__init__()
        self._connect, self._closed = libraries.blocking(library)
        self._ssl = libraries.trusting(certificate)

    def ask(self, uri: str, limit: Limit) -> str:
        with self._connection(uri, limit) as ws:
            return ws.recv()

    def echo(self, uri: str, limit: Limit) -> None:
        with self._connection(uri, limit) as ws, contextlib.suppress(self._closed):
            while True:
                ws.send(ws.recv())

    def drain(self, uri: str, limit: Limit) -> None:
        with self._connection(uri, limit, limit.seconds) as ws, contextlib.suppress(self._closed):
            while True:
                ws.recv()

    @contextlib.contextmanager
    def _connection(self, uri: str, limit: Limit, open_timeout: float = OPEN_TIMEOUT) -> Iterator[Any]:
        with interrupted_after(limit.seconds, limit.error()):
            ws = self._connect(uri, open_timeout=open_timeout, ping_interval=None, **self._ssl)
            try:
                yield ws
            finally:
                ws.close()
