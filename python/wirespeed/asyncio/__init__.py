"""The asyncio API: for tasks and callbacks on an event loop. Its names are those of the package itself."""

from .basic_auth import basic_auth
from .broadcasting import broadcast
from .client import connect, unix_connect
from .connection import ClientConnection, Connection
from .listener import Listener
from .reconnect import ConnectAttempt, process_exception
from .router import Router, route, unix_route
from .serve import serve, unix_serve
from .server import Server, ServerConnection
from .stream import StreamReader, StreamWriter, open_stream

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
