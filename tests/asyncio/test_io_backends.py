"""The I/O backends of a loop: many ready sockets, descriptors closed without notice, contexts, the timer."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from support.asyncio_tools import Setting, soon
from wirespeed import Listener, connect, serve
from wirespeed._native import LoopState
from wirespeed.exceptions import ConnectionClosed

pytestmark = pytest.mark.wirespeed_only("what a loop is asked for")


WHO: contextvars.ContextVar[str] = contextvars.ContextVar("WHO", default="nobody")


def address(server: Any) -> str:
    return f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}/"


async def echo(ws: Any) -> None:
    async for message in ws:
        await ws.send(message)


async def test_all_ready_sockets_are_served(setting: Setting) -> None:
    """More sockets are ready than one callback of the loop serves."""
    count = 300
    options: dict[str, Any] = {"io_backend": setting.io_backend, "compression": None}
    async with serve(echo, "127.0.0.1", 0, **options) as server:
        clients = [await connect(address(server), proxy=None, **options) for _ in range(count)]
        for turn in range(3):
            for number, client in enumerate(clients):
                await client.send(f"{turn} {number}")
            replies = await asyncio.gather(*(client.recv() for client in clients))
            assert replies == [f"{turn} {number}" for number in range(count)]
        for client in clients:
            await client.close()


async def test_a_listener_is_called_in_the_context_of_its_connection(setting: Setting) -> None:
    seen: list[tuple[str, str]] = []

    class Recorder(Listener):
        def __init__(self, name: str) -> None:
            self.name = name

        def on_message(self, ws: Any, message: Any) -> None:
            seen.append((self.name, WHO.get()))

        def on_close(self, ws: Any, code: int, reason: str) -> None:
            seen.append((self.name, WHO.get()))

    async def opened(uri: str, name: str) -> Any:
        WHO.set(name)
        options: dict[str, Any] = {"io_backend": setting.io_backend, "listener": Recorder(name)}
        return await connect(uri, proxy=None, **options)

    async with serve(echo, "127.0.0.1", 0) as server:
        names = ["a", "b", "c"]
        # Each in a task, which has a context of its own.
        clients = [await asyncio.ensure_future(opened(address(server), name)) for name in names]
        for client in clients:
            await client.send("x")
        await soon(lambda: len(seen) == 3)
        server.close()
        await soon(lambda: len(seen) == 6)
    assert sorted(seen) == [(name, name) for name in names for _ in range(2)]


@pytest.mark.parametrize("streams", [True, False])
async def test_keepalive_timer_fires_beside_traffic(setting: Setting, streams: bool) -> None:
    """Keepalive pings are sent in time, both while the socket is always readable and while it never is."""

    async def stream(ws: Any) -> None:
        with contextlib.suppress(ConnectionClosed):
            while streams:
                await ws.send(bytes(100))
            await ws.wait_closed()

    loop = asyncio.get_running_loop()
    options: dict[str, Any] = {"io_backend": setting.io_backend, "ping_interval": 0.02}
    async with (
        serve(stream, "127.0.0.1", 0, ping_interval=None) as server,
        connect(address(server), proxy=None, **options) as ws,
    ):
        until = loop.time() + 20
        while not ws.latency and loop.time() < until:
            await (ws.recv() if streams else asyncio.sleep(0.01))
        assert ws.latency > 0


@contextlib.contextmanager
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    with ours, theirs:
        yield ours, theirs


async def test_descriptor_closed_without_notice(setting: Setting) -> None:
    """Another connection with the reused descriptor number is still watched."""
    if setting.io_backend == "transport":
        pytest.skip("no port is used")
    loop = asyncio.get_running_loop()
    state = LoopState.of(loop)
    heard: list[str] = []
    with pair() as (ours, _):
        number = ours.fileno()
        if getattr(loop, "_wirespeed_nests", True):
            # A loop that watches by itself does not survive this.
            state._watch(number, lambda: heard.append("closed"))
    with pair() as (ours, theirs):
        assert ours.fileno() == number
        state._watch(number, lambda: heard.append("open"))
        theirs.send(b"x")
        await soon(lambda: "open" in heard)
        state._ignore(number)
        ours.recv(1)
        theirs.send(b"x")
        del heard[:]
        await asyncio.sleep(0.02)
    assert heard == []


async def test_exception_of_a_callback_is_reported(setting: Setting) -> None:
    if setting.io_backend == "transport":
        pytest.skip("no port is used")
    reports: list[dict[str, Any]] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: reports.append(context))
    state = LoopState.of(loop)

    def fail() -> None:
        state._ignore(ours.fileno())
        raise ZeroDivisionError

    with pair() as (ours, theirs):
        state._watch(ours.fileno(), fail)
        theirs.send(b"x")
        await soon(lambda: reports)
    assert [type(report["exception"]) for report in reports] == [ZeroDivisionError]
