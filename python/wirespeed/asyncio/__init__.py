"""The asyncio API: connections and servers for tasks and callbacks on an event loop.

The package :mod:`wirespeed` itself exports the same names.
"""

import typing as _typing

from .._lazy import lazy as _lazy

if _typing.TYPE_CHECKING:
    from ._broadcasting import broadcast
    from ._client import connect, unix_connect
    from ._connection import ClientConnection, Connection, Listener
    from ._reconnect import ConnectAttempt, process_exception
    from ._request_hooks import Router, basic_auth, route, unix_route
    from ._serve import serve, unix_serve
    from ._server import Server, ServerConnection
    from ._stream import StreamReader, StreamWriter, open_stream

__all__ = [
    "ClientConnection",
    "ConnectAttempt",
    "Connection",
    "Listener",
    "Router",
    "Server",
    "ServerConnection",
    "StreamReader",
    "StreamWriter",
    "basic_auth",
    "broadcast",
    "connect",
    "open_stream",
    "process_exception",
    "route",
    "serve",
    "unix_connect",
    "unix_route",
    "unix_serve",
]

_SOURCES = {
    "._broadcasting": ("broadcast",),
    "._client": ("connect", "unix_connect"),
    "._connection": ("ClientConnection", "Connection", "Listener"),
    "._reconnect": ("ConnectAttempt", "process_exception"),
    "._request_hooks": ("Router", "basic_auth", "route", "unix_route"),
    "._serve": ("serve", "unix_serve"),
    "._server": ("Server", "ServerConnection"),
    "._stream": ("StreamReader", "StreamWriter", "open_stream"),
}

if not _typing.TYPE_CHECKING:
    __getattr__, __dir__ = _lazy(__name__, _SOURCES)
