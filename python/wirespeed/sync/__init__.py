"""The blocking API: for programs and threads that wait."""

from ._basic_auth import basic_auth
from ._client import connect, unix_connect
from ._connection import ClientConnection, Ping
from ._router import Router, route, unix_route
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
