"""wirespeed: the WebSocket library for Python with a Rust core."""

import os as _os

from . import sync
from ._native import after_fork as _after_fork
from .close_codes import Close, CloseCode
from .compression import Deflate
from .datastructures import Headers, HeadersLike, MultipleValuesError, Request, Response
from .exceptions import (
    ConcurrencyError,
    ConnectionClosed,
    ConnectionClosedError,
    ConnectionClosedOK,
    DuplicateParameter,
    HeaderLineTooLong,
    InvalidHandshake,
    InvalidHeader,
    InvalidHeaderFormat,
    InvalidHeaderValue,
    InvalidMessage,
    InvalidMethod,
    InvalidOrigin,
    InvalidParameterName,
    InvalidParameterValue,
    InvalidProtocol,
    InvalidProxy,
    InvalidProxyMessage,
    InvalidProxyStatus,
    InvalidState,
    InvalidStatus,
    InvalidUpgrade,
    InvalidURI,
    NegotiationError,
    PayloadTooBig,
    ProtocolError,
    ProxyError,
    RequestLineTooLong,
    SecurityError,
    StatusLineTooLong,
    TooManyFragments,
    TooManyHeaders,
    WebSocketException,
)
from .protocol_state import State
from .tls import TLS
from .typing import (
    BytesLike,
    Data,
    DataLike,
    ExtensionName,
    ExtensionParameter,
    LoggerLike,
    Origin,
    StatusLike,
    Subprotocol,
)
from .version import __version__

__all__ = [
    # Connections
    "State",
    "TLS",
    "Deflate",
    "sync",
    # Closing
    "Close",
    "CloseCode",
    # HTTP
    "Headers",
    "HeadersLike",
    "MultipleValuesError",
    "Request",
    "Response",
    # Exceptions
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
    "TooManyFragments",
    "TooManyHeaders",
    "WebSocketException",
    # Types
    "BytesLike",
    "Data",
    "DataLike",
    "ExtensionName",
    "ExtensionParameter",
    "LoggerLike",
    "Origin",
    "StatusLike",
    "Subprotocol",
    # Version
    "__version__",
]

# A child process must not go on with the masking keys that its parent has drawn.
if hasattr(_os, "register_at_fork"):
    _os.register_at_fork(after_in_child=_after_fork)
