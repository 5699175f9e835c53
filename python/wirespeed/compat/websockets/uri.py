"""WebSocket URIs."""

from __future__ import annotations

from typing import Any

from ..._net import uri as _uri
from ._installed import Names

_names = Names("uri", {name: getattr(_uri, name) for name in ("parse_uri", "WebSocketURI")})
__all__ = _names.public


def __getattr__(name: str) -> Any:
    return _names.get(name)


def __dir__() -> list[str]:
    return sorted(__all__)
