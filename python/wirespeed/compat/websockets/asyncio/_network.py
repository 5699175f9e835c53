"""Converts the keyword arguments for ``loop.create_connection`` to the network arguments of this package."""

from __future__ import annotations

import socket
from typing import Any

from ...._net.proxy import get_proxy
from ....asyncio._opening import dial
from .._settings import reject

__all__ = ["check_limits", "client_network"]

# Arguments with the same names in both packages.
_PASSED = (
    "sock",
    "ssl",
    "server_hostname",
    "host",
    "port",
    "local_addr",
    "family",
    "happy_eyeballs_delay",
    "proxy_ssl",
    "proxy_server_hostname",
)


def check_limits(kwargs: dict[str, Any], prefix: str = "") -> None:
    """Check and remove the TLS timeouts, because ``open_timeout`` and ``close_timeout`` include TLS.

    Args:
        kwargs: Keyword arguments, which are changed.
        prefix: Prefix of the names.
    """
    for name in ("ssl_handshake_timeout", "ssl_shutdown_timeout"):
        limit = kwargs.pop(prefix + name, None)
        if limit is not None and limit <= 0:
            raise ValueError(f"{prefix + name} should be a positive number, got {limit}")


async def client_network(uri: Any, proxy: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return the options that tell how to reach the server.

    Args:
        uri: The parts of the URI.
        proxy: The argument of ``connect``.
        kwargs: Its keyword arguments for ``loop.create_connection``.

    Raises:
        NotImplementedError: An argument is not supported.
        TypeError, ValueError: An argument is wrong.
    """
    kwargs = dict(kwargs)
    unix, path = kwargs.pop("unix", False), kwargs.pop("path", None)
    for prefix in ("", "proxy_"):
        check_limits(kwargs, prefix)
    if uri.secure and "ssl" in kwargs and kwargs["ssl"] is None:
        raise ValueError("ssl=None is incompatible with a wss:// URI")
    if not uri.secure and kwargs.get("server_hostname") is not None:
        through = None if unix or kwargs.get("sock") is not None else get_proxy(uri, proxy)
        # In websockets, loop.create_connection checks this; it is not called with an HTTP proxy.
        if through is None or through.is_socks:
            raise ValueError("server_hostname is only meaningful with ssl")
    named = isinstance(proxy, str) and proxy.lower().startswith("https://")
    if named and "proxy_ssl" in kwargs and kwargs["proxy_ssl"] is None:
        raise ValueError("proxy_ssl=None is incompatible with an https:// proxy")
    if kwargs.pop("all_errors", False):
        raise NotImplementedError("wirespeed raises one exception for all addresses, which names them; no all_errors")
    resolving: dict[str, Any] = {name: kwargs.pop(name) for name in ("proto", "flags", "interleave") if name in kwargs}
    network = {name: kwargs.pop(name) for name in _PASSED if name in kwargs}
    reject(kwargs, "connect")
    if isinstance(network.get("port"), str):
        network["port"] = int(network["port"])
    if network.get("family") is None:
        network.pop("family", None)
    # Accept any object with two items, like socket.bind.
    if network.get("local_addr") is not None:
        network["local_addr"] = tuple(network["local_addr"][:2])
    if unix:
        for name in ("host", "port", "local_addr", "family", "happy_eyeballs_delay"):
            if network.pop(name, None):
                raise TypeError(f"unix_connect() got an unexpected keyword argument {name!r}")
        return {"unix": True, "path": path, **network}
    if network.get("sock") is not None:
        if network.get("host") is not None or network.get("port") is not None:
            raise ValueError("host/port and sock can not be specified at the same time")
        return network
    if any(value not in (None, 0) for value in resolving.values()):
        if proxy not in (None, True):
            raise NotImplementedError("wirespeed has no proto, flags and interleave with a proxy")
        network["sock"] = await _dial(uri, network, resolving)
        return network
    return {"proxy": proxy, **network}


async def _dial(uri: Any, network: dict[str, Any], resolving: dict[str, Any]) -> socket.socket:
    named: dict[str, Any] = {
        name: network.pop(name) for name in ("local_addr", "family", "happy_eyeballs_delay") if name in network
    }
    host, port = network.pop("host", None) or uri.host, network.pop("port", None) or uri.port
    named |= {name: value or 0 for name, value in resolving.items()}
    return await dial(host, port, **named)
