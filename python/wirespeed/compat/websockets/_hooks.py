"""Wraps the hooks of applications, so that they receive objects of the installed package.

Hooks may return responses and raise exceptions of either package; the server knows only those of this package.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from ... import exceptions
from ...datastructures import Headers
from . import _heads as heads
from . import exceptions as theirs
from ._lines import note_application

__all__ = ["process_request", "process_response", "select_subprotocol"]


def _response(value: Any) -> Any:
    return heads.response(value) if hasattr(value, "status_code") and hasattr(value, "headers") else value


async def _await_then(value: Awaitable[Any], then: Callable[[Any], Any]) -> Any:
    return then(await value)


def _result(value: Any, then: Callable[[Any], Any]) -> Any:
    return _await_then(value, then) if isinstance(value, Awaitable) else then(value)


def process_request(function: Callable[..., Any] | None) -> Callable[..., Any] | None:
    """Wrap a ``process_request``.

    Args:
        function: The argument of the user.
    """
    if function is None:
        return None

    def wrapped(connection: Any, request: Any) -> Any:
        shown = connection.request
        before = list(shown.headers.raw_items())

        def done(response: Any) -> Any:
            if list(shown.headers.raw_items()) != before:
                # Keep this object, so that the handler sees the changes too.
                connection._changed_request = shown
                request.headers = Headers.from_raw(shown.headers.raw_items())
            note_application(connection, response)
            return _response(response)

        return _result(function(connection, shown), done)

    return wrapped


def process_response(function: Callable[..., Any] | None) -> Callable[..., Any] | None:
    """Wrap a ``process_response``, which may change the response that it receives.

    Args:
        function: The argument of the user.
    """
    if function is None:
        return None

    def wrapped(connection: Any, request: Any, response: Any) -> Any:
        shown = heads.response(response)
        result = function(connection, connection.request, shown)
        return _result(result, lambda response: shown if response is None else _response(response))

    return wrapped


def select_subprotocol(
    function: Callable[..., Any] | None, subprotocols: Sequence[str] | None
) -> Callable[..., Any] | None:
    """Wrap a ``select_subprotocol``. Without one, clients that offer no supported subprotocol are refused.

    Args:
        function: The argument of the user.
        subprotocols: The supported subprotocols.
    """
    if function is None:
        return _select(list(subprotocols)) if subprotocols else None

    def wrapped(connection: Any, offered: Any) -> Any:
        try:
            return function(connection, offered)
        except theirs.NegotiationError as exc:
            if isinstance(exc, exceptions.NegotiationError):
                raise
            raise exceptions.NegotiationError(*exc.args) from exc

    return wrapped


def _select(supported: Sequence[str]) -> Callable[..., str]:
    def select(_connection: Any, offered: Any) -> str:
        if not offered:
            raise exceptions.NegotiationError("missing subprotocol")
        for name in supported:
            if name in offered:
                return name
        raise exceptions.NegotiationError(f"invalid subprotocol; expected one of {', '.join(supported)}")

    return select
