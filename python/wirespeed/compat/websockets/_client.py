"""The common base of the connecting objects of both APIs, and the redirects that applications may decide."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable, Generator, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

from ..._net.uri import RedirectChain, cross_origin_headers, parse_uri
from ..._options.client import ClientOptions
from ...exceptions import InvalidStatus, SecurityError
from . import _heads as heads
from ._settings import MAX_REDIRECTS, additional, check_overrides, check_subprotocols

__all__ = ["Chain", "Connecting", "local_uri", "options_with_chain"]


class Chain(RedirectChain):
    """The URIs that one attempt to connect visits.

    Args:
        connecting: Object with ``process_redirect``, and with ``uri``, ``ws_uri`` and ``additional_headers``, which
            change with each redirect.
        **how: As for RedirectChain.
    """

    def __init__(self, connecting: Any, **how: bool) -> None:
        super().__init__(connecting.uri, additional(connecting.additional_headers), max_redirects=MAX_REDIRECTS, **how)
        self._connecting = connecting

    def server_hostname(self, named: str | None) -> str | None:
        """Return the name that the certificate must have: the argument of the user, also after redirects.

        Args:
            named: As for RedirectChain.
        """
        return named

    def redirect(self, exc: Exception) -> Exception | str:
        """Return the target of a redirect, or the exception to raise.

        Args:
            exc: The exception of connecting.
        """
        if not isinstance(exc, InvalidStatus):
            return exc
        before = self.parsed.origin
        try:
            super().follow(exc)
        except Exception as failure:
            return failure
        if self.parsed.origin != before and self._connecting.additional_headers is not None:
            self._connecting.additional_headers = self.headers
        return self.uri

    def follow(self, exc: InvalidStatus) -> None:
        """Move on to the target of a redirect.

        Args:
            exc: The rejection, raised again if it is not a redirect.
        """
        heads.adapt(exc)
        to = self._connecting.process_redirect(exc)
        if isinstance(to, Exception):
            if to is exc:
                raise exc
            raise to from exc
        if self._followed >= self._max_redirects:
            raise SecurityError(f"more than {self._max_redirects} redirects") from exc
        self._followed += 1
        parsed = parse_uri(to)
        headers = additional(self._connecting.additional_headers)
        if headers is not None and parsed.origin != self.parsed.origin:
            headers = cross_origin_headers(headers)
        self.uri, self.parsed, self.headers = to, parsed, headers
        self._connecting.uri, self._connecting.ws_uri = to, heads.websocket_uri(to)


_Options = TypeVar("_Options", bound=ClientOptions)


class Connecting:
    """Base class of ``connect`` and ``reconnect``, with the attributes of websockets."""

    uri: str
    logger: Any
    additional_headers: Any
    user_agent_header: str | None
    open_timeout: float | None
    process_exception: Callable[[Exception], Exception | None]
    reconnect_delays: Callable[[], Generator[float, None, None]]
    _options: dict[str, Any]

    if TYPE_CHECKING:

        def _chain(self) -> Chain: ...

    def _check(self, uri: str, ssl: object, subprotocols: Any, logger: Any, create_connection: Any) -> None:
        """Check and store the URI, subprotocols, logger and connection class."""
        self.uri = uri
        self.ws_uri = heads.websocket_uri(uri)
        if not self.ws_uri.secure and ssl is not None:
            raise ValueError("ssl argument is incompatible with a ws:// URI")
        check_subprotocols(subprotocols)
        self.logger = logging.getLogger("websockets.client") if logger is None else logger
        if isinstance(create_connection, type):
            check_overrides(create_connection)

    def _verified_name(self, server_hostname: str | None) -> str | None:
        """Return the name that the certificate of the server must have, ``None`` without TLS."""
        return (server_hostname or self.ws_uri.host) if self.ws_uri.secure else None

    def _all_options(self) -> dict[str, Any]:
        """Return the keyword arguments for the options of this package."""
        headers = additional(self.additional_headers)
        named = headers is not None and "User-Agent" in headers
        return {
            "user_agent_header": None if named else self.user_agent_header,
            "open_timeout": self.open_timeout,
            **self._options,
        }

    def process_redirect(self, exc: Exception) -> Exception | str:
        """Return the target of a redirect. Subclasses may override it, for example to follow no redirects.

        Args:
            exc: The exception of connecting.

        Returns:
            The URI to connect to next, or the exception to raise.
        """
        return self._chain().redirect(exc)

    def _delay(self, exc: Exception, delays: Iterator[float]) -> float:
        """Return how long to wait before reconnecting, or raise the exception that ends it."""
        # A process_exception that raises is treated like one that returns the exception.
        try:
            fatal = self.process_exception(exc)
        except Exception as raised:
            fatal = raised
        if fatal is exc:
            raise exc
        if fatal is not None:
            raise fatal from exc
        delay = next(delays)
        self.logger.info(
            "connect failed; reconnecting in %.1f seconds: %s",
            delay,
            traceback.format_exception_only(type(exc), exc)[0].strip(),
        )
        return delay


def options_with_chain(kind: type[_Options], chain: Chain, options: dict[str, Any]) -> _Options:
    """Return the options for connecting, with redirects as in websockets.

    Args:
        kind: The class of the options.
        chain: The redirect chain to use.
        options: The options.
    """
    made = kind({"additional_headers": chain.headers, **options})
    vars(made)["chain"] = lambda uri, headers: chain
    return made


def local_uri(uri: str | None, kwargs: dict[str, Any]) -> str:
    """Return the URI for a Unix socket.

    Args:
        uri: The argument of the user.
        kwargs: The keyword arguments of the client.
    """
    if uri is not None:
        return uri
    return "ws://localhost/" if kwargs.get("ssl") is None else "wss://localhost/"
