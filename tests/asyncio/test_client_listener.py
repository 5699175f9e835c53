"""Callbacks: every method of a listener, and an exception in each."""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

import pytest

from support.asyncio_tools import Run, Setting, soon, spin
from support.checks import as_close, within
from support.connecting import Connect
from support.faults import DEFLATE
from support.frames import CONT, PONG, Close, Frame, binary, close, deflate, frame, ping, pong, text
from support.scripted import Scripted, Wire
from support.servers import WebSocketsServer
from support.subject import IS_WIRESPEED, exceptions

pytestmark = pytest.mark.wirespeed_only("callbacks are ours")

if IS_WIRESPEED:
    from wirespeed import Listener
else:
    Listener = object


class Recorder(Listener):
    """Records its callbacks."""

    def __init__(self) -> None:
        self.events: list[tuple[Any, ...]] = []
        self.connections: set[Any] = set()

    def note(self, ws: Any, *event: Any) -> None:
        self.connections.add(ws)
        self.events.append(event)

    def on_open(self, ws: Any) -> None:
        self.note(ws, "open", ws.state.name)

    def on_message(self, ws: Any, message: Any) -> None:
        self.note(ws, "message", message)

    def on_ping(self, ws: Any, data: bytes) -> None:
        self.note(ws, "ping", data)

    def on_pong(self, ws: Any, data: bytes) -> None:
        self.note(ws, "pong", data)

    def on_close(self, ws: Any, code: int, reason: str) -> None:
        self.note(ws, "close", code, reason)

    def on_writable(self, ws: Any) -> None:
        self.note(ws, "writable")

    def of(self, kind: str) -> list[Any]:
        return [event[1] if len(event) == 2 else event[1:] for event in self.events if event[0] == kind]


def sending(data: bytes, *headers: str) -> Callable[[Wire], Any]:
    def script(wire: Wire) -> Any:
        wire.accept(*headers, then=data)
        return wire.read_until_close()

    return script


# Events


async def test_callbacks_in_order(scripted: Scripted, connect: Connect) -> None:
    data = text("é") + binary(b"b") + ping(b"1") + text("c", fin=False) + pong(b"2") + frame(CONT, b"d") + text("")
    server = scripted(sending(data + close(1001, "bye")))
    recorder = Recorder()
    ws = await connect(server.uri, listener=recorder)
    await ws.wait_closed()
    assert recorder.connections == {ws}
    assert recorder.events == [
        ("open", "OPEN"),
        ("message", "é"),
        ("message", b"b"),
        ("ping", b"1"),
        ("pong", b"2"),
        ("message", "cd"),
        ("message", ""),
        ("close", 1001, "bye"),
    ]
    assert await server.wait_result() == ([Frame(PONG, b"1")], Close(1001, "bye"))


async def test_types(scripted: Scripted, connect: Connect) -> None:
    server = scripted(sending(text("é") + binary(b"b") + ping(b"1") + pong(b"2") + close(1000)))
    recorder = Recorder()
    await (await connect(server.uri, listener=recorder)).wait_closed()
    kinds = [[type(value) for value in event[1:]] for event in recorder.events[1:]]
    assert kinds == [[str], [bytes], [bytes], [bytes], [int, str]]


async def test_open_is_first(server: WebSocketsServer, connect: Connect) -> None:
    """on_open runs before ``connect`` returns, and can use the connection."""

    class PendingHandshake(Recorder):
        def on_open(self, ws: Any) -> None:
            super().on_open(ws)
            ws.send_nowait("from on_open")

    recorder = PendingHandshake()
    ws = await connect(server.uri, listener=recorder)
    assert recorder.events[:1] == [("open", "OPEN")]
    assert recorder.connections == {ws}
    await soon(lambda: recorder.of("message") == ["from on_open"])
    await ws.close()


@pytest.mark.parametrize("end", ["reset", "fault", "abort", "close", "no-code"])
async def test_close_is_last_and_once(scripted: Scripted, connect: Connect, end: str) -> None:
    def script(wire: Wire) -> None:
        wire.accept(then=text("x"))
        server.pause()
        if end == "reset":
            wire.reset()
            return
        if end == "fault":
            wire.send(frame(3) + text("too late"))
        if end == "no-code":
            wire.send(close())
        if wire.read_until_close()[1] == Close(4000, "mine"):
            wire.send(text("crossing") + close(4000, "mine"))

    server = scripted(script)
    recorder = Recorder()
    ws = await connect(server.uri, listener=recorder, close_timeout=5)
    await soon(lambda: recorder.of("message"))
    server.release.set()
    if end == "abort":
        ws.abort()
    elif end == "close":
        await ws.close(4000, "mine")
    await ws.wait_closed()
    await spin()
    assert recorder.events[-1][0] == "close"
    assert len(recorder.of("close")) == 1
    assert recorder.of("close") == [(ws.close_code, ws.close_reason)]
    assert recorder.of("close") == [
        {"close": (4000, "mine"), "no-code": (1005, "")}.get(end, (1006, "")),
    ]


async def test_listener_without_methods(server: WebSocketsServer, connect: Connect) -> None:
    """Messages without a callback are dropped, pings are answered."""
    ws = await connect(server.uri + "/ping?data=spam", listener=Listener())
    await soon(lambda: ws.stats()["messages_received"])
    await ws.close()
    assert ws.close_code == 1000


async def test_listener_has_no_recv(server: WebSocketsServer, connect: Connect) -> None:
    recorder = Recorder()
    async with connect(server.uri, listener=recorder) as ws:
        for call in (ws.recv, ws.recv_many, lambda: ws.recv_streaming().__anext__()):
            with pytest.raises(Exception, match="listener") as raised:
                await call()
            assert not isinstance(raised.value, exceptions.ConnectionClosed)
        with pytest.raises(Exception, match="listener"):
            ws.recv_nowait()
        await ws.send("still open")
        await soon(lambda: recorder.of("message") == ["still open"])


async def test_compressed(scripted: Scripted, connect: Connect) -> None:
    server = scripted(sending(text(deflate(b"Hello"), rsv=4) + binary(deflate(b"\x00" * 1000), rsv=4), DEFLATE))
    recorder = Recorder()
    async with connect(server.uri, listener=recorder):
        await soon(lambda: len(recorder.of("message")) == 2)
    assert recorder.of("message") == ["Hello", bytes(1000)]


async def test_many(scripted: Scripted, connect: Connect) -> None:
    count = 20_000
    server = scripted(sending(b"".join(text(str(number)) for number in range(count)) + close(1000)))
    recorder = Recorder()
    ws = await connect(server.uri, listener=recorder)
    await ws.wait_closed()
    assert recorder.of("message") == [str(number) for number in range(count)]


async def test_flood_does_not_starve_the_loop(scripted: Scripted, connect: Connect, setting: Setting) -> None:
    block = text("x" * 20) * 2000

    def script(wire: Wire) -> None:
        wire.accept()
        for _ in range(200):
            wire.send(block)
        wire.send(close(1000))
        wire.read_until_close()

    server = scripted(script)
    recorder = Recorder()
    ws = await connect(server.uri, listener=recorder, compression=None)
    # All bytes are in the system's buffer before the first read.
    time.sleep(0.3)
    most = seen = 0
    while ws.state.name != "CLOSED":
        await asyncio.sleep(0)
        received = ws.stats()["messages_received"]
        most, seen = max(most, received - seen), received
    assert seen == 400_000
    # Two turns of 256 KiB, each message counted with 32 bytes of overhead, and the bytes read before the first. The
    # transports of libuv read up to 32 times in one turn.
    if (setting.loop, setting.io_backend) != ("uvloop", "transport"):
        assert most < 16_000


async def test_latency_and_pong(server: WebSocketsServer, connect: Connect) -> None:
    """The future of a ping works beside ``on_pong``; pongs of keepalive call it too."""
    recorder = Recorder()
    async with connect(server.uri, listener=recorder, ping_interval=0.05) as ws:
        assert await (await ws.ping(b"mine")) > 0
        assert recorder.of("pong")[0] == b"mine"
        await soon(lambda: len(recorder.of("pong")) > 2)


# Using the connection in a callback


class Echo(Recorder):
    def on_message(self, ws: Any, message: Any) -> None:
        super().on_message(ws, message)
        number = int(message)
        if number < 100:
            ws.send_nowait(str(number + 1))


async def test_send_in_a_callback(server: WebSocketsServer, connect: Connect) -> None:
    recorder = Echo()
    async with connect(server.uri, listener=recorder) as ws:
        await ws.send("0")
        await soon(lambda: len(recorder.of("message")) == 101)
    assert recorder.of("message") == [str(number) for number in range(101)]


async def test_create_task_in_a_callback(server: WebSocketsServer, connect: Connect) -> None:
    class Spawning(Recorder):
        tasks: list[Any] = []  # noqa: RUF012 - one for all

        def on_message(self, ws: Any, message: Any) -> None:
            super().on_message(ws, message)
            if message == "go":
                self.tasks.append(asyncio.get_running_loop().create_task(ws.send("from a task")))

    recorder = Spawning()
    async with connect(server.uri, listener=recorder) as ws:
        await ws.send("go")
        await soon(lambda: recorder.of("message") == ["go", "from a task"])
        await asyncio.gather(*recorder.tasks)


@pytest.mark.parametrize("when", ["open", "message", "ping", "pong", "close", "writable"])
@pytest.mark.parametrize("how", ["abort", "close"])
async def test_abort_in_a_callback(scripted: Scripted, connect: Connect, when: str, how: str) -> None:
    """Remaining data is not delivered after an abort."""

    def script(wire: Wire) -> Any:
        wire.accept()
        server.pause()
        wire.send((text("x") + ping(b"y") + pong(b"z")) * 50)
        received = wire.read_until_close()[1]
        if received is not None:
            wire.send(close(received.code))
        return received

    server = scripted(script, receive_buffer=4096)

    class Ending(Recorder):
        tasks: list[Any] = []  # noqa: RUF012 - one for all

        def note(self, ws: Any, *event: Any) -> None:
            first = event[0] == when and not self.of(when)
            super().note(ws, *event)
            if first and how == "abort":
                ws.abort()
                assert ws.state.name == "CLOSED"
            elif first:
                self.tasks.append(asyncio.ensure_future(ws.close(4000)))

    recorder = Ending()
    ws = await connect(server.uri, listener=recorder, compression=None, close_timeout=2)
    if when == "writable":
        with pytest.raises(BlockingIOError):
            while True:
                ws.send_nowait(bytes(100_000))
    server.release.set()
    if when == "close":
        await ws.close()
    with within(8):
        await ws.wait_closed()
        await asyncio.gather(*recorder.tasks)
    if how == "abort" and when not in ("close", "writable"):
        assert len(recorder.of(when)) == 1
    assert len(recorder.of("close")) == 1
    assert recorder.events[-1][0] == "close"


# Flow control


async def test_on_writable(scripted: Scripted, connect: Connect) -> None:
    """on_writable is called once for each time that ``send_nowait`` was refused."""

    def script(wire: Wire) -> Any:
        wire.accept()
        server.pause()
        return wire.read_until_close()

    server = scripted(script, receive_buffer=4096)

    class Pump(Recorder):
        sent = 0

        def on_writable(self, ws: Any) -> None:
            super().on_writable(ws)
            self.pump(ws)

        def pump(self, ws: Any) -> None:
            try:
                while self.sent < 200:
                    ws.send_nowait(self.sent.to_bytes(2, "big") + bytes(100_000))
                    self.sent += 1
            except BlockingIOError:
                pass

    recorder = Pump()
    async with connect(server.uri, listener=recorder, compression=None) as ws:
        recorder.pump(ws)
        assert 0 < recorder.sent < 200
        await asyncio.sleep(0.05)
        assert recorder.of("writable") == []
        server.release.set()
        await soon(lambda: recorder.sent == 200, 15)
        await ws.flush()
    assert recorder.events.count(("writable",)) >= 1
    payloads = [frame.payload for frame in (await server.wait_result())[0]]
    assert payloads == [number.to_bytes(2, "big") + bytes(100_000) for number in range(200)]


async def test_on_writable_is_not_called_without_refused_send(server: WebSocketsServer, connect: Connect) -> None:
    recorder = Recorder()
    async with connect(server.uri, listener=recorder) as ws:
        for _ in range(10):
            await ws.send("x")
        await soon(lambda: len(recorder.of("message")) == 10)
    assert ("writable",) not in recorder.events


# Exceptions


class Failing(Recorder):
    """Raises in the first call of one method."""

    def __init__(self, method: str, exception: BaseException) -> None:
        super().__init__()
        self.method = method
        self.exception: BaseException | None = exception

    def note(self, ws: Any, *event: Any) -> None:
        super().note(ws, *event)
        if event[0] == self.method and self.exception is not None:
            exception, self.exception = self.exception, None
            raise exception


@pytest.mark.parametrize("method", ["open", "message", "ping", "pong"])
def test_exception(scripted: Scripted, run: Run, connect: Connect, method: str) -> None:
    """The exception closes the connection with 1011, ``wait_closed`` raises it, and only ``on_close`` is called after
    it.
    """

    def script(wire: Wire) -> Any:
        wire.accept(then=(text("x") + ping(b"y") + pong(b"z")) * 3)
        _, received = wire.read_until_close()
        wire.send(text("crossing") + close(1011))
        return received

    server = scripted(script)
    error = ZeroDivisionError("mine")
    recorder = Failing(method, error)

    async def main() -> None:
        try:
            ws = await connect(server.uri, listener=recorder)
        except ZeroDivisionError:
            assert method == "open"
            return
        with within(5):
            for _ in range(2):
                with pytest.raises(ZeroDivisionError) as raised:
                    await ws.wait_closed()
                assert raised.value is error
        with pytest.raises(exceptions.ConnectionClosedError) as closed:
            await ws.send("x")
        assert closed.value.sent is not None
        assert as_close(closed.value.sent) == Close(1011, closed.value.sent.reason)
        await ws.close()
        kinds = [event[0] for event in recorder.events]
        assert kinds[-2:] == [method, "close"]
        assert kinds.count(method) == 1

    run(main)
    # No code has the connection when on_open has raised: it may be lost without a close frame.
    assert server.result == Close(1011, server.results[0].reason) if server.results[0] else method == "open"


async def test_exception_in_on_close(scripted: Scripted, connect: Connect) -> None:
    server = scripted(sending(text("x") + close(1000)))
    recorder = Failing("close", ZeroDivisionError("mine"))
    ws = await connect(server.uri, listener=recorder)
    with within(5), pytest.raises(ZeroDivisionError):
        await ws.wait_closed()
    await ws.close()
    assert len(recorder.of("close")) == 1
    assert ws.close_code == 1000


async def test_exception_in_on_writable(scripted: Scripted, connect: Connect) -> None:
    def script(wire: Wire) -> Any:
        wire.accept()
        server.pause()
        received = wire.read_until_close()[1]
        wire.send(close(1011))
        return received

    server = scripted(script, receive_buffer=4096)
    recorder = Failing("writable", ZeroDivisionError("mine"))
    ws = await connect(server.uri, listener=recorder, compression=None)
    with pytest.raises(BlockingIOError):
        while True:
            ws.send_nowait(bytes(100_000))
    server.release.set()
    with within(5), pytest.raises(ZeroDivisionError):
        await ws.wait_closed()
    assert (await server.wait_result()).code == 1011


async def test_exception_while_a_task_sends(scripted: Scripted, connect: Connect) -> None:
    """The sending task gets an exception."""
    server = scripted(sending(text("x")))
    ws = await connect(server.uri, listener=Failing("message", ZeroDivisionError()), close_timeout=0.2)
    with within(5), pytest.raises(exceptions.ConnectionClosedError):
        while True:
            await ws.send("x")
            await asyncio.sleep(0)
    with pytest.raises(ZeroDivisionError):
        await ws.wait_closed()


async def test_exception_that_is_not_retrieved(scripted: Scripted, connect: Connect) -> None:
    """The exception is never reported as never retrieved: ``close`` and ``async with`` end quietly."""
    server = scripted(sending(text("x") + close(1000)))
    async with connect(server.uri, listener=Failing("message", ZeroDivisionError())) as ws:
        await soon(lambda: ws.state.name != "OPEN")
    assert ws.state.name == "CLOSED"


@pytest.mark.parametrize("exception", [KeyboardInterrupt, SystemExit])
def test_exit_from_a_callback(
    server: WebSocketsServer, run: Run, connect: Connect, setting: Setting, exception: type[BaseException]
) -> None:
    """SystemExit leaves the loop, as from every callback."""
    if setting == Setting("uvloop", "transport"):
        pytest.skip("uvloop gives what a protocol raises to the exception handler")

    async def main() -> None:
        ws = await connect(server.uri, listener=Failing("message", exception()))
        try:
            await ws.send("x")
            await asyncio.sleep(5)
        finally:
            ws.abort()

    with within(4), pytest.raises(exception):
        run(main)


# Lifetime


async def test_listener_and_connection_in_a_cycle(server: WebSocketsServer, connect: Connect) -> None:
    """Both are collected together."""

    class Owner(Listener):
        ws: Any = None

    owner = Owner()
    owner.ws = await connect(server.uri, listener=owner)
    await owner.ws.close()
    references = [weakref.ref(owner), weakref.ref(owner.ws)]
    del owner
    gc.collect()
    assert [reference() for reference in references] == [None, None]


@pytest.mark.parametrize("told", [False, True])
def test_connection_whose_listener_raised_is_collected(
    server: WebSocketsServer, run: Run, connect: Connect, *, told: bool
) -> None:
    """The connection has the exception, whose traceback has frames that have the connection."""

    async def main() -> None:
        listener = Failing("message", ValueError("enough"))
        ws = await connect(server.uri, listener=listener)
        await ws.send("x")
        if told:
            with pytest.raises(ValueError, match="enough"):
                await ws.wait_closed()
        events = listener.events
        await soon(lambda: events[-1][0] == "close")
        reference = weakref.ref(ws)
        del ws, listener
        await spin()
        gc.collect()
        assert reference() is None

    # The log record has the exception, too, and pytest keeps the record.
    logging.disable()
    try:
        run(main)
    finally:
        logging.disable(logging.NOTSET)


@pytest.mark.parametrize("listener", [1, "listener", ..., Recorder], ids=repr)
async def test_listener_of_wrong_type(server: WebSocketsServer, connect: Connect, listener: Any) -> None:
    with pytest.raises(TypeError, match="listener"):
        await connect(server.uri, listener=listener)


@pytest.mark.within(20)
async def test_exception_is_logged_before_closing(
    scripted: Scripted, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    """A peer that does not answer the close frame does not delay the log record."""
    logged = threading.Event()

    def reluctant(wire: Wire) -> None:
        wire.accept(then=text("x"))
        assert wire.read_until_close() == ([], Close(1011))
        assert logged.wait(20)
        wire.send(close(1011))

    server = scripted(reluctant)
    ws = await connect(server.uri, listener=Failing("message", ZeroDivisionError()), close_timeout=30)
    await soon(lambda: caplog.records)
    assert ws.state.name == "CLOSING"
    logged.set()
    with pytest.raises(ZeroDivisionError):
        await ws.wait_closed()
    assert len(caplog.records) == 1


@pytest.mark.parametrize("method", ["message", "close"])
async def test_exception_is_logged_once(
    scripted: Scripted, connect: Connect, caplog: pytest.LogCaptureFixture, method: str
) -> None:
    """The exception is logged once, whether or not it is retrieved."""
    server = scripted(sending(text("x") + close(1000)))
    error = ZeroDivisionError("mine")
    ws = await connect(server.uri + "feed?token=secret", listener=Failing(method, error))
    await soon(lambda: ws.state.name == "CLOSED")
    await soon(lambda: caplog.records)
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            await ws.wait_closed()
    assert [record.getMessage() for record in caplog.records] == [f"listener failed ({ws.id} to {server.uri}feed?***)"]
    [record] = caplog.records
    assert (record.name, record.levelname) == ("wirespeed.client", "ERROR")
    assert record.exc_info is not None
    assert record.exc_info[1] is error


def test_methods_are_not_async() -> None:
    """A coroutine function as a callback is refused, because its result would never be awaited."""
    with pytest.raises(TypeError, match=r"Late\.on_message must not be async"):

        class Late(Listener):
            async def on_message(self, ws: Any, message: Any) -> None:  # type: ignore[override]
                pass
