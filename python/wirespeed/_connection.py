"""What connections of both APIs share: status attributes, construction, JSON and MessagePack."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

from ._native import AsyncConnection, BlockingConnection, Opened
from ._native_types import State
from ._redaction import mask_query, printable
from .datastructures import Request, Response
from .tls import TLSInfo, tls_info
from .typing import Subprotocol

if TYPE_CHECKING:
    from uuid import UUID

    from ._native import Handshake

__all__ = [
    "AcceptedStatus",
    "Codec",
    "ConnectionStatus",
    "HandshakeSummary",
    "JSON",
    "MSGPACK",
    "State",
    "address_text",
    "construct",
]


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


_T = TypeVar("_T")


def construct(factory: Callable[..., Any], kind: type[_T], opened: Opened, **arguments: Any) -> _T:
    """Create a connection. If that fails, a partly constructed connection is aborted; the caller keeps ``opened``.

    Args:
        factory: A class or a function.
        kind: Class of which the result must be an instance.
        opened: The completed opening handshake.
        **arguments: Further arguments.

    Raises:
        TypeError: The result has a wrong type.
        Exception: The exception of ``factory``.
    """
    made: Any = None
    try:
        if isinstance(factory, type) and factory.__init__ is not object.__init__:  # type: ignore[misc]
            # Same as calling the class, but keeps the object if its __init__ raises, to abort it.
            made = factory.__new__(factory, opened, **arguments)
            if isinstance(made, factory):
                made.__init__(opened, **arguments)  # type: ignore[misc]
        else:
            made = factory(opened, **arguments)
        if not isinstance(made, kind):
            raise TypeError(f"create_connection must return a {kind.__name__}, not {type(made).__name__}")
    except BaseException:
        if isinstance(made, (AsyncConnection, BlockingConnection)):
            made.abort()
        raise
    return made


class Codec:
    """A message format. msgspec is imported when it is used first.

    If msgspec is not installed, every method raises ``ImportError``, whose text names the package to install.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        # Enough for the message types of an application: creating a decoder takes much longer than decoding.
        self._decoder = functools.lru_cache(maxsize=256)(self._make_decoder)

    @functools.cached_property
    def _module(self) -> ModuleType:
        try:
            return importlib.import_module(f"msgspec.{self._name}")
        except ImportError as exc:
            raise ImportError(
                'JSON and MessagePack messages require msgspec; install it with: pip install "wirespeed[codecs]"'
            ) from exc

    @functools.cached_property
    def encode(self) -> Callable[[Any], bytes]:
        """Function that returns the bytes of a value; it raises ``TypeError`` if msgspec cannot encode it."""
        encode: Callable[[Any], bytes] = self._module.Encoder().encode
        return encode

    @functools.cached_property
    def _decode_any(self) -> Callable[[bytes], Any]:
        return self._make_decoder(Any)

    def decoder(self, type_: Any) -> Callable[[bytes], Any]:
        """Return a function that decodes a message.

        Call it before receiving, so that an unsupported type raises without losing a message.

        Args:
            type_: Expected type of the message.

        Raises:
            TypeError: msgspec does not support the type.
        """
        if type_ is Any:
            return self._decode_any
        try:
            hash(type_)
        except TypeError:
            return self._make_decoder(type_)
        return self._decoder(type_)

    def _make_decoder(self, type_: Any) -> Callable[[bytes], Any]:
        decode: Callable[[bytes], Any] = self._module.Decoder(type_).decode
        return decode


JSON = Codec("json")
MSGPACK = Codec("msgpack")
