"""The public surface is a list: a change of it is a change of this file."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import pkgutil
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import wirespeed
import wirespeed.asyncio
import wirespeed.exceptions
import wirespeed.sync
import wirespeed.typing
from interop.servers import WebSocketsServer

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
    "StreamClosedError",
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

SERVER = [
    "Router",
    "Server",
    "ServerConnection",
    "basic_auth",
    "route",
    "serve",
    "unix_route",
    "unix_serve",
]

WIRESPEED = [
    *EXCEPTIONS,
    *TYPES,
    *SERVER,
    "broadcast",
    "patch",
    "unpatch",
    "ClientConnection",
    "Close",
    "CloseCode",
    "ConnectAttempt",
    "Deflate",
    "compression_memory",
    "EventLoop",
    *(["EventLoopPolicy"] if sys.version_info < (3, 16) else []),
    "Headers",
    "Listener",
    "MultipleValuesError",
    "Request",
    "Response",
    "State",
    "StreamReader",
    "StreamWriter",
    "TLS",
    "TLSInfo",
    "__version__",
    "connect",
    "new_event_loop",
    "open_stream",
    "run",
    "sync",
    "unix_connect",
]

ASYNCIO = [
    *SERVER,
    "broadcast",
    "ClientConnection",
    "ConnectAttempt",
    "Connection",
    "Listener",
    "StreamReader",
    "StreamWriter",
    "connect",
    "open_stream",
    "process_exception",
    "unix_connect",
]

SYNC = [*SERVER, "ClientConnection", "Ping", "connect", "unix_connect"]

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
    "recv_json",
    "recv_many",
    "recv_msgpack",
    "recv_nowait",
    "recv_streaming",
    "remote_address",
    "request",
    "response",
    "send",
    "send_json",
    "send_many",
    "send_msgpack",
    "state",
    "stats",
    "subprotocol",
    "tls",
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


ASYNCIO_CONNECTION = sorted(
    [
        *CONNECTION,
        "io_backend",
        "send_nowait",
        "wait_closed",
    ]
)

ASYNCIO_CONNECT = [
    *CONNECT[: CONNECT.index("open_timeout")],
    "process_exception",
    "reconnect_delays",
    "reconnect_after_close",
    "refresh",
    *CONNECT[CONNECT.index("open_timeout") : CONNECT.index("logger")],
    "max_queue_bytes",
    "write_limit",
    "coalesce",
    "yield_after",
    "io_backend",
    "listener",
    "zero_copy",
    "logger",
    "create_connection",
]

MODULES = {
    "": "the asyncio API, and what all share",
    ".asgi": "for uvicorn",
    ".asyncio": "",
    ".asyncio.loop": "Selector, for loops of other people",
    ".cli": "the command",
    ".close_codes": "",
    ".compat": "",
    ".datastructures": "",
    ".engine": "a server of many threads",
    ".exceptions": "",
    ".sync": "",
    ".tls": "",
    ".typing": "",
}
"""The public modules, all that have no underscore; below them are those of the drop-in, whose names are websockets'."""

DROP_IN = "wirespeed.compat.websockets"

LISTENER = ["on_close", "on_message", "on_open", "on_ping", "on_pong", "on_writable"]

# Differences from the websockets package, with reasons. Its releases differ from each other, so names that only it has
# may be missing there; the lists of our additional names are complete.


def reasons(*groups: tuple[str, str]) -> dict[str, str]:
    return {name: reason for names, reason in groups for name in names.split()}


MACHINERY = reasons(
    (
        "acknowledge_pings close_deadline close_exc connection_exc handshake keepalive pending_pings process_event "
        "protocol recv_messages response_rcvd send_context send_data send_in_progress set_connection_exc "
        "start_keepalive terminate_pending_pings debug",
        "undocumented: what the connection is made of",
    ),
    ("close_timeout ping_interval ping_timeout", "undocumented: arguments of connect"),
)

ONLY_IN_WEBSOCKETS = {
    "sync connect": reasons(
        ("extensions", "compression=Deflate(...): messages do not pass through Python"),
        ("kwargs", "a typing error is found at once"),
        ("legacy", "there are no earlier versions to be compatible with"),
    ),
    "asyncio connect": reasons(
        ("extensions", "compression=Deflate(...): messages do not pass through Python"),
        ("kwargs", "a typing error is found at once"),
    ),
    "sync connection": {
        **MACHINERY,
        **reasons(
            (
                "close_socket keepalive_thread maybe_raise_legacy_warning pending_legacy_warning protocol_mutex "
                "recv_bufsize recv_events recv_events_thread recv_flow_control shutdown_notifier shutdown_watcher",
                "undocumented: what the connection is made of",
            ),
            ("socket", "the socket belongs to the core; fileno() is its number"),
            ("wait_closed", "a thread that waits for the end is in recv, which raises it"),
        ),
    },
    "asyncio connection": {
        **MACHINERY,
        **reasons(
            (
                "connection_lost connection_made data_received eof_received pause_writing resume_writing",
                "it is no asyncio.Protocol: by default there is no transport",
            ),
            (
                "connection_lost_waiter drain drain_waiters keepalive_task loop max_queue_high max_queue_low paused "
                "write_limit_high write_limit_low",
                "undocumented: what the connection is made of",
            ),
            ("transport", "by default there is none; fileno() is the number of the socket"),
        ),
    },
}

NETWORK = "an argument by name, in place of those that are passed on"

ONLY_HERE = {
    "sync connect": reasons(
        ("host port local_addr family", NETWORK),
        ("happy_eyeballs_delay", "RFC 8305"),
        ("max_fragments", "limits belong to a connection, not to the environment"),
    ),
    "asyncio connect": reasons(
        ("sock ssl server_hostname host port local_addr family happy_eyeballs_delay", NETWORK),
        ("proxy_ssl proxy_server_hostname", NETWORK),
        ("reconnect_after_close", "code 1000 means that the connection has served its purpose"),
        ("refresh", "tokens expire"),
        ("max_fragments", "limits belong to a connection, not to the environment"),
        ("max_queue_bytes", "a count of messages says little about memory"),
        ("coalesce yield_after io_backend", "of our event loops"),
        ("listener zero_copy", "callbacks"),
    ),
    "sync connection": reasons(
        ("abort", "closing without waiting"),
        ("fileno stats tls", "to look from outside"),
        ("flush recv_many recv_nowait send_many", "many messages in one call"),
        ("recv_json recv_msgpack send_json send_msgpack", "typed messages"),
    ),
    "asyncio connection": reasons(
        ("abort", "closing without waiting"),
        ("fileno io_backend stats tls", "to look from outside"),
        ("flush recv_many recv_nowait send_many send_nowait", "many messages in one call, and callbacks"),
        ("recv_json recv_msgpack send_json send_msgpack", "typed messages"),
    ),
}

# Parameters that only one of two methods of equal name has.
PARAMETERS = {
    ("sync", "ping", "ack_on_close"): "Ping.wait raises if the connection is lost",
    ("sync", "recv", "busy_poll"): "latency",
    ("sync", "send", "compress"): "compression of single messages",
    ("asyncio", "send", "compress"): "compression of single messages",
}

DEFAULTS = {
    "user_agent_header": "it names the library",
    "process_exception": "the same rule, a function of our own",
    "reconnect_delays": "the same delays, a function of our own",
}

KINDS = ["sync", "asyncio"]


def module_of(package: str, kind: str) -> ModuleType:
    return importlib.import_module(f"{package}.{kind}.client" if package == "websockets" else f"{package}.{kind}")


def names_of_connection(package: str, kind: str, uri: str) -> set[str]:
    """Returns the names of an open connection, including attributes."""
    connect = module_of(package, kind).connect

    async def names() -> list[str]:
        async with connect(uri) as ws:
            return dir(ws)

    if kind == "asyncio":
        found = asyncio.run(names())
    else:
        with connect(uri, **({"legacy": True} if "legacy" in inspect.signature(connect).parameters else {})) as ws:
            found = dir(ws)
    return {name for name in found if not name.startswith("_")}


def modules() -> list[ModuleType]:
    names = [info.name for info in pkgutil.walk_packages(wirespeed.__path__, "wirespeed.")]
    return [wirespeed, *map(importlib.import_module, names)]


@pytest.mark.parametrize(
    ("module", "expected"),
    [
        (wirespeed, WIRESPEED),
        (wirespeed.asyncio, ASYNCIO),
        (wirespeed.sync, SYNC),
        (wirespeed.exceptions, EXCEPTIONS),
    ],
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


def test_public_modules() -> None:
    """A module that is neither in the list nor in the drop-in has an underscore, or lies in a package with one."""
    found = {module.__name__ for module in modules()} - {"wirespeed.__main__"}
    public = {name for name in found if "._" not in name and not f"{name}.".startswith(f"{DROP_IN}.")}
    assert public == {f"wirespeed{name}" for name in MODULES}


def test_modules_of_the_drop_in() -> None:
    """They are modules of the websockets package, or have an underscore."""
    theirs = Path(str(pytest.importorskip("websockets").__file__)).parent
    names = [name.split(".")[3:] for module in modules() if f"{(name := module.__name__)}.".startswith(f"{DROP_IN}.")]
    public = [theirs.joinpath(*parts) for parts in names if not any(part.startswith("_") for part in parts)]
    assert len(public) > 20
    assert [path for path in public if not (path.is_dir() or path.with_suffix(".py").exists())] == []


def test_public_modules_are_documented() -> None:
    """In the table of the README."""
    readme = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
    listed = set(re.findall(r"^\| `(wirespeed[\w.]*)` \|", readme, re.MULTILINE))
    assert listed == {f"wirespeed{name}" for name in MODULES} | {DROP_IN}


def test_no_other_public_names() -> None:
    """A name outside the list is a module or begins with an underscore."""
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
    # The submodule of streams exists once it was accessed.
    assert wirespeed.exceptions.StreamClosedError is wirespeed.StreamClosedError
    defined = {name for name, value in vars(wirespeed.exceptions).items() if inspect.isclass(value)}
    ours = {name for name in defined if issubclass(vars(wirespeed.exceptions)[name], Exception)}
    assert ours == set(EXCEPTIONS)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (wirespeed.sync.ClientConnection, CONNECTION),
        (wirespeed.ClientConnection, ASYNCIO_CONNECTION),
        (wirespeed.Listener, LISTENER),
    ],
)
def test_methods(kind: type, expected: list[str]) -> None:
    # Whether these two belong to the class or to its instances does not matter to users.
    names = [name for name in dir(kind) if not name.startswith("_") and name not in ("id", "logger")]
    assert names == expected


@pytest.mark.parametrize(
    ("function", "expected"), [(wirespeed.sync.connect, CONNECT), (wirespeed.connect, ASYNCIO_CONNECT)]
)
def test_options_of_connect(function: Any, expected: list[str]) -> None:
    parameters = inspect.signature(function).parameters
    assert list(parameters) == expected
    assert {p.kind for name, p in parameters.items() if name != "uri"} == {inspect.Parameter.KEYWORD_ONLY}


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        *((wirespeed.sync.ClientConnection, name) for name in CONNECTION),
        *((wirespeed.sync, name) for name in SYNC),
        *((wirespeed.ClientConnection, name) for name in ASYNCIO_CONNECTION),
        *((wirespeed.asyncio, name) for name in ASYNCIO),
        *((wirespeed.Listener, name) for name in LISTENER),
    ],
)
def test_everything_has_documentation(owner: Any, name: str) -> None:
    """The stub holds the text of native methods; the class has the first sentence."""
    assert inspect.getdoc(getattr(owner, name))


def test_every_argument_is_documented() -> None:
    doc = inspect.getdoc(wirespeed.connect) or ""
    guide = (Path(__file__).parents[1] / "docs/asyncio.md").read_text(encoding="utf-8")
    assert [name for name in ASYNCIO_CONNECT if f"    {name}: " not in doc] == []
    assert [name for name in [*ASYNCIO_CONNECT, *LISTENER, *ASYNCIO_CONNECTION] if f"`{name}" not in guide] == []


# The websockets package


@pytest.mark.parametrize("kind", KINDS)
def test_options_of_websockets(kind: str) -> None:
    pytest.importorskip("websockets")
    theirs = inspect.signature(module_of("websockets", kind).connect).parameters
    ours = inspect.signature(module_of("wirespeed", kind).connect).parameters
    assert set(theirs) - set(ours) <= set(ONLY_IN_WEBSOCKETS[f"{kind} connect"])
    assert set(ours) - set(theirs) == set(ONLY_HERE[f"{kind} connect"])
    both = [name for name in theirs if name in ours]
    assert [name for name in both if ours[name].kind != theirs[name].kind] == []
    assert {name for name in both if ours[name].default != theirs[name].default} <= set(DEFAULTS)


@pytest.mark.parametrize("kind", KINDS)
def test_connection_of_websockets(server: WebSocketsServer, kind: str) -> None:
    pytest.importorskip("websockets")
    theirs, ours = (names_of_connection(package, kind, server.uri) for package in ("websockets", "wirespeed"))
    assert theirs - ours <= set(ONLY_IN_WEBSOCKETS[f"{kind} connection"])
    assert ours - theirs == set(ONLY_HERE[f"{kind} connection"])


@pytest.mark.parametrize("kind", KINDS)
def test_methods_of_websockets(kind: str) -> None:
    """Equal parameters in equal order, with equal defaults."""
    pytest.importorskip("websockets")
    theirs, ours = (module_of(package, kind).ClientConnection for package in ("websockets", "wirespeed"))
    names = [name for name in dir(ours) if not name.startswith("_") and inspect.isroutine(getattr(theirs, name, None))]
    assert {"recv", "recv_streaming", "send", "ping", "pong", "close"} <= set(names)
    for name in names:
        known = {parameter for place, method, parameter in PARAMETERS if (place, method) == (kind, name)}
        expected, found = (
            [
                (p.name, p.kind, p.default)
                for p in inspect.signature(getattr(owner, name)).parameters.values()
                if p.name != "self" and p.name not in known
            ]
            for owner in (theirs, ours)
        )
        assert found == expected, name
