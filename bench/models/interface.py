"""How libraries with the interface of websockets are used: that one, and others. One of `twins.TWO_WAYS`."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from models.connection import Client, Connection, check_deflate, tls_context
from models.twins import AWAITS

__all__ = ["Interface"]


@dataclass(frozen=True)
class Interface:
    """A library's copy of that interface, set up without what raw sockets do not do: compression, keepalive, limits.

    Attributes:
        client: the module that has `connect`.
        server: the module that has `serve`.
        exceptions: the module that has `ConnectionClosed`.
        options: what else there is to be set for that.
        tls: makes TLS settings for a URL and a CA; one object for all connections.
    """

    client: str
    server: str
    exceptions: str
    options: Mapping[str, Any] = field(default_factory=dict)
    tls: Callable[[str, str | None], Any] = tls_context

    async def open(self, url: str, ca: str | None, **options: Any) -> Any:
        """Connects as the library does."""
        connect = importlib.import_module(self.client).connect
        plain = {"compression": None, "ping_interval": None, "max_size": None, "proxy": None, **self.options}
        return await connect(url, ssl=self.tls(url, ca), **{**plain, **options})

    async def connect(self, url: str, ca: str | None, size: int, **options: Any) -> Connection:
        """Connects for the loops."""
        ws = await self.open(url, ca, **options)
        # Some of them wirespeed alone has.
        more = {name: getattr(ws, name, None) for name in ("recv_many", "send_many", "flush", "close")}
        return Connection(ws, ws.send, ws.recv, send_text=ws.send, messages=ws, **more)

    async def deflate(self, url: str, ca: str | None, size: int) -> Connection:
        """Connects with compression as the library does by default: its own level and memory, any window."""
        connection = await self.connect(url, ca, size, compression="deflate")
        response: Any = getattr(connection.kept, "response", None)
        check_deflate(response.headers.get("Sec-WebSocket-Extensions"))
        return connection

    async def serve(self) -> tuple[str, object]:
        """Serves without compression, keepalive and limits."""

        async def echo(ws: Any) -> None:
            async for message in ws:
                await ws.send(message)

        serve = importlib.import_module(self.server).serve
        plain = {"compression": None, "ping_interval": None, "max_size": None, **self.options}
        server = await serve(echo, "127.0.0.1", 0, **plain)
        if not AWAITS:
            threading.Thread(target=server.serve_forever, daemon=True).start()
        # websockets' threading server has one socket.
        sockets = server.sockets if hasattr(server, "sockets") else [server.socket]
        return f"ws://127.0.0.1:{next(iter(sockets)).getsockname()[1]}/", server

    def client_of(self, receives: str = "await", **more: Any) -> Client:
        """Returns all that such a library can do."""
        closed = dict.fromkeys(("recv", "send"), f"{self.exceptions}:ConnectionClosed")
        able = {"deflate": self.deflate, "closed": closed, "serve": self.serve, "loads": (self.client,)}
        return Client(self.connect, receives, **{**able, **more})
