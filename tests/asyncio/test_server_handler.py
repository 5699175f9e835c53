"""Failing handlers: what is logged, when, and which connection's end counts."""

from __future__ import annotations

import asyncio
import functools
import gc
import logging
import weakref
from collections.abc import Callable
from typing import Any

import pytest

from support import serving
from support.asyncio_tools import Run, Setting, eager, one_loop, soon
from support.checks import within
from support.connecting import Connect
from support.frames import CLOSE, Close
from support.serving import LOGGER, Raw, echo, idle, logged, masked, serve, uri
from support.subject import IS_WIRESPEED

pytestmark = pytest.mark.wirespeed_only("the server is ours")

if IS_WIRESPEED:
    import wirespeed

SETTINGS = one_loop()


def errors(caplog: pytest.LogCaptureFixture) -> list[str]:
    return logged(caplog, logging.ERROR)


# Which connection ended


async def abort(ws: Any) -> None:
    await ws.recv()
    ws.abort()


async def close(ws: Any) -> None:
    await ws.recv()
    await ws.close(1001)


@pytest.mark.parametrize("end", [abort, close], ids=["lost", "closed"])
async def test_end_of_another_connection_is_logged(
    setting: Setting, connect: Connect, caplog: pytest.LogCaptureFixture, end: Callable[..., Any]
) -> None:
    """The end of another connection is a failure of the handler: it is logged as an error."""
    caplog.set_level(logging.DEBUG, LOGGER)
    async with serve(setting, end) as upstream:

        async def handler(ws: Any) -> None:
            async with connect(uri(upstream)) as other:
                await other.send(await ws.recv())
                await other.recv()

        async with serve(setting, handler) as server, connect(uri(server, "/chat?token=secret")) as ws:
            await ws.send("x")
            with pytest.raises(Exception, match="1011"):
                await ws.recv()
    [record] = [record for record in caplog.records if "connection handler" in record.getMessage()]
    assert record.levelno == logging.ERROR
    assert record.exc_info is not None
    assert record.exc_info[0] is not None
    assert record.exc_info[0].__name__ == "ConnectionClosed" + ("Error" if end is abort else "OK")
    assert "secret" not in caplog.text


async def test_upstream_end_with_equal_text(
    setting: Setting, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    """The connection that raised decides, not the text."""
    async with serve(setting, close) as upstream:

        async def handler(ws: Any) -> None:
            async with connect(uri(upstream)) as other:
                await other.send(await ws.recv())
                await ws.wait_closed()
                await other.recv()

        async with serve(setting, handler) as server, connect(uri(server)) as ws:
            await ws.send("x")
            await ws.close(1001)
            await soon(lambda: errors(caplog))
    [record] = [record for record in caplog.records if "connection handler" in record.getMessage()]
    assert record.exc_info is not None
    assert isinstance(record.exc_info[1], wirespeed.ConnectionClosedOK)
    assert (record.exc_info[1].code, record.exc_info[1].reason) == (1001, "")


@pytest.mark.parametrize("how", ["recv", "send", "ping", "reset"])
async def test_end_of_own_connection_is_not_logged(
    setting: Setting, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    """The end of the handler's own connection is not an error."""
    caplog.set_level(logging.DEBUG, LOGGER)

    async def handler(ws: Any) -> None:
        await ws.recv()
        while how == "send":
            await ws.send(bytes(100_000))
        while how == "ping":
            await (await ws.ping())
        await ws.recv()

    async with serve(setting, handler) as server:
        with await Raw.open(server) as raw:
            await raw.send(masked(1, b"x"))
            if how == "reset":
                raw.reset()
            else:
                await raw.send(masked(CLOSE, b"\x0f\xa0bye"))
                assert (await raw.until_close())[1] == Close(4000, "bye")
        await soon(lambda: any("ended by the end" in text for text in logged(caplog, logging.DEBUG)))
    assert errors(caplog) == []


async def test_end_of_own_connection_while_closing(setting: Setting, caplog: pytest.LogCaptureFixture) -> None:
    """Another task has begun to close."""

    async def handler(ws: Any) -> None:
        asyncio.get_running_loop().call_soon(ws._begin_close, 4000, "")
        while True:
            ws.send_nowait("x")
            await asyncio.sleep(0)

    async with serve(setting, handler) as server, wirespeed.connect(uri(server)) as ws:
        await ws.wait_closed()
        assert ws.close_code == 4000
    assert errors(caplog) == []


# The time of logging


@pytest.mark.within(20)
async def test_failure_is_logged_before_closing(setting: Setting, caplog: pytest.LogCaptureFixture) -> None:
    """A client that does not answer the close frame does not delay logging."""

    async def handler(ws: Any) -> None:
        raise ZeroDivisionError

    async with serve(setting, handler, close_timeout=30) as server:
        with await Raw.open(server, "/path") as raw:
            await soon(lambda: errors(caplog))
            assert (await raw.until_close())[1] == Close(1011)
            [connection] = server._connections
            port = raw.sock.getsockname()[1]
            label = f"{connection.id} from 127.0.0.1:{port} to /path"
            assert errors(caplog) == [f"connection handler failed ({label})"]
    assert len(errors(caplog)) == 1


def test_failed_handler_keeps_no_reference(setting: Setting, run: Run) -> None:
    """The connection of a failed handler is freed without a collection."""
    known: list[Any] = []
    logger = logging.Logger("nobody", logging.CRITICAL)

    async def handler(ws: Any) -> None:
        known.append(weakref.ref(ws))
        raise ZeroDivisionError

    async def main() -> None:
        async with serve(setting, handler, logger=logger) as server:
            with await Raw.open(server) as raw:
                assert (await raw.until_close())[1] == Close(1011)
                await raw.send(masked(CLOSE, b"\x03\xf3"))
                await soon(lambda: not server._tasks)
                await soon(lambda: known[0]() is None)

    gc.collect()
    gc.disable()
    try:
        run(main)
    finally:
        gc.enable()


@pytest.mark.within(20)
async def test_failure_is_logged_when_cancelled(setting: Setting, caplog: pytest.LogCaptureFixture) -> None:
    """Logged while the connection is being closed and the closing is cancelled."""
    tasks: list[Any] = []

    async def handler(ws: Any) -> None:
        tasks.append(asyncio.current_task())
        asyncio.get_running_loop().call_soon(tasks[0].cancel)
        raise ZeroDivisionError

    async with serve(setting, handler, close_timeout=30) as server:
        with await Raw.open(server) as raw:
            await soon(lambda: tasks and tasks[0].done())
            assert tasks[0].cancelled()
            assert (await raw.until_close())[1] == Close(1011)
    [text] = errors(caplog)
    assert text.startswith("connection handler failed (")


async def test_listener_raises(setting: Setting, caplog: pytest.LogCaptureFixture) -> None:
    class Listener(wirespeed.Listener):
        def on_message(self, ws: Any, message: Any) -> None:
            raise ZeroDivisionError(message)

    async with serve(setting, None, listener=Listener) as server:
        with await Raw.open(server) as raw:
            await raw.send(masked(1, b"one") + masked(1, b"two"))
            assert (await raw.until_close())[1] == Close(1011)
    [record] = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert record.getMessage().startswith("listener failed (")
    assert repr(record.exc_info[1]) == "ZeroDivisionError('one')"  # type: ignore[index]


async def test_listener_sends_on_its_lost_connection(setting: Setting, caplog: pytest.LogCaptureFixture) -> None:
    """A reset connection with queued messages logs nothing; the end of another connection is logged."""
    caplog.set_level(logging.DEBUG, LOGGER)
    first: list[Any] = []

    class Listener(wirespeed.Listener):
        def on_message(self, ws: Any, message: Any) -> None:
            if message == "own":
                ws.abort()
                first.append(ws)
                ws.send_nowait(message)
            else:
                first[0].send_nowait(message)

    async with serve(setting, None, listener=Listener) as server:
        for message in (b"own", b"other"):
            with await Raw.open(server) as raw:
                await raw.send(masked(1, message))
                await raw.until_close()
    [met] = [text for text in logged(caplog, logging.DEBUG) if text.startswith("listener met the end")]
    [failed] = logged(caplog)
    assert failed.startswith("listener failed (")
    assert first[0].id.hex in met.replace("-", "")


# Kinds of handlers


def plain(ws: Any) -> None:
    assert ws.state is not None


def generator(ws: Any) -> Any:
    yield ws


def undecided(ws: Any, handle: bool = True) -> Any:
    if handle:
        return idle(ws)
    return None


@pytest.mark.parametrize(
    ("handler", "returned"),
    [
        (plain, "NoneType"),
        (generator, "generator"),
        (lambda ws: None, "NoneType"),
        (functools.partial(undecided, handle=False), "NoneType"),
    ],
    ids=["plain", "generator", "lambda", "partial"],
)
async def test_handler_that_returns_no_awaitable(
    handler: Any, returned: str, setting: Setting, caplog: pytest.LogCaptureFixture
) -> None:
    """The first call fails, with the reason in the log."""
    async with serve(setting, handler) as server:
        with await Raw.open(server) as raw:
            assert (await raw.until_close())[1] == Close(1011)
    [record] = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert f"handler returned {returned}: it must be a coroutine function" in str(record.exc_info[1])  # type: ignore[index]


async def test_awaitable_that_is_no_coroutine(setting: Setting, caplog: pytest.LogCaptureFixture) -> None:
    def handler(ws: Any) -> Any:
        return asyncio.ensure_future(ws.send("x"))

    async with serve(setting, handler) as server:
        with await Raw.open(server) as raw:
            assert (await raw.frame()).payload == b"x"
            assert (await raw.until_close())[1] == Close(1000)
    assert logged(caplog) == []


# Eager tasks


@pytest.mark.skipif(not hasattr(asyncio, "eager_task_factory"), reason="Python 3.12 has eager tasks")
@pytest.mark.no_leaks
async def test_eager_tasks(setting: Setting) -> None:
    """A task that is over before its creator has it is not kept, and the server closes as usual."""

    async def handler(ws: Any) -> None:
        await ws.send("x")

    asyncio.get_running_loop().set_task_factory(eager)
    async with serve(setting, handler, compression=None) as server:
        for _ in range(20):
            (await Raw.connect(server)).close()
        for _ in range(5):
            with await Raw.open(server) as raw:
                assert (await raw.frame()).payload == b"x"
                assert (await raw.until_close())[1] == Close(1000)
                await raw.send(masked(CLOSE, b"\x03\xe8"))
                assert await raw.rest() == b""
        await soon(lambda: not server._tasks)
        half = await Raw.connect(server)
        await half.send(b"GET / HTTP/1.1\r\n")
        await asyncio.sleep(0)
        server.close()
        assert not server.is_serving()
        await half.send(b"Host: x\r\n\r\n")
        half.close()


@pytest.mark.parametrize("hooks", [False, True])
@pytest.mark.no_leaks
async def test_task_factory_that_raises(setting: Setting, caplog: pytest.LogCaptureFixture, hooks: bool) -> None:
    """A task factory that raises affects only its client, and closing the server needs no task."""
    ours = "ServerConnection", "Server."

    async def process(ws: Any, request: Any) -> None:
        pass

    loop = asyncio.get_running_loop()

    def factory(loop: asyncio.AbstractEventLoop, coro: Any, **options: Any) -> asyncio.Task[Any]:
        if coro.__qualname__.startswith(ours):
            raise RuntimeError("no more tasks")
        return asyncio.Task(coro, loop=loop, **options)

    options: dict[str, Any] = {"process_request": process} if hooks else {}
    async with serve(setting, echo, **options) as server:
        loop.set_task_factory(factory)
        for _ in range(3):
            with await Raw.connect(server) as raw:
                await raw.send(serving.request())
                await raw.rest()
        assert not server.connections
        loop.set_task_factory(None)
        with await Raw.open(server) as raw:
            loop.set_task_factory(factory)
            server.close()
            assert (await raw.until_close())[1] == Close(1001)
            await raw.send(masked(CLOSE, b"\x03\xe9"))
            with within(5):
                await server.wait_closed()
        loop.set_task_factory(None)
    # The first failure is logged immediately, the others as a number.
    assert len(logged(caplog)) == 2
    assert all("no more tasks" in line for line in logged(caplog))


# The end of a server


async def test_no_handler_after_closing_began(setting: Setting) -> None:
    """A connection whose handshake was answered before the server began to close is closed without a handler."""
    called = []

    async def handler(ws: Any) -> None:
        called.append(ws)

    def create(*args: Any, **options: Any) -> Any:
        # Before the handler's task takes its first step.
        asyncio.get_running_loop().call_soon(server.close)
        return wirespeed.ServerConnection(*args, **options)

    server = await serve(setting, handler, create_connection=create)
    with await Raw.open(server) as raw:
        assert (await raw.until_close())[1] == Close(1001)
        await raw.send(masked(CLOSE, b"\x03\xe9"))
        await server.wait_closed()
    assert called == []


async def test_second_close_closes_connections(setting: Setting) -> None:
    """The second close closes the connections that the first has left open."""
    async with serve(setting, idle) as server:
        with await Raw.open(server) as raw:
            server.close(close_connections=False)
            closing = asyncio.ensure_future(server.wait_closed())
            await asyncio.sleep(0.05)
            assert not closing.done()
            assert len(server.connections) == 1
            server.close(code=1012, reason="restart")
            assert (await raw.until_close())[1] == Close(1012, "restart")
            await raw.send(masked(CLOSE, b"\x03\xf4"))
            await asyncio.wait_for(closing, 10)
        # The handler's result no longer matters.
        server.close(code=4000)


@pytest.mark.parametrize(("code", "reason"), [(1006, ""), (1000, "x" * 124)], ids=str)
async def test_signals_with_a_wrong_code(setting: Setting, code: int, reason: str) -> None:
    """The call raises, not the signal handler."""
    async with serve(setting, idle) as server:
        with pytest.raises(wirespeed.exceptions.ProtocolError):
            server.close_on_signals(code=code, reason=reason)
        assert server._signals == []
