"""Static types of the asyncio API: read by mypy and pyright, never run.

A line with ``ignore`` is an error that both must find: both are configured to warn of an unused one.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncGenerator, AsyncIterator
from http import HTTPStatus

from typing_extensions import assert_type

import wirespeed
from wirespeed import (
    ClientConnection,
    Headers,
    Listener,
    Request,
    Response,
    Server,
    ServerConnection,
    State,
    StreamReader,
    StreamWriter,
)
from wirespeed.asyncio import Connection


async def connecting() -> None:
    ws = await wirespeed.connect("ws://localhost:8765", ssl=None, max_size=(1, None), compression="deflate")
    assert_type(ws, ClientConnection)
    async with wirespeed.connect("wss://localhost", ssl=ssl.create_default_context(), ping_interval=None) as ws:
        assert_type(ws, ClientConnection)
    async for ws in wirespeed.connect("wss://localhost", ssl=wirespeed.TLS(ca="ca.pem"), reconnect_after_close=True):
        assert_type(ws, ClientConnection)
    async with wirespeed.unix_connect("/run/feed.sock") as ws:
        assert_type(ws, ClientConnection)
    wirespeed.connect("ws://localhost", timeout=10)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    wirespeed.connect("ws://localhost", max_size="1M")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


async def receiving(ws: ClientConnection, either: bool) -> None:
    assert_type(await ws.recv(), str | bytes)
    assert_type(await ws.recv(None), str | bytes)
    assert_type(await ws.recv(True), str)
    assert_type(await ws.recv(decode=True), str)
    assert_type(await ws.recv(False), bytes)
    assert_type(await ws.recv(decode=False), bytes)
    assert_type(await ws.recv(decode=either), str | bytes)
    assert_type(await asyncio.wait_for(ws.recv(), 5), str | bytes)
    assert_type(ws.recv_nowait(), str | bytes)
    assert_type(ws.recv_nowait(True), str)
    assert_type(ws.recv_nowait(decode=False), bytes)
    assert_type(await ws.recv_many(), list[str | bytes])
    assert_type(await ws.recv_many(5), list[str | bytes])
    assert_type(await ws.recv_many(5, True), list[str])
    assert_type(await ws.recv_many(decode=True), list[str])
    assert_type(await ws.recv_many(5, decode=False), list[bytes])
    assert_type(await ws.recv_many(decode=either), list[str | bytes])
    async for message in ws:
        assert_type(message, str | bytes)
    async for fragment in ws.recv_streaming():
        assert_type(fragment, str | bytes)
    assert_type(ws.recv_streaming(True), AsyncGenerator[str, None])
    assert_type(ws.recv_streaming(decode=False), AsyncGenerator[bytes, None])
    async with contextlib.aclosing(ws.recv_streaming()) as streamed:
        assert_type(await anext(streamed), str | bytes)
    await ws.recv(timeout=5)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]


async def fragments() -> AsyncIterator[str]:
    yield "a"


async def sending(ws: ClientConnection) -> None:
    assert_type(await ws.send("text", compress=False), None)
    await ws.send(b"bytes", text=True)
    await ws.send(bytearray(3))
    await ws.send(memoryview(b"view"))
    await ws.send(["a", "b"])
    await ws.send(iter([b"a", b"b"]))
    await ws.send(fragments())
    await ws.send_many(["a", b"b"])
    ws.send_nowait("text")
    await ws.flush()
    assert_type(await (await ws.ping()), float)
    await ws.pong(b"data")
    await ws.close(wirespeed.CloseCode.NORMAL_CLOSURE, "reason")
    await ws.send(5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def naming() -> None:
    """Names that are loaded lazily are as typed as others."""
    assert_type(wirespeed.__version__, str)
    assert_type(wirespeed.exceptions.InvalidState("text"), wirespeed.InvalidState)
    _ = wirespeed.nothing  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]
    _ = wirespeed.asyncio.nothing  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]
    _ = wirespeed.sync.nothing  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]


def looking(ws: ClientConnection) -> None:
    assert_type(ws.state, State)
    assert_type(ws.close_code, int | None)
    assert_type(ws.close_reason, str | None)
    assert_type(ws.request, Request)
    assert_type(ws.response, Response)
    assert_type(ws.response.headers, Headers)
    assert_type(ws.response.headers["Upgrade"], str)
    assert_type(ws.latency, float)
    assert_type(ws.fileno(), int)
    try:
        ws.send_nowait("text")
    except wirespeed.ConnectionClosed as exc:
        assert_type(exc.rcvd, wirespeed.Close | None)
        assert_type(exc.sent, wirespeed.Close | None)
        assert_type(exc.code, int)


class Echo(Listener):
    def on_message(self, ws: Connection, message: str | bytes | memoryview) -> None:
        ws.send_nowait(message)


class Texts(Listener):
    """A caller that knows the type of the message may declare it."""

    def on_message(self, ws: Connection, message: str) -> None:
        assert_type(message.upper(), str)


class Views(Listener):
    def on_message(self, ws: Connection, message: memoryview) -> None:
        assert_type(message.nbytes, int)


async def handler(ws: ServerConnection) -> None:
    assert_type(ws.server, Server)
    async for message in ws:
        assert_type(message, str | bytes)
        assert_type(wirespeed.broadcast(ws.server.connections, message), int)


async def check(ws: ServerConnection, request: Request) -> Response | None:
    assert_type(request.path, str)
    return ws.respond(HTTPStatus.NOT_FOUND, "no")


async def serving() -> None:
    async with wirespeed.serve(handler, "localhost", 8765, process_request=check, origins=[None]) as server:
        assert_type(server, Server)
        assert_type(server.connections, set[ServerConnection])
        await server.serve_forever()
    assert_type(await wirespeed.serve(None, listener=Echo), Server)
    assert_type(await wirespeed.serve(None, listener=lambda: Views(), zero_copy=True), Server)
    wirespeed.serve(None, listener=Echo())  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    wirespeed.serve(None, listener=object)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    assert_type(await wirespeed.unix_serve(handler, "/run/app.sock"), Server)
    wirespeed.serve("handler")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


async def streaming() -> None:
    reader, writer = await wirespeed.open_stream("ws://localhost:8765")
    assert_type(reader, StreamReader)
    assert_type(writer, StreamWriter)
    assert_type(await reader.readline(), bytes)
    async for line in reader:
        assert_type(line, bytes)
    writer.write(b"bytes")
    await writer.drain()


async def answer() -> int:
    return 42


def running() -> None:
    assert_type(wirespeed.run(answer()), int)
