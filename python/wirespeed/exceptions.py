"""The exceptions of this package.

    WebSocketException
    ├── ConnectionClosed
    │   ├── ConnectionClosedOK
    │   └── ConnectionClosedError
    │       └── StreamClosedError (also ConnectionResetError)
    ├── InvalidURI
    ├── InvalidProxy
    ├── InvalidHandshake
    │   ├── SecurityError
    │   │   ├── RequestLineTooLong
    │   │   ├── StatusLineTooLong
    │   │   ├── HeaderLineTooLong
    │   │   └── TooManyHeaders
    │   ├── ProxyError
    │   │   ├── InvalidProxyMessage
    │   │   └── InvalidProxyStatus
    │   ├── InvalidMessage
    │   ├── InvalidMethod
    │   ├── InvalidProtocol
    │   ├── InvalidStatus
    │   ├── InvalidHeader
    │   │   ├── InvalidHeaderFormat
    │   │   ├── InvalidHeaderValue
    │   │   ├── InvalidOrigin
    │   │   └── InvalidUpgrade
    │   └── NegotiationError
    │       ├── DuplicateParameter
    │       ├── InvalidParameterName
    │       └── InvalidParameterValue
    ├── ProtocolError
    ├── PayloadTooBig
    ├── TooManyFragments
    ├── InvalidState (also AssertionError)
    └── ConcurrencyError (also RuntimeError)

An exception stores data, and builds its text from them when it is shown. The data include credentials that the caller
supplied; the text never does. Network failures raise ``OSError``, timeouts raise ``TimeoutError``.
"""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING, Any

from ._lazy import LazyModule
from ._redaction import mask_header, mask_uri, mask_user_info, printable
from .close_codes import Close, CloseCode

if TYPE_CHECKING:
    from . import datastructures
else:
    # That module imports this one; type hints are evaluated later.
    datastructures = LazyModule("wirespeed.datastructures")

__all__ = [
    "ConcurrencyError",
    "ConnectionClosed",
    "ConnectionClosedError",
    "ConnectionClosedOK",
    "DuplicateParameter",
    "HeaderLineTooLong",
    "InvalidHandshake",
    "InvalidHeader",
    "InvalidHeaderFormat",
    "InvalidHeaderValue",
    "InvalidMessage",
    "InvalidMethod",
    "InvalidOrigin",
    "InvalidParameterName",
    "InvalidParameterValue",
    "InvalidProtocol",
    "InvalidProxy",
    "InvalidProxyMessage",
    "InvalidProxyStatus",
    "InvalidState",
    "InvalidStatus",
    "InvalidURI",
    "InvalidUpgrade",
    "NegotiationError",
    "PayloadTooBig",
    "ProtocolError",
    "ProxyError",
    "RequestLineTooLong",
    "SecurityError",
    "StatusLineTooLong",
    "StreamClosedError",
    "TooManyFragments",
    "TooManyHeaders",
    "WebSocketException",
]


def _restore(cls: type[WebSocketException], args: tuple[Any, ...]) -> WebSocketException:
    exc = cls.__new__(cls)
    exc.args = args
    return exc


class _Root(Exception):
    """A base class of the exceptions to which wirespeed.compat can add those of the ``websockets`` package.

    Python allows adding bases only to a class whose first base is not a builtin.
    """

    def __init__(self, *args: Any) -> None:
        # Not super(): an added base class takes other arguments.
        Exception.__init__(self, *args)

    __str__ = Exception.__str__


class WebSocketException(_Root):
    """Base class of all exceptions that this package defines."""

    def __repr__(self) -> str:
        # The default shows the arguments, which may contain a password.
        return f"{type(self).__name__}({str(self)!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        # The default calls the class with ``args``, which are not the arguments of every constructor here.
        return _restore, (type(self), self.args), self.__dict__ or None


# Not public: the documented hierarchy begins with WebSocketException.
del _Root


class ConnectionClosed(WebSocketException):
    """Raised when a closed connection is used.

    Its ``__cause__`` is the error that ended the connection, if there was one.
    """

    # Identifies the native connection that raised it; 0 if no connection has raised it.
    _origin = 0

    # Native connections do not call it, but set ``args`` only.
    def __init__(self, rcvd: Close | None, sent: Close | None, rcvd_then_sent: bool | None = None) -> None:
        super().__init__(rcvd, sent, rcvd_then_sent)

    @property
    def rcvd(self) -> Close | None:
        """Code and reason of the close frame received, ``None`` without one."""
        rcvd: Close | None = self.args[0]
        return rcvd

    @property
    def sent(self) -> Close | None:
        """Code and reason of the close frame sent, ``None`` without one."""
        sent: Close | None = self.args[1]
        return sent

    @property
    def rcvd_then_sent(self) -> bool | None:
        """Whether the close frame was received before one was sent; ``None`` unless both exist."""
        first: bool | None = self.args[2]
        return first

    def __str__(self) -> str:
        if self.rcvd is None and self.sent is None:
            text = "no close frame received or sent"
        elif self.rcvd is None:
            text = f"sent {self.sent}; no close frame received"
        elif self.sent is None:
            text = f"received {self.rcvd}; no close frame sent"
        elif self.rcvd_then_sent:
            text = f"received {self.rcvd}; then sent {self.sent}"
        else:
            text = f"sent {self.sent}; then received {self.rcvd}"
        # Code 1009 alone does not show which limit was exceeded.
        if isinstance(self.__cause__, (PayloadTooBig, TooManyFragments)):
            text += f": {self.__cause__}"
        return text

    @property
    def code(self) -> int:
        """The close code received, 1006 without a close frame."""
        return CloseCode.ABNORMAL_CLOSURE if self.rcvd is None else self.rcvd.code

    @property
    def reason(self) -> str:
        """The close reason received, empty without one."""
        return "" if self.rcvd is None else self.rcvd.reason


class ConnectionClosedOK(ConnectionClosed):
    """Raised when the connection was closed properly: both close frames have code 1000, 1001 or no code."""


class ConnectionClosedError(ConnectionClosed):
    """Raised when the connection was closed with another code, or without a complete closing handshake."""


class StreamClosedError(ConnectionClosedError, ConnectionResetError):
    """Raised by reading from a stream that ended with an error, and by writing to a stream that has ended.

    It is a :exc:`wirespeed.ConnectionClosedError`, with the close frames, and also the ``ConnectionResetError`` that
    code for other streams expects.
    """

    errno = errno.ECONNRESET
    strerror = os.strerror(errno)


class InvalidURI(WebSocketException):
    """Raised when the URI to connect to is not a WebSocket URI.

    Attributes:
        uri: The URI as given, with credentials and query; the text of the exception has neither.
        msg: What is wrong with it.
    """

    def __init__(self, uri: str, msg: str) -> None:
        super().__init__(uri, msg)
        self.uri = uri
        self.msg = msg

    def __str__(self) -> str:
        return f"{printable(mask_uri(self.uri))} isn't a valid URI: {self.msg}"


class InvalidProxy(WebSocketException):
    """Raised when a proxy URL is not valid.

    Attributes:
        proxy: The URL as given, with credentials.
        msg: What is wrong with it.
    """

    def __init__(self, proxy: str, msg: str) -> None:
        super().__init__(proxy, msg)
        self.proxy = proxy
        self.msg = msg

    def __str__(self) -> str:
        return f"{printable(mask_user_info(self.proxy))} isn't a valid proxy: {self.msg}"


class InvalidHandshake(WebSocketException):
    """Base class of failures of the opening handshake."""


class SecurityError(InvalidHandshake):
    """Raised when a request or a response violates a security rule."""


class RequestLineTooLong(SecurityError):
    """Raised when the first line of a request is too long."""


class StatusLineTooLong(SecurityError):
    """Raised when the first line of a response is too long."""


class HeaderLineTooLong(SecurityError):
    """Raised when a header of a request or response is too long."""


class TooManyHeaders(SecurityError):
    """Raised when a request or response has too many headers."""


class ProxyError(InvalidHandshake):
    """Raised when a proxy does not open the connection."""


class InvalidProxyMessage(ProxyError):
    """Raised when the response of an HTTP proxy is malformed."""


class InvalidProxyStatus(ProxyError):
    """Raised when an HTTP proxy rejects the connection.

    Attributes:
        response: The response of the proxy.
    """

    def __init__(self, response: datastructures.Response) -> None:
        super().__init__(response)
        self.response = response

    def __str__(self) -> str:
        return f"proxy rejected connection: {_describe(self.response)}"


class InvalidMessage(InvalidHandshake):
    """Raised when a request or a response is malformed."""


class InvalidMethod(InvalidHandshake):
    """Raised when a request does not use the GET method.

    Attributes:
        method: The method of the request.
    """

    def __init__(self, method: str) -> None:
        super().__init__(method)
        self.method = method

    def __str__(self) -> str:
        return f"unsupported HTTP method: {printable(self.method)}"


class InvalidProtocol(InvalidHandshake):
    """Raised when a request does not use HTTP/1.1.

    Attributes:
        protocol: The version of the request.
    """

    def __init__(self, protocol: str) -> None:
        super().__init__(protocol)
        self.protocol = protocol

    def __str__(self) -> str:
        return f"unsupported HTTP version: {printable(self.protocol)}"


class InvalidStatus(InvalidHandshake):
    """Raised when a server answers the opening handshake with a status other than 101.

    Attributes:
        response: The response: ``status_code``, ``reason_phrase``, ``headers`` and ``body``.
    """

    def __init__(self, response: datastructures.Response) -> None:
        super().__init__(response)
        self.response = response

    def __str__(self) -> str:
        return f"server rejected WebSocket connection: {_describe(self.response)}"


class InvalidHeader(InvalidHandshake):
    """Raised when a header is missing or invalid.

    Attributes:
        name: Name of the header.
        value: Value of the header, ``None`` if the header is missing.
    """

    def __init__(self, name: str, value: str | None = None) -> None:
        super().__init__(name, value)
        self.name = name
        self.value = value

    def __str__(self) -> str:
        name = printable(self.name) or "''"
        if self.value is None:
            return f"missing {name} header"
        if self.value == "":
            return f"empty {name} header"
        return f"invalid {name} header: {printable(mask_header(self.name, self.value))}"


class InvalidHeaderFormat(InvalidHeader):
    """Raised when a header violates its grammar."""

    def __init__(self, name: str, error: str, header: str, pos: int) -> None:
        super().__init__(name, f"{error} at {pos} in {header}")


class InvalidHeaderValue(InvalidHeader):
    """Raised when a header follows its grammar, but its value is not accepted."""


class InvalidOrigin(InvalidHeader):
    """Raised when the Origin header of a request is not allowed."""

    def __init__(self, origin: str | None) -> None:
        super().__init__("Origin", origin)


class InvalidUpgrade(InvalidHeader):
    """Raised when the Upgrade or the Connection header is wrong."""


class NegotiationError(InvalidHandshake):
    """Raised when the two ends do not agree on an extension or a subprotocol."""


class DuplicateParameter(NegotiationError):
    """Raised when an extension repeats a parameter.

    Attributes:
        name: Name of the parameter.
    """

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name

    def __str__(self) -> str:
        return f"duplicate parameter: {printable(self.name)}"


class InvalidParameterName(NegotiationError):
    """Raised when an extension has a parameter that it does not define.

    Attributes:
        name: Name of the parameter.
    """

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name

    def __str__(self) -> str:
        return f"invalid parameter name: {printable(self.name)}"


class InvalidParameterValue(NegotiationError):
    """Raised when a parameter of an extension has a wrong value.

    Attributes:
        name: Name of the parameter.
        value: Value of the parameter, ``None`` without a value.
    """

    def __init__(self, name: str, value: str | None) -> None:
        super().__init__(name, value)
        self.name = name
        self.value = value

    def __str__(self) -> str:
        name = printable(self.name)
        if self.value is None:
            return f"missing value for parameter {name}"
        if self.value == "":
            return f"empty value for parameter {name}"
        return f"invalid value for parameter {name}: {printable(self.value)}"


class ProtocolError(WebSocketException):
    """Raised when a frame violates the protocol; the cause of a ``ConnectionClosedError``."""


class PayloadTooBig(WebSocketException):
    """Raised when a message exceeds the maximum size; the cause of a ``ConnectionClosedError``.

    Attributes:
        size: Size in bytes of the frame that exceeds the limit; ``None`` if it is unknown, as during decompression.
        max_size: The limit in bytes.
        current_size: Size in bytes of the fragments of the message before this frame; ``None`` for the first frame.
    """

    def __init__(self, size: int | None, max_size: int, current_size: int | None = None) -> None:
        super().__init__(size, max_size, current_size)
        self.size = size
        self.max_size = max_size
        self.current_size = current_size

    def __str__(self) -> str:
        text = "frame"
        if self.size is not None:
            text += f" with {self.size} bytes"
        if self.current_size is not None:
            text += f" after reading {self.current_size} bytes"
        return f"{text} exceeds limit of {self.max_size} bytes; raise max_size to accept it"


class TooManyFragments(WebSocketException):
    """Raised when a message has too many fragments; the cause of a ``ConnectionClosedError``.

    Attributes:
        max_fragments: The limit.
    """

    def __init__(self, max_fragments: int) -> None:
        super().__init__(max_fragments)
        self.max_fragments = max_fragments

    def __str__(self) -> str:
        # The drop-in for websockets reads the limit from the environment.
        return (
            f"fragmented message exceeds limit of {self.max_fragments} frames; raise max_fragments "
            "(WEBSOCKETS_MAX_FRAGMENTS in place of websockets) to accept it"
        )


class InvalidState(WebSocketException, AssertionError):
    """Raised when the state of the connection does not allow an operation."""


class ConcurrencyError(WebSocketException, RuntimeError):
    """Raised when operations run at the same time that must not."""


def _describe(response: datastructures.Response) -> str:
    text = f"HTTP {response.status_code:d}"
    excerpt = response.body_excerpt()
    return f"{text}: {excerpt}" if excerpt else text
