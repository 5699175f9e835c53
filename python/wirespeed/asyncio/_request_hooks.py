"""Functions for ``process_request`` of the asyncio server: routing by path, and HTTP Basic authentication."""

from __future__ import annotations

import inspect
import ssl as ssl_module
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Literal

from .._server.credentials import check_arguments, checked_result, parse_authorization, unauthorized
from .._server.routing import RouterBase
from ..datastructures import Request, Response
from ..tls import TLS
from ..typing import PathLike
from ._serve import serve, unix_serve
from ._server import Server, ServerConnection

__all__ = ["Router", "basic_auth", "route", "unix_route"]


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


def basic_auth(
    realm: str = "",
    credentials: tuple[str, str] | Iterable[tuple[str, str]] | None = None,
    check_credentials: Callable[[str, str], Awaitable[bool] | bool] | None = None,
) -> Callable[[ServerConnection, Request], Awaitable[Response | None]]:
    """Return a ``process_request`` for :func:`serve` that requires HTTP Basic authentication (RFC 7617).

    Clients with valid credentials are accepted, and their connection has a ``username``; others get status 401. Give
    either ``credentials`` or ``check_credentials``::

        serve(handler, "localhost", 8765, process_request=basic_auth("staff", credentials=("hello", "iloveyou")))

    Args:
        realm: Name of the protected area, which browsers show.
        credentials: Username and password, or a list of such pairs.
        check_credentials: Function or coroutine function that receives both and returns whether they are valid.

    Raises:
        TypeError: An argument has a wrong type.
        ValueError: Both ``credentials`` and ``check_credentials`` are given, or neither; or a username contains a
            colon.
    """
    check = check_arguments(realm, credentials, check_credentials)

    async def process_request(connection: ServerConnection, request: Request) -> Response | None:
        parsed = parse_authorization(request.headers)
        if isinstance(parsed, str):
            return unauthorized(realm, parsed)
        valid = check(*parsed)
        if inspect.isawaitable(valid):
            valid = await valid
        if not checked_result(valid):
            return unauthorized(realm, "Invalid credentials\n")
        connection.username = parsed[0]
        return None

    return process_request
