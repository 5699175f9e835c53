"""Waiting tasks are woken for every cause of room, and after every exception raised while the loop was called."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import fcntl
import os
import socket
import struct
import subprocess
import sys
import termios
import textwrap
import time
import types
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from support import threads
from support.asyncio_tools import Run, Setting, spin
from support.checks import within
from support.connecting import Connect
from support.frames import BINARY, CLOSE, TEXT, Frame
from support.scripted import Wire
from support.servers import WebSocketsServer
from support.serving import idle, masked, serve, small_sends
from support.subject import IS_WIRESPEED, exceptions

pytestmark = [
    pytest.mark.wirespeed_only("it looks at what is ours"),
    pytest.mark.skipif(sys.platform != "linux", reason="it asks the system how much of what was sent has arrived"),
]

if IS_WIRESPEED:
    from wirespeed import broadcast


BLOCK = bytes(1000)

# Longer than any wait here, shorter than the time limit of a test.
PATIENCE = 5.0


# A sender waits as soon as the system's buffer is full, and until the system has taken everything.
DEFAULTS: dict[str, Any] = {"compression": None, "write_limit": 1, "ping_interval": None, "close_timeout": 1}


class Peer:
    """The other end, in threads of its own: it reads on request, even while the loop does not turn."""

    def __init__(self, pool: concurrent.futures.Executor) -> None:
        self.pool = pool
        self.frames: list[Frame] = []
        self.reading: concurrent.futures.Future[None] | None = None
        self.ended = False

    def frame(self) -> Frame:
        raise NotImplementedError

    def answer_close(self, payload: bytes) -> None:
        raise NotImplementedError

    def read(self) -> None:
        """Reads everything from now on, up to the close frame."""
        self.reading = self.pool.submit(self._read)

    def _read(self) -> None:
        while not self.frames or self.frames[-1].opcode != CLOSE:
            self.frames.append(self.frame())

    async def end(self) -> None:
        """Waits for the close frame, and answers it once."""
        if self.ended:
            return
        self.ended = True
        assert self.reading is not None
        await asyncio.wait_for(asyncio.wrap_future(self.reading), PATIENCE)
        self.answer_close(self.frames[-1].payload)

    @property
    def texts(self) -> list[str]:
        return [frame.payload.decode() for frame in self.frames if frame.opcode == TEXT]


class ServerPeer(Peer):
    """A server."""

    def __init__(self, pool: concurrent.futures.Executor, listener: socket.socket) -> None:
        super().__init__(pool)
        self.listener = listener
        self.accepting = pool.submit(self._accept)

    def _accept(self) -> Wire:
        wire = Wire(self.listener.accept()[0])
        wire.accept()
        return wire

    def frame(self) -> Frame:
        return self.accepting.result().read_frame()

    def answer_close(self, payload: bytes) -> None:
        wire = self.accepting.result()
        wire.send(bytes([0x80 | CLOSE, len(payload)]) + payload)
        wire.close()


class ClientPeer(Peer):
    """A client."""

    def __init__(self, pool: concurrent.futures.Executor, server: Any) -> None:
        super().__init__(pool)
        where = types.SimpleNamespace(socket=server.sockets[0])
        self.opening = pool.submit(threads.Raw.open, where, receive_buffer=4096)

    def frame(self) -> Frame:
        return self.opening.result().frame()

    def answer_close(self, payload: bytes) -> None:
        raw = self.opening.result()
        raw.send(masked(CLOSE, payload))
        raw.close()


def small_socket(port: int) -> socket.socket:
    """Returns a connected socket with small system buffers."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8192)
    sock.connect(("127.0.0.1", port))
    return sock


@contextlib.asynccontextmanager
async def stalled_client(setting: Setting, connect: Connect, **options: Any) -> AsyncIterator[tuple[Any, Peer]]:
    with socket.socket() as listener, concurrent.futures.ThreadPoolExecutor() as pool:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        peer = ServerPeer(pool, listener)
        port = listener.getsockname()[1]
        sock = small_socket(port)
        async with connect(f"ws://127.0.0.1:{port}/", sock=sock, **{**DEFAULTS, **options}) as ws:
            yield ws, peer
            ending = asyncio.ensure_future(peer.end())
        await ending


@contextlib.asynccontextmanager
async def stalled_server(setting: Setting, connect: Connect, **options: Any) -> AsyncIterator[tuple[Any, Peer]]:
    with concurrent.futures.ThreadPoolExecutor() as pool:
        async with serve(setting, idle, None, None, sock=small_sends(), **{**DEFAULTS, **options}) as server:
            peer = ClientPeer(pool, server)
            await asyncio.wait_for(asyncio.wrap_future(peer.opening), PATIENCE)
            [ws] = server.connections
            yield ws, peer
            ending = asyncio.ensure_future(peer.end())
            await ws.close()
            await ending


SIDES: dict[str, Any] = {"client": stalled_client, "server": stalled_server}


def wait_until_taken(ws: Any) -> None:
    """Blocks the loop until the other system has everything: the descriptor is writable by then, and the loop does not
    know.
    """
    deadline = time.monotonic() + PATIENCE
    while struct.unpack("i", fcntl.ioctl(ws.fileno(), termios.TIOCOUTQ, bytes(4)))[0]:
        assert time.monotonic() < deadline, "the peer does not read"
        time.sleep(0.001)


async def fill(ws: Any) -> asyncio.Task[None]:
    """Sends until a sender waits for its data to leave."""
    while True:
        sending: asyncio.Task[None] = asyncio.ensure_future(ws.send(BLOCK))
        await spin()
        if not sending.done():
            return sending


async def park(ws: Any, *texts: str) -> list[asyncio.Task[None]]:
    """Starts senders that wait for room for their messages."""
    parked = [asyncio.ensure_future(ws.send(text)) for text in texts]
    await spin()
    assert not any(task.done() for task in parked)
    return parked


# Another task makes room


CALLERS: dict[str, Callable[[Any], Awaitable[Any]]] = {
    "flush": lambda ws: ws.flush(),
    "ping": lambda ws: ws.ping(),
    "pong": lambda ws: ws.pong(),
}


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("caller", CALLERS)
async def test_room_made_by_another_task_wakes_senders(
    setting: Setting, connect: Connect, side: str, caller: str
) -> None:
    """Before the loop reports room, another task's call finds it, and writes queued messages too."""
    async with SIDES[side](setting, connect) as (ws, peer):
        waiting = [await fill(ws), *await park(ws, "parked")]
        peer.read()
        wait_until_taken(ws)
        await CALLERS[caller](ws)
        await asyncio.wait_for(asyncio.gather(*waiting), PATIENCE)
    assert peer.texts == ["parked"]


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("closer", ["close", "broadcast"])
async def test_room_made_by_a_close_wakes_senders(setting: Setting, connect: Connect, side: str, closer: str) -> None:
    """A sender whose message was sent returns successfully; one whose message was not sent raises ConnectionClosed."""
    async with SIDES[side](setting, connect, close_timeout=PATIENCE) as (ws, peer):
        draining = await fill(ws)
        [parked] = await park(ws, "parked")

        async def answer() -> None:
            # The close frame is out, its answer is not.
            await asyncio.wait_for(draining, PATIENCE / 2)
            await peer.end()

        answering = asyncio.ensure_future(answer())
        peer.read()
        wait_until_taken(ws)
        if closer == "broadcast":
            assert broadcast([ws], "too much", slow="close") == 0
            await answering
        await ws.close()
        await answering
        with pytest.raises(exceptions.ConnectionClosed):
            await asyncio.wait_for(parked, PATIENCE)
    assert peer.texts == []


@pytest.mark.parametrize("side", SIDES)
async def test_room_made_by_a_keepalive_ping_wakes_senders(setting: Setting, connect: Connect, side: str) -> None:
    interval = 0.1
    begin = time.monotonic()
    async with SIDES[side](setting, connect, ping_interval=interval, ping_timeout=None) as (ws, peer):
        waiting = [await fill(ws), *await park(ws, "parked")]
        # The timer is due first, and then there is room: the loop notices both at once, in this order.
        time.sleep(max(0.0, begin + 2 * interval - time.monotonic()))
        peer.read()
        wait_until_taken(ws)
        await asyncio.wait_for(asyncio.gather(*waiting), PATIENCE)
    assert peer.texts == ["parked"]


# Order


@pytest.mark.parametrize("side", SIDES)
async def test_cancelled_senders_keep_the_order_of_others(setting: Setting, connect: Connect, side: str) -> None:
    """Two senders are cancelled before there is room, and the last sends another message instead: behind those that
    wait.
    """
    if setting.loop == "wirespeed":
        pytest.skip("it hears of room for its connections before it hears of anything else")
    async with SIDES[side](setting, connect) as (ws, peer):
        draining = await fill(ws)

        async def change_its_mind() -> None:
            try:
                await ws.send("second")
            except asyncio.CancelledError:
                await ws.send("new")

        first = asyncio.ensure_future(ws.send("first"))
        second = asyncio.ensure_future(change_its_mind())
        await spin()
        parked = await park(ws, "third", "fourth")
        # The loop notices room right after this callback, in the same iteration.
        hint, hinted = os.pipe()

        def hear() -> None:
            loop.remove_reader(hint)
            first.cancel()
            second.cancel()

        loop = asyncio.get_running_loop()
        loop.add_reader(hint, hear)
        await spin()
        os.write(hinted, b"x")
        peer.read()
        wait_until_taken(ws)
        await asyncio.wait_for(asyncio.gather(draining, second, *parked), PATIENCE)
        assert first.cancelled()
        os.close(hint)
        os.close(hinted)
    assert peer.texts == ["third", "fourth", "new"]


# Exceptions while the loop is called


class Boom(Exception):
    """Raised as if by a signal handler."""


class Trap:
    """Makes a method of a loop raise once, when wirespeed calls it, as a raising signal handler does.

    Args:
        loop: The loop.
        method: The name of its method.
        before: Whether it raises before it has done its work, or after.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, method: str, *, before: bool) -> None:
        self.loop, self.method, self.before = loop, method, before
        self.sprung = False

    def __enter__(self) -> Trap:  # noqa: PYI034 - typing.Self needs Python 3.11
        original = getattr(self.loop, self.method)

        def trapped(*arguments: Any, **options: Any) -> Any:
            ours = any(_is_ours(argument) for argument in arguments)
            if self.sprung or not ours:
                return original(*arguments, **options)
            self.sprung = True
            if not self.before:
                original(*arguments, **options)
            raise Boom

        setattr(self.loop, self.method, trapped)
        return self

    def __exit__(self, *_: object) -> None:
        delattr(self.loop, self.method)


def _is_ours(callback: Any) -> bool:
    return type(getattr(callback, "__self__", None)).__module__ == "wirespeed._native"


class Reports:
    """Records the calls of a loop's exception handler."""

    def __init__(self) -> None:
        self.exceptions: list[Any] = []

    def prepare(self, loop: asyncio.AbstractEventLoop) -> None:
        loop.set_exception_handler(lambda _, context: self.exceptions.append(context.get("exception")))


both_moments = pytest.mark.parametrize("before", [True, False], ids=["before", "after"])


@both_moments
async def test_exception_while_messages_are_corked(server: WebSocketsServer, connect: Connect, before: bool) -> None:
    """The calling ``send`` raises it; corked messages of all connections are sent."""
    loop = asyncio.get_running_loop()
    async with connect(server.uri) as one, connect(server.uri) as other:
        with Trap(loop, "call_soon", before=before) as trap:
            await one.send("1")
            with pytest.raises(Boom):
                await one.send("2")
            await other.send("1")
            await other.send("2")
        assert trap.sprung
        for ws in (one, other):
            with within(PATIENCE):
                assert [await asyncio.wait_for(ws.recv(), PATIENCE) for _ in range(2)] == ["1", "2"]
        # The connection stays usable.
        await one.send("3")
        await one.send("4")
        assert [await asyncio.wait_for(one.recv(), PATIENCE) for _ in range(2)] == ["3", "4"]


@both_moments
def test_exception_while_a_receiver_is_woken(
    server: WebSocketsServer, run: Run, connect: Connect, before: bool
) -> None:
    """In debug mode the loop resumes tasks; the loop reports the exception, and the task gets its message."""
    reports = Reports()

    async def main() -> None:
        async with connect(server.uri) as ws:
            receiving = [asyncio.ensure_future(ws.recv()) for _ in range(2)]
            await spin()
            await ws.send("1")
            await ws.send("2")
            await ws.flush()
            with Trap(asyncio.get_running_loop(), "call_soon", before=before) as trap:
                assert await asyncio.wait_for(asyncio.gather(*receiving), PATIENCE) == ["1", "2"]
            assert trap.sprung

    run(main, debug=True, prepare=reports.prepare)


@both_moments
@pytest.mark.parametrize("side", SIDES)
def test_exception_while_senders_are_woken(
    setting: Setting, run: Run, connect: Connect, before: bool, side: str
) -> None:
    """All senders wake, including those that were to be woken next; their order stays."""
    reports = Reports()

    async def main() -> None:
        async with SIDES[side](setting, connect) as (ws, peer):
            waiting = [await fill(ws), *await park(ws, "1", "2", "3")]
            with Trap(asyncio.get_running_loop(), "call_soon", before=before) as trap:
                peer.read()
                await asyncio.wait_for(asyncio.gather(*waiting), PATIENCE)
            assert trap.sprung
        assert peer.texts == ["1", "2", "3"]

    run(main, prepare=reports.prepare)
    assert {type(exception) for exception in reports.exceptions} == {Boom}


def watch_by_itself(loop: asyncio.AbstractEventLoop) -> None:
    """Makes a loop watch each connection, as loops unknown to wirespeed do."""
    loop._wirespeed_nests = False  # type: ignore[attr-defined]


@both_moments
@pytest.mark.parametrize("side", SIDES)
def test_exception_while_the_descriptor_is_watched(
    setting: Setting, run: Run, connect: Connect, before: bool, side: str
) -> None:
    """``add_writer`` raises: the sender gets the exception, and queued messages are sent once there is room."""
    if setting.io_backend == "transport" or setting.loop == "wirespeed":
        pytest.skip("the loop is not asked")

    async def main() -> None:
        async with SIDES[side](setting, connect) as (ws, peer):
            with Trap(asyncio.get_running_loop(), "add_writer", before=before) as trap, pytest.raises(Boom):
                await asyncio.wait_for(fill(ws), PATIENCE)
            assert trap.sprung
            sent = ws.stats()["messages_sent"]
            waiting = await park(ws, "parked")
            peer.read()
            await asyncio.wait_for(asyncio.gather(*waiting), PATIENCE)
        assert peer.texts == ["parked"]
        assert [frame.opcode for frame in peer.frames].count(BINARY) == sent

    run(main, prepare=watch_by_itself)


@pytest.mark.skipif(sys.version_info < (3, 14), reason="before 3.14 nothing of Python's is asked")
def test_exception_while_the_current_task_is_queried() -> None:
    """A signal handler raises between reading and serving: the waiting task is served nevertheless."""
    code = """
        import asyncio, asyncio.tasks, threading
        raises = []
        original = asyncio.tasks._py_current_task

        def asked(loop=None):
            if raises:
                raise raises.pop()
            return original(loop)

        asyncio.tasks._py_current_task = asked
        import wirespeed
        from wirespeed.sync import serve

        def echo(ws):
            for message in ws:
                ws.send(message)

        server = serve(echo, "127.0.0.1", 0)
        threading.Thread(target=server.serve_forever, daemon=True).start()

        async def main():
            told = []
            asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context["exception"]))
            uri = "ws://127.0.0.1:%d" % server.socket.getsockname()[1]
            async with wirespeed.connect(uri, ping_interval=None) as ws:
                receiving = asyncio.ensure_future(ws.recv())
                await asyncio.sleep(0)
                raises.append(ZeroDivisionError())
                await ws.send("x")
                assert await asyncio.wait_for(receiving, 5) == "x"
                assert not raises and [type(error) for error in told] == [ZeroDivisionError], told

        asyncio.run(main())
        server.shutdown()
    """
    result = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], timeout=60, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("method", ["get_write_buffer_size", "set_write_buffer_limits"])
def test_exception_while_the_transport_buffer_size_is_queried(
    setting: Setting, run: Run, connect: Connect, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    """No data in the transport is lost, and the flushing task gets the exception."""
    if setting != Setting("asyncio", "transport"):
        pytest.skip("there is no transport, or uvloop's, which are what they are")
    reports = Reports()

    async def main() -> None:
        async with SIDES["client"](setting, connect) as (ws, peer):
            kind = asyncio.selector_events._SelectorSocketTransport  # type: ignore[attr-defined]
            original = getattr(kind, method)
            sprung: list[bool] = []

            def trapped(*arguments: Any, **options: Any) -> Any:
                if not sprung:
                    sprung.append(True)
                    raise Boom
                return original(*arguments, **options)

            sending = await fill(ws)
            monkeypatch.setattr(kind, method, trapped)
            flushing = asyncio.ensure_future(ws.flush())
            await spin()
            assert sprung
            again = asyncio.ensure_future(ws.flush())
            await spin()
            peer.read()
            results = await asyncio.wait_for(asyncio.gather(sending, flushing, again, return_exceptions=True), PATIENCE)
            assert {type(result) for result in results} <= {Boom, type(None)}
            assert results[2] is None
            sent = ws.stats()["messages_sent"]
        assert [frame.opcode for frame in peer.frames].count(BINARY) == sent

    run(main, prepare=reports.prepare)
