"""Routing for the asyncio server, with the rules of werkzeug."""

from __future__ import annotations

from typing import Any

from ....asyncio._request_hooks import Router as _Router
from .._installed import private
from .._server import routing
from .server import serve

__all__ = ["route", "unix_route", "Router"]


class Router(_Router):
    """Selects the handler of a connection for :func:`route`. Subclasses may override methods."""


route, unix_route = routing(Router, serve)


def __getattr__(name: str) -> Any:
    return private("asyncio.router", name)
