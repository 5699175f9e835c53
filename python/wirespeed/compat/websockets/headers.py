"""Parsers and builders of headers. Without the installed package, only those for HTTP Basic authentication exist."""

from __future__ import annotations

import base64
from typing import Any

from ..._server.credentials import parse_authorization, unauthorized
from ...datastructures import Headers
from ...exceptions import InvalidHeaderValue
from ._installed import Names


def _build_www_authenticate_basic(realm: str) -> str:
    return unauthorized(realm, "").headers["WWW-Authenticate"]


def _parse_authorization_basic(header: str) -> tuple[str, str]:
    parsed = parse_authorization(Headers({"Authorization": header}))
    if isinstance(parsed, str):
        raise InvalidHeaderValue("Authorization", parsed.strip())
    return parsed


def _build_authorization_basic(username: str, password: str) -> str:
    if ":" in username:
        raise ValueError("username cannot contain a colon")
    return "Basic " + base64.b64encode(f"{username}:{password}".encode()).decode()


_names = Names(
    "headers",
    {
        "build_www_authenticate_basic": _build_www_authenticate_basic,
        "parse_authorization_basic": _parse_authorization_basic,
        "build_authorization_basic": _build_authorization_basic,
    },
)
__all__ = _names.public


def __getattr__(name: str) -> Any:
    return _names.get(name)


def __dir__() -> list[str]:
    return sorted(__all__)
