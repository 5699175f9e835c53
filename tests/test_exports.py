"""The public surface is a list: a change of it is a change of this file."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import sys
from types import ModuleType

import pytest

import wirespeed
import wirespeed.exceptions
import wirespeed.sync
import wirespeed.typing

pytestmark = pytest.mark.wirespeed_only("the list is ours")

EXCEPTIONS = [
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
]

TYPES = [
    "BytesLike",
    "Data",
    "DataLike",
    "ExtensionName",
    "ExtensionParameter",
    "HeadersLike",
    "LoggerLike",
    "Origin",
    "StatusLike",
    "Subprotocol",
]

WIRESPEED = [
    *EXCEPTIONS,
    *TYPES,
    "ClientConnection",
    "Close",
    "CloseCode",
    "ConnectAttempt",
    "Deflate",
    "EventLoop",
    *(["EventLoopPolicy"] if sys.version_info < (3, 16) else []),
    "Headers",
    "Listener",
    "MultipleValuesError",
    "Request",
    "Response",
    "State",
    "StreamClosedError",
    "StreamReader",
    "StreamWriter",
    "TLS",
    "__version__",
    "connect",
    "new_event_loop",
    "open_stream",
    "run",
    "sync",
    "unix_connect",
]

SYNC = ["ClientConnection", "Ping", "connect", "unix_connect"]

CONNECTION = [
    "abort",
    "close",
    "close_code",
    "close_reason",
    "fileno",
    "flush",
    "latency",
    "local_address",
    "ping",
    "pong",
    "recv",
    "recv_many",
    "recv_nowait",
    "recv_streaming",
    "remote_address",
    "request",
    "response",
    "send",
    "send_many",
    "state",
    "stats",
    "subprotocol",
]

CONNECT = [
    "uri",
    "sock",
    "ssl",
    "server_hostname",
    "host",
    "port",
    "local_addr",
    "family",
    "happy_eyeballs_delay",
    "origin",
    "subprotocols",
    "compression",
    "additional_headers",
    "user_agent_header",
    "proxy",
    "proxy_ssl",
    "proxy_server_hostname",
    "open_timeout",
    "ping_interval",
    "ping_timeout",
    "close_timeout",
    "max_size",
    "max_fragments",
    "max_queue",
    "logger",
    "create_connection",
]


def modules() -> list[ModuleType]:
    names = [info.name for info in pkgutil.walk_packages(wirespeed.__path__, "wirespeed.")]
    return [wirespeed, *map(importlib.import_module, names)]


@pytest.mark.parametrize(
    ("module", "expected"), [(wirespeed, WIRESPEED), (wirespeed.sync, SYNC), (wirespeed.exceptions, EXCEPTIONS)]
)
def test_names(module: ModuleType, expected: list[str]) -> None:
    assert sorted(module.__all__) == sorted(expected)
    assert len(module.__all__) == len(set(module.__all__))


@pytest.mark.parametrize("module", modules(), ids=lambda module: module.__name__)
def test_every_name_is_there(module: ModuleType) -> None:
    if not module.__name__.startswith("wirespeed._"):
        assert module.__all__
    for name in getattr(module, "__all__", ()):
        assert hasattr(module, name)


def test_no_other_public_names() -> None:
    """What is not in the list is a module or begins with an underscore."""
    extra = set(vars(wirespeed)) - set(wirespeed.__all__)
    assert [name for name in extra if not name.startswith("_") and not inspect.ismodule(vars(wirespeed)[name])] == []


@pytest.mark.parametrize("name", EXCEPTIONS)
def test_exceptions_are_those_of_the_module(name: str) -> None:
    assert getattr(wirespeed, name) is getattr(wirespeed.exceptions, name)
    assert issubclass(getattr(wirespeed, name), wirespeed.WebSocketException)


@pytest.mark.parametrize("name", TYPES)
def test_types_are_those_of_the_module(name: str) -> None:
    assert getattr(wirespeed, name) is getattr(wirespeed.typing, name)


def test_every_exception_is_exported() -> None:
    defined = {name for name, value in vars(wirespeed.exceptions).items() if inspect.isclass(value)}
    ours = {name for name in defined if issubclass(vars(wirespeed.exceptions)[name], Exception)}
    assert ours == set(EXCEPTIONS)


def test_connection_methods() -> None:
    names = [name for name in dir(wirespeed.sync.ClientConnection) if not name.startswith("_")]
    assert names == CONNECTION


def test_options_of_connect() -> None:
    parameters = inspect.signature(wirespeed.sync.connect).parameters
    assert list(parameters) == CONNECT
    assert {p.kind for name, p in parameters.items() if name != "uri"} == {inspect.Parameter.KEYWORD_ONLY}


@pytest.mark.parametrize("name", sorted({*CONNECTION, *SYNC}))
def test_everything_has_documentation(name: str) -> None:
    """Of native methods the stub holds the text; the class has the first sentence."""
    owner = wirespeed.sync.ClientConnection if name in CONNECTION else wirespeed.sync
    assert inspect.getdoc(getattr(owner, name))
