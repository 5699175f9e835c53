"""wirespeed: the WebSocket library for Python with a Rust core."""

import os as _os
import sys as _sys
import typing as _typing

from ._lazy import lazy as _lazy

if _typing.TYPE_CHECKING:
    from . import sync
    from ._native_types import State
    from ._options.compression import Deflate, compression_memory
    from ._patching import patch, unpatch
    from ._version import __version__
    from .asyncio._broadcasting import broadcast
    from .asyncio._client import connect, unix_connect
    from .asyncio._connection import ClientConnection, Listener
    from .asyncio._reconnect import ConnectAttempt
    from .asyncio._request_hooks import Router, basic_auth, route, unix_route
    from .asyncio._serve import serve, unix_serve
    from .asyncio._server import Server, ServerConnection
    from .asyncio._stream import StreamReader, StreamWriter, open_stream
    from .asyncio.loop import EventLoop, new_event_loop, run
    from .close_codes import Close, CloseCode
    from .datastructures import Headers, HeadersLike, MultipleValuesError, Request, Response
    from .exceptions import *
    from .tls import TLS, TLSInfo
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

    if _sys.version_info < (3, 16):
        from .asyncio.loop import EventLoopPolicy

__all__ = [
    # Connections
    "connect",
    "unix_connect",
    "ClientConnection",
    "ConnectAttempt",
    "Listener",
    "State",
    "TLS",
    "TLSInfo",
    "Deflate",
    "compression_memory",
    "sync",
    # Servers
    "serve",
    "unix_serve",
    "Server",
    "ServerConnection",
    "broadcast",
    "basic_auth",
    "route",
    "unix_route",
    "Router",
    # In place of the websockets package
    "patch",
    "unpatch",
    # Streams of bytes
    "open_stream",
    "StreamReader",
    "StreamWriter",
    "StreamClosedError",
    # Event loops
    "run",
    "new_event_loop",
    "EventLoop",
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

_SOURCES = {
    "._native_types": ("State",),
    "._options.compression": ("Deflate", "compression_memory"),
    "._patching": ("patch", "unpatch"),
    "._version": ("__version__",),
    ".asyncio._broadcasting": ("broadcast",),
    ".asyncio._client": ("connect", "unix_connect"),
    ".asyncio._connection": ("ClientConnection", "Listener"),
    ".asyncio._reconnect": ("ConnectAttempt",),
    ".asyncio._request_hooks": ("Router", "basic_auth", "route", "unix_route"),
    ".asyncio._serve": ("serve", "unix_serve"),
    ".asyncio._server": ("Server", "ServerConnection"),
    ".asyncio._stream": ("StreamReader", "StreamWriter", "open_stream"),
    ".asyncio.loop": ("EventLoop", "new_event_loop", "run"),
    ".close_codes": ("Close", "CloseCode"),
    ".datastructures": ("Headers", "HeadersLike", "MultipleValuesError", "Request", "Response"),
    ".tls": ("TLS", "TLSInfo"),
    ".typing": (
        "BytesLike",
        "Data",
        "DataLike",
        "ExtensionName",
        "ExtensionParameter",
        "LoggerLike",
        "Origin",
        "StatusLike",
        "Subprotocol",
    ),
}

# All other exports are exceptions.
_SOURCES[".exceptions"] = (*{*__all__}.difference(("sync",), *_SOURCES.values()),)

_MODULES = ("asyncio", "close_codes", "datastructures", "exceptions", "sync", "tls", "typing")

if _sys.version_info < (3, 16):
    __all__ += ["EventLoopPolicy"]
    _SOURCES[".asyncio.loop"] = (*_SOURCES[".asyncio.loop"], "EventLoopPolicy")

if not _typing.TYPE_CHECKING:
    __getattr__, __dir__ = _lazy(__name__, _SOURCES, _MODULES)


def _after_fork() -> None:
    # A child process must not use masking keys that its parent has drawn.
    if (native := _sys.modules.get(f"{__name__}._native")) is not None:
        native.after_fork()


if hasattr(_os, "register_at_fork"):
    _os.register_at_fork(after_in_child=_after_fork)
