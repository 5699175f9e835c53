"""The cost of imports, counted in modules; and names that are loaded later exist from the start."""

from __future__ import annotations

import ast
import inspect
import pickle
import pydoc
import subprocess
import sys
import typing
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import wirespeed
import wirespeed.asyncio
import wirespeed.sync
from support.servers import WebSocketsServer

pytestmark = pytest.mark.wirespeed_only("the modules are ours")

ROOT = Path(__file__).parents[1]
LAZY = [wirespeed, wirespeed.asyncio, wirespeed.sync]

# Slow modules of the standard library, which a connection needs seldom or never.
SELDOM = {"datetime", "email", "hashlib", "http.client", "ipaddress", "json", "multiprocessing", "pathlib", "random"}
SELDOM |= {"tempfile", "urllib.parse", "urllib.request", "uuid"}
# Modules of a server.
SERVING = {"_serve", "_server", "_accept", "negotiate"}


def imported(code: str) -> set[str]:
    """Returns the modules that a program imports in a new interpreter."""
    program = f"import sys; before = set(sys.modules)\n{code}\nprint(*set(sys.modules) - before)"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program], stdout=subprocess.PIPE, text=True, check=True, timeout=60
    )
    return set(done.stdout.split())


# 31 on CPython 3.10 to 3.13, 49, 93 and 146; `import websockets` takes 105, its clients 189 and 224.
@pytest.mark.parametrize(
    ("code", "most"),
    [
        ("import wirespeed", 40),
        ("from wirespeed.exceptions import ConnectionClosed", 55),
        ("import wirespeed.sync; wirespeed.sync.connect", 105),
        ("from wirespeed import connect", 160),
    ],
)
def test_number_of_modules(code: str, most: int) -> None:
    found = imported(code)
    assert "wirespeed" in found
    assert len(found) <= most, sorted(found)


def test_the_package_alone() -> None:
    found = imported("import wirespeed")
    assert {name for name in found if name.startswith("wirespeed")} == {"wirespeed", "wirespeed._lazy"}
    assert found & {*SELDOM, "asyncio", "dataclasses", "inspect", "logging", "socket", "ssl", "threading"} == set()


@pytest.mark.parametrize("name", ["connect", "unix_connect", "serve", "ClientConnection", "ServerConnection"])
def test_blocking_api_needs_no_asyncio(name: str) -> None:
    found = imported(f"import wirespeed.sync; wirespeed.sync.{name}")
    wrong = {"_ssl", "asyncio", "concurrent.futures", "ssl", "subprocess", "wirespeed.asyncio"}
    assert found & (SELDOM | wrong) == set()


@pytest.mark.parametrize("arguments", [["--help"], ["connect", "--help"], ["serve", "--help"]])
def test_help_of_the_command_line(arguments: list[str]) -> None:
    code = "import contextlib, io; from wirespeed.cli import main\nwith contextlib.redirect_stdout(io.StringIO()): "
    found = imported(f"{code}assert main({arguments}) == 0")
    assert "wirespeed.cli._main" in found
    assert found & (SELDOM | {"asyncio", "logging", "socket", "ssl"}) == set()


def test_clients_need_no_server() -> None:
    for api in ("wirespeed", "wirespeed.sync"):
        found = imported(f"from {api} import connect")
        assert {name for name in found if name.split(".")[-1] in SERVING} == set()


@pytest.mark.parametrize("name", ["connect", "serve"])
def test_asyncio_api_needs_little_beside_asyncio(name: str) -> None:
    found = imported(f"from wirespeed import {name}")
    needed = imported("import asyncio, dataclasses, http, logging")
    assert "asyncio" in found
    assert found & SELDOM <= needed
    assert "wirespeed.sync" not in found


CONNECTING = {
    "sync": """
import wirespeed.sync
before |= set(sys.modules)
with wirespeed.sync.connect({uri!r}) as ws:
    ws.send("text")
    assert ws.recv() == "text"
""",
    "asyncio": """
import asyncio, wirespeed
async def main():
    async with wirespeed.connect({uri!r}) as ws:
        await ws.send("text")
        assert await ws.recv() == "text"
asyncio.run(main())
""",
}


@pytest.mark.parametrize("module", ["wirespeed.exceptions", "wirespeed.compat.websockets.exceptions"])
def test_exceptions_need_no_asyncio(module: str) -> None:
    assert "asyncio" not in imported(f"import {module}; {module}.ConnectionClosed; dir({module})")
    assert "asyncio" not in imported("from wirespeed.exceptions import StreamClosedError")


@pytest.mark.parametrize("api", CONNECTING)
def test_connecting_needs_little_more(server: WebSocketsServer, api: str) -> None:
    """Lazy modules are optional features: they are not merely delayed until the first connection."""
    found = imported(CONNECTING[api].format(uri=server.uri))
    needed = imported("import asyncio, dataclasses, http, logging") if api == "asyncio" else set()
    assert found & (SELDOM | ({"asyncio", "ssl"} if api == "sync" else set())) <= needed


# The names


@pytest.mark.parametrize("module", LAZY, ids=lambda module: module.__name__)
def test_lists_agree(module: ModuleType) -> None:
    """The names for type checkers are the existing ones."""
    tree = ast.parse(inspect.getsource(module))
    block = next(node for node in tree.body if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test))
    seen = {
        name: "." * node.level + (node.module or "")
        for node in ast.walk(block)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        for name in (wirespeed.exceptions.__all__ if alias.name == "*" else [alias.name])
    }
    if sys.version_info >= (3, 16):
        seen.pop("EventLoopPolicy", None)
    sources: dict[str, tuple[str, ...]] = vars(module)["_SOURCES"]
    found = {name: source for source, names in sources.items() for name in names}
    found.update({name: "." for name in vars(module).get("_MODULES", ()) if name in module.__all__})
    assert found == seen
    assert set(found) == set(module.__all__)
    assert set(module.__all__) <= set(dir(module))


@pytest.mark.parametrize("module", LAZY, ids=lambda module: module.__name__)
def test_import_of_everything(module: ModuleType) -> None:
    names: dict[str, Any] = {}
    exec(f"from {module.__name__} import *", names)
    assert set(names) - {"__builtins__"} == set(module.__all__)


@pytest.mark.parametrize("module", LAZY, ids=lambda module: module.__name__)
def test_unknown_names(module: ModuleType) -> None:
    assert not hasattr(module, "nothing")
    with pytest.raises(AttributeError, match=rf"^module '{module.__name__}' has no attribute 'nothing'$"):
        _ = module.nothing
    with pytest.raises(ImportError, match="nothing"):
        exec(f"from {module.__name__} import nothing")


@pytest.mark.parametrize("name", ["asyncio", "close_codes", "datastructures", "exceptions", "sync", "tls", "typing"])
def test_public_modules_are_attributes(name: str) -> None:
    assert f"wirespeed.{name}" in imported(f"import wirespeed; assert {name!r} in dir(wirespeed); wirespeed.{name}")


@pytest.mark.parametrize("module", LAZY, ids=lambda module: module.__name__)
def test_help(module: ModuleType) -> None:
    text = pydoc.plain(pydoc.render_doc(module))
    for name in ("ClientConnection", "connect", "serve"):
        assert f"{name}(" in text or f"{name} " in text
    assert {name for name, _ in inspect.getmembers(module)} >= set(module.__all__)


@pytest.mark.parametrize(
    "function",
    [
        wirespeed.connect.__init__,
        wirespeed.serve,
        wirespeed.sync.connect,
        wirespeed.sync.serve,
        wirespeed.sync.route,
        typing.cast(Any, wirespeed.sync.ServerConnection).id.func,
        wirespeed.TLS,
        wirespeed.TLSInfo,
    ],
)
def test_annotations_can_be_evaluated(function: Any) -> None:
    """Also those of modules that are imported late."""
    assert typing.get_type_hints(function)


@pytest.mark.parametrize(
    "value",
    [
        wirespeed.Close(1000, "bye"),
        wirespeed.State.OPEN,
        wirespeed.InvalidURI("http://", "no"),
        wirespeed.ConnectionClosedOK(wirespeed.Close(1000), wirespeed.Close(1000), True),
        wirespeed.Headers({"Name": "value"}),
        wirespeed.Deflate(),
    ],
    ids=lambda value: type(value).__name__,
)
def test_pickles_are_read_where_nothing_is_imported(value: Any) -> None:
    data = pickle.dumps(value)
    code = f"import pickle; value = pickle.loads({data!r}); assert {str(value)!r} == str(value)"
    assert "wirespeed" in imported(code)
