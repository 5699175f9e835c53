"""Status attributes of all connections, blocking or on an event loop."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .._redaction import mask_query, printable
from ..datastructures import Request, Response
from ..tls import TLSInfo, tls_info
from ..typing import Subprotocol
from .state import State

if TYPE_CHECKING:
    from uuid import UUID

    from .._native import Handshake

__all__ = ["AcceptedStatus", "ConnectionStatus", "HandshakeSummary", "address_text"]


class ConnectionStatus:
    """Base class of connections, before the native class."""

    # Without slots, each connection would have a dict.
    __slots__ = ()

    if TYPE_CHECKING:

        @property
        def id(self) -> UUID: ...
        @property
        def _handshake(self) -> Handshake: ...
        @property
        def _state(self) -> int: ...
        @property
        def _close(self) -> tuple[int, str] | None: ...
        @property
        def _tls(self) -> Any: ...
        @property
        def remote_address(self) -> Any: ...

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.state.name} {self.id}>"

    @property
    def _label(self) -> str:
        """Description of the connection for logs: its id and the server."""
        request = self._handshake.request
        host = printable(", ".join(request.headers.get_all("Host")))
        return f"{self.id} to {'ws' if self._tls is None else 'wss'}://{host}{_path(request)}"

    @property
    def state(self) -> State:
        """State of the connection."""
        return State(self._state)

    @property
    def close_code(self) -> int | None:
        """Code of the close frame received, ``None`` while the connection is open.

        1005 means that the close frame has no code, 1006 that the connection was lost (RFC 6455, section 7.1.5).
        """
        return None if self._close is None else self._close[0]

    @property
    def close_reason(self) -> str | None:
        """Reason of the close frame received, empty without a reason; ``None`` while the connection is open.

        See RFC 6455, section 7.1.6.
        """
        return None if self._close is None else self._close[1]

    @property
    def request(self) -> Request:
        """The request of the opening handshake, as a new object."""
        return self._handshake.request

    @property
    def response(self) -> Response:
        """The response of the opening handshake, as a new object."""
        return self._handshake.response

    @property
    def subprotocol(self) -> Subprotocol | None:
        """The negotiated subprotocol, ``None`` without one."""
        return self._handshake.subprotocol

    @property
    def tls(self) -> TLSInfo | None:
        """Result of the TLS handshake with the server (not with a proxy); ``None`` without TLS."""
        return tls_info(self._tls)


class AcceptedStatus(ConnectionStatus):
    """Base class of server connections."""

    __slots__ = ()

    @property
    def _label(self) -> str:
        """Description of the connection for logs: its id and the client."""
        return f"{self.id} from {address_text(self.remote_address)} to {_path(self._handshake.request)}"


def _path(request: Request) -> str:
    return printable(mask_query(request.path))


def address_text(address: Any) -> str:
    """Return the address of either end for logs.

    Args:
        address: Address as returned by ``getsockname`` or ``getpeername``.
    """
    if isinstance(address, tuple):
        host, port = str(address[0]), address[1]
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    name = address.decode(errors="replace") if isinstance(address, bytes) else address
    # A client may bind its Unix socket to any name, even with line breaks.
    return printable(name) if name else "a Unix socket"


class HandshakeSummary:
    """The opening handshake of a connection for a log. The text is made only if it is logged.

    Args:
        connection: The connection.
    """

    def __init__(self, connection: ConnectionStatus) -> None:
        self._connection = connection

    def __repr__(self) -> str:
        return f"{self._connection.id}, {self._connection.request!r}, {self._connection.response!r}"
