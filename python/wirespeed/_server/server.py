"""The common base of both servers: arguments, closing, and logs of opening handshakes.

It does not accept connections and does not wait.
"""

from __future__ import annotations

import functools
import logging
from typing import TYPE_CHECKING, Any

from .._connection import AcceptedStatus, address_text
from .._lazy import ssl as ssl_module
from .._native import PendingHandshake
from .._net.binding import Listeners
from .._options.server import ServerOptions, ServerSSL
from ..datastructures import Response
from ..tls import TLS
from ..typing import StatusLike
from .accept import AcceptedSocket, HandshakeLimiterBase
from .log import log_handshake_error
from .responses import plain_response

__all__ = ["AcceptedBase", "ServerBase", "check_async_handler", "not_awaitable"]


_HINT = "it must be a coroutine function, with async def; wirespeed.sync.serve takes plain functions"


class AcceptedBase(AcceptedStatus):
    """Base class of server connections, before the native class."""

    __slots__ = ()

    def respond(self, status: StatusLike, text: str) -> Response:
        """Return a plain text HTTP response, for ``process_request`` and ``process_response`` to return.

        Args:
            status: HTTP status code.
            text: Body.
        """
        return plain_response(status, text)


class ServerBase:
    """Base class of servers.

    Args:
        handler: The handler of the user, checked.
        options: The options.
        kind: Connection class to use if there is no ``create_connection``.

    Attributes:
        logger: The logger given to ``serve``.

    Raises:
        TypeError: ``ssl`` has a wrong type.
        ValueError: ``ssl`` is not a TLS configuration for servers.
    """

    if TYPE_CHECKING:
        # Set by the subclass.
        _limiter: HandshakeLimiterBase

    def __init__(
        self,
        handler: Any,
        options: ServerOptions,
        kind: type,
    ) -> None:
        self.logger = options.effective_logger
        self._handler = handler
        self._options = options
        self._ssl = ServerSSL(options.ssl)
        self._make_handshake = functools.partial(PendingHandshake, options.native, self._ssl.native is not None)
        self._create_connection = options.create_connection or kind
        self._listeners = Listeners()
        self._connections: set[Any] = set()
        self._is_closing = False
        # Code and reason with which to close connections, once the server closes them.
        self._close_frame: tuple[int, str] | None = None

    def reload_ssl(self, ssl: TLS | ssl_module.SSLContext | None = None) -> None:
        """Use other certificates for connections accepted from now on.

        Args:
            ssl: The new settings; ``None`` to read the files of the current :class:`wirespeed.TLS` again.

        Raises:
            OSError: A file cannot be read. The old settings stay in use.
            TypeError: The server has no TLS, or ``ssl`` is ``None`` and it uses an ``ssl.SSLContext``. Call
                ``load_cert_chain`` of the context instead.
            ValueError: The settings are wrong. The old settings stay in use.
        """
        self._ssl.reload(ssl)

    def _log_listening(self) -> None:
        for sock in self._listeners.sockets:
            self.logger.info("server listening on %s", address_text(sock.getsockname()))

    def _log_open(self, connection: Any) -> None:
        if self.logger.isEnabledFor(logging.DEBUG):
            self.logger.debug("connection open (%s): %r", connection._label, connection.request)

    def _opening_failed(self, accepted: AcceptedSocket, connection: Any | None, exc: BaseException) -> None:
        """Abort the connection, if it exists, and log the error."""
        if connection is not None:
            connection.abort()
        if isinstance(exc, Exception):
            log_handshake_error(accepted, connection, exc, self._limiter, self.logger)


def check_async_handler(handler: object) -> None:
    """Check that the handler of an asyncio server is callable.

    Whether it returns an awaitable is known only after the call: see ``not_awaitable``.

    Args:
        handler: The handler that the user passed.

    Raises:
        TypeError: It is not callable.
    """
    if not callable(handler):
        raise TypeError(f"handler must be a coroutine function, not {type(handler).__name__}")


def not_awaitable(result: object) -> TypeError:
    """Return the exception for a handler of an asyncio server that returned no awaitable.

    Args:
        result: The value that it returned.
    """
    return TypeError(f"handler returned {type(result).__name__}: {_HINT}")
