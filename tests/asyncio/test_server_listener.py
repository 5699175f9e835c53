"""Listeners of a server: made for each connection, called instead of a handler."""

from __future__ import annotations

import asyncio
import functools
import logging
from typing import Any

import pytest

from support import serving
from support.asyncio_tools import Setting, soon, spin
from support.checks import within
from support.connecting import Connect
from support.frames import BINARY, CLOSE, PING, PONG, TEXT, Close, Frame, close
from support.serving import LOGGER, Raw, dial, logged, masked, serve, uri
from support.subject import IS_WIRESPEED

pytestmark = pytest.mark.wirespeed_only("callbacks are ours")

if IS_WIRESPEED:
    from wirespeed import Listener
else:
    Listener = object


class Recorder(Listener):
    """Records its callbacks; all instances are in ``made``."""

    made: list[Any] = []  # noqa: RUF012 - emptied by the fixture

    def __init__(self) -> None:
        self.events: list[tuple[Any, ...]] = []
        self.made.append(self)

    def on_open(self, ws: Any) -> None:
        self.ws = ws
        self.events.append(("open", ws.state.name, ws.request.path))

    def on_message(self, ws: Any, message: Any) -> None:
        assert ws is self.ws
        self.events.append(("message", bytes(message) if isinstance(message, memoryview) else message))

    def on_ping(self, ws: Any, data: bytes) -> None:
        self.events.append(("ping", data))

    def on_close(self, ws: Any, code: int, reason: str) -> None:
        self.events.append(("close", code, reason))


class Echo(Recorder):
    def on_message(self, ws: Any, message: Any) -> None:
        super().on_message(ws, message)
        ws.send_nowait(message)


@pytest.fixture(autouse=True)
def _none_made() -> None:
    Recorder.made.clear()


def listening(setting: Setting, listener: Any, **options: Any) -> Any:
    return serve(setting, None, listener=listener, **options)


@pytest.mark.parametrize(
    "factory", [Recorder, lambda: Recorder(), functools.partial(Recorder)], ids=["class", "function", "partial"]
)
@pytest.mark.no_leaks
async def test_events(setting: Setting, factory: Any) -> None:
    """Frames in the packet of the request come after ``on_open``."""
    async with listening(setting, factory) as server:
        with await Raw.connect(server) as raw:
            await raw.send(serving.request("/path") + masked(TEXT, "é".encode()) + masked(PING, b"1"))
            assert (await raw.head()).status == 101
            assert await raw.frame() == Frame(PONG, b"1", masked=False)
            await raw.send(masked(BINARY, b"\x00") + masked(CLOSE, close(4000, "bye")[2:]))
            assert await raw.until_close() == ([], Close(4000, "bye"))
        await soon(lambda: not server._tasks)
        assert server.connections == set()
    [listener] = Recorder.made
    assert listener.events == [
        ("open", "OPEN", "/path"),
        ("message", "é"),
        ("ping", b"1"),
        ("message", b"\x00"),
        ("close", 4000, "bye"),
    ]


@pytest.mark.parametrize("zero_copy", [False, True])
@pytest.mark.parametrize("message", ["hé", b"", b"\x00" * 300_000, "x" * 70_000], ids=["text", "empty", "300k", "70k"])
@pytest.mark.no_leaks
async def test_echo(
    setting: Setting, connect: Connect, caplog: pytest.LogCaptureFixture, zero_copy: bool, message: Any
) -> None:
    """Answers from ``on_message``, by ``send_nowait``."""
    kinds: list[type] = []

    class Typed(Echo):
        def on_message(self, ws: Any, message: Any) -> None:
            kinds.append(type(message))
            super().on_message(ws, message)

    async with listening(setting, Typed, zero_copy=zero_copy, write_limit=2**20) as server:
        for client in (connect, dial):
            async with client(uri(server)) as ws:
                for _ in range(3):
                    await ws.send(message)
                    assert await ws.recv() == message
        await soon(lambda: [listener.events[-1] for listener in Recorder.made] == [("close", 1000, "")] * 2)
    expected = str if isinstance(message, str) else memoryview if zero_copy else bytes
    assert set(kinds) == {expected}
    assert logged(caplog) == []


@pytest.mark.no_leaks
async def test_one_for_each_connection(setting: Setting) -> None:
    async with listening(setting, Echo) as server:
        clients = [await dial(uri(server, f"/{number}")) for number in range(20)]
        assert len(server.connections) == 20
        for number, ws in enumerate(clients):
            await ws.send(f"{number}")
        for number, ws in enumerate(clients):
            assert await ws.recv() == f"{number}"
        await asyncio.gather(*[ws.close() for ws in clients])
        await soon(lambda: server.connections == set())
    assert len({id(listener) for listener in Recorder.made}) == 20
    assert {(e.events[0][2], e.events[1][1]) for e in Recorder.made} == {(f"/{n}", f"{n}") for n in range(20)}


@pytest.mark.parametrize("method", ["on_open", "on_message", "on_ping"])
@pytest.mark.no_leaks
async def test_exception(setting: Setting, caplog: pytest.LogCaptureFixture, method: str) -> None:
    """The connection is closed with 1011, the exception is logged once, the server goes on."""

    def fail(self: Any, *arguments: Any) -> None:
        if not failed:
            failed.append(True)
            raise ZeroDivisionError("mine")

    failed: list[bool] = []
    kind = type("Failing", (Recorder,), {method: fail})
    async with listening(setting, kind) as server:
        with await Raw.connect(server) as raw:
            await raw.send(serving.request() + masked(PING, b"x") + masked(TEXT, b"x"))
            head = await raw.head()
            assert head.status == 101
            frames, end = await raw.until_close()
            assert end is not None
            assert end.code == 1011
            assert {frame.opcode for frame in frames} <= {PONG}
        await soon(lambda: server.connections == set())
        with await Raw.open(server) as raw:
            await raw.send(masked(PING, b"again"))
            assert await raw.frame() == Frame(PONG, b"again", masked=False)
    records = [record for record in caplog.records if record.name == LOGGER and record.levelno >= logging.WARNING]
    assert len(records) == 1
    assert records[0].levelno == logging.ERROR
    assert records[0].exc_info
    assert str(records[0].exc_info[1]) == "mine"
    assert sum(event[0] == "close" for event in Recorder.made[0].events) == 1


@pytest.mark.no_leaks
async def test_exception_in_on_close(setting: Setting, caplog: pytest.LogCaptureFixture) -> None:
    class Failing(Recorder):
        def on_close(self, ws: Any, code: int, reason: str) -> None:
            raise ZeroDivisionError("mine")

    async with listening(setting, Failing) as server:
        with await Raw.open(server) as raw:
            await raw.send(masked(CLOSE, close(1000)[2:]))
            assert (await raw.until_close())[1] == Close(1000)
        await soon(lambda: server.connections == set())
    assert len(logged(caplog)) == 1
    assert "mine" in caplog.text


@pytest.mark.parametrize("how", ["raise", "type"])
@pytest.mark.no_leaks
async def test_factory_fails(setting: Setting, caplog: pytest.LogCaptureFixture, how: str) -> None:
    """The client's connection is closed."""
    caplog.set_level(logging.INFO, LOGGER)

    def factory() -> Any:
        if how == "raise":
            raise ZeroDivisionError("mine")
        return object()

    async with listening(setting, factory) as server:
        with await Raw.connect(server) as raw:
            await raw.send(serving.request())
            assert b" 101 " not in await asyncio.wait_for(raw.rest(), 0.5)
        await soon(lambda: not server._tasks)
    assert sum("handshake failed" in text for text in logged(caplog, logging.INFO)) == 1


@pytest.mark.no_leaks
async def test_close_of_the_server(setting: Setting) -> None:
    async with listening(setting, Recorder) as server:
        ws = await dial(uri(server))
        server.close(code=1012)
        with within(3):
            await server.wait_closed()
        await ws.wait_closed()
        assert ws.close_code == 1012
    assert [event[0] for event in Recorder.made[0].events] == ["open", "close"]


@pytest.mark.no_leaks
async def test_connection_lost(setting: Setting, caplog: pytest.LogCaptureFixture) -> None:
    async with listening(setting, Recorder) as server:
        (await Raw.open(server)).reset()
        await soon(lambda: server.connections == set())
    assert Recorder.made[0].events[-1] == ("close", 1006, "")
    assert logged(caplog) == []


@pytest.mark.no_leaks
async def test_refused_client(setting: Setting) -> None:
    """``on_open`` is not called."""
    async with listening(setting, Recorder, process_request=lambda ws, request: ws.respond(404, "no")) as server:
        with await Raw.connect(server) as raw:
            await raw.send(serving.request())
            assert (await raw.reply()).status == 404
        await soon(lambda: not server._tasks)
    assert [event[0] for listener in Recorder.made for event in listener.events if event[0] != "close"] == []


async def test_tasks_of_a_callback(setting: Setting) -> None:
    """Long work of a callback runs in a task."""

    class Slow(Recorder):
        tasks: set[Any] = set()  # noqa: RUF012 - one for all

        def on_message(self, ws: Any, message: Any) -> None:
            task = asyncio.get_running_loop().create_task(self.answer(ws, message))
            self.tasks.add(task)
            task.add_done_callback(self.tasks.discard)

        async def answer(self, ws: Any, message: Any) -> None:
            await asyncio.sleep(0.01)
            await ws.send(message)

    async with listening(setting, Slow) as server, dial(uri(server)) as ws:
        for number in range(10):
            await ws.send(f"{number}")
        assert [await ws.recv() for _ in range(10)] == [f"{number}" for number in range(10)]
        await spin()
