"""Unchanged applications of Starlette and FastAPI under uvicorn with our implementation; and its installation."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import socket
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from typing import Annotated, Any

import pytest
import websockets.asyncio.client as client
from fastapi import Depends, FastAPI, Header, HTTPException, Query, WebSocketException
from starlette.applications import Starlette
from starlette.endpoints import WebSocketEndpoint
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.responses import JSONResponse, PlainTextResponse
from starlette.routing import Mount, Route, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.typing import Subprotocol

import wirespeed
from support.certificates import Certificates
from support.uvicorn_server import OURS, THEIRS, UvicornServer

pytestmark = pytest.mark.wirespeed_only("uvicorn has its own implementation for websockets")

IMPLEMENTATIONS = pytest.mark.parametrize("implementation", [OURS, THEIRS], ids=["ours", "theirs"])
TIMEOUT = 20


# Starlette


async def echo_text(ws: WebSocket) -> None:
    await ws.accept()
    async for text in ws.iter_text():
        await ws.send_text(f"{ws.path_params['name']}: {text}")


async def echo_bytes(ws: WebSocket) -> None:
    await ws.accept()
    async for data in ws.iter_bytes():
        await ws.send_bytes(data)


async def echo_json(ws: WebSocket) -> None:
    await ws.accept()
    async for value in ws.iter_json():
        await ws.send_json({"got": value}, mode="binary" if value == "binary" else "text")


async def tell(ws: WebSocket) -> None:
    await ws.accept(subprotocol="two", headers=[(b"x-answer", b"42")])
    ws.state.counter.append(1)
    await ws.send_json(
        {
            "url": str(ws.url),
            "path": ws.scope["path"],
            "raw_path": ws.scope["raw_path"].decode(),
            "root_path": ws.scope["root_path"],
            "query": dict(ws.query_params),
            "cookies": ws.cookies,
            "header": ws.headers["x-ask"],
            "subprotocols": ws.scope["subprotocols"],
            "state": len(ws.state.counter),
            "keys": sorted(ws.scope),
            "headers": [name.decode() for name, _ in ws.scope["headers"]],
            "asgi": ws.scope["asgi"],
            "http_version": ws.scope["http_version"],
            "client": ws.client.host if ws.client else None,
        }
    )
    await ws.close(3001, "told")


async def deny(ws: WebSocket) -> None:
    response = JSONResponse({"error": "no"}, status_code=429, headers={"Retry-After": "7"})
    response.set_cookie("a", "b")
    await ws.send_denial_response(response)


async def close_first(ws: WebSocket) -> None:
    await ws.close(1008)


class Endpoint(WebSocketEndpoint):
    encoding = "text"

    async def on_receive(self, websocket: WebSocket, data: Any) -> None:
        await websocket.send_text(data.upper())

    async def on_disconnect(self, websocket: WebSocket, close_code: int) -> None:
        websocket.app.state.left.append(close_code)


async def send_after_end(ws: WebSocket) -> None:
    await ws.accept()
    with contextlib.suppress(WebSocketDisconnect):
        await ws.receive_text()
    await asyncio.sleep(0.1)
    try:
        await ws.send_text("too late")
    except Exception as exc:
        ws.app.state.left.append(type(exc).__name__)


@contextlib.asynccontextmanager
async def lifespan(app: Starlette) -> AsyncIterator[dict[str, Any]]:
    yield {"counter": []}


class Untouched(BaseHTTPMiddleware):
    async def dispatch(self, request: Any, call_next: Any) -> Any:
        return await call_next(request)


def starlette() -> Starlette:
    app = Starlette(
        routes=[
            Route("/", lambda request: PlainTextResponse("http")),
            WebSocketRoute("/text/{name}", echo_text),
            WebSocketRoute("/bytes", echo_bytes),
            WebSocketRoute("/json", echo_json),
            WebSocketRoute("/tell/{rest:path}", tell),
            WebSocketRoute("/deny", deny),
            WebSocketRoute("/close", close_first),
            WebSocketRoute("/late", send_after_end),
            Mount("/mount", routes=[WebSocketRoute("/endpoint", Endpoint)]),
        ],
        middleware=[Middleware(Untouched)],
        lifespan=lifespan,
    )
    app.state.left = []
    return app


@pytest.fixture(autouse=True)
def _logs(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    with caplog.at_level(logging.INFO, "uvicorn.error"):
        yield


def run(coroutine: Any) -> Any:
    async def limited() -> Any:
        return await asyncio.wait_for(coroutine, TIMEOUT)

    return asyncio.run(limited())


@IMPLEMENTATIONS
async def test_starlette_messages(implementation: str) -> None:
    with UvicornServer(starlette(), ws=implementation) as server:
        async with client.connect(f"{server.uri}/text/ann") as ws:
            for text in ("one", "", "é" * 70_000):
                await ws.send(text)
                assert await ws.recv() == f"ann: {text}"
        async with client.connect(f"{server.uri}/bytes") as ws:
            for data in (b"", bytes(range(256)), b"x" * 300_000):
                await ws.send(data)
                assert await ws.recv() == data
        async with client.connect(f"{server.uri}/json") as ws:
            await ws.send('{"a": [1]}')
            assert json.loads(await ws.recv()) == {"got": {"a": [1]}}
            await ws.send('"binary"')
            assert await ws.recv() == b'{"got":"binary"}'
        async with wirespeed.connect(f"{server.uri}/text/bob") as ours:
            await ours.send_many(["a", "b", "c"])
            assert [await ours.recv() for _ in range(3)] == ["bob: a", "bob: b", "bob: c"]


def test_starlette_scope() -> None:
    """The application's view of the scope, with both implementations."""
    offered = [Subprotocol("one"), Subprotocol("two")]

    async def main(uri: str) -> Any:
        headers = {"X-Ask": "caf\xe9", "Cookie": "c=d"}
        told = []
        for _ in range(2):
            async with client.connect(
                f"{uri}/tell/a%20b/%C3%A9?q=1&r=%20", subprotocols=offered, additional_headers=headers
            ) as ws:
                told.append(json.loads(await ws.recv()))
                assert ws.subprotocol == "two"
                with pytest.raises(ConnectionClosed):
                    await ws.recv()
                assert ws.response is not None
                told += [ws.close_code, ws.close_reason, ws.response.headers["x-answer"], ws.response.headers["x-conf"]]
                told.append(sorted(name.lower() for name in ws.response.headers))
        return json.loads(json.dumps(told).replace(uri.rpartition(":")[2], "PORT"))

    found = []
    for implementation in (OURS, THEIRS):
        with UvicornServer(starlette(), ws=implementation, root_path="/root", headers=[("X-Conf", "y")]) as server:
            found.append(run(main(server.uri.replace("127.0.0.1", "localhost"))))
    assert found[0][0]["state"] == 1
    assert found[0][6]["state"] == 2
    assert found[0] == found[1]


async def refusal(uri: str, **options: Any) -> tuple[int, bytes, list[str]]:
    with pytest.raises(InvalidStatus) as caught:
        async with client.connect(uri, **options):
            pass
    response = caught.value.response
    fields = [f"{name.lower()}: {value}" for name, value in response.headers.raw_items()]
    return response.status_code, bytes(response.body or b""), sorted(fields)


@pytest.mark.parametrize("path", ["/deny", "/close", "/nowhere", "/text/"])
def test_starlette_denial(path: str) -> None:
    found = []
    for implementation in (OURS, THEIRS):
        with UvicornServer(starlette(), ws=implementation, date_header=False) as server:
            status, body, fields = run(refusal(server.uri + path))
            # Ours includes the headers of every response of uvicorn; and no Date, which uvicorn's own has nevertheless.
            assert implementation != OURS or not any(field.startswith("date:") for field in fields)
            found.append((status, body, [f for f in fields if not f.startswith(("date:", "server:"))]))
    assert found[0] == found[1]


@pytest.mark.parametrize("date_header", [True, False])
@pytest.mark.parametrize("path", ["/deny", "/close", "/fail", "/version"])
def test_date_of_refusals(path: str, date_header: bool) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        if scope["path"] == "/close":
            await send({"type": "websocket.close"})
        elif scope["path"] == "/deny":
            await send({"type": "websocket.http.response.start", "status": 403, "headers": []})
            await send({"type": "websocket.http.response.body", "body": b"no"})
        else:
            raise ZeroDivisionError

    request = f"GET {path} HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    request += "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
    request += f"Sec-WebSocket-Version: {8 if path == '/version' else 13}\r\n\r\n"
    with (
        UvicornServer(app, ws=OURS, date_header=date_header) as server,
        socket.create_connection(server.address, timeout=20) as sock,
    ):
        sock.sendall(request.encode())
        head = b""
        while b"\r\n\r\n" not in head:
            head += sock.recv(4096)
    status = {"/deny": 403, "/close": 403, "/fail": 500, "/version": 426}[path]
    assert head.startswith(b"HTTP/1.1 %d " % status)
    assert (b"\r\ndate: " in head.lower()) is date_header


@IMPLEMENTATIONS
def test_starlette_endpoint(implementation: str) -> None:
    async def main(uri: str) -> None:
        async with client.connect(f"{uri}/mount/endpoint") as ws:
            await ws.send("loud")
            assert await ws.recv() == "LOUD"
            await ws.close(3005)
        async with client.connect(f"{uri}/late"):
            pass
        await asyncio.sleep(0.3)

    app = starlette()
    with UvicornServer(app, ws=implementation) as server:
        run(main(server.uri))
    # Starlette turns the OSError that send raises into WebSocketDisconnect.
    assert app.state.left == [3005, "WebSocketDisconnect"]


# FastAPI


def fastapi() -> FastAPI:
    app = FastAPI()

    async def token(ws: WebSocket, token: Annotated[str | None, Query()] = None) -> str:
        if token is None:
            raise WebSocketException(code=1008, reason="no token")
        return token

    async def allowed(ws: WebSocket, x_who: Annotated[str | None, Header()] = None) -> str:
        if x_who is None:
            raise HTTPException(status_code=403, detail="who?")
        return x_who

    @app.websocket("/items/{item_id}")
    async def items(websocket: WebSocket, item_id: int, q: int | None = None, token: str = Depends(token)) -> None:
        await websocket.accept()
        while True:
            text = await websocket.receive_text()
            await websocket.send_json({"item": item_id, "q": q, "token": token, "text": text})

    @app.websocket("/late-exception")
    async def late(websocket: WebSocket) -> None:
        await websocket.accept()
        raise WebSocketException(code=3333, reason="later")

    @app.websocket("/who")
    async def who(websocket: WebSocket, name: str = Depends(allowed)) -> None:
        await websocket.accept()
        await websocket.send_text(name)

    @app.get("/")
    async def root() -> dict[str, str]:
        return {"http": "works"}

    return app


@IMPLEMENTATIONS
@pytest.mark.parametrize("http", ["h11", "httptools"])
async def test_fastapi(implementation: str, http: str) -> None:
    with UvicornServer(fastapi(), ws=implementation, http=http) as server:
        async with client.connect(f"{server.uri}/items/7?token=t&q=3") as ws:
            await ws.send("x")
            assert json.loads(await ws.recv()) == {"item": 7, "q": 3, "token": "t", "text": "x"}
        async with client.connect(f"{server.uri}/who", additional_headers={"X-Who": "me"}) as ws:
            assert await ws.recv() == "me"
        async with client.connect(f"{server.uri}/late-exception") as ws:
            with pytest.raises(ConnectionClosed):
                await ws.recv()
            assert (ws.close_code, ws.close_reason) == (3333, "later")
        assert (await refusal(f"{server.uri}/items/7"))[0] == 403
        assert (await refusal(f"{server.uri}/items/x?token=t"))[0] == 403
        status, body, _ = await refusal(f"{server.uri}/who")
        assert (status, json.loads(body)) == (403, {"detail": "who?"})
        reader, writer = await asyncio.open_connection("127.0.0.1", int(server.uri.rpartition(":")[2]))
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert b'{"http":"works"}' in await reader.read()
        writer.close()


# Installation


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
async def test_tls(loop: str, certificates: Certificates) -> None:
    cert, key = certificates.server_files()
    context = ssl.create_default_context(cafile=certificates.ca_file)
    with UvicornServer(starlette(), loop=loop, ssl_certfile=cert, ssl_keyfile=key) as server:
        async with client.connect(f"{server.uri}/bytes", ssl=context, max_size=None) as ws:
            for size in (1, 100_000, 3_000_000):
                await ws.send(bytes(size))
                assert len(await ws.recv()) == size
        async with wirespeed.connect(f"{server.uri}/text/tls", ssl=context) as ws:
            await ws.send("x")
            assert await ws.recv() == "tls: x"
        assert (await refusal(f"{server.uri}/deny", ssl=context))[:2] == (429, b'{"error":"no"}')


def test_tls_scheme(certificates: Certificates) -> None:
    cert, key = certificates.server_files()
    context = ssl.create_default_context(cafile=certificates.ca_file)

    async def main(uri: str) -> Any:
        async with client.connect(
            f"{uri}/tell/x", ssl=context, subprotocols=[Subprotocol("two")], additional_headers={"X-Ask": ""}
        ) as ws:
            return json.loads(await ws.recv())["url"]

    with UvicornServer(starlette(), ssl_certfile=cert, ssl_keyfile=key) as server:
        assert run(main(server.uri)).startswith("wss://")


def test_unix_socket(tmp_path: Any) -> None:
    path = str(tmp_path / "s")

    async def main() -> None:
        async with client.unix_connect(path, "ws://localhost/text/unix") as ws:
            await ws.send("x")
            assert await ws.recv() == "unix: x"

    with UvicornServer(starlette(), uds=path):
        run(main())


async def test_class_itself(caplog: pytest.LogCaptureFixture) -> None:
    from wirespeed.asgi import WebSocketProtocol

    with UvicornServer(starlette(), ws=WebSocketProtocol) as server:
        async with client.connect(f"{server.uri}/text/x?a=%20b"):
            pass
    lines = [record.getMessage() for record in caplog.records if "WebSocket" in record.getMessage()]
    assert len(lines) == 1
    assert lines[0].startswith("127.0.0.1:")
    # Tokens are passed in queries.
    assert lines[0].endswith(' - "WebSocket /text/x?***" [accepted]')


@pytest.mark.skipif(sys.version_info < (3, 12), reason="eager tasks are new in 3.12")
async def test_eager_tasks() -> None:
    """The application answers before uvicorn has set the protocol. (uvloop has no eager tasks.)"""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "websocket.accept"})
        while (event := await receive())["type"] == "websocket.receive":
            await send({"type": "websocket.send", "text": event["text"]})

    async def outer(scope: Any, receive: Any, send: Any) -> None:
        asyncio.get_running_loop().set_task_factory(asyncio.eager_task_factory)  # type: ignore[attr-defined]
        await app(scope, receive, send)

    with UvicornServer(outer, lifespan="off") as server:
        for _ in range(3):
            async with client.connect(server.uri) as ws:
                for _ in range(3):
                    await ws.send("x")
                    assert await ws.recv() == "x"


def test_import_of_uvicorn() -> None:
    """Only this module needs uvicorn."""
    code = "import sys, wirespeed, wirespeed.asyncio, wirespeed.sync; print('uvicorn' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


async def test_trace(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(5, "uvicorn.error"), UvicornServer(starlette(), log_level="trace") as server:
        async with client.connect(f"{server.uri}/text/x"):
            pass
    assert "WebSocket connection made" in caplog.text
    assert "WebSocket connection lost" in caplog.text
