"""Waiters for the end of a server: its own handlers may wait, too; they wait for other handlers, but not for waiting
ones.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from support import serving
from support.asyncio_tools import Setting, cancelled, eager, soon, spin
from support.checks import within
from support.serving import Raw, dial, echo, idle, logged, serve, uri

pytestmark = pytest.mark.wirespeed_only("the server is ours")


@pytest.mark.no_leaks
async def test_by_a_handler(setting: Setting, caplog: pytest.LogCaptureFixture) -> None:
    """The handler waits until the other handlers have returned, and then continues."""
    steps: list[str] = []

    async def handler(ws: Any) -> None:
        if ws.request.path == "/stop":
            await ws.recv()
            ws.server.close()
            await ws.server.wait_closed()
            steps.append("stopped")
            # It can wait again when no other handler is left.
            await ws.server.wait_closed()
            await asyncio.sleep(0.02)
        else:
            await ws.wait_closed()
            await asyncio.sleep(0.02)
        steps.append(ws.request.path)

    async with serve(setting, handler) as server:
        ws, other = await dial(uri(server, "/stop")), await dial(uri(server, "/other"))
        await ws.send("x")
        with within(3):
            await server.wait_closed()
        steps.append("closed")
        for client in (ws, other):
            await client.wait_closed()
            assert client.close_code == 1001
    assert steps == ["/other", "stopped", "/stop", "closed"]
    assert logged(caplog) == []


@pytest.mark.no_leaks
async def test_by_many_handlers(setting: Setting) -> None:
    """Handlers that wait before and after the server closes do not wait for each other."""
    ended: list[int] = []

    async def handler(ws: Any) -> None:
        number = int(ws.request.path[1:])
        if number % 2:
            await ws.wait_closed()
        await ws.server.wait_closed()
        ended.append(number)

    async with serve(setting, handler) as server:
        clients = [await dial(uri(server, f"/{number}")) for number in range(10)]
        assert ended == []
        server.close()
        with within(3):
            await server.wait_closed()
        assert sorted(ended) == list(range(10))
        for ws in clients:
            await ws.wait_closed()


@pytest.mark.no_leaks
async def test_by_a_handler_that_gives_up(setting: Setting) -> None:
    """A handler that cancels its wait is waited for again."""
    steps: list[str] = []

    async def handler(ws: Any) -> None:
        waiting = ws.server.wait_closed()
        if ws.request.path == "/gives-up":
            task = asyncio.current_task()
            assert task is not None
            asyncio.get_running_loop().call_later(0.05, task.cancel)
            with pytest.raises(asyncio.CancelledError):
                await waiting
            await asyncio.sleep(0.05)
        else:
            await ws.wait_closed()
            await waiting
        steps.append(ws.request.path)

    async with serve(setting, handler) as server:
        clients = [await dial(uri(server, path)) for path in ("/gives-up", "/waits")]
        # Another handler delays the end, so that the wait was cancelled before it would end.
        holding = asyncio.create_task(asyncio.sleep(0.08))
        server._tasks.add(holding)
        holding.add_done_callback(server._tasks.discard)
        server.close()
        with within(3):
            await server.wait_closed()
        for ws in clients:
            await ws.wait_closed()
    assert steps == ["/gives-up", "/waits"]


@pytest.mark.parametrize("hook", ["process_request", "process_response"])
@pytest.mark.no_leaks
async def test_by_a_hook(setting: Setting, hook: str) -> None:
    async def process(ws: Any, *_: Any) -> None:
        ws.server.close()
        await ws.server.wait_closed()

    hooks: dict[str, Any] = {hook: process}
    async with serve(setting, idle, **hooks) as server:
        with await Raw.connect(server) as raw:
            await raw.send(serving.request())
            assert (await raw.reply()).status == 503
        with within(3):
            await server.wait_closed()


@pytest.mark.no_leaks
async def test_by_a_task_of_a_handler(setting: Setting) -> None:
    """The task is not a handler, so it waits for the handler."""
    steps: list[str] = []

    async def wait(server: Any) -> None:
        await server.wait_closed()
        steps.append("closed")

    async def handler(ws: Any) -> None:
        tasks.append(asyncio.ensure_future(wait(ws.server)))
        await ws.wait_closed()
        await asyncio.sleep(0.02)
        steps.append("handler")

    tasks: list[asyncio.Future[None]] = []
    async with serve(setting, handler) as server:
        ws = await dial(uri(server))
    await ws.wait_closed()
    await asyncio.gather(*tasks)
    assert steps == ["handler", "closed"]


@pytest.mark.skipif(not hasattr(asyncio, "eager_task_factory"), reason="Python 3.12 has eager tasks")
@pytest.mark.parametrize("hooks", [False, True])
@pytest.mark.no_leaks
async def test_by_a_handler_in_an_eager_task(setting: Setting, hooks: bool) -> None:
    """The handler waits before the code that makes its task has the task."""

    async def process(ws: Any, request: Any) -> None:
        pass

    async def handler(ws: Any) -> None:
        await ws.server.wait_closed()

    asyncio.get_running_loop().set_task_factory(eager)
    options: dict[str, Any] = {"process_request": process} if hooks else {}
    async with serve(setting, handler, **options) as server:
        ws = await dial(uri(server))
        server.close()
        with within(3):
            await server.wait_closed()
        await ws.wait_closed()


@pytest.mark.no_leaks
async def test_with_the_limit_of_requests(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without ``open_timeout``, a client that has sent half a request is closed after a time, and the handler
    continues.
    """
    steps: list[str] = []

    async def handler(ws: Any) -> None:
        ws.server.close()
        await ws.server.wait_closed()
        steps.append("handler")

    async with serve(setting, handler, open_timeout=None) as server:
        monkeypatch.setattr(type(server._limiter), "closing_timeout", 0.2)
        with await Raw.connect(server) as half:
            await half.send(serving.request()[:40])
            await soon(lambda: len(server._limiter))
            with within(3, at_least=0.2):
                ws = await dial(uri(server))
                await server.wait_closed()
            await ws.wait_closed()
    assert steps == ["handler"]


@pytest.mark.no_leaks
async def test_cancelled_from_outside(setting: Setting) -> None:
    """A cancelled outside waiter does not affect others."""

    async def handler(ws: Any) -> None:
        await ws.server.wait_closed()

    async with serve(setting, handler) as server:
        ws = await dial(uri(server))
        waiting = asyncio.ensure_future(server.wait_closed())
        await spin()
        assert await cancelled(waiting)
        server.close()
        with within(3):
            await server.wait_closed()
        await ws.wait_closed()
    async with serve(setting, echo) as server:
        pass
    await server.wait_closed()
