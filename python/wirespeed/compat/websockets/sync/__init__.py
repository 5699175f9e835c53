"""The blocking API of websockets."""

__all__ = ["client", "connection", "router", "server"]

from . import client, connection, router, server
