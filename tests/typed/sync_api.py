"""Static types of the blocking API: read by mypy and pyright, never run.

A line with ``ignore`` is an error that both must find: both are configured to warn of an unused one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator

from typing_extensions import assert_type

from wirespeed import TLS, Close, ConnectionClosed, Request, Response, State
from wirespeed.sync import ClientConnection, Server, ServerConnection, connect, serve, unix_connect, unix_serve


def connecting() -> None:
    assert_type(connect("ws://localhost:8765", open_timeout=5, max_queue=None), ClientConnection)
    with connect("wss://localhost", ssl=TLS(ca="ca.pem")) as ws:
        assert_type(ws, ClientConnection)
    with unix_connect("/run/feed.sock") as ws:
        assert_type(ws, ClientConnection)
    connect("ws://localhost", timeout=10)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


def receiving(ws: ClientConnection, either: bool) -> None:
    assert_type(ws.recv(), str | bytes)
    assert_type(ws.recv(5), str | bytes)
    assert_type(ws.recv(timeout=5), str | bytes)
    assert_type(ws.recv(5, None), str | bytes)
    assert_type(ws.recv(None, True), str)
    assert_type(ws.recv(timeout=5, decode=True), str)
    assert_type(ws.recv(decode=True), str)
    assert_type(ws.recv(5, False), bytes)
    assert_type(ws.recv(5, decode=False), bytes)
    assert_type(ws.recv(decode=False, busy_poll=0.001), bytes)
    assert_type(ws.recv(decode=either), str | bytes)
    assert_type(ws.recv_nowait(), str | bytes)
    assert_type(ws.recv_nowait(True), str)
    assert_type(ws.recv_nowait(decode=False), bytes)
    assert_type(ws.recv_many(), list[str | bytes])
    assert_type(ws.recv_many(5, 1.0), list[str | bytes])
    assert_type(ws.recv_many(5, None, True), list[str])
    assert_type(ws.recv_many(decode=True), list[str])
    assert_type(ws.recv_many(timeout=1, decode=False), list[bytes])
    assert_type(ws.recv_many(5, decode=either), list[str | bytes])
    for message in ws:
        assert_type(message, str | bytes)
    assert_type(ws.recv_streaming(), Generator[str | bytes, None, None])
    assert_type(ws.recv_streaming(True), Generator[str, None, None])
    assert_type(ws.recv_streaming(decode=False), Generator[bytes, None, None])
    with contextlib.closing(ws.recv_streaming()) as streamed:
        assert_type(next(streamed), str | bytes)
    ws.recv(decode="utf-8")  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]


def sending(ws: ClientConnection) -> None:
    ws.send("text", compress=False)
    ws.send(b"bytes", text=True)
    ws.send(bytearray(3))
    ws.send(["a", "b"])
    ws.send(iter([b"a", b"b"]))
    ws.send_many(["a", b"b"])
    assert_type(ws.ping().wait(5), float)
    ws.pong(b"data")
    ws.close(1000, "reason")
    ws.send(5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def looking(ws: ClientConnection) -> None:
    assert_type(ws.state, State)
    assert_type(ws.close_code, int | None)
    assert_type(ws.request, Request)
    assert_type(ws.response.headers["Upgrade"], str)
    try:
        ws.send("text")
    except ConnectionClosed as exc:
        assert_type(exc.rcvd, Close | None)


def handler(ws: ServerConnection) -> None:
    for message in ws:
        assert_type(message, str | bytes)
        ws.send(message)


def check(ws: ServerConnection, request: Request) -> Response | None:
    return ws.respond(404, "no") if request.path != "/" else None


def serving() -> None:
    with serve(handler, "localhost", 8765, process_request=check) as server:
        assert_type(server, Server)
        server.serve_forever()
    assert_type(unix_serve(handler, "/run/app.sock"), Server)
    serve("handler")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
