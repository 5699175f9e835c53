"""Every public name of websockets, with its signature and its defaults; differences are listed with their reasons."""

from __future__ import annotations

import importlib
import inspect
import subprocess
import sys
from typing import Any

import pytest

import wirespeed.compat.websockets

websockets = pytest.importorskip("websockets", minversion="17")

pytestmark = pytest.mark.wirespeed_only("the drop-in is ours")

DROP_IN = "wirespeed.compat.websockets"

APIS = [f"{kind}.{name}" for kind in ("asyncio", "sync") for name in ("client", "server", "router", "connection")]

SHOWN = ["client", "datastructures", "exceptions", "frames", "headers", "http11", "protocol", "server", "typing", "uri"]

FUNCTIONS = [
    *((f"{kind}.client", name) for kind in ("asyncio", "sync") for name in ("connect", "unix_connect")),
    *(
        (f"{kind}.server", name)
        for kind in ("asyncio", "sync")
        for name in ("serve", "unix_serve", "basic_auth", "broadcast")
    ),
    *((f"{kind}.router", name) for kind in ("asyncio", "sync") for name in ("route", "unix_route")),
    *(("sync.client", name) for name in ("reconnect", "unix_reconnect")),
]

CLASSES = [
    *(("asyncio.client", name) for name in ("ClientConnection", "connect")),
    *(("sync.client", name) for name in ("ClientConnection", "reconnect")),
    *((f"{kind}.server", name) for kind in ("asyncio", "sync") for name in ("ServerConnection", "Server")),
    *((f"{kind}.router", "Router") for kind in ("asyncio", "sync")),
]


def reasons(*groups: tuple[str, str]) -> dict[str, str]:
    return {name: reason for names, reason in groups for name in names.split()}


FRAMES = "undocumented: frames and bytes do not pass through Python"

# Methods and class attributes of websockets that the drop-in lacks. None of them is documented.
LACKING = {
    "asyncio ClientConnection": reasons(
        (
            "acknowledge_pings close_exc connection_lost connection_made data_received drain eof_received handshake "
            "keepalive pause_writing process_event resume_writing send_context send_data set_connection_exc "
            "start_keepalive terminate_pending_pings",
            FRAMES,
        ),
    ),
    "asyncio connect": reasons(("open_tcp_connection", "undocumented: addresses and proxies are our business")),
    "sync ClientConnection": reasons(
        (
            "acknowledge_pings close_exc close_socket handshake keepalive process_event recv_bufsize recv_events "
            "send_context send_data set_connection_exc start_keepalive terminate_pending_pings",
            FRAMES,
        ),
        ("maybe_raise_legacy_warning", "connect() without with is fine here"),
    ),
    "sync reconnect": reasons(
        ("enable_tls open_connection open_socket", "undocumented: addresses and proxies are our business")
    ),
    "sync Server": reasons(("SHUTDOWN_POLLING_INTERVAL", "undocumented: nothing is polled")),
}
for _kind in ("asyncio", "sync"):
    LACKING[f"{_kind} ServerConnection"] = LACKING[f"{_kind} ClientConnection"]

# Parameters that exist in only one of the packages, or have another default.
PARAMETERS = {
    ("asyncio", "send", "compress"): "compression of single messages",
    ("sync", "send", "compress"): "compression of single messages",
    ("sync", "recv", "busy_poll"): "latency",
    ("asyncio", "__init__", "*"): "Server is made by serve()",
    ("sync", "__init__", "*"): "Server is made by serve()",
}


def ours(module: str) -> Any:
    return importlib.import_module(f"{DROP_IN}.{module}")


def theirs(module: str) -> Any:
    return importlib.import_module(f"websockets.{module}")


def parameters(function: Any, *, skip: set[str] = frozenset()) -> list[tuple[str, Any, Any]]:  # type: ignore[assignment]
    # Of native methods, self has no name.
    return [
        (parameter.name, parameter.kind, parameter.default)
        for parameter in inspect.signature(function).parameters.values()
        if parameter.name not in {"self", "cls", *skip}
    ]


def members(kind: type) -> dict[str, Any]:
    """Returns the public members of a class of either package, without those of asyncio."""
    names = [name for name in dir(kind) if not name.startswith("_")]
    return {name: inspect.getattr_static(kind, name) for name in names}


def test_top_level_names() -> None:
    drop_in = wirespeed.compat.websockets
    assert sorted(drop_in.__all__) == sorted(websockets.__all__)
    for name in websockets.__all__:
        assert hasattr(drop_in, name)
    assert drop_in.__version__ == websockets.__version__


@pytest.mark.parametrize("module", [*APIS, *SHOWN, "extensions.permessage_deflate", "version"])
def test_names_of_modules(module: str) -> None:
    missing = [name for name in theirs(module).__all__ if not hasattr(ours(module), name)]
    assert missing == []


@pytest.mark.parametrize("module", [*SHOWN, "extensions.permessage_deflate", "version"])
def test_modules_without_connections_show_their_objects(module: str) -> None:
    for name in theirs(module).__all__:
        assert getattr(ours(module), name) is getattr(theirs(module), name), name


@pytest.mark.parametrize(("module", "name"), FUNCTIONS)
def test_functions(module: str, name: str) -> None:
    assert parameters(getattr(ours(module), name)) == parameters(getattr(theirs(module), name))


@pytest.mark.parametrize(("module", "name"), CLASSES)
def test_members_of_classes(module: str, name: str) -> None:
    expected, found = members(getattr(theirs(module), name)), members(getattr(ours(module), name))
    lacking = LACKING.get(f"{module.partition('.')[0]} {name}", {})
    assert set(expected) - set(found) == set(lacking)


@pytest.mark.parametrize(("module", "name"), CLASSES)
def test_methods_of_classes(module: str, name: str) -> None:
    kind = module.partition(".")[0]
    expected, found = getattr(theirs(module), name), getattr(ours(module), name)
    checked = []
    for method, value in members(expected).items():
        if not callable(value) or not hasattr(found, method):
            continue
        known = {parameter for place, where, parameter in PARAMETERS if (place, where) == (kind, method)}
        assert parameters(getattr(found, method), skip=known) == parameters(getattr(expected, method)), method
        checked.append(method)
    if name.endswith("Connection"):
        assert {"recv", "recv_streaming", "send", "close", "ping", "pong", "wait_closed"} <= set(checked)


@pytest.mark.parametrize(("module", "name"), [pair for pair in CLASSES if pair[1] != "Server"])
def test_constructors(module: str, name: str) -> None:
    expected, found = getattr(theirs(module), name), getattr(ours(module), name)
    assert parameters(found.__init__) == parameters(expected.__init__)


def test_properties_are_properties() -> None:
    for module, name in CLASSES:
        for member, value in members(getattr(theirs(module), name)).items():
            if isinstance(value, property) and member != "close_exc":
                found = inspect.getattr_static(getattr(ours(module), name), member)
                assert inspect.isdatadescriptor(found), (module, name, member)


WITHOUT = """
import importlib, sys

class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "websockets":
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Hidden())
import wirespeed.compat.websockets as package
for line in sys.stdin.read().split():
    module, name = line.split(":")
    found = importlib.import_module(f"{package.__name__}.{module}" if module else package.__name__)
    if not hasattr(found, name):
        print(line)
try:
    package.ClientProtocol
except AttributeError as exc:
    print(exc)
"""

# Names that only the installed package has.
NEEDS_WEBSOCKETS = [
    "ClientProtocol",
    "Frame",
    "Protocol",
    "ServerProtocol",
]


def test_names_without_the_package() -> None:
    """All names except modules without I/O, which raise a clear error."""
    names = [f":{name}" for name in websockets.__all__]
    names += [f"{module}:{name}" for module in APIS for name in theirs(module).__all__]
    names += [f"exceptions:{name}" for name in theirs("exceptions").__all__]
    names += ["http11:USER_AGENT", "http11:SERVER", "client:backoff", "client:process_exception", "uri:parse_uri"]
    names += ["protocol:OPEN", "protocol:CLOSED", "headers:parse_authorization_basic", "frames:CloseCode"]
    names += [f"extensions.permessage_deflate:{side}PerMessageDeflateFactory" for side in ("Client", "Server")]
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT], input="\n".join(names), capture_output=True, text=True, check=True
    )
    *missing, text = done.stdout.splitlines()
    assert missing == [f":{name}" for name in websockets.__all__ if name in NEEDS_WEBSOCKETS]
    assert text.endswith("it needs the websockets package, which is not installed")
