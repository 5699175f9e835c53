"""Selects the handler for the path of a request, with a map of werkzeug. Used by both APIs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from ..datastructures import MultipleValuesError, Request, Response
from .responses import plain_response

# A werkzeug.routing.Map. Type checkers of this package do not need werkzeug.
Map: TypeAlias = Any

__all__ = ["RouterBase"]


class RouterBase:
    """Base class of the routers that :func:`route` creates.

    Args:
        url_map: A ``werkzeug.routing.Map`` whose endpoints are handlers.
        server_name: Name of the server as clients see it; ``None`` to use the Host header.
        url_scheme: Scheme of the URIs in redirects.

    Raises:
        ImportError: werkzeug is not installed.
    """

    def __init__(self, url_map: Map, server_name: str | None = None, url_scheme: str = "ws") -> None:
        try:
            from werkzeug.routing import Map as WerkzeugMap
        except ImportError as exc:
            raise ImportError("route() needs werkzeug: install wirespeed[routing]") from exc
        if not isinstance(url_map, WerkzeugMap):
            raise TypeError(f"url_map must be a werkzeug.routing.Map, not {type(url_map).__name__}")
        self.url_map = url_map
        self.server_name = server_name
        self.url_scheme = url_scheme
        for rule in url_map.iter_rules():
            rule.websocket = True

    @classmethod
    def arrange(
        cls, url_map: Map, server_name: str | None, ssl: object, kwargs: dict[str, Any]
    ) -> tuple[Callable[..., Any], dict[str, Any]]:
        """Return the handler and the keyword arguments with which ``route`` calls ``serve``.

        Args:
            url_map: As for ``route``.
            server_name: As for ``route``.
            ssl: As for ``route``.
            kwargs: Other keyword arguments of ``route``.
        """
        router = cls(url_map, server_name, "ws" if ssl is None else "wss")
        first = kwargs.pop("process_request", None)
        process_request = router.route_request if first is None else router._after(first)
        return router.handler, {
            **kwargs,
            "ssl": None if ssl is True else ssl,
            "process_request": process_request,
        }

    def handler(self, connection: Any) -> Any:
        """Run the selected handler.

        Args:
            connection: The connection.
        """
        return connection.handler(connection, **connection.handler_kwargs)

    def _after(self, first: Callable[..., Any]) -> Callable[..., Any]:
        """Return a ``process_request`` that selects a handler if ``first`` returns no response."""

        def process_request(connection: Any, request: Request) -> Response | None:
            response: Response | None = first(connection, request)
            return self.route_request(connection, request) if response is None else response

        return process_request

    def get_server_name(self, connection: Any, request: Request) -> str:
        """Return the name of the server.

        Args:
            connection: The connection.
            request: Its request.
        """
        return request.headers.get("Host", "") if self.server_name is None else self.server_name

    def redirect(self, connection: Any, url: str) -> Response:
        """Return the redirect for a path that has moved.

        Args:
            connection: The connection.
            url: The new URL.
        """
        response = plain_response(302, f"Found at {url}")
        response.headers["Location"] = url
        return response

    def not_found(self, connection: Any) -> Response:
        """Return the response for a path without a handler.

        Args:
            connection: The connection.
        """
        return plain_response(404, "Not Found")

    def route_request(self, connection: Any, request: Request) -> Response | None:
        """Select the handler of a connection; used as ``process_request``.

        Args:
            connection: The connection, which gets ``handler`` and ``handler_kwargs``.
            request: Its request.
        """
        from urllib.parse import unquote

        from werkzeug.exceptions import HTTPException, NotFound
        from werkzeug.routing import RequestRedirect

        try:
            path, query = _split_target(request.path)
        except ValueError:
            return plain_response(400, "invalid request target\n")
        try:
            name = self.get_server_name(connection, request)
            adapter = self.url_map.bind(server_name=name, url_scheme=self.url_scheme)
            handler, arguments = adapter.match(path_info=unquote(path), query_args=query, websocket=True)
        except RequestRedirect as exc:
            return self.redirect(connection, exc.new_url)
        except NotFound:
            return self.not_found(connection)
        except HTTPException as exc:
            return plain_response(exc.code or 400, exc.description or "")
        except MultipleValuesError:
            # RFC 9112, section 3.2.
            return plain_response(400, "more than one Host header\n")
        except UnicodeError:
            return plain_response(400, "invalid Host header\n")
        connection.handler, connection.handler_kwargs = handler, arguments
        return None


def _split_target(target: str) -> tuple[str, str]:
    """Return path and query of a request target (RFC 9112, section 3.2).

    Raises:
        ValueError: It is neither a path nor a URI.
    """
    if target.startswith("/"):
        # A target that begins with two slashes is a path too, and names no host.
        path, _, query = target.partition("?")
        return path, query
    from urllib.parse import urlsplit

    parsed = urlsplit(target)
    return parsed.path, parsed.query
