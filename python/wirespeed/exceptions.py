"""Every exception that this package defines.

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

An exception carries data; its text is built from that data when it is shown. Credentials are part of the data where
the caller supplied them, and never of the text. Failures of the network are ``OSError``, missed deadlines
``TimeoutError``.
"""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING, Any

from ._lazy import Later
from ._redaction import mask_header, mask_uri, mask_user_info, printable
from .close_codes import Close, CloseCode

if TYPE_CHECKING:
    from . import datastructures
else:
    # Which imports this module; type hints are evaluated later.
    datastructures = Later("wirespeed.datastructures")

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
    """Where exceptions of the ``websockets`` package become bases of ours: see wirespeed.compat.

    Python lets bases be added only to a class whose first base is not built in.
    """

    def __init__(self, *args: Any) -> None:
        # Not super(): a base that was added takes other arguments.
        Exception.__init__(self, *args)

    __str__ = Exception.__str__


class WebSocketException(_Root):
    """Base class of all exceptions that this package defines."""

    def __repr__(self) -> str:
        # The default shows the arguments, which may hold a password.
        return f"{type(self).__name__}({str(self)!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        # The default calls the class with ``args``, which are not the arguments of every constructor in the
        # tree.
        return _restore, (type(self), self.args), self.__dict__ or None


# The tree begins with WebSocketException.
del _Root


class ConnectionClosed(WebSocketException):
    """Raised by using a connection that is closed.

    Its ``__cause__`` is the error that ended the connection, if there was one.
    """

    # Which connection it tells of, in the words of the native one; 0 if no connection has raised it.
    _origin = 0

    # The native connections do not call it: they set ``args``, and nothing else.
    def __init__(self, rcvd: Close | None, sent: Close | None, rcvd_then_sent: bool | None = None) -> None:
        super().__init__(rcvd, sent, rcvd_then_sent)

    @property
    def rcvd(self) -> Close | None:
        """Code and reason of the close frame received, ``None`` if there was none."""
        rcvd: Close | None = self.args[0]
        return rcvd

    @property
    def sent(self) -> Close | None:
        """Code and reason of the close frame sent, ``None`` if there was none."""
        sent: Close | None = self.args[1]
        return sent

    @property
    def rcvd_then_sent(self) -> bool | None:
        """Whether the close frame was received first; ``None`` unless both exist."""
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
        # Code 1009 alone does not tell which option to change.
        if isinstance(self.__cause__, (PayloadTooBig, TooManyFragments)):
            text += f": {self.__cause__}"
        return text

    @property
    def code(self) -> int:
        """The close code received, 1006 if there was no close frame."""
        return CloseCode.ABNORMAL_CLOSURE if self.rcvd is None else self.rcvd.code

    @property
    def reason(self) -> str:
        """The close reason received, empty if there was none."""
        return "" if self.rcvd is None else self.rcvd.reason


class ConnectionClosedOK(ConnectionClosed):
    """Raised when the connection ended properly: close frames both ways, with code 1000, 1001 or none."""


class ConnectionClosedError(ConnectionClosed):
    """Raised when the connection ended with another close code, or without a complete closing handshake."""


class StreamClosedError(ConnectionClosedError, ConnectionResetError):
    """Raised by reading from a stream that ended with an error, and by writing to one that has ended.

    It is both a :exc:`wirespeed.ConnectionClosedError`, with the close frames, and the ``ConnectionResetError`` that
    code written for other streams expects.
    """

    errno = errno.ECONNRESET
    strerror = os.strerror(errno)


class InvalidURI(WebSocketException):
    """Raised by connecting to something that is not a WebSocket URI.

    Attributes:
        uri: The URI as given, credentials and query included; the text has neither.
        msg: What is wrong with it.
    """

    def __init__(self, uri: str, msg: str) -> None:
        super().__init__(uri, msg)
        self.uri = uri
        self.msg = msg

    def __str__(self) -> str:
        return f"{printable(mask_uri(self.uri))} isn't a valid URI: {self.msg}"


class InvalidProxy(WebSocketException):
    """Raised by connecting through something that is not a proxy URL.

    Attributes:
        proxy: The URL as given, credentials included.
        msg: What is wrong with it.
    """

    def __init__(self, proxy: str, msg: str) -> None:
        super().__init__(proxy, msg)
        self.proxy = proxy
        self.msg = msg

    def __str__(self) -> str:
        return f"{printable(mask_user_info(self.proxy))} isn't a valid proxy: {self.msg}"


class InvalidHandshake(WebSocketException):
    """Base class of the failures of the opening handshake."""


class SecurityError(InvalidHandshake):
    """Raised when a request or a response breaks a security rule."""


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
        method: The method that it uses.
    """

    def __init__(self, method: str) -> None:
        super().__init__(method)
        self.method = method

    def __str__(self) -> str:
        return f"unsupported HTTP method: {printable(self.method)}"


class InvalidProtocol(InvalidHandshake):
    """Raised when a request does not use HTTP/1.1.

    Attributes:
        protocol: The version that it uses.
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
    """Raised when a header is missing or wrong.

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
    """Raised when a header does not follow its grammar."""

    def __init__(self, name: str, error: str, header: str, pos: int) -> None:
        super().__init__(name, f"{error} at {pos} in {header}")


class InvalidHeaderValue(InvalidHeader):
    """Raised when a header follows its grammar but has a value that is not acceptable."""


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
        value: Value of the parameter, ``None`` if it has none.
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
    """Raised when a frame breaks the protocol; the cause of a ``ConnectionClosedError``."""


class PayloadTooBig(WebSocketException):
    """Raised when a message exceeds the maximum size; the cause of a ``ConnectionClosedError``.

    Attributes:
        size: Size of the frame that exceeds the limit, in bytes; ``None`` where it is not known, as in inflating.
        max_size: The limit, in bytes.
        current_size: Size of the fragments of the message before this frame, in bytes; ``None`` if it is the first.
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
    """Raised when a message comes in too many fragments; the cause of a ``ConnectionClosedError``.

    Attributes:
        max_fragments: The limit.
    """

    def __init__(self, max_fragments: int) -> None:
        super().__init__(max_fragments)
        self.max_fragments = max_fragments

    def __str__(self) -> str:
        # The drop-in for websockets takes the limit from the environment.
        return (
            f"fragmented message exceeds limit of {self.max_fragments} frames; raise max_fragments "
            "(WEBSOCKETS_MAX_FRAGMENTS in place of websockets) to accept it"
        )


class InvalidState(WebSocketException, AssertionError):
    """Raised by an operation that the state of the connection forbids."""


class ConcurrencyError(WebSocketException, RuntimeError):
    """Raised by operations that must not run at the same time."""


def _describe(response: datastructures.Response) -> str:
    text = f"HTTP {response.status_code:d}"
    excerpt = response.body_excerpt()
    return f"{text}: {excerpt}" if excerpt else text
