"""HTTP Basic authentication for the blocking server."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from .._handshake.credentials import (
    check_arguments,
    checked_result,
    parse_authorization,
    refuse_coroutine_function,
    unauthorized,
)
from ..datastructures import Request, Response

__all__ = ["basic_auth"]


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
