"""HTTP Basic authentication of servers (RFC 7617), for both APIs."""

from __future__ import annotations

import base64
import hmac
import inspect
from collections.abc import Callable, Iterable
from typing import Any

from ..datastructures import Headers, Response
from .responses import plain_response

__all__ = ["checked_result", "check_arguments", "parse_authorization", "refuse_coroutine_function", "unauthorized"]


def check_arguments(
    realm: str,
    credentials: tuple[str, str] | Iterable[tuple[str, str]] | None,
    check_credentials: Callable[[str, str], Any] | None,
) -> Callable[[str, str], Any]:
    """Check the arguments of ``basic_auth``; return the function that checks credentials.

    Args:
        realm: As for ``basic_auth``.
        credentials: As for ``basic_auth``.
        check_credentials: As for ``basic_auth``.

    Raises:
        TypeError: An argument has a wrong type.
        ValueError: Both are given, or neither, or a username contains a colon.
    """
    if not isinstance(realm, str):
        raise TypeError(f"realm must be a str, not {type(realm).__name__}")
    Headers({"WWW-Authenticate": _challenge(realm)})  # raises if the realm is not allowed in a header
    if (credentials is None) == (check_credentials is None):
        raise ValueError("provide either credentials or check_credentials")
    if check_credentials is not None:
        if not callable(check_credentials):
            raise TypeError(f"check_credentials must be callable, not {type(check_credentials).__name__}")
        return check_credentials
    pairs: list[Any] = [credentials]
    if not _is_pair(credentials):
        pairs = list(credentials) if isinstance(credentials, Iterable) else []
    if not pairs or not all(map(_is_pair, pairs)):
        # The message does not quote the argument, which may be a password.
        raise TypeError("credentials must be a pair of username and password, or a list of such pairs")
    # RFC 7617, section 2: the first colon ends the username, so a username with a colon would never match.
    if any(":" in username for username, _ in pairs):
        raise ValueError("credentials: a username must not contain a colon")
    known = {str(username): str(password).encode(errors="surrogateescape") for username, password in pairs}

    def check(username: str, password: str) -> bool:
        # Unknown usernames take the same time.
        expected = known.get(username, b"")
        same = hmac.compare_digest(expected, password.encode(errors="surrogateescape"))
        return same and username in known

    return check


def refuse_coroutine_function(check: Callable[[str, str], Any]) -> None:
    """Raise if a function that checks credentials is a coroutine function.

    Args:
        check: The function.

    Raises:
        TypeError: It is a coroutine function, or an object with such a ``__call__``.
    """
    if any(map(inspect.iscoroutinefunction, (check, type(check).__call__))):
        raise TypeError(
            "check_credentials must not be a coroutine function; those are for wirespeed.basic_auth, on an event loop"
        )


def checked_result(valid: Any) -> bool:
    """Return the result of a function that checks credentials, as a bool.

    Args:
        valid: The value that it returned.

    Raises:
        TypeError: The value is an awaitable or a generator.
    """
    # Such an object is always true, even if its result is false, and would accept every client.
    if inspect.isawaitable(valid) or inspect.isgenerator(valid) or inspect.isasyncgen(valid):
        if inspect.iscoroutine(valid) or inspect.isgenerator(valid):
            valid.close()  # avoids the warning about a coroutine that was never awaited
        raise TypeError(f"check_credentials must return whether they are right, not {type(valid).__name__}")
    return bool(valid)


def _is_pair(value: Any) -> bool:
    return isinstance(value, tuple) and len(value) == 2 and all(isinstance(item, str) for item in value)


def parse_authorization(headers: Headers) -> tuple[str, str] | str:
    """Return username and password of a request, or the body of the response if there are none.

    Args:
        headers: Headers of the request.
    """
    values = headers.get_all("Authorization")
    if not values:
        return "Missing credentials\n"
    scheme, _, encoded = values[0].partition(" ")
    if len(values) > 1 or scheme.lower() != "basic":
        return "Unsupported credentials\n"
    try:
        decoded = base64.b64decode(encoded.strip(), validate=True).decode()
    except ValueError:
        # Not Base64, not ASCII, or not UTF-8 after decoding.
        return "Unsupported credentials\n"
    # RFC 7617, section 2: a password may contain colons, a username may not.
    username, colon, password = decoded.partition(":")
    return (username, password) if colon else "Unsupported credentials\n"


def unauthorized(realm: str, text: str) -> Response:
    """Return a response that requests credentials.

    Args:
        realm: As for ``basic_auth``.
        text: Body.
    """
    response = plain_response(401, text)
    response.headers["WWW-Authenticate"] = _challenge(realm)
    return response


def _challenge(realm: str) -> str:
    # RFC 9110, section 5.6.4.
    quoted = realm.replace("\\", "\\\\").replace('"', '\\"')
    return f'Basic realm="{quoted}", charset="UTF-8"'
