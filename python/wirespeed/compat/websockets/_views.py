"""What a connection shows of things that it does not have: a protocol without I/O, a transport, a socket.

Programs read them; few names are enough. The others say that they are not there.
"""

from __future__ import annotations

import logging
import socket
import weakref
from typing import Any

from ..._connection.state import State as _State
from ...close_codes import CloseCode
from . import protocol
from ._certificates import ssl_object
from .extensions.permessage_deflate import negotiated

__all__ = ["ProtocolView", "SocketView", "TransportView", "socket_view"]


class ProtocolView:
    """The ``protocol`` of a connection: what the connection tells of itself, by other names.

    It is made before its connection, and carries what that is made of: the constructors of connections take it as
    those of websockets take a protocol.

    Args:
        opened: What the opening handshake opened.
        native: The keyword arguments of the connection's constructor.
        is_client: Which end it is.
        max_size: The argument of ``connect`` or ``serve``.
        server_hostname: Name that the certificate of a server must have, ``None`` without TLS and for a server.
    """

    # Of a client.
    uri: Any

    def __init__(
        self,
        opened: Any,
        native: dict[str, Any],
        is_client: bool,
        max_size: Any,
        server_hostname: str | None = None,
    ) -> None:
        self._server_hostname = server_hostname
        self._opened = opened
        self._native = native
        self._connection: Any = None
        self.side = protocol.Side.CLIENT if is_client else protocol.Side.SERVER
        self.max_message_size, self.max_fragment_size = max_size if isinstance(max_size, tuple) else (max_size, None)
        # A connection that failed to open is not shown to anybody.
        self.handshake_exc: Exception | None = None

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"wirespeed has no protocol.{name}: frames do not pass through Python; protocol shows what the connection "
            "tells of itself"
        )

    def _take(self) -> tuple[Any, dict[str, Any]]:
        """Return what the connection is made of, once."""
        opened, self._opened = self._opened, None
        if opened is None:
            raise TypeError("a protocol can be used for one connection")
        return opened, self._native

    def _bind(self, connection: Any) -> None:
        # No cycle: a connection that is forgotten is closed at once.
        self._connection = weakref.ref(connection)
        self._native = {}

    @property
    def _owner(self) -> Any:
        owner = None if self._connection is None else self._connection()
        if owner is None:
            raise RuntimeError("the connection is gone")
        return owner

    @property
    def id(self) -> Any:
        """The UUID of the connection."""
        return self._owner.id

    @property
    def logger(self) -> Any:
        """The logger of the connection."""
        return self._owner.logger

    @property
    def debug(self) -> bool:
        """Whether the logger takes debugging lines."""
        return bool(self._owner.logger.isEnabledFor(logging.DEBUG))

    def fail(self, code: int, reason: str = "") -> None:
        """Fail the connection: RFC 6455, section 7.1.7. A close frame tells why, but not with code 1006.

        Args:
            code: Close code.
            reason: Close reason.
        """
        # What websockets would send with the next write leaves at once, or not at all if that could wait.
        owner = self._owner
        begin = getattr(owner, "_begin_close", None)
        if begin is None or code == CloseCode.ABNORMAL_CLOSURE:
            owner.abort()
        else:
            begin(code, reason)

    @property
    def state(self) -> Any:
        """State of the connection."""
        return self._owner.state

    @property
    def subprotocol(self) -> Any:
        """Subprotocol that was agreed on."""
        return self._owner.subprotocol

    @property
    def origin(self) -> Any:
        """The Origin header of the request."""
        return self._owner.request.headers.get("Origin")

    @property
    def extensions(self) -> list[Any]:
        """The extensions that were agreed on."""
        response = self._owner.response
        header = None if response is None else response.headers.get("Sec-WebSocket-Extensions")
        return negotiated(header, self.side is protocol.Side.CLIENT)

    @property
    def close_code(self) -> int | None:
        """Close code received, ``None`` if the connection is not closed."""
        return None if (close := self._close) is None else close[0]

    @property
    def close_reason(self) -> str | None:
        """Close reason received, ``None`` if the connection is not closed."""
        return None if (close := self._close) is None else close[1]

    @property
    def _close(self) -> tuple[int, str] | None:
        close: tuple[int, str] | None = self._owner._close if self._owner._state == _State.CLOSED else None
        return close

    @property
    def close_exc(self) -> Any:
        """What calls on the closed connection raise."""
        if self._owner._state != _State.CLOSED:
            raise AssertionError("connection isn't closed yet")
        return self._owner._closed_error()

    @property
    def close_rcvd(self) -> Any:
        """The close frame received, once the connection is closed."""
        return None if self._owner._state != _State.CLOSED else self._owner._closed_error().rcvd

    @property
    def close_sent(self) -> Any:
        """The close frame sent, once the connection is closed."""
        return None if self._owner._state != _State.CLOSED else self._owner._closed_error().sent

    @property
    def close_rcvd_then_sent(self) -> bool | None:
        """Which came first, once the connection is closed."""
        return None if self._owner._state != _State.CLOSED else self._owner._closed_error().rcvd_then_sent


class SocketView:
    """The socket of a connection: it can be asked and set, but not read from or written to.

    Args:
        connection: The connection.
    """

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def __repr__(self) -> str:
        return f"<{type(self).__name__} fd={self.fileno()} of {self._connection!r}>"

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"wirespeed has no socket.{name}: the socket belongs to the connection")

    def fileno(self) -> int:
        """Return the number of the descriptor, -1 once the connection is closed."""
        return int(self._connection.fileno())

    def _ask(self, name: str, *arguments: Any) -> Any:
        sock = socket.socket(fileno=self.fileno())
        try:
            value = getattr(sock, name)
            return value(*arguments) if callable(value) and name not in ("family", "type") else value
        finally:
            sock.detach()

    @property
    def family(self) -> Any:
        """Address family."""
        return self._ask("family")

    @property
    def type(self) -> Any:
        """Type of the socket."""
        return self._ask("type")

    @property
    def proto(self) -> int:
        """Protocol of the socket."""
        return int(self._ask("proto"))

    def getsockname(self) -> Any:
        """Return the address of this end."""
        return self._connection.local_address

    def getpeername(self) -> Any:
        """Return the address of the other end."""
        return self._connection.remote_address

    def getsockopt(self, *arguments: Any) -> Any:
        """Return an option; as of ``socket.socket``."""
        return self._ask("getsockopt", *arguments)

    def setsockopt(self, *arguments: Any) -> None:
        """Set an option; as of ``socket.socket``."""
        self._ask("setsockopt", *arguments)

    def settimeout(self, timeout: float | None) -> None:
        """Take a limit, which is told but has no effect: calls of the connection have limits of their own."""
        if timeout is not None and timeout < 0:
            raise ValueError("Timeout value out of range")
        self._connection.__dict__["_socket_timeout"] = timeout

    def gettimeout(self) -> float | None:
        """Return the limit that was set."""
        limit: float | None = self._connection.__dict__.get("_socket_timeout")
        return limit

    def shutdown(self, how: int) -> None:
        """End the stream, one way or both; as of ``socket.socket``."""
        self._ask("shutdown", how)

    def close(self) -> None:
        """Close the socket at once."""
        self._connection.abort()


# What ssl.SSLSocket tells beside what every socket does.
_OF_SOCKETS = (
    "cipher",
    "compression",
    "context",
    "get_channel_binding",
    "get_unverified_chain",
    "get_verified_chain",
    "getpeercert",
    "selected_alpn_protocol",
    "selected_npn_protocol",
    "server_hostname",
    "server_side",
    "session",
    "session_reused",
    "shared_ciphers",
    "version",
)


class TLSSocketView(SocketView):
    """The socket of a connection with TLS, which can also be asked what ``ssl.SSLSocket`` can be.

    Args:
        connection: The connection.
        tls: Its ``ssl.SSLObject``, or what stands for it.
    """

    def __init__(self, connection: Any, tls: Any) -> None:
        super().__init__(connection)
        self._tls = tls

    def __getattr__(self, name: str) -> Any:
        if name in _OF_SOCKETS:
            return getattr(self._tls, name)
        return super().__getattr__(name)


def socket_view(connection: Any) -> SocketView:
    """Return what stands for the socket of a connection.

    Args:
        connection: The connection.
    """
    tls = ssl_object(connection)
    return SocketView(connection) if tls is None else TLSSocketView(connection, tls)


# As the transports of asyncio have them.
_OF_TLS: dict[str, Any] = {
    "ssl_object": None,
    "sslcontext": lambda tls: tls.context,
    "peercert": lambda tls: tls.getpeercert(),
    "cipher": lambda tls: tls.cipher(),
    "compression": lambda tls: tls.compression(),
}


class TransportView:
    """The ``transport`` of a connection: what it tells, and how to end it.

    Args:
        connection: The connection.
    """

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"wirespeed has no transport.{name}: the connection uses its socket without a transport")

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return what is known of the connection.

        Args:
            name: ``sockname``, ``peername``, ``socket``, ``ssl_object``, ``sslcontext``, ``peercert``, ``cipher`` or
                ``compression``; others are not known.
            default: What to return for the others.

        Raises:
            NotImplementedError: It is the ``ssl.SSLContext`` of native TLS, which has none.
        """
        connection = self._connection
        if name == "sockname":
            return connection.local_address
        if name == "peername":
            return connection.remote_address
        if name == "socket":
            return SocketView(connection) if connection.fileno() >= 0 else default
        tls = ssl_object(connection) if name in _OF_TLS else None
        if tls is None:
            return default
        return tls if name == "ssl_object" else _OF_TLS[name](tls)

    def is_closing(self) -> bool:
        """Return whether the connection is closed."""
        return bool(self._connection._state == _State.CLOSED)

    def get_write_buffer_size(self) -> int:
        """Return how many bytes wait to be sent."""
        return int(self._connection.stats()["send_queue_bytes"])

    def close(self) -> None:
        """Close the socket at once."""
        self._connection.abort()

    abort = close
