"""Cancellation of every awaitable of servers and engines, at every point where it may be suspended."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

import wirespeed
from support import asyncio_tools
from support.asyncio_tools import Setting
from wirespeed.compat.websockets.asyncio import server as drop_in_server
from wirespeed.engine import Engine, Message, Publisher, Session

from .stepping import Cancel, connecting, points, still_open

pytestmark = pytest.mark.wirespeed_only("it looks at what is ours")


# Servers


async def echo(ws: Any) -> None:
    async for message in ws:
        await ws.send(message)


def _serve(setting: Setting, kind: str) -> Any:
    if kind == "drop-in":
        return drop_in_server.serve(echo, "127.0.0.1", 0)
    options: dict[str, Any] = {"io_backend": setting.io_backend}
    return wirespeed.serve(echo, "127.0.0.1", 0, **options)


def _uri(server: Any) -> str:
    return f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}/"


KINDS = pytest.mark.parametrize("kind", ["ours", "drop-in"])


@points()
@KINDS
async def test_starting_a_server(cancel: Cancel, setting: Setting, kind: str) -> None:
    async def start() -> Any:
        return await _serve(setting, kind)

    outcome = await cancel(start)
    if not outcome.cancelled:
        async with connecting(setting, _uri(outcome.result)) as ws:
            await still_open(ws)
        outcome.result.close()
        await outcome.result.wait_closed()


@points(1)
@KINDS
async def test_ending_a_server(cancel: Cancel, setting: Setting, kind: str) -> None:
    server = await _serve(setting, kind)
    async with connecting(setting, _uri(server)) as ws:
        await still_open(ws)
        server.close()
        await cancel(server.wait_closed)
        await server.wait_closed()
        await ws.wait_closed()
        assert ws.close_code == 1001


@points(2)
@KINDS
async def test_context_of_a_server(cancel: Cancel, setting: Setting, kind: str) -> None:
    """Cancelled anywhere, the server and its connections are closed when the block is left."""

    async def use() -> None:
        async with _serve(setting, kind) as server:
            ws = await connecting(setting, _uri(server))
            try:
                await still_open(ws)
            finally:
                ws.abort()

    await cancel(use)
    await asyncio_tools.spin(20)


@points(1)
async def test_serving_forever(cancel: Cancel, setting: Setting) -> None:
    server = await _serve(setting, "ours")
    async with connecting(setting, _uri(server)) as ws:
        await still_open(ws)
        asyncio.get_running_loop().call_later(0.02, server.close)
        await cancel(server.serve_forever)
        server.close()
        await server.wait_closed()


# The engine


@contextlib.asynccontextmanager
async def _engine(**options: Any) -> AsyncIterator[Engine]:
    engine = Engine("127.0.0.1", workers=1, ping_interval=None, **options)
    try:
        yield engine
    finally:
        await asyncio.to_thread(engine.stop)


def _at(engine: Engine) -> str:
    host, port = engine.addresses[0]
    return f"ws://{host}:{port}/"


@points(0)
async def test_events_of_an_engine(cancel: Cancel, setting: Setting) -> None:
    """Events that a cancelled task has taken go to the next one."""
    seen: list[Any] = []
    async with _engine() as engine:
        engine.start()
        async with connecting(setting, _at(engine)) as ws:
            await ws.send("1")

            async def take() -> None:
                async with contextlib.aclosing(engine.__aiter__()) as batches:
                    async for batch in batches:
                        seen.extend(event.data for event in batch if isinstance(event, Message))
                        if seen:
                            return

            outcome = await cancel(take)
            if outcome.cancelled and not seen:
                await take()
            assert seen == ["1"]


@points(2)
async def test_serving_an_engine(cancel: Cancel, setting: Setting) -> None:
    """When cancelled, it stops the engine and the running handlers."""
    async with _engine() as engine:
        tasks: set[asyncio.Task[None]] = set()

        @engine.on_message
        async def answer(session: Session, message: str) -> None:
            await asyncio.sleep(0)
            await session.send(message)

        async def talk() -> None:
            with contextlib.suppress(OSError, wirespeed.WebSocketException):
                async with connecting(setting, _at(engine), close_timeout=1) as ws:
                    for _ in range(3):
                        await still_open(ws)
                await asyncio.to_thread(engine.stop)

        engine.start()
        tasks.add(asyncio.ensure_future(talk()))
        outcome = await cancel(lambda: engine.serve(signals=False))
        if not outcome.begun:
            await asyncio.to_thread(engine.stop)
        await asyncio.gather(*tasks)


@points(1)
async def test_draining_an_engine(cancel: Cancel, setting: Setting) -> None:
    async with _engine() as engine:
        engine.start()
        async with connecting(setting, _at(engine)) as ws:
            await cancel(lambda: engine.adrain(timeout=5))
            await asyncio.to_thread(engine.stop)
            await ws.wait_closed()


@points(1)
async def test_sending_to_a_session(cancel: Cancel, setting: Setting) -> None:
    """The client does not read for a moment; sent messages arrive, for any waiting sender."""
    messages = [bytes([number]) * 100_000 for number in range(60)]
    options: dict[str, Any] = {"compression": None, "max_queue": 1, "max_queue_bytes": 65536, "max_size": None}
    async with _engine(outbox_limit=2**23) as engine:
        engine.start()
        async with connecting(setting, _at(engine), **options) as ws:
            session: Session | None = None
            async with contextlib.aclosing(engine.__aiter__()) as batches:
                async for batch in batches:
                    session = batch[0].session
                    break
            assert session is not None
            sent = 0

            async def send() -> None:
                nonlocal sent
                for message in messages:
                    sent += 1
                    await session.send(message)

            task = asyncio.ensure_future(_take_later(ws))
            await cancel(send)
            await session.send(b"last")
            assert await task == [*messages[:sent], b"last"]


async def _take_later(ws: Any) -> list[bytes]:
    await asyncio.sleep(0.02)
    got: list[bytes] = []
    while not got or got[-1] != b"last":
        got.append(await ws.recv())
    return got


@points()
async def test_publishing(cancel: Cancel) -> None:
    """The broker is in this process."""
    async with _engine(broker="memory://stepping") as engine:
        engine.start()
        publisher = Publisher("memory://stepping")
        await cancel(lambda: publisher.apublish("topic", "x"))
        await cancel(lambda: publisher.aflush(5))
        await publisher.aflush(5)
        outcome = await cancel(publisher.aclose)
        if outcome.cancelled:
            await publisher.aclose()
