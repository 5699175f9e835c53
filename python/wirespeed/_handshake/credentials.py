"""HTTP Basic authentication on a server: RFC 7617. It knows neither threads nor event loops."""

from __future__ import annotations

import base64
import hmac
import inspect
from collections.abc import Callable, Iterable
from typing import Any

from ..datastructures import Headers, Response
from .responses import plain_response

__all__ = ["answered", "check_arguments", "parse_authorization", "refuse_coroutine_function", "unauthorized"]


def check_arguments(
    realm: str,
    credentials: tuple[str, str] | Iterable[tuple[str, str]] | None,
    check_credentials: Callable[[str, str], Any] | None,
) -> Callable[[str, str], Any]:
    """Return the function that checks credentials, whichever argument says how.

    Args:
        realm: As for ``basic_auth``.
        credentials: As for ``basic_auth``.
        check_credentials: As for ``basic_auth``.

    Raises:
        TypeError: An argument has a wrong type.
        ValueError: Both were given, or none, or a username contains a colon.
    """
    if not isinstance(realm, str):
        raise TypeError(f"realm must be a str, not {type(realm).__name__}")
    Headers({"WWW-Authenticate": _challenge(realm)})  # raises for what cannot be sent
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
        # Not what was passed: it may be a password.
        raise TypeError("credentials must be a pair of username and password, or a list of such pairs")
    # RFC 7617, section 2: the first colon ends the username, so this one would never be recognised.
    if any(":" in username for username, _ in pairs):
        raise ValueError("credentials: a username must not contain a colon")
    known = {str(username): str(password).encode(errors="surrogateescape") for username, password in pairs}

    def check(username: str, password: str) -> bool:
        # As much work for a username that does not exist.
        expected = known.get(username, b"")
        same = hmac.compare_digest(expected, password.encode(errors="surrogateescape"))
        return same and username in known

    return check


def refuse_coroutine_function(check: Callable[[str, str], Any]) -> None:
    """Raise if a function that checks credentials answers on an event loop only.

    Args:
        check: The function.

    Raises:
        TypeError: It is a coroutine function, or an object that is called as one.
    """
    if any(map(inspect.iscoroutinefunction, (check, type(check).__call__))):
        raise TypeError(
            "check_credentials must not be a coroutine function; those are for wirespeed.basic_auth, on an event loop"
        )


def answered(valid: Any) -> bool:
    """Return what a function that checks credentials has found.

    Args:
        valid: What it has returned.

    Raises:
        TypeError: That is no answer yet.
    """
    # Whatever it will say, the object that will say so is true, and would let everybody in.
    if inspect.isawaitable(valid) or inspect.isgenerator(valid) or inspect.isasyncgen(valid):
        if inspect.iscoroutine(valid) or inspect.isgenerator(valid):
            valid.close()  # it is refused for its type: no second word about it
        raise TypeError(f"check_credentials must return whether they are right, not {type(valid).__name__}")
    return bool(valid)


def _is_pair(value: Any) -> bool:
    return isinstance(value, tuple) and len(value) == 2 and all(isinstance(item, str) for item in value)


def parse_authorization(headers: Headers) -> tuple[str, str] | str:
    """Return username and password of a request, or what to tell the client if there are none.

    Args:
        headers: Those of the request.
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
        # Not in Base64, not in UTF-8, or not in ASCII even before it is decoded.
        return "Unsupported credentials\n"
    # RFC 7617, section 2: a password may contain colons, a username may not.
    username, colon, password = decoded.partition(":")
    return (username, password) if colon else "Unsupported credentials\n"


def unauthorized(realm: str, text: str) -> Response:
    """Return a response that asks for credentials.

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
