"""How libraries with the interface of websockets are driven: websockets itself, and others that took it over."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any

from models.abilities import Abilities, Patience, Watched, check_deflate
from models.awaiting import Awaiting, text_report
from models.tls import tls_context

__all__ = ["Interface"]


@dataclass(frozen=True)
class Interface:
    """A library's copy of that interface.

    Attributes:
        client: the module that has `connect`.
        exceptions: the module that has `ConnectionClosed`.
    """

    client: str
    exceptions: str

    async def connect(self, url: str, ca: str | None, size: int) -> Awaiting:
        """Connects for awaiting."""
        return _awaiting(await self._open(url, ca))

    @property
    def abilities(self) -> Abilities:
        """What such a library can do beside sending and receiving."""
        closed = f"{self.exceptions}:ConnectionClosed"
        return Abilities(deflate=self._deflate, closed={"recv": closed, "send": closed}, watch=self._watch)

    async def _open(self, url: str, ca: str | None, **options: Any) -> Any:
        """Connects without what raw sockets do not do: no compression, no keepalive, no limits."""
        plain: dict[str, Any] = {"compression": None, "ping_interval": None}
        return await importlib.import_module(self.client).connect(
            url,
            ssl=tls_context(ca) if url.startswith("wss:") else None,
            max_size=None,
            max_queue=None,
            proxy=None,
            **(plain | options),
        )

    async def _deflate(self, url: str, ca: str | None, size: int) -> Awaiting:
        """Connects with compression as the library does by default: zlib's default level, any window."""
        ws = await self._open(url, ca, compression="deflate")
        check_deflate(ws.response.headers.get("Sec-WebSocket-Extensions"))
        return _awaiting(ws)

    async def _watch(self, url: str, ca: str | None, patience: Patience) -> Watched:
        """Connects with its keepalive, and a short `close_timeout`: it is 10 s by default, and `recv` waits."""
        error = importlib.import_module(self.exceptions).ConnectionClosedError
        ws = await self._open(
            url, ca, ping_interval=patience.interval, ping_timeout=patience.timeout, close_timeout=patience.timeout
        )
        return Watched(ws, ws.recv, lambda told: isinstance(told, error))


def _awaiting(ws: Any) -> Awaiting:
    """Returns what the loops drive of a connection."""
    return Awaiting(
        ws,
        send=ws.send,
        recv=ws.recv,
        report=text_report(ws.send, ws.recv),
        send_text=ws.send,
        messages=ws,
        close=ws.close,
    )
