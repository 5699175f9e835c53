"""The blocking API: connections and servers for programs and threads that wait."""

import typing as _typing

from .._lazy import lazy as _lazy

if _typing.TYPE_CHECKING:
    from ._client import connect, unix_connect
    from ._connection import ClientConnection, Ping
    from ._request_hooks import Router, basic_auth, route, unix_route
    from ._serve import serve, unix_serve
    from ._server import Server, ServerConnection

__all__ = [
    "ClientConnection",
    "Ping",
    "Router",
    "Server",
    "ServerConnection",
    "basic_auth",
    "connect",
    "route",
    "serve",
    "unix_connect",
    "unix_route",
    "unix_serve",
]

_SOURCES = {
    "._client": ("connect", "unix_connect"),
    "._connection": ("ClientConnection", "Ping"),
    "._request_hooks": ("Router", "basic_auth", "route", "unix_route"),
    "._serve": ("serve", "unix_serve"),
    "._server": ("Server", "ServerConnection"),
}

if not _typing.TYPE_CHECKING:
    __getattr__, __dir__ = _lazy(__name__, _SOURCES)
