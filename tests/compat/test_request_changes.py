"""Changes of a request's headers by ``process_request``, on both packages."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytest.importorskip("websockets", minversion="17")

from websockets.client import ClientProtocol
from websockets.uri import parse_uri
from websockets.utils import accept_key

KINDS = ("asyncio", "sync")


@contextlib.contextmanager
def serving(package: Any, kind: str, change: Callable[[Any], None], handler: Any, **options: Any) -> Iterator[str]:
    """Serves in a thread, with a ``process_request`` that calls ``change`` with the headers."""
    ready: Any = threading.Event()
    found: dict[str, Any] = {}

    def process_request(connection: Any, request: Any) -> None:
        change(request.headers)

    async def main() -> None:
        async def handle(ws: Any) -> None:
            await ws.send(handler(ws))
            async for message in ws:
                await ws.send(message)

        async with package.asyncio.server.serve(
            handle, "127.0.0.1", 0, process_request=process_request, **options
        ) as server:
            found["port"] = server.sockets[0].getsockname()[1]
            found["loop"], found["done"] = asyncio.get_running_loop(), asyncio.Event()
            ready.set()
            await found["done"].wait()

    def blocking() -> None:
        def handle(ws: Any) -> None:
            ws.send(handler(ws))
            for message in ws:
                ws.send(message)

        with package.sync.server.serve(handle, "127.0.0.1", 0, process_request=process_request, **options) as server:
            found["port"], found["server"] = server.socket.getsockname()[1], server
            ready.set()
            server.serve_forever()

    thread = threading.Thread(target=(lambda: asyncio.run(main())) if kind == "asyncio" else blocking)
    thread.start()
    try:
        assert ready.wait(10)
        yield f"ws://127.0.0.1:{found['port']}"
    finally:
        if kind == "asyncio":
            found["loop"].call_soon_threadsafe(found["done"].set)
        else:
            found["server"].shutdown()
        thread.join()


def replace(name: str, value: str | None) -> Callable[[Any], None]:
    def change(headers: Any) -> None:
        del headers[name]
        if value is not None:
            headers[name] = value

    return change


@pytest.mark.parametrize("kind", KINDS)
def test_origin(package: Any, kind: str) -> None:
    told: list[Any] = []

    def handler(ws: Any) -> str:
        told.append((ws.protocol.origin, ws.request.headers["Origin"]))
        return "x"

    change = replace("Origin", "https://example.com")
    with (
        serving(package, kind, change, handler, origins=["https://example.com"]) as uri,
        package.sync.client.connect(uri, origin="https://www.example.com") as ws,
    ):
        assert ws.recv(timeout=10) == "x"
    assert told == [("https://example.com", "https://example.com")]
    with serving(package, kind, replace("Origin", None), handler, origins=["https://example.com"]) as uri:
        with pytest.raises(package.exceptions.InvalidStatus) as caught:
            package.sync.client.connect(uri, origin="https://example.com", legacy=True)
        assert caught.value.response.status_code == 403


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("offered", "changed", "chosen"),
    [(["a", "b"], "b", "b"), (["a"], None, 400), (["a", "b"], "c, a", "a"), (["b", "a"], "b;a", 400)],
)
def test_subprotocols(package: Any, kind: str, offered: list[str], changed: str, chosen: Any) -> None:
    change = replace("Sec-WebSocket-Protocol", changed)
    with serving(package, kind, change, lambda ws: str(ws.subprotocol), subprotocols=["a", "b"]) as uri:
        if chosen == 400:
            with pytest.raises(package.exceptions.InvalidStatus) as caught:
                package.sync.client.connect(uri, subprotocols=offered, legacy=True)
            assert caught.value.response.status_code == 400
            return
        with package.sync.client.connect(uri, subprotocols=offered) as ws:
            assert ws.subprotocol == chosen
            assert ws.recv(timeout=10) == str(chosen)


@pytest.mark.parametrize("kind", KINDS)
def test_subprotocols_that_the_application_selects(package: Any, kind: str) -> None:
    seen: list[Any] = []

    def select(connection: Any, subprotocols: Any) -> Any:
        seen.append(list(subprotocols))
        return subprotocols[-1]

    options = {"subprotocols": ["a", "b"], "select_subprotocol": select}
    with (
        serving(package, kind, replace("Sec-WebSocket-Protocol", "b"), lambda ws: ws.subprotocol, **options) as uri,
        package.sync.client.connect(uri, subprotocols=["a", "b"]) as ws,
    ):
        assert ws.recv(timeout=10) == "b"
    assert seen == [["b"]]


@pytest.mark.parametrize("kind", KINDS)
def test_extensions(package: Any, kind: str) -> None:
    def handler(ws: Any) -> str:
        return str([extension.name for extension in ws.protocol.extensions])

    with (
        serving(package, kind, replace("Sec-WebSocket-Extensions", None), handler) as uri,
        package.sync.client.connect(uri) as ws,
    ):
        assert "Sec-WebSocket-Extensions" not in ws.response.headers
        assert ws.recv(timeout=10) == "[]"
        ws.send("x" * 1000)
        assert ws.recv(timeout=10) == "x" * 1000
    with (
        serving(package, kind, lambda headers: headers.__setitem__("X-More", "1"), handler) as uri,
        package.sync.client.connect(uri) as ws,
    ):
        assert ws.recv(timeout=10) == "['permessage-deflate']"
        ws.send("x" * 1000)
        assert ws.recv(timeout=10) == "x" * 1000


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("key", [base64.b64encode(b"0123456789abcdef").decode(), "short", "?", None])
def test_key(package: Any, kind: str, key: str | None) -> None:
    with serving(package, kind, replace("Sec-WebSocket-Key", key), lambda ws: "x") as uri:
        port = int(uri.rpartition(":")[2])
        protocol = ClientProtocol(parse_uri(uri))
        protocol.send_request(protocol.connect())
        with socket.create_connection(("127.0.0.1", port), timeout=10) as sock:
            sock.sendall(b"".join(protocol.data_to_send()))
            answer = b""
            while b"\r\n\r\n" not in answer:
                answer += sock.recv(4096)
    if key is not None and len(key) == 24:
        assert f"Sec-WebSocket-Accept: {accept_key(key)}\r\n".encode() in answer
        assert answer.count(b"Sec-WebSocket-Accept") == 1
    else:
        assert answer.startswith(b"HTTP/1.1 400 ")


@pytest.mark.parametrize("kind", KINDS)
def test_a_handler_sees_the_changes(package: Any, kind: str) -> None:
    with (
        serving(
            package, kind, lambda headers: headers.__setitem__("X-User", "me"), lambda ws: ws.request.headers["X-User"]
        ) as uri,
        package.sync.client.connect(uri) as ws,
    ):
        assert ws.recv(timeout=10) == "me"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("offered", [None, ["b"]])
def test_a_server_demands_one_of_its_subprotocols(package: Any, kind: str, offered: Any) -> None:
    options = {"subprotocols": ["a"]}
    with serving(package, kind, lambda headers: None, lambda ws: "x", **options) as uri:
        with pytest.raises(package.exceptions.InvalidStatus) as caught:
            package.sync.client.connect(uri, subprotocols=offered, legacy=True)
        assert caught.value.response.status_code == 400
        problem = "invalid subprotocol; expected one of a" if offered else "missing subprotocol"
        assert problem in caught.value.response.body.decode()
