"""Snippets of the documentation of websockets: programs that must print the same on websockets and under
``patch()``.
"""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

pytest.importorskip("websockets", minversion="17")

PATCH = """
import wirespeed
from wirespeed import patch
patch()
"""

# The class of the connection is checked inside, under whichever name the snippet gives it.
COMMON = """
import asyncio, http, json, logging, os, signal, tempfile, threading
logging.getLogger("websockets").setLevel(logging.CRITICAL)

def port_of(server):
    return server.sockets[0].getsockname()[1]
"""

SNIPPETS = {
    "quick start, asyncio": (
        """
        from websockets.asyncio.client import connect
        from websockets.asyncio.server import serve

        async def hello(websocket):
            name = await websocket.recv()
            await websocket.send(f"Hello {name}!")

        async def main():
            async with serve(hello, "localhost", 0) as server:
                async with connect(f"ws://localhost:{port_of(server)}") as websocket:
                    await websocket.send("world")
                    print(await websocket.recv())

        asyncio.run(main())
        """,
        "Hello world!",
    ),
    "quick start, threads": (
        """
        from websockets.sync.client import connect
        from websockets.sync.server import serve

        def hello(websocket):
            websocket.send(f"Hello {websocket.recv()}!")

        with serve(hello, "localhost", 0) as server:
            thread = threading.Thread(target=server.serve_forever)
            thread.start()
            host, port = server.socket.getsockname()
            with connect(f"ws://localhost:{port}") as websocket:
                websocket.send("world")
                print(websocket.recv())
            server.shutdown()
            thread.join()
        """,
        "Hello world!",
    ),
    "top level": (
        """
        import websockets

        async def echo(websocket):
            async for message in websocket:
                await websocket.send(message)

        async def main():
            server = await websockets.serve(echo, "localhost", 0)
            websocket = await websockets.connect(f"ws://localhost:{port_of(server)}")
            try:
                await websocket.send("Hello!")
                print(await asyncio.wait_for(websocket.recv(), timeout=5))
            finally:
                await websocket.close()
            try:
                await websocket.send("late")
            except websockets.exceptions.ConnectionClosed as exc:
                print(type(exc).__name__, exc)
            server.close()
            await server.wait_closed()

        asyncio.run(main())
        """,
        "Hello!\nConnectionClosedOK sent 1000 (OK); then received 1000 (OK)",
    ),
    "stop a server by a signal": (
        """
        from websockets.asyncio.client import connect
        from websockets.asyncio.server import serve

        async def echo(websocket):
            async for message in websocket:
                await websocket.send(message)

        async def server():
            async with serve(echo, "localhost", 0) as server:
                loop = asyncio.get_running_loop()
                loop.add_signal_handler(signal.SIGTERM, server.close)
                async with connect(f"ws://localhost:{port_of(server)}") as websocket:
                    os.kill(os.getpid(), signal.SIGTERM)
                    async for message in websocket:
                        pass
                    print(websocket.close_code)
                await server.wait_closed()

        asyncio.run(server())
        """,
        "1001",
    ),
    "a consumer and a producer": (
        """
        from websockets.asyncio.client import connect
        from websockets.asyncio.server import serve

        async def handler(websocket):
            async def consumer():
                async for message in websocket:
                    received.append(message)

            async def producer():
                for number in range(3):
                    await websocket.send(str(number))
                await asyncio.Event().wait()

            tasks = [asyncio.create_task(consumer()), asyncio.create_task(producer())]
            done, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in pending:
                task.cancel()

        received = []

        async def main():
            async with serve(handler, "localhost", 0) as server:
                async with connect(f"ws://localhost:{port_of(server)}") as websocket:
                    print([await websocket.recv() for _ in range(3)])
                    await websocket.send("one")
                    await websocket.send("two")
            print(received)

        asyncio.run(main())
        """,
        "['0', '1', '2']\n['one', 'two']",
    ),
    "broadcast": (
        """
        from websockets.asyncio.client import connect
        from websockets.asyncio.server import broadcast, serve

        CLIENTS = set()

        async def handler(websocket):
            CLIENTS.add(websocket)
            try:
                broadcast(CLIENTS, json.dumps({"users": len(CLIENTS)}))
                await websocket.wait_closed()
            finally:
                CLIENTS.remove(websocket)

        async def main():
            async with serve(handler, "localhost", 0) as server:
                uri = f"ws://localhost:{port_of(server)}"
                async with connect(uri) as one:
                    print(await one.recv())
                    async with connect(uri) as two:
                        print(await one.recv(), await two.recv())

        asyncio.run(main())
        """,
        '{"users": 1}\n{"users": 2} {"users": 2}',
    ),
    "reconnect": (
        """
        import websockets
        from websockets.asyncio.client import connect
        from websockets.asyncio.server import serve

        count = 0

        async def handler(websocket):
            global count
            count += 1
            await websocket.send(str(count))
            await websocket.close(1012)

        async def main():
            async with serve(handler, "localhost", 0) as server:
                async for websocket in connect(f"ws://localhost:{port_of(server)}"):
                    try:
                        message = await websocket.recv()
                        print(message)
                        if message == "3":
                            break
                        await websocket.recv()
                    except websockets.exceptions.ConnectionClosed:
                        continue

        asyncio.run(main())
        """,
        "1\n2\n3",
    ),
    "basic auth": (
        """
        from websockets.asyncio.client import connect
        from websockets.asyncio.server import basic_auth, serve
        from websockets.exceptions import InvalidStatus

        async def handler(websocket):
            await websocket.send(websocket.username)

        async def main():
            auth = basic_auth(realm="my dev server", credentials=("hello", "iloveyou"))
            async with serve(handler, "localhost", 0, process_request=auth) as server:
                async with connect(f"ws://hello:iloveyou@localhost:{port_of(server)}") as websocket:
                    print(await websocket.recv())
                try:
                    async with connect(f"ws://localhost:{port_of(server)}"):
                        pass
                except InvalidStatus as exc:
                    print(exc.response.status_code, exc.response.headers["WWW-Authenticate"])

        asyncio.run(main())
        """,
        'hello\n401 Basic realm="my dev server", charset="UTF-8"',
    ),
    "health check": (
        """
        from websockets.asyncio.client import connect
        from websockets.asyncio.server import serve
        import urllib.request

        def health_check(connection, request):
            if request.path == "/healthz":
                return connection.respond(http.HTTPStatus.OK, "OK\\n")

        async def echo(websocket):
            async for message in websocket:
                await websocket.send(message)

        async def main():
            async with serve(echo, "localhost", 0, process_request=health_check) as server:
                url = f"http://localhost:{port_of(server)}/healthz"
                response = await asyncio.to_thread(urllib.request.urlopen, url)
                print(response.status, response.read())

        asyncio.run(main())
        """,
        "200 b'OK\\n'",
    ),
    "routing": (
        """
        from websockets.asyncio.client import connect
        from websockets.asyncio.router import route
        from websockets.exceptions import InvalidStatus
        from werkzeug.routing import Map, Rule

        async def channel_handler(websocket, channel_id):
            await websocket.send(f"channel {channel_id}")

        url_map = Map([
            Rule("/channel/<int:channel_id>", endpoint=channel_handler),
            Rule("/old", redirect_to="/channel/1"),
        ])

        async def main():
            async with route(url_map, "localhost", 0) as server:
                uri = f"ws://localhost:{port_of(server)}"
                for path in ("/channel/7", "/old"):
                    async with connect(uri + path) as websocket:
                        print(await websocket.recv())
                try:
                    await connect(uri + "/nothing")
                except InvalidStatus as exc:
                    print(exc.response.status_code)

        asyncio.run(main())
        """,
        "channel 7\nchannel 1\n404",
    ),
    "routing, threads": (
        """
        from websockets.sync.client import connect
        from websockets.sync.router import route
        from werkzeug.routing import Map, Rule

        def channel_handler(websocket, channel_id):
            websocket.send(f"channel {channel_id}")

        with route(Map([Rule("/channel/<channel_id>", endpoint=channel_handler)]), "localhost", 0) as server:
            thread = threading.Thread(target=server.serve_forever)
            thread.start()
            with connect(f"ws://localhost:{server.socket.getsockname()[1]}/channel/7") as websocket:
                print(websocket.recv())
            server.shutdown()
            thread.join()
        """,
        "channel 7",
    ),
    "unix sockets": (
        """
        from websockets.asyncio.client import unix_connect
        from websockets.asyncio.server import unix_serve

        async def hello(websocket):
            await websocket.send(f"Hello {await websocket.recv()}!")

        async def main():
            with tempfile.TemporaryDirectory() as folder:
                path = os.path.join(folder, "socket")
                async with unix_serve(hello, path):
                    async with unix_connect(path) as websocket:
                        await websocket.send("world")
                        print(await websocket.recv())

        asyncio.run(main())
        """,
        "Hello world!",
    ),
    "authentication by cookie or first message": (
        """
        import http.cookies
        from websockets.asyncio.client import connect
        from websockets.asyncio.server import serve
        from websockets.frames import CloseCode

        async def process_request(connection, request):
            if request.headers.get("Cookie") is not None:
                cookie = http.cookies.SimpleCookie(request.headers["Cookie"])
                connection.username = cookie["token"].value

        async def handler(websocket):
            if not hasattr(websocket, "username"):
                if await websocket.recv() != "secret":
                    await websocket.close(CloseCode.INTERNAL_ERROR, "authentication failed")
                    return
                websocket.username = "first"
            await websocket.send(f"Hello {websocket.username}!")

        async def main():
            async with serve(handler, "localhost", 0, process_request=process_request) as server:
                uri = f"ws://localhost:{port_of(server)}"
                async with connect(uri, additional_headers={"Cookie": "token=user"}) as websocket:
                    print(await websocket.recv())
                async with connect(uri) as websocket:
                    await websocket.send("secret")
                    print(await websocket.recv())
                async with connect(uri) as websocket:
                    await websocket.send("wrong")
                    await websocket.wait_closed()
                    print(websocket.close_code, websocket.close_reason)

        asyncio.run(main())
        """,
        "Hello user!\nHello first!\n1011 authentication failed",
    ),
    "logging": (
        """
        from websockets.asyncio.client import connect
        from websockets.asyncio.server import serve

        class LoggerAdapter(logging.LoggerAdapter):
            def process(self, msg, kwargs):
                try:
                    websocket = kwargs["extra"]["websocket"]
                except KeyError:
                    return msg, kwargs
                kwargs["extra"]["event_data"] = {"path": websocket.request.path}
                return msg, kwargs

        class Handler(logging.Handler):
            def emit(self, record):
                print(record.getMessage(), record.websocket.request.path)

        logger = logging.getLogger("mine")
        logger.addHandler(Handler())
        logger.setLevel(logging.WARNING)

        async def handler(websocket):
            websocket.logger.warning("handled")

        async def main():
            async with serve(handler, "localhost", 0, logger=LoggerAdapter(logger, None)) as server:
                async with connect(f"ws://localhost:{port_of(server)}/path") as websocket:
                    await websocket.wait_closed()

        asyncio.run(main())
        """,
        "handled /path",
    ),
    "latency": (
        """
        from websockets.asyncio.client import connect
        from websockets.asyncio.server import serve

        async def handler(websocket):
            await websocket.wait_closed()

        async def main():
            async with serve(handler, "localhost", 0) as server:
                async with connect(f"ws://localhost:{port_of(server)}", ping_interval=0.02) as websocket:
                    await asyncio.sleep(0.2)
                    print(0 < websocket.latency < 1)

        asyncio.run(main())
        """,
        "True",
    ),
}


@pytest.mark.parametrize("patched", [False, True], ids=["websockets", "patched"])
@pytest.mark.parametrize("name", SNIPPETS)
def test_snippet(name: str, patched: bool) -> None:
    code, expected = SNIPPETS[name]
    if "werkzeug" in code:
        pytest.importorskip("werkzeug", reason="werkzeug is not installed: it is in the dependency group test")
    code = textwrap.dedent(code)
    # The same program without this line.
    ours = "import websockets.asyncio.client, websockets.sync.client\n" + "\n".join(
        f"assert websockets.{kind}.client.connect.__module__.startswith('wirespeed.') is {patched}"
        for kind in ("asyncio", "sync")
    )
    done = subprocess.run(
        [sys.executable, "-c", "\n".join([PATCH if patched else "", COMMON, ours, code])],
        capture_output=True,
        text=True,
        timeout=50,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == expected, done.stderr
