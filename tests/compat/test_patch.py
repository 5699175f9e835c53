"""``wirespeed.patch`` and ``unpatch``, in processes of their own."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

pytest.importorskip("websockets", minversion="17")

HIDE = """
import sys
class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "websockets":
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Hidden())
"""


def run(code: str, *, hide: bool = False, options: tuple[str, ...] = ()) -> str:
    text = (HIDE if hide else "") + textwrap.dedent(code)
    done = subprocess.run(
        [sys.executable, "-W", "error", *options, "-c", text], capture_output=True, text=True, timeout=50
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


ECHO = """
import wirespeed
from wirespeed import patch, unpatch
patch()
import asyncio
import websockets
from websockets.asyncio.client import ClientConnection, connect
from websockets.asyncio.server import serve
from websockets.exceptions import ConnectionClosedError
import websockets.sync.client
import websockets.sync.server

async def handler(ws):
    async for message in ws:
        await ws.send(message)
    await ws.close(4000)

async def main():
    async with serve(handler, "127.0.0.1", 0) as server:
        async with connect(f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}") as ws:
            assert isinstance(ws, ClientConnection)
            assert isinstance(ws, websockets.ClientConnection)
            assert isinstance(ws, wirespeed.ClientConnection)
            assert isinstance(ws, websockets.asyncio.client.ClientConnection)
            await ws.send("hello")
            print(await ws.recv())
            assert ws.state is websockets.State.OPEN
            await ws.close()
            assert ws.protocol.state is websockets.protocol.State.CLOSED

asyncio.run(main())
assert websockets.connect is connect is websockets.asyncio.client.connect
assert websockets.serve is serve
assert issubclass(websockets.sync.client.ClientConnection, wirespeed.sync.ClientConnection)
assert issubclass(websockets.sync.server.ServerConnection, wirespeed.sync.ServerConnection)
assert issubclass(wirespeed.ConnectionClosedError, ConnectionClosedError)
print(websockets.__version__)
"""


@pytest.mark.parametrize("hide", [False, True])
def test_patched_program(hide: bool) -> None:
    import websockets

    hello, version = run(ECHO, hide=hide).split()
    assert hello == "hello"
    assert hide or version == websockets.__version__  # type: ignore[attr-defined]


def test_unpatch_restores_everything() -> None:
    run("""
        import importlib, sys
        import websockets
        NAMES = "asyncio.client asyncio.server asyncio.router asyncio.connection sync.client sync.server cli".split()
        for name in NAMES:
            importlib.import_module(f"websockets.{name}")
        import wirespeed.compat.websockets  # links exceptions
        from wirespeed import patch, unpatch
        before = {name: module for name, module in sys.modules.items() if name.startswith("websockets")}
        names = {name: dict(vars(module)) for name, module in before.items()}
        for _ in range(2):
            patch()
            patch()
            assert websockets.connect.__module__.startswith("wirespeed.")
            assert websockets.connect is websockets.asyncio.client.connect is not before["websockets.cli"].connect
            import websockets.asyncio.client as client
            assert client.connect is websockets.connect
            # What is not public is there, too.
            assert client.HTTPProxyConnection is before["websockets.asyncio.client"].HTTPProxyConnection
            unpatch()
            unpatch()
            for name, module in before.items():
                assert sys.modules[name] is module
                found = vars(module)
                assert {k: v for k, v in names[name].items() if found.get(k) is not v} == {}, name
                new = set(found) - set(names[name])
                assert all(f"{name}.{attribute}" in sys.modules for attribute in new), (name, new)
        assert websockets.connect is names["websockets.asyncio.client"]["connect"]
    """)


def test_names_imported_before_keep_working() -> None:
    run("""
        import asyncio
        from websockets.asyncio.client import connect
        from websockets.asyncio.server import serve
        from wirespeed import patch
        patch()
        import websockets
        assert websockets.connect is not connect
        async def handler(ws):
            async for message in ws:
                await ws.send(message)
        async def main():
            for serve_one in (serve, websockets.serve):
                async with serve_one(handler, "127.0.0.1", 0) as server:
                    for connect_one in (connect, websockets.connect):
                        uri = f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}"
                        async with connect_one(uri) as ws:
                            await ws.send("x")
                            assert await ws.recv() == "x"
        asyncio.run(main())
    """)


def test_unpatch_without_the_package() -> None:
    run(
        """
        import sys
        from wirespeed import patch, unpatch
        patch()
        import websockets.asyncio.client
        unpatch()
        assert [name for name in sys.modules if name.partition(".")[0] == "websockets"] == []
        try:
            import websockets
        except ImportError:
            pass
        else:
            raise AssertionError
        patch()
        import websockets
        assert websockets.connect.__module__ == "wirespeed.compat.websockets.asyncio.client"
    """,
        hide=True,
    )


def test_sans_io_and_legacy_modules_stay_unpatched() -> None:
    run(
        """
        import websockets.client, websockets.server, websockets.http11, websockets.frames
        theirs = websockets.client.ClientProtocol, websockets.server.ServerProtocol, websockets.http11.Request
        from wirespeed import patch
        patch()
        import websockets
        assert (websockets.ClientProtocol, websockets.ServerProtocol, websockets.Request) == theirs
        client, server = websockets.ClientProtocol(websockets.uri.parse_uri("ws://x/")), websockets.ServerProtocol()
        client.send_request(client.connect())
        server.receive_data(b"".join(client.data_to_send()))
        (request,) = server.events_received()
        assert isinstance(request, websockets.Request)
        import websockets.legacy.client, websockets.legacy.server
        assert websockets.client.connect is websockets.legacy.client.connect is not websockets.connect
        assert websockets.server.serve is websockets.legacy.server.serve is not websockets.serve
        assert websockets.legacy.client.connect.__module__ == "websockets.legacy.client"
        import asyncio
        async def handler(ws):
            await ws.send(await ws.recv())
        async def main():
            async with websockets.legacy.server.serve(handler, "127.0.0.1", 0) as running:
                port = running.sockets[0].getsockname()[1]
                async with websockets.connect(f"ws://127.0.0.1:{port}") as ws:
                    await ws.send("x")
                    assert await ws.recv() == "x"
                async with websockets.legacy.client.connect(f"ws://127.0.0.1:{port}") as ws:
                    await ws.send("x")
                    assert await ws.recv() == "x"
        asyncio.run(main())
    """,
        options=("-W", "ignore::DeprecationWarning"),
    )


def test_importing_wirespeed_imports_no_websockets() -> None:
    run("""
        import sys
        import wirespeed
        import wirespeed._patching
        assert "websockets" not in sys.modules
        assert not [name for name in sys.modules if name.startswith("wirespeed.compat")]
    """)


def test_connections_outlive_unpatch() -> None:
    run("""
        from wirespeed import patch, unpatch
        patch()
        import asyncio, websockets
        async def handler(ws):
            await ws.recv()
        async def main():
            async with websockets.serve(handler, "127.0.0.1", 0) as server:
                ws = await websockets.connect(f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}")
                unpatch()
                await ws.send("x")
                try:
                    await ws.recv()
                except websockets.ConnectionClosedOK:
                    return
                raise AssertionError
        asyncio.run(main())
    """)


def test_names_that_the_package_deprecates() -> None:
    """Release 14.0 has some exceptions under names that warn; linking does not count as use."""
    run("""
        import warnings
        import websockets.asyncio.client, websockets.asyncio.server, websockets.sync.client, websockets.sync.server
        import websockets.exceptions as exceptions
        moved = exceptions.InvalidMessage
        del exceptions.InvalidMessage
        exceptions.__all__.remove("InvalidMessage")
        def deprecated(name):
            if name != "InvalidMessage":
                raise AttributeError(name)
            warnings.warn("websockets.exceptions.InvalidMessage is deprecated", DeprecationWarning)
            return moved
        exceptions.__getattr__ = deprecated
        import wirespeed
        wirespeed.patch()
        assert issubclass(wirespeed.exceptions.InvalidMessage, moved)
    """)


def test_environment_variables() -> None:
    code = """
        import os
        os.environ.update(
            WEBSOCKETS_BACKOFF_INITIAL_DELAY="0", WEBSOCKETS_BACKOFF_MIN_DELAY="1", WEBSOCKETS_BACKOFF_MAX_DELAY="3",
            WEBSOCKETS_BACKOFF_FACTOR="2", WEBSOCKETS_MAX_REDIRECTS="1", WEBSOCKETS_MAX_FRAGMENTS="2",
            WEBSOCKETS_USER_AGENT="me", WEBSOCKETS_SERVER="you",
        )
        from wirespeed.compat import websockets
        import asyncio, itertools
        assert list(itertools.islice(websockets.client.backoff(), 5)) == [0, 1, 2, 3, 3]
        def process_request(connection, request):
            if request.path != "/":
                response = connection.respond(302, "")
                response.headers["Location"] = "/" if request.path == "/1" else "/1"
                return response
        async def handler(ws):
            await ws.send(["a", "b"])
            await ws.send(["a", "b", "c", "d"])
        async def main():
            async with websockets.serve(handler, "127.0.0.1", 0, process_request=process_request) as server:
                address = f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}"
                async with websockets.connect(address + "/1", max_size=None) as ws:
                    assert (ws.request.headers["User-Agent"], ws.response.headers["Server"]) == ("me", "you")
                try:
                    await websockets.connect(address + "/2")
                except websockets.SecurityError as exc:
                    assert str(exc) == "more than 1 redirects"
                else:
                    raise AssertionError
                async with websockets.connect(address) as ws:
                    try:
                        await ws.recv()
                        await ws.recv()
                    except websockets.ConnectionClosedError as exc:
                        assert exc.sent.code == 1009
                    else:
                        raise AssertionError
        asyncio.run(main())
    """
    for hide in (False, True):
        run(code, hide=hide)


FAIL = """
import sys
class Fails:
    def find_spec(self, name, path=None, target=None):
        if name == "wirespeed.compat.websockets.sync.server":
            raise ImportError("not now")
sys.meta_path.insert(0, Fails())
from wirespeed import patch, unpatch
try:
    patch()
except ImportError as exc:
    print(exc)
print([name for name, module in sys.modules.items() if name.startswith("websockets")
       and module is not None and "wirespeed" in module.__name__])
del sys.meta_path[0]
"""


def test_failure_changes_nothing() -> None:
    """Neither modules nor names are changed, and another call works completely."""
    code = """
import websockets.asyncio.client, websockets.sync.client
def seen():
    found = websockets.asyncio.client, websockets.sync.client, websockets.connect
    return *found, websockets.asyncio.client.connect
before = seen()
{FAIL}
assert before == seen()
assert "wirespeed" not in before[-1].__module__
patch()
from websockets.asyncio.client import connect
from websockets.sync.server import serve
print("wirespeed" in sys.modules["websockets.asyncio.client"].__name__, "wirespeed" in serve.__module__)
unpatch()
"""
    assert run(code.replace("{FAIL}", FAIL)).splitlines() == ["not now", "[]", "True True"]


def test_failure_where_websockets_is_not_installed() -> None:
    code = (
        FAIL
        + """
print("websockets" in sys.modules)
patch()
import websockets.sync.server
print("wirespeed" in websockets.sync.server.__name__)
"""
    )
    assert run(code, hide=True).splitlines() == ["not now", "[]", "False", "True"]
