"""What servers of both APIs convert: hooks of applications, credentials, and log lines.

Hooks may return responses and raise exceptions of either package; the server knows only those of this package.
"""

from __future__ import annotations

import logging
import ssl as ssl_module
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Literal, TypeVar

from ... import exceptions
from ..._server.routing import RouterBase
from ...datastructures import Headers
from ...typing import PathLike
from . import _heads as heads
from . import exceptions as theirs

__all__ = [
    "Logged",
    "log_closed",
    "note_application",
    "pairs",
    "process_request",
    "process_response",
    "routing",
    "select_subprotocol",
]

S = TypeVar("S")


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


def pairs(credentials: Any) -> Any:
    """Return credentials with tuples as pairs, from any objects with two items.

    Args:
        credentials: The argument of the user.
    """
    if credentials is None or isinstance(credentials, str):
        return credentials
    try:
        items = list(credentials)
    except TypeError:
        return credentials
    if len(items) == 2 and all(isinstance(item, str) for item in items):
        return tuple(items)
    return [tuple(item) if isinstance(item, (list, tuple)) else item for item in items]


class Logged:
    """Base class of server connections, before the native class: logs the response to the request.

    The connection is the ``websocket`` attribute of the log record.
    """

    logger: Any
    response: Any
    _by_application = False

    def _send_answer(self, answer: Any) -> Any:
        error = super()._send_answer(answer)  # type: ignore[misc]
        if self.logger.isEnabledFor(logging.INFO):
            response = self.response
            if response.status_code == 101:
                self.logger.info("connection open")
            else:
                line = "HTTP response sent (%d %s)" if self._by_application else "connection rejected (%d %s)"
                self.logger.info(line, response.status_code, response.reason_phrase)
        return error


def note_application(connection: Any, response: Any) -> None:
    """Note that the application has answered a request, if it has.

    Args:
        connection: The connection.
        response: The value that ``process_request`` returned.
    """
    if response is not None:
        connection._by_application = True


def log_closed(connection: Any) -> None:
    """Log that a connection is closed.

    Args:
        connection: The connection.
    """
    connection.logger.info("connection closed")


def routing(router: type[RouterBase], serve: Callable[..., S]) -> tuple[Callable[..., S], Callable[..., S]]:
    """Return the functions ``route`` and ``unix_route`` of an API.

    Args:
        router: Its class ``Router``, in whose module the functions are.
        serve: Its function ``serve``.
    """

    def route(
        url_map: Any,
        *args: Any,
        server_name: str | None = None,
        ssl: ssl_module.SSLContext | Literal[True] | None = None,
        create_router: type[RouterBase] | None = None,
        **kwargs: Any,
    ) -> S:
        """Serve connections with a handler for each path. Needs werkzeug.

        Args:
            url_map: ``werkzeug.routing.Map`` whose endpoints are handlers.
            *args: As for :func:`serve`.
            server_name: Name of the server as clients see it; by default the name in the Host header.
            ssl: As for :func:`serve`; ``True`` if a reverse proxy terminates TLS.
            create_router: Subclass of :class:`Router` to create.
            **kwargs: As for :func:`serve`.
        """
        handler, kwargs = (create_router or router).arrange(url_map, server_name, ssl, kwargs)
        return serve(handler, *args, **kwargs)

    def unix_route(url_map: Any, path: PathLike | None = None, **kwargs: Any) -> S:
        """Serve connections on a Unix socket with a handler for each path: see :func:`route`.

        Args:
            url_map: As for :func:`route`.
            path: Path of the socket.
            **kwargs: As for :func:`route`.
        """
        return route(url_map, unix=True, path=path, **kwargs)

    for function in (route, unix_route):
        function.__module__, function.__qualname__ = router.__module__, function.__name__
    return route, unix_route
