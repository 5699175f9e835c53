"""Requests and responses of the opening handshake, and the default values of User-Agent and Server."""

from __future__ import annotations

import os
from typing import Any

from ... import _version as version
from ...datastructures import Request as _Request
from ...datastructures import Response as _Response
from ._installed import Names

_names = Names(
    "http11",
    {
        "SERVER": os.environ.get("WEBSOCKETS_SERVER", version.SERVER),
        "USER_AGENT": os.environ.get("WEBSOCKETS_USER_AGENT", version.USER_AGENT),
        "Request": _Request,
        "Response": _Response,
    },
)
__all__ = _names.public


def __getattr__(name: str) -> Any:
    return _names.get(name)


def __dir__() -> list[str]:
    return sorted(__all__)
