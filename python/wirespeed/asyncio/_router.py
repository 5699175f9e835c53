"""Routing for the asyncio server: a handler for each path."""

from __future__ import annotations

import inspect
import ssl as ssl_module
from collections.abc import Callable
from typing import Any, Literal

from .._server.routing import RouterBase
from ..datastructures import Request, Response
from ..tls import TLS
from ..typing import PathLike
from ._serve import serve, unix_serve
from ._server import Server, ServerConnection

__all__ = ["Router", "route", "unix_route"]


class Router(RouterBase):
    """Selects handlers for :func:`route`."""

    async def handler(self, connection: ServerConnection) -> None:
        """Run the selected handler.

        Args:
            connection: The connection.
        """
        await super().handler(connection)

    def _after(self, first: Callable[..., Any]) -> Callable[..., Any]:
        async def process_request(connection: ServerConnection, request: Request) -> Response | None:
            response = first(connection, request)
            if inspect.isawaitable(response):
                response = await response
            return self.route_request(connection, request) if response is None else response

        return process_request


def route(
    url_map: Any,
    *args: Any,
    server_name: str | None = None,
    ssl: TLS | ssl_module.SSLContext | Literal[True] | None = None,
    create_router: type[Router] | None = None,
    **kwargs: Any,
) -> Server:
    """Serve WebSocket connections with a handler for each path. Needs ``wirespeed[routing]``.

    Handlers receive the connection, and the values captured by the rule as keyword arguments::

        from werkzeug.routing import Map, Rule

        url_map = Map([Rule("/channel/<uuid:channel_id>", endpoint=channel_handler)])
        async with route(url_map, "localhost", 8765) as server:
            await server.serve_forever()

    Args:
        url_map: ``werkzeug.routing.Map`` whose endpoints are handlers.
        *args: Host and port, as for :func:`serve`.
        server_name: Name of the server as clients see it, for redirects; ``None`` for the Host header.
        ssl: As for :func:`serve`; ``True`` if a reverse proxy terminates TLS, so that redirects use ``wss://``.
        create_router: Subclass of :class:`Router` to create.
        **kwargs: Other keyword arguments of :func:`serve`. A ``process_request`` is called before a handler is
            selected.

    Raises:
        ImportError: werkzeug is not installed.
    """
    handler, kwargs = (create_router or Router).arrange(url_map, server_name, ssl, kwargs)
    return serve(handler, *args, **kwargs)


def unix_route(
    url_map: Any,
    path: PathLike | None = None,
    *,
    server_name: str | None = None,
    ssl: TLS | ssl_module.SSLContext | Literal[True] | None = None,
    create_router: type[Router] | None = None,
    **kwargs: Any,
) -> Server:
    """Serve WebSocket connections on a Unix socket, with a handler for each path: see :func:`route`.

    Args:
        url_map: As for :func:`route`.
        path: As for :func:`unix_serve`.
        server_name: As for :func:`route`.
        ssl: As for :func:`route`.
        create_router: As for :func:`route`.
        **kwargs: Other keyword arguments of :func:`unix_serve`.

    Raises:
        ImportError: werkzeug is not installed.
    """
    handler, kwargs = (create_router or Router).arrange(url_map, server_name, ssl, kwargs)
    return unix_serve(handler, path, **kwargs)
