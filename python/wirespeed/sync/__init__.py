"""The blocking API: for programs and threads that wait."""

from .client import connect, unix_connect
from .connection import ClientConnection, Ping

__all__ = ["ClientConnection", "Ping", "connect", "unix_connect"]
