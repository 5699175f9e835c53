"""Closing the server: connections, opening handshakes, and waiting tasks."""

from __future__ import annotations

import asyncio
import logging
import socket
from typing import Any

import pytest

from support import serving
from support.asyncio_tools import Run, Setting, cancelled, soon, spin
from support.checks import within
from support.connecting import Connect
from support.frames import CLOSE, TEXT, Close, Frame, close
from support.serving import LOGGER, Raw, dial, echo, idle, logged, masked, serve, unnamed, uri
from support.subject import exceptions

pytestmark = pytest.mark.wirespeed_only("the server is ours")


async def refused(server: Any, name: Any) -> bool:
    """Returns whether the server no longer listens there."""
    with socket.socket(type=socket.SOCK_STREAM) as sock:
        sock.setblocking(False)
        try:
            await asyncio.get_running_loop().sock_connect(sock, name)
        except ConnectionRefusedError:
            return True
        return False


# Connections


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, (1001, "")),
        ({"code": 1012, "reason": "restarting é"}, (1012, "restarting é")),
        ({"code": 4000}, (4000, "")),
        ({"reason": "bye"}, (1001, "bye")),
    ],
    ids=str,
)
@pytest.mark.parametrize("handler", [echo, idle])
@pytest.mark.no_leaks
async def test_close(
    setting: Setting, connect: Connect, handler: Any, options: dict[str, Any], expected: tuple[int, str]
) -> None:
    server = await serve(setting, handler)
    name = server.sockets[0].getsockname()
    clients = [await client(uri(server)) for client in (connect, dial) * 2]
    assert server.is_serving()
    server.close(**options)
    assert not server.is_serving()
    with within(3):
        await server.wait_closed()
    assert server.sockets == ()
    assert server.connections == set()
    for ws in clients:
        await ws.wait_closed()
        assert (ws.close_code, ws.close_reason) == expected
    assert await refused(server, name)


async def test_handler_sees_the_end(setting: Setting, caplog: pytest.LogCaptureFixture) -> None:
    """``recv`` raises a clean end, iteration ends; neither is logged as an error."""
    ends: list[Any] = []

    async def handler(ws: Any) -> None:
        if ws.request.path == "/recv":
            try:
                await ws.recv()
            except exceptions.ConnectionClosedOK as exc:
                ends.append(exc.sent and exc.sent.code)
                raise
        elif ws.request.path == "/iterate":
            async for _ in ws:
                pass
            ends.append(ws.close_code)
        else:
            while True:
                await ws.send("x")
                await asyncio.sleep(0)

    async with serve(setting, handler) as server:
        clients = [await dial(uri(server, path)) for path in ("/recv", "/iterate", "/send")]
    for ws in clients:
        await ws.wait_closed()
    assert ends == [1001, 1001]
    assert logged(caplog) == []


@pytest.mark.no_leaks
async def test_connections_may_continue(setting: Setting, connect: Connect) -> None:
    """With ``close_connections=False``, the server waits for them."""
    server = await serve(setting)
    name = server.sockets[0].getsockname()
    ws = await connect(uri(server))
    server.close(close_connections=False)
    waiting = asyncio.ensure_future(server.wait_closed())
    await spin()
    assert await refused(server, name)
    await ws.send("still")
    assert await ws.recv() == "still"
    assert not waiting.done()
    await ws.close()
    with within(2):
        await waiting


async def test_waits_for_handlers(setting: Setting) -> None:
    steps: list[str] = []

    async def handler(ws: Any) -> None:
        try:
            await ws.recv()
        finally:
            await asyncio.sleep(0.05)
            steps.append("cleaned up")

    async with serve(setting, handler) as server:
        ws = await dial(uri(server))
    steps.append("closed")
    await ws.wait_closed()
    assert steps == ["cleaned up", "closed"]


@pytest.mark.parametrize("client", ["silent", "deaf"])
@pytest.mark.no_leaks
async def test_client_does_not_answer(setting: Setting, client: str) -> None:
    """Closing takes at most ``close_timeout``, even with unsent messages."""

    async def handler(ws: Any) -> None:
        if client == "deaf":
            while True:
                await ws.send(b"x" * 100_000)
        await ws.wait_closed()

    async with serve(setting, handler, close_timeout=0.15, compression=None) as server:
        with await Raw.open(server, receive_buffer=4096) as raw:
            await asyncio.sleep(0.02)
            with within(3, at_least=0.1):
                server.close()
                await server.wait_closed()
            if client == "silent":
                assert (await raw.until_close())[1] == Close(1001)


async def test_queued_messages_precede_the_close_frame(setting: Setting) -> None:
    """Messages that handlers sent before are received before the close frame."""

    async def handler(ws: Any) -> None:
        for number in range(50):
            await ws.send(f"{number}" * 2000)
        ready.append(True)
        await ws.wait_closed()

    ready: list[bool] = []
    async with serve(setting, handler, compression=None, write_limit=2**30) as server:
        with await Raw.open(server, receive_buffer=8192) as raw:
            await soon(lambda: ready)
            server.close()
            frames, end = await raw.until_close()
            assert len(frames) == 50
            assert end == Close(1001)
            await raw.send(masked(CLOSE, close(1001)[2:]))


# Opening handshakes


@pytest.mark.parametrize("hook", ["process_request", "process_response"])
@pytest.mark.no_leaks
@pytest.mark.within(3)
async def test_client_in_a_hook_is_refused(setting: Setting, hook: str) -> None:
    """A client in the opening handshake is refused with 503, so that it can connect elsewhere."""
    waiting: list[Any] = []
    go = asyncio.Event()

    async def process(ws: Any, *_: Any) -> None:
        waiting.append(ws)
        await go.wait()

    hooks: dict[str, Any] = {hook: process}
    async with serve(setting, idle, **hooks) as server:
        with await Raw.connect(server) as raw:
            await raw.send(serving.request())
            await soon(lambda: waiting)
            server.close()
            await spin()
            go.set()
            reply = await raw.reply()
            assert reply.status == 503
            assert b"shutting down" in reply.body


async def test_refusal_by_a_hook_counts(setting: Setting) -> None:
    """The application's answer is not replaced."""
    waiting: list[Any] = []
    go = asyncio.Event()

    async def process(ws: Any, request: Any) -> Any:
        waiting.append(ws)
        await go.wait()
        return ws.respond(404, "no")

    async with serve(setting, idle, process_request=process) as server:
        with await Raw.connect(server) as raw:
            await raw.send(serving.request())
            await soon(lambda: waiting)
            server.close()
            go.set()
            assert (await raw.reply()).status == 404


@pytest.mark.no_leaks
@pytest.mark.within(3)
async def test_before_the_request_is_complete(setting: Setting) -> None:
    async with serve(setting, idle) as server:
        with await Raw.connect(server) as raw:
            await raw.send(serving.request()[:40])
            await soon(lambda: len(server._limiter))
            server.close()
            await spin()
            await raw.send(serving.request()[40:])
            assert (await raw.reply()).status == 503


@pytest.mark.no_leaks
async def test_silent_client(setting: Setting) -> None:
    """A silent client delays the end by at most ``open_timeout``."""
    async with serve(setting, idle, open_timeout=0.2) as server:
        raw = await Raw.connect(server)
        await soon(lambda: len(server._limiter))
        with within(2):
            server.close()
            await server.wait_closed()
        raw.close()


@pytest.mark.parametrize("hooks", [False, True])
@pytest.mark.no_leaks
async def test_at_every_moment_of_a_handshake(setting: Setting, hooks: bool) -> None:
    """The client is refused or closed, never forgotten."""

    async def process(ws: Any, request: Any) -> None:
        await asyncio.sleep(0)

    async def outcome(raw: Raw) -> str:
        try:
            if (await raw.head()).status == 503:
                return "refused"
            assert (await asyncio.wait_for(raw.until_close(), 0.5))[1] == Close(1001)
        except (EOFError, ConnectionError):
            return "lost"
        await raw.send(masked(CLOSE, close(1001)[2:]))
        return "closed"

    outcomes = set()
    for turns in range(16):
        options: dict[str, Any] = {"process_request": process} if hooks else {}
        server = await serve(setting, idle, close_timeout=0.3, **options)
        with await Raw.connect(server) as raw:
            await raw.send(serving.request())
            await spin(turns)
            server.close()
            outcomes.add(await outcome(raw))
            await asyncio.wait_for(server.wait_closed(), 2)
    assert "closed" in outcomes


# Waiting


async def test_wait_closed_waits(setting: Setting) -> None:
    async with serve(setting) as server:
        tasks = [asyncio.ensure_future(server.wait_closed()) for _ in range(3)]
        await spin()
        assert not any(task.done() for task in tasks)
        # A cancelled waiter does not affect the others.
        assert await cancelled(tasks.pop())
        server.close()
        await asyncio.gather(*tasks)
        await server.wait_closed()


@pytest.mark.no_leaks
async def test_serve_forever(setting: Setting) -> None:
    server = await serve(setting, idle, start_serving=False)
    task = asyncio.ensure_future(server.serve_forever())
    await spin()
    assert server.is_serving()
    with await Raw.open(server) as raw:
        server.close()
        assert (await raw.until_close())[1] == Close(1001)
    with within(3):
        assert await task is None


@pytest.mark.no_leaks
async def test_serve_forever_is_cancelled(setting: Setting, connect: Connect) -> None:
    server = await serve(setting, idle)
    ws = await connect(uri(server))
    task = asyncio.ensure_future(server.serve_forever())
    await spin()
    with within(3):
        assert await cancelled(task)
    # All is over by then.
    assert server.sockets == ()
    assert not server._tasks
    await ws.wait_closed()
    assert ws.close_code == 1001


@pytest.mark.no_leaks
async def test_close_twice(setting: Setting, connect: Connect) -> None:
    async with serve(setting, idle) as server:
        ws = await connect(uri(server))
        server.close(code=4001)
        server.close(code=4002)
        await server.wait_closed()
        server.close(code=4003)
        await ws.wait_closed()
        assert ws.close_code == 4001


@pytest.mark.no_leaks
async def test_closed_server_does_not_start_again(setting: Setting) -> None:
    async with serve(setting) as server:
        server.close()
        await server.start_serving()
        assert not server.is_serving()
    await server.start_serving()
    assert not server.is_serving()
    assert server.sockets == ()


@pytest.mark.parametrize("after", ["return", "message", "raise"])
@pytest.mark.no_leaks
async def test_close_in_a_handler(setting: Setting, caplog: pytest.LogCaptureFixture, after: str) -> None:
    async def handler(ws: Any) -> None:
        await ws.recv()
        ws.server.close(reason="enough")
        if after == "message":
            await ws.send("last")
            await ws.recv()
        elif after == "raise":
            raise ZeroDivisionError

    async with serve(setting, handler) as server:
        ws, other = await dial(uri(server)), await dial(uri(server))
        await ws.send("x")
        with within(3):
            await server.wait_closed()
        await other.wait_closed()
        assert (other.close_code, other.close_reason) == (1001, "enough")
        await ws.wait_closed()
        assert ws.close_code == {"return": 1000, "message": 1001, "raise": 1011}[after]
    assert unnamed(logged(caplog)) == (["connection handler failed"] if after == "raise" else [])


@pytest.mark.no_leaks
async def test_exception_in_the_body(setting: Setting) -> None:
    with await _failing_body(setting) as raw:
        assert (await raw.until_close())[1] == Close(1001)


async def _failing_body(setting: Setting) -> Raw:
    opened: list[Raw] = []
    with pytest.raises(ZeroDivisionError):
        async with serve(setting, idle, close_timeout=0.2) as server:
            opened.append(await Raw.open(server))
            raise ZeroDivisionError
    return opened[0]


async def test_connections(setting: Setting) -> None:
    """A new set of the open connections each time."""
    seen: list[Any] = []

    async def process(ws: Any, request: Any) -> None:
        seen.append(len(ws.server.connections))

    async with serve(setting, process_request=process) as server:
        assert server.connections == set()
        with await Raw.open(server) as raw, await Raw.open(server) as other:
            assert len(server.connections) == 2
            server.connections.clear()
            assert len(server.connections) == 2
            await other.send(masked(TEXT, b"x"))
            assert await other.frame() == Frame(TEXT, b"x", masked=False)
            await raw.send(masked(CLOSE, close(1000)[2:]))
            await raw.until_close()
            await soon(lambda: len(server.connections) == 1)
    assert seen == [0, 1]


def test_log(setting: Setting, run: Run, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with serve(setting, idle) as server:
            seen.append(server.sockets[0].getsockname()[1])
            (await Raw.open(server)).close()

    seen: list[int] = []
    with caplog.at_level(logging.INFO, LOGGER):
        run(main)
    assert logged(caplog, logging.INFO) == [
        f"server listening on 127.0.0.1:{seen[0]}",
        "server closing",
        "server closed",
    ]
