"""Leaving a connection early: sent messages arrive, followed by a close frame, even if no task waits."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import gc
import threading
import time
import warnings
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import Any

import pytest

from support.asyncio_tools import Run, new_loop, soon, spin
from support.connecting import Connect
from support.frames import Close, close
from support.load_scaling import load_scaled
from support.scripted import Scripted, Wire

pytestmark = pytest.mark.wirespeed_only("ours")


SIZE = 50_000


class Peer:
    """A server that reads nothing until it is released, then everything, and answers the close frame."""

    def __init__(self, scripted: Scripted, connect: Connect) -> None:
        self.server = scripted(self.script, receive_buffer=4096)
        self.connecting: Callable[[], Any] = lambda: connect(self.server.uri, compression=None, ping_interval=None)
        self.sent = 0

    def script(self, wire: Wire) -> tuple[int, Close | None]:
        wire.accept()
        self.server.pause()
        frames, farewell = wire.read_until_close()
        if farewell is not None:
            wire.send(close(farewell.code or 1000))
        return len(frames), farewell

    def fill(self, ws: Any) -> None:
        """Sends until the kernel's buffer is full and some data is queued."""
        with contextlib.suppress(BlockingIOError):
            while True:
                ws.send_nowait(bytes(SIZE))
                self.sent += 1

    def release_soon(self) -> None:
        """Lets the server read in the next turn of the loop: leaving has begun by then."""
        asyncio.get_running_loop().call_soon(self.server.release.set)

    def check(self, code: int) -> None:
        assert self.server.result == (self.sent, Close(code))


@pytest.fixture
def peer(scripted: Scripted, connect: Connect) -> Peer:
    return Peer(scripted, connect)


async def feed(peer: Peer) -> AsyncGenerator[Any, None]:
    async with peer.connecting() as ws:
        peer.fill(ws)
        yield ws


@contextlib.asynccontextmanager
async def managed(peer: Peer) -> AsyncIterator[Any]:
    async with peer.connecting() as ws:
        yield ws


async def nested(peer: Peer) -> AsyncGenerator[Any, None]:
    async with contextlib.AsyncExitStack() as stack:
        ws = await stack.enter_async_context(managed(peer))
        peer.fill(ws)
        yield ws


async def through_another(peer: Peer) -> AsyncGenerator[Any, None]:
    inner = feed(peer)
    try:
        async for ws in inner:
            yield ws
    finally:
        await inner.aclose()


@pytest.mark.parametrize("generator", [feed, nested, through_another])
def test_a_generator_that_is_closed_waits(peer: Peer, run: Run, generator: Callable[[Peer], Any]) -> None:
    async def main() -> None:
        generating = generator(peer)
        ws = await anext(generating)
        peer.release_soon()
        await generating.aclose()
        assert ws.state.name == "CLOSED"

    run(main)
    peer.check(1011)


def test_a_generator_that_is_closed_after_a_cancellation(peer: Peer, run: Run) -> None:
    """The frames above the generator have been entered by an exception."""

    async def main() -> None:
        async def use() -> None:
            generating = feed(peer)
            ws.append(await anext(generating))
            try:
                await wait()
            finally:
                peer.release_soon()
                await generating.aclose()

        async def wait() -> None:
            await asyncio.sleep(60)

        ws: list[Any] = []
        task = asyncio.ensure_future(use())
        await soon(lambda: ws)
        task.cancel()
        await asyncio.wait([task])
        assert ws[0].state.name == "CLOSED"

    run(main)
    peer.check(1011)


def test_a_generator_that_is_dropped(peer: Peer, run: Run) -> None:
    async def main() -> None:
        async for _ in feed(peer):
            break
        gc.collect()
        peer.release_soon()
        await soon(lambda: peer.server.results)

    run(main)
    peer.check(1011)


def test_a_generator_that_outlives_the_program(peer: Peer, run: Run) -> None:
    """asyncio.run closes the generator, and waits for that."""
    generating = feed(peer)

    async def main() -> None:
        await anext(generating)
        peer.release_soon()

    run(main)
    peer.check(1011)


async def use(ws: Any) -> None:
    async with ws:
        await asyncio.get_running_loop().create_future()


async def use_managed(ws: Any) -> None:
    @contextlib.asynccontextmanager
    async def holding() -> AsyncIterator[Any]:
        async with ws:
            yield ws

    async with holding():
        await asyncio.get_running_loop().create_future()


@pytest.mark.parametrize("using", [use, use_managed])
@pytest.mark.parametrize("at_the_end", [False, True], ids=["going-on", "at-the-end"])
def test_a_coroutine_that_is_closed(peer: Peer, run: Run, using: Callable[[Any], Any], at_the_end: bool) -> None:
    """Nothing can be awaited there, so the event loop completes the closing."""

    async def main() -> None:
        ws = await peer.connecting()
        peer.fill(ws)
        coroutine = using(ws)
        coroutine.send(None)
        coroutine.close()
        assert ws.state.name == "CLOSING"
        peer.release_soon()
        del ws, coroutine
        gc.collect()
        if not at_the_end:
            await soon(lambda: peer.server.results)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(main)
    peer.check(1011)


async def break_(peer: Peer) -> None:
    async for ws in peer.connecting():
        peer.fill(ws)
        break


async def return_(peer: Peer) -> None:
    async for ws in peer.connecting():
        peer.fill(ws)
        return


async def raise_(peer: Peer) -> None:
    with contextlib.suppress(ZeroDivisionError):
        async for ws in peer.connecting():
            peer.fill(ws)
            raise ZeroDivisionError


async def cancel(peer: Peer) -> None:
    async def use() -> None:
        async for ws in peer.connecting():
            peer.fill(ws)
            await asyncio.sleep(60)

    task = asyncio.ensure_future(use())
    await soon(lambda: peer.sent and not peer.server.results)
    task.cancel()
    await asyncio.wait([task])


async def cancel_while_closing(peer: Peer) -> None:
    iterator = aiter(peer.connecting())
    peer.fill(await anext(iterator))
    task = asyncio.ensure_future(anext(iterator))
    await asyncio.sleep(0.01)
    task.cancel()
    await asyncio.wait([task])


@pytest.mark.parametrize("leave", [break_, return_, raise_, cancel, cancel_while_closing])
@pytest.mark.parametrize("at_the_end", [False, True], ids=["going-on", "at-the-end"])
def test_leaving_a_loop(peer: Peer, run: Run, leave: Callable[[Peer], Any], at_the_end: bool) -> None:
    async def main() -> None:
        await leave(peer)
        gc.collect()
        peer.release_soon()
        if not at_the_end:
            await soon(lambda: peer.server.results)

    run(main)
    peer.check(1000)


@pytest.mark.parametrize("at_the_end", [False, True], ids=["going-on", "at-the-end"])
def test_dropped_connection(peer: Peer, run: Run, at_the_end: bool) -> None:
    async def main() -> None:
        ws = await peer.connecting()
        peer.fill(ws)
        await spin()
        with pytest.warns(ResourceWarning, match="unclosed connection"):  # noqa: PT031 - it comes by itself
            del ws
            gc.collect()
        peer.release_soon()
        if not at_the_end:
            await soon(lambda: peer.server.results)

    run(main)
    peer.check(1001)


def test_closing_that_is_cancelled_and_dropped(peer: Peer, run: Run) -> None:
    async def main() -> None:
        ws = await peer.connecting()
        peer.fill(ws)
        task = asyncio.ensure_future(ws.close(4000))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        del ws, task
        gc.collect()
        peer.release_soon()
        await soon(lambda: peer.server.results)

    run(main)
    peer.check(4000)


def test_a_loop_that_is_closed(scripted: Scripted, setting: Any, connect: Connect) -> None:
    """Data that fits into the kernel's buffer arrives, with the close frame."""
    if setting.io_backend != "fd":
        pytest.skip("transports need their loop")

    def script(wire: Wire) -> tuple[int, Close | None]:
        wire.accept()
        frames, farewell = wire.read_until_close()
        return len(frames), farewell

    async def main() -> Any:
        ws = await connect(server.uri)
        ws.send_nowait("one")
        return ws

    server = scripted(script)
    loop = new_loop(setting.loop)
    ws = loop.run_until_complete(main())
    ws.send_nowait("two")
    loop.close()
    with pytest.warns(ResourceWarning, match="unclosed connection"):  # noqa: PT031 - it comes by itself
        # The loop still holds the last data, as if its turn had not ended.
        del ws, loop
        gc.collect()
    assert server.result == (2, Close(1001))


def test_leaving_during_generator_shutdown_does_not_warn(scripted: Scripted, setting: Any, connect: Connect) -> None:
    """No task waits for the connection there; the peer gets the close frame."""

    def script(wire: Wire) -> Close | None:
        wire.accept()
        return wire.read_until_close()[1]

    async def holding() -> AsyncGenerator[None, None]:
        ws = await connect(server.uri, ping_interval=None)
        try:
            yield
        finally:
            coroutine = use(ws)
            coroutine.send(None)
            coroutine.close()

    async def main() -> None:
        await anext(generating)

    server, generating = scripted(script), holding()
    loop = new_loop(setting.loop)
    loop.run_until_complete(main())
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        loop.run_until_complete(loop.shutdown_asyncgens())
    assert [str(warning.message) for warning in warned] == []
    loop.run_until_complete(soon(lambda: server.results))
    loop.run_until_complete(asyncio.sleep(0.1))  # the transport closes its socket
    loop.close()
    assert server.result == Close(1011)


def leave_by_coroutine(ws: Any) -> None:
    coroutine = use(ws)
    coroutine.send(None)
    coroutine.close()


def leave_by_forgetting(ws: Any) -> None:
    pass


@pytest.mark.parametrize("leave", [leave_by_coroutine, leave_by_forgetting])
@pytest.mark.parametrize("close_timeout", [5, None])
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_closing_the_loop_closes_abandoned_sockets(
    scripted: Scripted, setting: Any, connect: Connect, leave: Callable[[Any], None], close_timeout: float | None
) -> None:
    """The application keeps a reference to the loop. The peer answers nothing."""

    def script(wire: Wire) -> bool:
        wire.accept()
        wire.read_to_end()
        return True

    async def main() -> None:
        ws = await connect(server.uri, ping_interval=None, close_timeout=close_timeout)
        leave(ws)
        del ws
        gc.collect()

    server = scripted(script)
    loop = new_loop(setting.loop)
    loop.run_until_complete(main())
    loop.close()
    gc.collect()
    assert server.result
    assert loop.is_closed()


async def leave_after_a_cancelled_close(ws: Any) -> None:
    task = asyncio.ensure_future(ws.close())
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_abandoned_connections_have_a_time_limit(scripted: Scripted, connect: Connect, run: Run) -> None:
    """Connections without a close timeout, whose peers answer nothing, end after the default one."""

    def script(wire: Wire) -> float:
        wire.accept()
        wire.read_to_end()
        return time.monotonic()

    async def main() -> None:
        for server, leave in zip(servers, ways, strict=True):
            ws = await connect(server.uri, ping_interval=None, close_timeout=None)
            left = leave(ws)
            if left is not None:
                await left
            del ws, left
        gc.collect()
        began = time.monotonic()
        await asyncio.sleep(1)
        assert not any(server.results for server in servers)
        while not all(server.results for server in servers):
            await asyncio.sleep(0.05)
        assert all(8 < server.result - began < load_scaled(13) for server in servers)

    ways = (leave_by_coroutine, leave_by_forgetting, leave_after_a_cancelled_close)
    servers = [scripted(script) for _ in ways]
    run(main, timeout=load_scaled(16))


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_closing_the_loop_closes_sockets_of_waiting_tasks(scripted: Scripted, setting: Any, connect: Connect) -> None:
    """The application keeps a reference to the loop; the task is destroyed."""

    def script(wire: Wire) -> bool:
        wire.accept()
        wire.read_to_end()
        return True

    async def receive(opened: asyncio.Event) -> None:
        ws = await connect(server.uri, ping_interval=20)
        opened.set()
        await ws.recv()

    async def main() -> None:
        opened = asyncio.Event()
        task = asyncio.ensure_future(receive(opened))
        await opened.wait()
        await asyncio.sleep(0)
        del task

    server = scripted(script)
    loop = new_loop(setting.loop)
    loop.set_exception_handler(lambda *_: None)  # of the task that is destroyed
    loop.run_until_complete(main())
    loop.close()
    gc.collect()
    assert server.result
    assert loop.is_closed()


async def test_a_server_in_a_generator_that_is_closed(setting: Any, connect: Connect) -> None:
    import wirespeed

    ended = []

    async def handler(ws: Any) -> None:
        async for message in ws:
            await ws.send(message)
        await asyncio.sleep(0.05)
        ended.append(ws.close_code)

    async def serving() -> AsyncGenerator[int, None]:
        async with wirespeed.serve(handler, "127.0.0.1", 0) as server:
            yield server.sockets[0].getsockname()[1]

    generating = serving()
    async with connect(f"ws://127.0.0.1:{await anext(generating)}") as ws:
        await ws.send("x")
        assert await ws.recv() == "x"
        await generating.aclose()
        assert len(ended) == 1


def test_a_server_that_is_closed_after_its_loop(setting: Any) -> None:
    """The server's clients get a close frame."""
    import wirespeed
    import wirespeed.sync

    if setting.io_backend != "fd":
        pytest.skip("transports need their loop")
    ready = threading.Event()

    def client(uri: str) -> int | None:
        with wirespeed.sync.connect(uri) as ws:
            ready.set()
            with contextlib.suppress(wirespeed.ConnectionClosed):
                while True:
                    ws.recv(timeout=20)
            return ws.close_code

    async def handler(ws: Any) -> None:
        ws.send_nowait("hello")
        await ws.wait_closed()

    async def main(pool: concurrent.futures.Executor) -> Any:
        server = await wirespeed.serve(handler, "127.0.0.1", 0)
        left = pool.submit(client, f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        await soon(lambda: server.connections and ready.is_set())
        return server, left

    loop = new_loop(setting.loop)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        server, left = loop.run_until_complete(main(pool))
        loop.close()
        server.close()
        assert left.result(20) == 1001
    # The tasks of the handlers were destroyed.
    del server, loop
