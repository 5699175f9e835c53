"""HTTP Basic authentication for the asyncio server."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable

from .._handshake.credentials import check_arguments, checked_result, parse_authorization, unauthorized
from ..datastructures import Request, Response
from ._server import ServerConnection

__all__ = ["basic_auth"]


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
