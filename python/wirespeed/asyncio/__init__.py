"""The asyncio API: for tasks and callbacks on an event loop. Its names are those of the package itself."""

from .client import connect, unix_connect
from .connection import ClientConnection, Connection
from .listener import Listener
from .reconnect import ConnectAttempt, process_exception
from .stream import StreamReader, StreamWriter, open_stream

__all__ = [
    "ClientConnection",
    "ConnectAttempt",
    "Connection",
    "Listener",
    "StreamReader",
    "StreamWriter",
    "connect",
    "open_stream",
    "process_exception",
    "unix_connect",
]
