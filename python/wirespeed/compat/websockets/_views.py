"""Objects of websockets that a connection does not have: a Sans-I/O protocol, a transport, a socket, TLS, generators.

Views have the attributes that programs commonly read. Other attributes raise with an explanation. The generators over
messages are as fast as iteration over the connection itself.
"""

from __future__ import annotations

import logging
import socket
import ssl
import tempfile
import weakref
from collections.abc import AsyncGenerator, Generator
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn, cast

from ..._connection import State as _State
from ...close_codes import CloseCode
from ...tls import TLSInfo, tls_info
from . import protocol
from .extensions.permessage_deflate import negotiated

__all__ = [
    "AsyncMessages",
    "Messages",
    "NativeTLSView",
    "ProtocolView",
    "SocketView",
    "TransportView",
    "socket_view",
    "ssl_object",
]


class ProtocolView:
    """The ``protocol`` of a connection: attributes of the connection under other names.

    It is created before its connection, and carries the arguments of its native constructor. So constructors of
    connections take it as those of websockets take a protocol.

    Args:
        opened: The completed opening handshake.
        native: The keyword arguments of the connection's constructor.
        is_client: Whether this end is the client.
        max_size: The argument of ``connect`` or ``serve``.
        server_hostname: Name that the certificate of the server must have; ``None`` without TLS, and for a server.
    """

    # Set for clients.
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
        # Always None, because applications never get a connection that failed to open.
        self.handshake_exc: Exception | None = None

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"wirespeed has no protocol.{name}: frames do not pass through Python; protocol shows what the connection "
            "reports about itself"
        )

    def _take(self) -> tuple[Any, dict[str, Any]]:
        """Return the arguments for creating the connection, once."""
        opened, self._opened = self._opened, None
        if opened is None:
            raise TypeError("a protocol can be used for one connection")
        return opened, self._native

    def _bind(self, connection: Any) -> None:
        # A weak reference, because a cycle would delay closing a forgotten connection.
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
        """Whether the logger is enabled for DEBUG."""
        return bool(self._owner.logger.isEnabledFor(logging.DEBUG))

    def fail(self, code: int, reason: str = "") -> None:
        """Fail the connection (RFC 6455, section 7.1.7): send a close frame, except with code 1006.

        Args:
            code: Close code.
            reason: Close reason.
        """
        # websockets sends the close frame with its next write; here it is sent at once, or not at all if that blocks.
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
        """The negotiated subprotocol."""
        return self._owner.subprotocol

    @property
    def origin(self) -> Any:
        """The Origin header of the request."""
        return self._owner.request.headers.get("Origin")

    @property
    def extensions(self) -> list[Any]:
        """The negotiated extensions."""
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
        """The exception that calls on the closed connection raise."""
        if self._owner._state != _State.CLOSED:
            raise AssertionError("connection isn't closed yet")
        return self._owner._closed_error()

    @property
    def close_rcvd(self) -> Any:
        """The close frame received; ``None`` until the connection is closed."""
        return None if self._owner._state != _State.CLOSED else self._owner._closed_error().rcvd

    @property
    def close_sent(self) -> Any:
        """The close frame sent; ``None`` until the connection is closed."""
        return None if self._owner._state != _State.CLOSED else self._owner._closed_error().sent

    @property
    def close_rcvd_then_sent(self) -> bool | None:
        """Whether a close frame was received before one was sent; ``None`` until the connection is closed."""
        return None if self._owner._state != _State.CLOSED else self._owner._closed_error().rcvd_then_sent


class SocketView:
    """The socket of a connection. Its state and options can be read and set, but it cannot receive or send.

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
        """Return the file descriptor, -1 once the connection is closed."""
        return int(self._connection.fileno())

    def _call_socket(self, name: str, *arguments: Any) -> Any:
        sock = socket.socket(fileno=self.fileno())
        try:
            value = getattr(sock, name)
            return value(*arguments) if callable(value) and name not in ("family", "type") else value
        finally:
            sock.detach()

    @property
    def family(self) -> Any:
        """Address family."""
        return self._call_socket("family")

    @property
    def type(self) -> Any:
        """Type of the socket."""
        return self._call_socket("type")

    @property
    def proto(self) -> int:
        """Protocol of the socket."""
        return int(self._call_socket("proto"))

    def getsockname(self) -> Any:
        """Return the address of this end."""
        return self._connection.local_address

    def getpeername(self) -> Any:
        """Return the address of the other end."""
        return self._connection.remote_address

    def getsockopt(self, *arguments: Any) -> Any:
        """Return a socket option, as ``socket.socket`` does."""
        return self._call_socket("getsockopt", *arguments)

    def setsockopt(self, *arguments: Any) -> None:
        """Set a socket option, as ``socket.socket`` does."""
        self._call_socket("setsockopt", *arguments)

    def settimeout(self, timeout: float | None) -> None:
        """Store a timeout that :meth:`gettimeout` returns. It has no effect: calls of the connection have their own."""
        if timeout is not None and timeout < 0:
            raise ValueError("Timeout value out of range")
        self._connection.__dict__["_socket_timeout"] = timeout

    def gettimeout(self) -> float | None:
        """Return the stored timeout."""
        limit: float | None = self._connection.__dict__.get("_socket_timeout")
        return limit

    def shutdown(self, how: int) -> None:
        """Shut down one or both directions, as ``socket.socket`` does."""
        self._call_socket("shutdown", how)

    def close(self) -> None:
        """Close the socket at once."""
        self._connection.abort()


# Attributes of ssl.SSLSocket that other sockets do not have.
_TLS_ATTRIBUTES = (
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
    """The socket of a connection with TLS, with the attributes of ``ssl.SSLSocket``.

    Args:
        connection: The connection.
        tls: Its ``ssl.SSLObject``, or the view of native TLS.
    """

    def __init__(self, connection: Any, tls: Any) -> None:
        super().__init__(connection)
        self._tls = tls

    def __getattr__(self, name: str) -> Any:
        if name in _TLS_ATTRIBUTES:
            return getattr(self._tls, name)
        return super().__getattr__(name)


def socket_view(connection: Any) -> SocketView:
    """Return a view of the socket of a connection.

    Args:
        connection: The connection.
    """
    tls = ssl_object(connection)
    return SocketView(connection) if tls is None else TLSSocketView(connection, tls)


# The same names as in the transports of asyncio.
_TLS_INFO: dict[str, Any] = {
    "ssl_object": None,
    "sslcontext": lambda tls: tls.context,
    "peercert": lambda tls: tls.getpeercert(),
    "cipher": lambda tls: tls.cipher(),
    "compression": lambda tls: tls.compression(),
}


class TransportView:
    """The ``transport`` of a connection: information, and methods to end it.

    Args:
        connection: The connection.
    """

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"wirespeed has no transport.{name}: the connection uses its socket without a transport")

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return information about the connection.

        Args:
            name: ``sockname``, ``peername``, ``socket``, ``ssl_object``, ``sslcontext``, ``peercert``, ``cipher`` or
                ``compression``.
            default: The value to return for other names.

        Raises:
            NotImplementedError: ``sslcontext`` with native TLS, which has no ``ssl.SSLContext``.
        """
        connection = self._connection
        if name == "sockname":
            return connection.local_address
        if name == "peername":
            return connection.remote_address
        if name == "socket":
            return SocketView(connection) if connection.fileno() >= 0 else default
        tls = ssl_object(connection) if name in _TLS_INFO else None
        if tls is None:
            return default
        return tls if name == "ssl_object" else _TLS_INFO[name](tls)

    def is_closing(self) -> bool:
        """Return whether the connection is closed."""
        return bool(self._connection._state == _State.CLOSED)

    def get_write_buffer_size(self) -> int:
        """Return the number of bytes that are not sent yet."""
        return int(self._connection.stats()["send_queue_bytes"])

    def close(self) -> None:
        """Close the socket at once."""
        self._connection.abort()

    abort = close


def _stop() -> NoReturn:
    raise StopIteration


async def _stop_async() -> NoReturn:
    raise StopAsyncIteration


def _raised(kind: Any, value: BaseException | None, traceback: TracebackType | None) -> BaseException:
    """Return the exception for the arguments of ``throw``."""
    exc: BaseException = kind if isinstance(kind, BaseException) else value if value is not None else kind()
    return exc if traceback is None else exc.with_traceback(traceback)


class AsyncMessages(AsyncGenerator[Any, None]):
    """The messages of an asyncio connection. Closing the generator ends the iteration, but not the connection.

    Args:
        connection: The connection.
    """

    # A slot, so that each step calls the method of the connection directly.
    __slots__ = ("__anext__",)

    def __init__(self, connection: Any) -> None:
        self.__anext__ = connection.__anext__  # type: ignore[method-assign]

    async def asend(self, _value: None) -> Any:
        """Receive the next message."""
        return await self.__anext__()

    async def athrow(  # type: ignore[override]
        self, kind: Any, value: BaseException | None = None, traceback: TracebackType | None = None, /
    ) -> NoReturn:
        """End the iteration with an exception."""
        self.__anext__ = _stop_async  # type: ignore[method-assign]
        raise _raised(kind, value, traceback)

    async def aclose(self) -> None:
        """End the iteration."""
        self.__anext__ = _stop_async  # type: ignore[method-assign]


class Messages(Generator[Any, None, None]):
    """The messages of a blocking connection. Closing the generator ends the iteration, but not the connection.

    Args:
        connection: The connection.
    """

    __slots__ = ("__next__",)

    def __init__(self, connection: Any) -> None:
        self.__next__ = connection.__next__  # type: ignore[method-assign]

    def send(self, _value: None) -> Any:
        """Receive the next message."""
        return self.__next__()

    def throw(  # type: ignore[override]
        self, kind: Any, value: BaseException | None = None, traceback: TracebackType | None = None, /
    ) -> NoReturn:
        """End the iteration with an exception."""
        self.__next__ = _stop  # type: ignore[method-assign]
        raise _raised(kind, value, traceback)

    def close(self) -> None:
        """End the iteration."""
        self.__next__ = _stop  # type: ignore[method-assign]


class NativeTLSView:
    """The state of native TLS, with the methods of ``ssl.SSLObject``.

    Args:
        info: The result of the TLS handshake.
        server_hostname: Name that the certificate of the server must have.
        server_side: Whether this end is the server.
    """

    def __init__(self, info: TLSInfo, server_hostname: str | None, server_side: bool) -> None:
        self._info = info
        self.server_hostname = server_hostname
        self.server_side = server_side

    def __getattr__(self, name: str) -> Any:
        if name == "context":
            raise NotImplementedError("native TLS has no ssl.SSLContext; pass one as ssl= to have it")
        raise AttributeError(f"wirespeed does not tell ssl_object.{name} of native TLS; pass an ssl.SSLContext as ssl=")

    def version(self) -> str:
        """Return the TLS version."""
        return self._info.version

    def cipher(self) -> tuple[str, str, int]:
        """Return the name of the cipher suite as in OpenSSL, the TLS version, and the number of bits of the key."""
        return _openssl_name(self._info.cipher), self._info.version, self._info.secret_bits

    def compression(self) -> None:
        """Return ``None``: TLS compression is not used."""

    def selected_alpn_protocol(self) -> str | None:
        """Return the protocol negotiated with ALPN."""
        return self._info.alpn

    def selected_npn_protocol(self) -> None:
        """Return ``None``: NPN is not used."""

    def get_unverified_chain(self) -> list[bytes]:
        """Return the certificates sent by the other end, as DER."""
        return list(self._info.peer_certificates)

    def getpeercert(self, binary_form: bool = False) -> dict[str, Any] | bytes | None:
        """Return the certificate of the other end; ``None`` if it sent none.

        Args:
            binary_form: Whether to return it as DER; otherwise as a dict, which is empty if it was not verified.

        Raises:
            NotImplementedError: The interpreter cannot parse certificates.
        """
        certificates = self._info.peer_certificates
        if not certificates:
            return None
        if binary_form:
            return certificates[0]
        return _decode(certificates[0]) if self._info.verified else {}


def ssl_object(connection: Any) -> Any:
    """Return the ``ssl.SSLObject`` of a connection or a view of native TLS; ``None`` without TLS.

    Args:
        connection: The connection.
    """
    native = connection._tls
    if not isinstance(native, tuple):
        return native
    view, info = connection.protocol, cast("TLSInfo", tls_info(native))
    return NativeTLSView(info, view._server_hostname, view.side == protocol.Side.SERVER)


def _openssl_name(cipher: str) -> str:
    # RFC 8446, appendix B.4: names of TLS 1.3 suites have no key exchange, and are the same in OpenSSL.
    exchange, _, rest = cipher.removeprefix("TLS_").partition("_WITH_")
    if not rest:
        return cipher
    name = rest.replace("AES_", "AES").replace("_POLY1305_SHA256", "_POLY1305")
    return f"{exchange}-{name}".replace("_", "-")


def _decode(certificate: bytes) -> dict[str, Any]:
    decode = getattr(getattr(ssl, "_ssl", None), "_test_decode_cert", None)
    if decode is None:
        raise NotImplementedError("this interpreter parses no certificates; use getpeercert(binary_form=True)")
    # The function reads files only.
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "certificate.pem"
        path.write_text(ssl.DER_cert_to_PEM_cert(certificate))
        decoded: dict[str, Any] = decode(str(path))
    return decoded
