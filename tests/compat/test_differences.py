"""Rows of docs/compat.md about differences from websockets that no other test covers: the behaviour of both."""

from __future__ import annotations

import asyncio
import http
import os
import pathlib
import socket
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

pytest.importorskip("websockets", minversion="17")

from compat.conftest import Package
from compat.pairs import connected, run

THEIRS = Package("theirs")


async def echo(ws: Any) -> None:
    async for message in ws:
        await ws.send(message)


async def error_of(awaitable: Awaitable[object]) -> type[BaseException] | None:
    """The class of the raised exception; `None`: none."""
    try:
        await awaitable
    except Exception as error:
        return type(error)
    return None


async def test_decoding_binary_that_is_not_utf8(package: Any) -> None:
    async with connected(package, THEIRS, echo) as ws:
        await ws.send(b"\xff")
        await ws.send("next")
        error = await error_of(ws.recv(decode=True))
        if repr(package) == "ours":
            assert error is UnicodeDecodeError
            assert await ws.recv() == "next"
        else:
            assert error is package.exceptions.ConnectionClosedError
            assert ws.protocol.close_sent.code == 1007


async def test_text_in_bytes_that_is_none(package: Any) -> None:
    async with connected(package, THEIRS, echo) as ws:
        if repr(package) == "ours":
            with pytest.raises(UnicodeDecodeError):
                await ws.send(b"\xff", text=True)
            await ws.send("next")
            assert await ws.recv() == "next"
        else:
            await ws.send(b"\xff", text=True)  # the other end refuses it
            await ws.wait_closed()
            assert ws.protocol.close_rcvd.code == 1007


async def test_a_first_fragment_of_a_wrong_type(package: Any) -> None:
    async with connected(package, THEIRS, echo) as ws:
        assert await error_of(ws.send([1])) is TypeError
        if repr(package) == "ours":
            await ws.send("next")
            assert await ws.recv() == "next"
        else:
            await ws.wait_closed()
            assert ws.protocol.close_sent.code == 1011


async def test_an_iterable_that_is_cancelled(package: Any) -> None:
    async def fragments(begun: asyncio.Event) -> AsyncIterator[str]:
        yield "first"
        begun.set()
        await asyncio.sleep(60)

    async with connected(package, THEIRS, echo) as ws:
        begun = asyncio.Event()
        task = asyncio.ensure_future(ws.send(fragments(begun)))
        await begun.wait()
        task.cancel()
        await asyncio.wait([task])
        if repr(package) == "ours":
            await ws.wait_closed()
            assert ws.protocol.close_sent.code == 1011
        else:
            for _ in range(2):
                assert await error_of(ws.send("next")) is package.exceptions.ProtocolError
            ws.transport.abort()


async def test_no_fragments_on_a_closed_connection(package: Any) -> None:
    async with connected(package, THEIRS, echo) as ws:
        await ws.close()
        if repr(package) == "ours":
            with pytest.raises(package.exceptions.ConnectionClosedOK):
                await ws.send([])
        else:
            await ws.send([])


async def test_the_cause_after_an_abort(package: Any) -> None:
    async with connected(package, THEIRS, echo) as ws:
        ws.transport.abort()
        with pytest.raises(package.exceptions.ConnectionClosedError) as caught:
            await ws.recv()
        cause = caught.value.__cause__
        assert cause is None if repr(package) == "ours" else isinstance(cause, EOFError)


@pytest.mark.parametrize("name", ["id", "logger", "request", "response", "latency", "debug"])
def test_attributes(package: Any, name: str) -> None:
    async def main() -> None:
        async with connected(package, THEIRS, echo) as ws:
            if repr(package) == "ours":
                with pytest.raises(AttributeError):
                    setattr(ws, name, None)
            else:
                setattr(ws, name, None)

    # A coroutine that is the test would fail: a connection of websockets cannot end without these attributes.
    run(main)


def serving(server: Any, **options: Any) -> Any:
    return server.asyncio.server.serve(echo, "127.0.0.1", 0, **options)


def uri(running: Any) -> str:
    return f"ws://127.0.0.1:{running.sockets[0].getsockname()[1]}"


async def test_a_subprotocol_that_was_not_offered(server: Any) -> None:
    async with serving(server, subprotocols=["a"], select_subprotocol=lambda ws, offered: "b") as running:
        connect = THEIRS.asyncio.client.connect(uri(running), subprotocols=["a"])
        if repr(server) == "ours":
            with pytest.raises(THEIRS.exceptions.InvalidStatus) as caught:
                await connect
            assert caught.value.response.status_code == 500
        else:
            assert await error_of(connect) is THEIRS.exceptions.NegotiationError


def test_no_credentials(package: Any) -> None:
    basic_auth = package.asyncio.server.basic_auth
    if repr(package) == "ours":
        with pytest.raises((TypeError, ValueError)):
            basic_auth(credentials=[])
    else:
        assert callable(basic_auth(credentials=[]))


async def test_a_response_without_a_length(server: Any) -> None:
    def refuse(ws: Any, request: Any) -> Any:
        headers = server.datastructures.Headers()
        return server.http11.Response(http.HTTPStatus.OK.value, "OK", headers, b"all")

    async with serving(server, process_request=refuse) as running:
        reader, writer = await asyncio.open_connection(*running.sockets[0].getsockname())
        connect = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13"
        key = "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA=="
        writer.write(f"GET / HTTP/1.1\r\nHost: x\r\n{connect}\r\n{key}\r\n\r\n".encode())
        answer = (await reader.read()).lower()
        writer.close()
    lines = (b"\r\ncontent-length: 3\r\n" in answer, b"\r\nconnection: close\r\n" in answer)
    assert lines == ((True, True) if repr(server) == "ours" else (False, False))
    assert answer.endswith(b"\r\n\r\nall")


def test_the_file_of_a_unix_socket(server: Any) -> None:
    async def main(path: str) -> None:
        async with server.asyncio.server.unix_serve(echo, path):
            assert os.path.exists(path)
        # From 3.13 on, loops of the standard library do it for listening sockets.
        removed = repr(server) == "ours" or sys.version_info >= (3, 13)
        assert os.path.exists(path) is not removed

    # Paths of sockets have to be short.
    with tempfile.TemporaryDirectory() as directory:
        run(lambda: main(str(pathlib.Path(directory, "s"))))


@pytest.mark.parametrize("when", ["connection", "protocol"])
async def test_what_process_response_sees(server: Any, when: str) -> None:
    seen = []

    def look(ws: Any, request: Any, response: Any) -> None:
        there = ws.response is not None or ws.subprotocol == "a" if when == "connection" else ws.protocol.extensions
        seen.append(bool(there))

    options = {"subprotocols": ["a"], "process_response": look}
    async with (
        serving(server, **options) as running,
        THEIRS.asyncio.client.connect(uri(running), subprotocols=["a"]) as ws,
    ):
        assert ws.subprotocol == "a"
    assert seen == [repr(server) == "theirs"]


# Responses that are not WebSocket handshakes


async def answering(answer: bytes, main: Callable[[str], Awaitable[None]]) -> int:
    """Runs a server that gives every client this answer; yields the number of clients."""
    came = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal came
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        came += 1
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, family=socket.AF_INET)
    try:
        await main(f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    finally:
        server.close()
    return came


@pytest.mark.parametrize(
    ("location", "theirs", "ours"),
    [
        ("", "SecurityError", "InvalidStatus"),
        ("/a b", "SecurityError", "InvalidURI"),
        ("//", "SecurityError", "InvalidURI"),
        ("http://[", "ValueError", "InvalidURI"),
        ("gopher://localhost/", "InvalidURI", "InvalidURI"),
    ],
)
def test_redirects_to_nowhere(client: Any, location: str, theirs: str, ours: str) -> None:
    is_ours = repr(client) == "ours"

    async def main(uri: str) -> None:
        error = await error_of(client.asyncio.client.connect(uri))
        assert error is not None
        assert error.__name__ == (ours if is_ours else theirs)

    answer = f"HTTP/1.1 302 Found\r\nLocation: {location}\r\nContent-Length: 0\r\n\r\n".encode()
    came = asyncio.run(answering(answer, main))
    assert (came > 1) is (theirs == "SecurityError" and not is_ours)


async def test_redirects_to_http(client: Any) -> None:
    async with serving(THEIRS) as running:
        to = uri(running).replace("ws:", "http:")
        answer = f"HTTP/1.1 302 Found\r\nLocation: {to}/\r\nContent-Length: 0\r\n\r\n".encode()

        async def connect(uri: str) -> None:
            if repr(client) == "ours":
                async with client.asyncio.client.connect(uri) as ws:
                    await ws.send("there")
                    assert await ws.recv() == "there"
            else:
                assert await error_of(client.asyncio.client.connect(uri)) is client.exceptions.InvalidURI

        await answering(answer, connect)


@pytest.mark.parametrize(
    ("answer", "theirs", "ours"),
    [
        (b"SSH-2.0-OpenSSH_9.2", True, False),
        (b"SSH-2.0-OpenSSH_9.2\r\n\r\n", False, False),
        (b"HTTP/1.1 403 Forbidden\r\nContent-Length: 100\r\n\r\ncut", True, False),
        (b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 100\r\n\r\ncut", True, True),
        (b"HTTP/1.1 102 Processing\r\n\r\n", False, True),
    ],
    ids=["a beginning of no HTTP", "no HTTP", "403 without its body", "503 without its body", "no final status"],
)
def test_retried_errors(client: Any, answer: bytes, theirs: bool, ours: bool) -> None:
    async def main(uri: str) -> None:
        async def connect() -> None:
            async for _ in client.asyncio.client.connect(uri):
                break

        # Retrying waits for 3 s on average, and for that long again.
        ended, waiting = await asyncio.wait([asyncio.ensure_future(connect())], timeout=1)
        for task in waiting:
            task.cancel()
        for task in ended:
            assert task.exception() is not None
        assert bool(waiting) is (ours if repr(client) == "ours" else theirs)

    asyncio.run(answering(answer, main))
