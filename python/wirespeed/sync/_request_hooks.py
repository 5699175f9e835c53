"""Functions for ``process_request`` of the blocking server: routing by path, and HTTP Basic authentication."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Literal

from .._lazy import ssl as ssl_module
from .._server.credentials import (
    check_arguments,
    checked_result,
    parse_authorization,
    refuse_coroutine_function,
    unauthorized,
)
from .._server.routing import RouterBase
from ..datastructures import Request, Response
from ..tls import TLS
from ..typing import PathLike
from ._serve import serve, unix_serve
from ._server import Server

__all__ = ["Router", "basic_auth", "route", "unix_route"]


class Router(RouterBase):
    """Selects handlers for :func:`route`."""


def route(
    url_map: Any,
    *args: Any,
    server_name: str | None = None,
    ssl: TLS | ssl_module.SSLContext | Literal[True] | None = None,
    create_router: type[Router] | None = None,
    **kwargs: Any,
) -> Server:
    """Serve WebSocket connections with a handler for each path. Needs ``wirespeed[routing]``.

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
    check_credentials: Callable[[str, str], bool] | None = None,
) -> Callable[[Any, Request], Response | None]:
    """Return a ``process_request`` for :func:`serve` that requires HTTP Basic authentication (RFC 7617).

    Clients with valid credentials are accepted, and their connection has a ``username``; others get status 401. Give
    either ``credentials`` or ``check_credentials``.

    Args:
        realm: Name of the protected area, which browsers show.
        credentials: Username and password, or a list of such pairs.
        check_credentials: Function that receives both and returns whether they are valid; not a coroutine function.

    Raises:
        TypeError: An argument has a wrong type.
        ValueError: Both ``credentials`` and ``check_credentials`` are given, or neither; or a username contains a
            colon.
    """
    check = check_arguments(realm, credentials, check_credentials)
    refuse_coroutine_function(check)

    def process_request(connection: Any, request: Request) -> Response | None:
        parsed = parse_authorization(request.headers)
        if isinstance(parsed, str):
            return unauthorized(realm, parsed)
        if not checked_result(check(*parsed)):
            return unauthorized(realm, "Invalid credentials\n")
        connection.username = parsed[0]
        return None

    return process_request
