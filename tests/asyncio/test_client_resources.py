"""Descriptors, references, warnings and processes: connections leave nothing behind."""

from __future__ import annotations

import asyncio
import copy
import gc
import logging
import os
import pickle
import subprocess
import sys
import textwrap
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.asyncio_tools import Run, Setting, cancelled, soon, spin
from support.checks import no_leaks, open_descriptors
from support.connecting import Connect
from support.frames import close, frame, text
from support.scripted import Scripted, ScriptedServer, Wire
from support.servers import WebSocketsServer
from support.subject import IS_WIRESPEED, SUBJECT, exceptions

pytestmark = pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="descriptors are counted in /proc")


# Descriptors


def echo_once(wire: Wire) -> None:
    wire.accept()
    received = wire.read_frame()
    wire.send(text(received.payload))
    wire.read_until_close()
    wire.send(close(1000))


def test_no_descriptor_left_after_many_connections(run: Run, connect: Connect) -> None:
    async def main(uri: str) -> None:
        for _ in range(50):
            async with connect(uri) as ws:
                await ws.send("hello")
                assert await ws.recv() == "hello"

    with no_leaks(), ScriptedServer(echo_once) as server:
        run(lambda: main(server.uri))


def refuse(wire: Wire) -> None:
    wire.read_request()
    wire.send(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n")


def accept_and_break(wire: Wire) -> None:
    wire.accept(then=frame(3))
    wire.read_until_close()


def accept_and_leave(wire: Wire) -> None:
    wire.accept()


def accept_and_reset(wire: Wire) -> None:
    wire.accept()
    wire.reset()


OPENING_ERRORS: tuple[type[Exception], ...] = (exceptions.InvalidHandshake, ConnectionError, EOFError)
if not IS_WIRESPEED:
    # Such a loop raises this from connect when the connection is lost before the request is sent.
    OPENING_ERRORS = (*OPENING_ERRORS, exceptions.ConnectionClosedError)


@pytest.mark.parametrize(
    "script",
    [refuse, accept_and_break, accept_and_leave, accept_and_reset, Wire.close, Wire.reset],
    ids=lambda script: script.__name__,
)
def test_no_descriptor_left_after_failures(run: Run, connect: Connect, script: Callable[[Wire], None]) -> None:
    async def main(uri: str) -> None:
        for _ in range(20):
            try:
                ws = await connect(uri, open_timeout=5)
            except OPENING_ERRORS:
                continue
            with pytest.raises(exceptions.ConnectionClosedError):
                await ws.recv()
            await ws.close()

    with no_leaks(), ScriptedServer(script) as server:
        run(lambda: main(server.uri))


def test_failed_connection_closes_its_socket(scripted: Scripted, run: Run, connect: Connect) -> None:
    """The socket is closed when the exception is raised, or very soon after, without close() and without a
    collection.
    """
    server = scripted(accept_and_leave)

    async def main() -> None:
        before = set(open_descriptors().values())
        ws = await connect(server.uri)
        with pytest.raises(exceptions.ConnectionClosedError):
            await ws.recv()
        await spin()
        # The script's end is closed by its thread.
        await soon(lambda: not {target for target in open_descriptors().values() if "socket" in target} - before)
        del ws

    gc.disable()
    try:
        run(main)
    finally:
        gc.enable()


def test_cancelled_while_connecting(run: Run, connect: Connect) -> None:
    """Cancelled at every moment, connecting leaves no socket and no task."""

    async def attempt(uri: str) -> None:
        ws = await connect(uri, open_timeout=5)
        await ws.close()

    async def main(uri: str) -> None:
        before = sockets()
        for turns in range(25):
            task = asyncio.ensure_future(attempt(uri))
            for _ in range(turns):
                await asyncio.sleep(0)
            await cancelled(task)
        for number in range(10):
            task = asyncio.ensure_future(attempt(uri))
            await asyncio.sleep(number * 0.0002)
            await cancelled(task)
        # A connection that is closing when it is cancelled closes on its own, when the peer's thread has answered.
        await soon(lambda: not sockets() - before)

    def sockets() -> set[str]:
        return {target for target in open_descriptors().values() if target.startswith("socket:")}

    def script(wire: Wire) -> None:
        wire.accept()
        wire.read_until_close()
        wire.send(close(1000))

    with no_leaks(), ScriptedServer(script) as server:
        run(lambda: main(server.uri))


async def test_collections_while_connections_are_made(server: WebSocketsServer, connect: Connect) -> None:
    """A partly constructed object can be traversed: CPython makes its dict before the native part of it."""
    threshold = gc.get_threshold()
    gc.set_threshold(1)
    try:
        for _ in range(20):
            async with connect(server.uri) as ws:
                await ws.send("x")
                assert await ws.recv() == "x"
    finally:
        gc.set_threshold(*threshold)


# References


async def forget(connect: Connect, uri: str, *, used: bool) -> weakref.ref[Any]:
    ws = await connect(uri)
    if used:
        await ws.send("hello")
        assert await ws.recv() == "hello"
        waiting = asyncio.ensure_future(ws.recv())
        await spin()
        await cancelled(waiting)
        await (await ws.ping())
    return weakref.ref(ws)


@pytest.mark.wirespeed_only("websockets is kept alive by its transport")
@pytest.mark.parametrize("used", [False, True], ids=["new", "used"])
def test_closed_connection_is_freed(server: WebSocketsServer, run: Run, connect: Connect, used: bool) -> None:
    """By reference counting alone, as soon as the loop has released the connection."""

    async def main() -> None:
        async with connect(server.uri) as ws:
            if used:
                await ws.send("hello")
                assert await ws.recv() == "hello"
        reference = weakref.ref(ws)
        del ws
        await spin()
        assert reference() is None

    gc.disable()
    try:
        run(main)
    finally:
        gc.enable()


@pytest.mark.wirespeed_only("websockets is kept alive by its transport")
@pytest.mark.parametrize("used", [False, True], ids=["new", "used"])
async def test_dropped_open_connection_warns(server: WebSocketsServer, connect: Connect, used: bool) -> None:
    """A dropped connection warns, as files and sockets do, and its socket is closed."""
    before = set(open_descriptors().values())
    with pytest.warns(ResourceWarning, match="unclosed connection"):  # noqa: PT031 - it comes by itself
        reference = await forget(connect, server.uri, used=used)
        await spin()
        gc.collect()
    # The loop keeps the connection until the server has answered the close frame.
    await soon(lambda: reference() is None)
    # The server's end closes a moment later.
    await soon(lambda: not {target for target in open_descriptors().values() if "socket" in target} - before)


@pytest.mark.wirespeed_only("websockets is kept alive by its transport")
async def test_dropped_connection_in_a_cycle(server: WebSocketsServer, connect: Connect) -> None:
    async def make() -> weakref.ref[Any]:
        ws = await connect(server.uri)
        holder: list[Any] = [ws]
        holder.append(holder)
        ws.holder = holder
        return weakref.ref(ws)

    with pytest.warns(ResourceWarning, match="unclosed connection"):  # noqa: PT031 - it comes by itself
        reference = await make()
        gc.collect()
    # The recorded warning has kept its source, which newer interpreters expose as a reference. The loop keeps it
    # until the server has answered the close frame. Then the cycle is garbage again.
    await soon(lambda: (gc.collect(), reference() is None)[1])


class Raised(Exception):
    """An exception that a listener raises."""


@pytest.mark.wirespeed_only("websockets has no listeners")
@pytest.mark.parametrize("told", [False, True], ids=["forgotten", "told"])
def test_connection_whose_listener_has_raised(server: WebSocketsServer, run: Run, connect: Connect, told: bool) -> None:
    """The connection keeps the exception, whose traceback leads to frames that refer to the connection."""
    import wirespeed

    class Raising(wirespeed.Listener):
        def on_message(self, ws: Any, message: Any) -> None:
            raise Raised

    # Log records hold the exception, too.
    logger = logging.getLogger("forgetful")
    logger.disabled = True

    async def main() -> weakref.ref[Any]:
        ws = await connect(server.uri, listener=Raising(), logger=logger)
        await ws.send("x")
        if told:
            with pytest.raises(Raised):
                await ws.wait_closed()
        else:
            await soon(lambda: ws.state.name == "CLOSED")
        return weakref.ref(ws)

    reference = run(main)
    gc.collect()
    assert reference() is None


@pytest.mark.wirespeed_only("ours")
async def test_waiting_task_keeps_its_connection(scripted: Scripted, connect: Connect) -> None:
    """Only a task in recv refers to the connection: it stays alive, and the message arrives."""

    def script(wire: Wire) -> None:
        wire.accept()
        server.pause()
        wire.send(text("alive") + close(1000))
        wire.read_until_close()

    server = scripted(script)

    async def receive() -> Any:
        return [message async for message in await connect(server.uri)]

    task = asyncio.ensure_future(receive())
    await soon(server.reached.is_set)
    await spin()
    gc.collect()
    server.release.set()
    assert await task == ["alive"]


@pytest.mark.wirespeed_only("ours")
async def test_dropped_while_its_data_is_being_sent(scripted: Scripted, connect: Connect) -> None:
    """The connection warns, and is freed after the close timeout, because the peer reads nothing."""

    def script(wire: Wire) -> None:
        wire.accept()
        server.pause()

    server = scripted(script, receive_buffer=4096)
    ws = await connect(server.uri, compression=None, close_timeout=0.3)
    reference = weakref.ref(ws)
    with pytest.raises(BlockingIOError):
        while True:
            ws.send_nowait(bytes(1 << 20))
    with pytest.warns(ResourceWarning, match="unclosed connection"):  # noqa: PT031 - it comes by itself
        del ws
        await spin()
        gc.collect()
    await soon(lambda: reference() is None)


@pytest.mark.wirespeed_only("ours")
@pytest.mark.parametrize("function", [copy.copy, copy.deepcopy, pickle.dumps], ids=["copy", "deepcopy", "pickle"])
async def test_connection_cannot_be_copied(
    server: WebSocketsServer, connect: Connect, function: Callable[[Any], Any]
) -> None:
    async with connect(server.uri) as ws:
        with pytest.raises(TypeError):
            function(ws)
        await ws.send("still open")
        assert await ws.recv() == "still open"


@pytest.mark.wirespeed_only("websockets has a task for each connection")
async def test_idle_connection_has_no_tasks_or_timers(server: WebSocketsServer, connect: Connect) -> None:
    """Idle connections have no tasks and no timers of their own."""
    loop = asyncio.get_running_loop()
    connections = [await connect(server.uri) for _ in range(20)]
    await spin()
    assert asyncio.all_tasks() == {asyncio.current_task()}
    scheduled = getattr(loop, "_scheduled", None)
    if scheduled is not None:
        # One timer belongs to the test's own limit, and one to keepalive.
        assert len([timer for timer in scheduled if not timer.cancelled()]) <= 2
    await asyncio.gather(*(ws.close() for ws in connections))


@pytest.mark.wirespeed_only("ours")
async def test_memory_does_not_grow(server: WebSocketsServer, connect: Connect) -> None:
    """Messages, waits and cancellations leave nothing behind."""

    def blocks() -> int:
        gc.collect()
        return sys.getallocatedblocks()

    async with connect(server.uri) as ws:

        async def work() -> None:
            for _ in range(200):
                await ws.send("hello")
                await ws.recv()
                task = asyncio.ensure_future(ws.recv())
                await asyncio.sleep(0)
                await cancelled(task)
                await (await ws.ping())

        await work()
        before = blocks()
        for _ in range(3):
            await work()
        assert blocks() - before < 300


# Processes


def in_process(program: str, *arguments: str, options: tuple[str, ...] = ("-X", "dev", "-W", "error")) -> str:
    """Runs a program in a new interpreter and returns its output. Any output on standard error is a failure."""
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[1]), *filter(None, sys.path)]),
        "WIRESPEED_TEST_SUBJECT": SUBJECT,
    }
    command = [sys.executable, *options, "-c", textwrap.dedent(program), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


PRELUDE = """
import asyncio, gc, os, sys
from support.asyncio_subject import connect
from support.asyncio_tools import new_loop
uri, kind, port = sys.argv[1:]
options = {"io_backend": port} if port else {}
"""


def arguments(server: WebSocketsServer, setting: Setting) -> tuple[str, str, str]:
    return server.uri, setting.loop, setting.io_backend if IS_WIRESPEED else ""


def test_no_warning_in_development_mode(server: WebSocketsServer, setting: Setting) -> None:
    program = PRELUDE + textwrap.dedent(
        """
        async def main():
            async with connect(uri, **options) as ws:
                await ws.send("hello")
                print(await ws.recv())
                print(await (await ws.ping()) >= 0)
        loop = new_loop(kind)
        loop.run_until_complete(main())
        loop.close()
        """
    )
    assert in_process(program, *arguments(server, setting)) == "hello\nTrue\n"


@pytest.mark.wirespeed_only("websockets reports tasks that were destroyed")
@pytest.mark.parametrize("close_loop", [True, False], ids=["closed", "not-closed"])
def test_exit_with_an_open_connection(server: WebSocketsServer, setting: Setting, close_loop: bool) -> None:
    """The interpreter ends immediately and quietly without a close."""
    program = PRELUDE + textwrap.dedent(
        """
        ws = None
        async def main():
            global ws
            ws = await connect(uri, **options)
            await ws.send("x")
            print(await ws.recv())
        loop = new_loop(kind)
        loop.run_until_complete(main())
        """
    )
    if close_loop:
        program += "loop.close()\n"
    assert in_process(program, *arguments(server, setting), options=()) == "x\n"


@pytest.mark.wirespeed_only("ours")
def test_connection_that_outlives_its_loop(server: WebSocketsServer, setting: Setting) -> None:
    """Calls raise, and nothing crashes."""
    program = PRELUDE + textwrap.dedent(
        """
        async def main():
            return await connect(uri, **options)
        loop = new_loop(kind)
        ws = loop.run_until_complete(main())
        loop.close()
        for call in (lambda: ws.recv_nowait(), lambda: ws.recv().send(None), lambda: ws.send("x").send(None),
                     lambda: ws.send_nowait("x"), lambda: ws.close().send(None), ws.stats, ws.abort):
            try:
                call()
            except Exception:
                pass
        print(ws.state.name)
        """
    )
    assert in_process(program, *arguments(server, setting), options=()) == "CLOSED\n"


@pytest.mark.wirespeed_only("ours")
def test_fork(server: WebSocketsServer, setting: Setting) -> None:
    """A child that never touches the connection does not disturb the parent's, even when it collects it."""
    program = PRELUDE + textwrap.dedent(
        """
        async def talk(ws, word):
            await ws.send(word)
            print(await ws.recv(), flush=True)

        async def main():
            ws = await connect(uri, **options)
            await talk(ws, "before")
            child = os.fork()
            if child == 0:
                del ws
                gc.collect()
                os._exit(0)
            assert os.waitpid(child, 0)[1] == 0
            await talk(ws, "after")
            await ws.close()
            print(ws.close_code)

        import warnings
        warnings.simplefilter("ignore", DeprecationWarning)  # fork with threads
        loop = new_loop(kind)
        loop.run_until_complete(main())
        loop.close()
        """
    )
    # Not in debug mode, in which the loop logs that waiting for the child took long.
    assert in_process(program, *arguments(server, setting), options=("-W", "error")) == "before\nafter\n1000\n"
