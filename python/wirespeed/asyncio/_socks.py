"""SOCKS proxies on an event loop, using the optional dependency ``python-socks``."""

from __future__ import annotations

import asyncio
import socket
from typing import Any, cast

from .._net.proxy import Proxy, socks_error, socks_missing, socks_type
from ._sockets import receive, send_all

__all__ = ["connect_socks"]


# For python-socks, None means 60 seconds. The caller has its own timeout.
_FOREVER = 365 * 86400.0


class _Loop:
    """The methods of an event loop that ``python-socks`` calls."""

    def __init__(self) -> None:
        self.getaddrinfo = asyncio.get_running_loop().getaddrinfo
        self.sock_recv = receive
        self.sock_sendall = send_all


async def connect_socks(sock: socket.socket, proxy: Proxy, host: str, port: int) -> None:
    """Ask a SOCKS proxy for a connection to a server.

    Args:
        sock: Non-blocking socket connected to the proxy. It may be closed if the proxy does not open the connection.
        proxy: The proxy.
        host: Host name or address of the server.
        port: Port of the server.

    Raises:
        ImportError: ``python-socks`` is not installed.
        ProxyError: The proxy refused, or did not speak SOCKS.
        OSError: The connection to the proxy broke, or the name of the server could not be resolved.
    """
    kind = socks_type(proxy)
    try:
        from python_socks.async_.asyncio import Proxy as SocksProxy
    except ImportError as exc:
        raise socks_missing() from exc

    class ConnectedSocket(SocksProxy):
        async def connect(
            self, dest_host: str, dest_port: int, timeout: float | None = None, **kwargs: Any
        ) -> socket.socket:
            return sock

    loop = cast("asyncio.AbstractEventLoop", _Loop())
    address = proxy.host, proxy.port
    # python-socks negotiates on the connection of a forwarding proxy: this one returns the existing connection.
    forward = ConnectedSocket(kind, *address, loop=loop)
    socks = SocksProxy(kind, *address, proxy.username, proxy.password, proxy.remote_dns, forward=forward, loop=loop)
    try:
        await socks.connect(host, port, timeout=_FOREVER)
    except OSError:
        raise
    except Exception as exc:
        raise socks_error(proxy, host, port, exc) from exc
