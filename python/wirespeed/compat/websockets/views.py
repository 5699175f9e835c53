"""What a connection shows of things that it does not have: a protocol without I/O, a transport, a socket.

Programs read them; few names are enough. The others say that they are not there.
"""

from __future__ import annotations

import logging
import socket
import weakref
from typing import Any

from ...protocol_state import State as _State
from . import protocol
from .extensions.permessage_deflate import negotiated

__all__ = ["ProtocolView", "SocketView", "TLSView", "TransportView"]


class ProtocolView:
    """The ``protocol`` of a connection: what the connection tells of itself, by other names.

    It is made before its connection, and carries what that is made of: the constructors of connections take it as
    those of websockets take a protocol.

    Args:
        opened: What the opening handshake opened.
        native: The keyword arguments of the connection's constructor.
        is_client: Which end it is.
        max_size: The argument of ``connect`` or ``serve``.
    """

    def __init__(self, opened: Any, native: dict[str, Any], is_client: bool, max_size: Any) -> None:
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
        return self._owner.close_code if self._owner._state == _State.CLOSED else None

    @property
    def close_reason(self) -> str | None:
        """Close reason received, ``None`` if the connection is not closed."""
        return self._owner.close_reason if self._owner._state == _State.CLOSED else None

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

    def shutdown(self, how: int) -> None:
        """End the stream, one way or both; as of ``socket.socket``."""
        self._ask("shutdown", how)

    def close(self) -> None:
        """Close the socket at once."""
        self._connection.abort()


class TLSView:
    """What is known of the TLS of a connection.

    Args:
        version: As ``ssl.SSLObject.version`` returns it.
        alpn: Protocol agreed on by ALPN.
    """

    def __init__(self, version: str | None, alpn: str | None) -> None:
        self._version = version
        self._alpn = alpn

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"wirespeed does not tell ssl_object.{name}: version and selected_alpn_protocol are known")

    def version(self) -> str | None:
        """Return the version of TLS."""
        return self._version

    def selected_alpn_protocol(self) -> str | None:
        """Return the protocol agreed on by ALPN."""
        return self._alpn


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
            name: ``sockname``, ``peername``, ``socket`` or ``ssl_object``; others are not known.
            default: What to return for the others.

        Raises:
            NotImplementedError: It is a part of TLS that is not known.
        """
        connection = self._connection
        if name == "sockname":
            return connection.local_address
        if name == "peername":
            return connection.remote_address
        if name == "socket":
            return SocketView(connection) if connection.fileno() >= 0 else default
        if name == "ssl_object":
            tls = connection._tls
            return default if tls is None else TLSView(*tls)
        if name in ("cipher", "peercert", "sslcontext") and connection._tls is not None:
            raise NotImplementedError(f"wirespeed does not tell the {name} of a connection")
        return default

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
