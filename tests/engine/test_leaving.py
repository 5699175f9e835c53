"""The close code 1001 that clients get when an engine ends without a drain."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import textwrap
import time

import pytest

import wirespeed
from engine.callers import dial, next_session
from wirespeed.engine import Engine
from wirespeed.sync import ClientConnection, connect

pytestmark = [
    pytest.mark.wirespeed_only("websockets has no engine"),
    pytest.mark.skipif(os.name != "posix", reason="no signals"),
]


def code(ws: ClientConnection) -> int | None:
    """Returns the close code that a client gets."""
    with pytest.raises(wirespeed.ConnectionClosed):
        while True:
            ws.recv(20)
    return ws.close_code


def test_leaving_with_closes_the_sessions() -> None:
    with Engine("127.0.0.1") as engine:
        ws = dial(engine, "/")
        # Messages that were sent before are not lost.
        next_session(engine).send("good bye")
    with ws:
        assert ws.recv(20) == "good bye"
        assert code(ws) == 1001


async def test_leaving_async_with_closes_the_sessions() -> None:
    async with Engine("127.0.0.1") as engine:
        host, port = engine.addresses[0]
        ws = await wirespeed.connect(f"ws://{host}:{port}/", proxy=None)
    with pytest.raises(wirespeed.ConnectionClosed):
        await ws.recv()
    assert ws.close_code == 1001


async def test_cancelling_serve_closes_the_sessions() -> None:
    engine = Engine("127.0.0.1")

    @engine.on_message
    async def echo(session, message):  # type: ignore[no-untyped-def]
        await session.send(message)

    engine.start()
    serving = asyncio.create_task(engine.serve())
    host, port = engine.addresses[0]
    ws = await wirespeed.connect(f"ws://{host}:{port}/", proxy=None)
    await ws.send("hello")
    assert await ws.recv() == "hello"
    serving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await serving
    with pytest.raises(wirespeed.ConnectionClosed):
        await ws.recv()
    assert ws.close_code == 1001


def test_a_client_that_does_not_answer_does_not_hold_up_the_end() -> None:
    with Engine("127.0.0.1") as engine:
        client = socket.create_connection(engine.addresses[0])
        client.sendall(
            b"GET / HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
        )
        next_session(engine)
        left = time.monotonic()
    assert time.monotonic() - left < 10  # `close_timeout`, which is not waited for
    with client:
        received = b""
        while data := client.recv(4096):
            received += data
    assert received.endswith(b"\x88\x02\x03\xe9")


PROGRAM = textwrap.dedent("""
    import sys
    from wirespeed.engine import Engine

    engine = Engine("127.0.0.1")
    if sys.argv[1] == "coroutine":
        @engine.on_message
        async def handle(session, message):
            await session.send(message)
    else:
        @engine.on_message
        def handle(session, message):
            session.send(message)
    engine.start()
    print(engine.addresses[0][1], flush=True)
    engine.run(threads=2 if sys.argv[1] == "threads" else 0)
""")


@pytest.mark.parametrize("how", ["function", "threads", "coroutine"])
def test_an_interrupt_closes_the_sessions(how: str) -> None:
    """As Ctrl-C does, and supervisors with SIGINT."""
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, how], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as child:
        assert child.stdout is not None
        with connect(f"ws://127.0.0.1:{int(child.stdout.readline())}/", proxy=None) as ws:
            ws.send("hello")
            assert ws.recv(20) == "hello"
            child.send_signal(signal.SIGINT)
            assert code(ws) == 1001
        child.wait(20)
