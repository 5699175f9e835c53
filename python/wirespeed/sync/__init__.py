"""The blocking API: for programs and threads that wait."""

from .basic_auth import basic_auth
from .client import connect, unix_connect
from .connection import ClientConnection, Ping
from .router import Router, route, unix_route
from .serve import serve, unix_serve
from .server import Server, ServerConnection

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
