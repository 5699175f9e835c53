"""Routing for the asyncio server, with the rules of werkzeug."""

from __future__ import annotations

import ssl as ssl_module
from typing import Any, Literal

from ....asyncio._request_hooks import Router as _Router
from ....typing import PathLike
from .._installed import private
from .server import Server, serve

__all__ = ["route", "unix_route", "Router"]


class Router(_Router):
    """Selects the handler of a connection for :func:`route`. Subclasses may override methods."""


def route(
    url_map: Any,
    *args: Any,
    server_name: str | None = None,
    ssl: ssl_module.SSLContext | Literal[True] | None = None,
    create_router: type[Router] | None = None,
    **kwargs: Any,
) -> Server:
    """Serve connections with a handler for each path. Needs werkzeug.

    Args:
        url_map: ``werkzeug.routing.Map`` whose endpoints are handlers.
        *args: As for :func:`serve`.
        server_name: Name of the server as clients see it; by default the name in the Host header.
        ssl: As for :func:`serve`; ``True`` if a reverse proxy terminates TLS.
        create_router: Subclass of :class:`Router` to create.
        **kwargs: As for :func:`serve`.
    """
    handler, kwargs = (create_router or Router).arrange(url_map, server_name, ssl, kwargs)
    return serve(handler, *args, **kwargs)


def unix_route(url_map: Any, path: PathLike | None = None, **kwargs: Any) -> Server:
    """Serve connections on a Unix socket with a handler for each path: see :func:`route`.

    Args:
        url_map: As for :func:`route`.
        path: Path of the socket.
        **kwargs: As for :func:`route`.
    """
    return route(url_map, unix=True, path=path, **kwargs)


def __getattr__(name: str) -> Any:
    return private("asyncio.router", name)
