"""Signals during blocking calls: handlers run, the calls continue (PEP 475), and an exception in a handler
propagates.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from support.checks import within
from support.frames import BINARY, TEXT, Close, Frame, close, text
from support.scripted import Scripted, ScriptedServer, Wire
from support.servers import WebSocketsServer
from support.subject import SUBJECT, connect, exceptions

pytestmark = pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="this system has no interval timers")


class Interrupted(Exception):
    """Raised by a signal handler."""


@contextmanager
def alarm(handler: Callable[[], Any], after: float = 0.1, every: float = 0.0) -> Iterator[list[int]]:
    """Runs ``handler`` in the main thread, by SIGALRM, while the block runs; yields the list of its runs."""
    runs: list[int] = []

    def handle(number: int, frame: FrameType | None) -> None:
        runs.append(number)
        handler()

    previous = signal.signal(signal.SIGALRM, handle)
    signal.setitimer(signal.ITIMER_REAL, after, every)
    try:
        yield runs
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)


def raise_interrupted() -> None:
    raise Interrupted


# recv


def test_handler_runs_during_recv(scripted: Scripted) -> None:
    """recv continues to wait: the message comes because the handler ran."""

    def script(wire: Wire) -> None:
        wire.accept()
        server.pause()
        wire.send(text("after the signal"))
        wire.read_until_close()

    server = scripted(script)
    with connect(server.uri) as ws, alarm(server.release.set) as runs, within(8):
        assert ws.recv() == "after the signal"
    assert len(runs) == 1


@pytest.mark.wirespeed_only("where websockets waits for a queue, repeated signals make CPython 3.11 wait forever")
def test_signals_do_not_change_the_timeout(server: WebSocketsServer) -> None:
    timing = within(0.8, at_least=0.3)
    with connect(server.uri) as ws, alarm(lambda: None, 0.02, 0.02) as runs, timing, pytest.raises(TimeoutError):
        ws.recv(timeout=0.3)
    assert len(runs) >= 3


def test_exception_in_handler_leaves_recv(server: WebSocketsServer) -> None:
    with connect(server.uri) as ws:
        with alarm(raise_interrupted), within(5), pytest.raises(Interrupted):
            ws.recv()
        ws.send("still open")
        assert ws.recv(timeout=5) == "still open"


def test_exception_in_handler_in_the_middle_of_a_message(scripted: Scripted) -> None:
    """The received part of the message is not lost."""
    message = text("x" * 1000)

    def script(wire: Wire) -> None:
        wire.accept(then=message[:500])
        server.pause()
        wire.send(message[500:])
        wire.read_until_close()

    server = scripted(script)
    with connect(server.uri) as ws:
        with alarm(raise_interrupted), within(5), pytest.raises(Interrupted):
            ws.recv()
        server.release.set()
        assert ws.recv(timeout=5) == "x" * 1000


def test_exception_in_handler_leaves_iteration(server: WebSocketsServer) -> None:
    with connect(server.uri) as ws:
        with alarm(raise_interrupted), within(5), pytest.raises(Interrupted):
            for _ in ws:
                pytest.fail("nothing was sent")
        ws.send("still open")
        assert next(iter(ws)) == "still open"


def test_send_inside_a_handler_during_recv(server: WebSocketsServer) -> None:
    """The handler may use the connection that the interrupted call waits on."""
    with connect(server.uri) as ws, alarm(lambda: ws.send("from the handler")), within(8):
        assert ws.recv(timeout=5) == "from the handler"


def test_many_sends_inside_handlers(server: WebSocketsServer) -> None:
    with connect(server.uri) as ws, alarm(lambda: ws.send("tick"), 0.01, 0.01), within(10):
        assert [ws.recv(timeout=5) for _ in range(20)] == ["tick"] * 20


@pytest.mark.wirespeed_only("websockets raises ConcurrencyError")
def test_recv_inside_a_handler_during_recv(scripted: Scripted) -> None:
    """The handler's receive is served first; the interrupted one continues."""

    def script(wire: Wire) -> None:
        wire.accept()
        wire.read_frame()
        wire.send(text("one"))
        wire.read_frame()
        wire.send(text("two"))
        wire.read_until_close()

    inner: list[str | bytes] = []

    def handler() -> None:
        ws.send("go")
        inner.append(ws.recv(timeout=5))
        ws.send("go")

    with connect(scripted(script).uri) as ws, alarm(handler), within(8):
        assert ws.recv(timeout=5) == "two"
    assert inner == ["one"]


def test_close_inside_a_handler_during_recv(server: WebSocketsServer) -> None:
    ws = connect(server.uri)
    with alarm(ws.close), within(8), pytest.raises(exceptions.ConnectionClosedOK):
        ws.recv(timeout=5)
    assert ws.close_code == 1000


def test_keyboard_interrupt(server: WebSocketsServer) -> None:
    """SIGINT with Python's own handler, sent by another thread."""
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with connect(server.uri) as ws:
            timer = threading.Timer(0.1, os.kill, [os.getpid(), signal.SIGINT])
            timer.start()
            with within(5), pytest.raises(KeyboardInterrupt):
                ws.recv()
            timer.join()
            ws.send("still open")
            assert ws.recv(timeout=5) == "still open"
    finally:
        signal.signal(signal.SIGINT, previous)


def test_control_c_ends_a_program(server: WebSocketsServer) -> None:
    """A whole program, blocked forever, ended as by a terminal."""
    program = (
        "from support.subject import connect\n"
        f"with connect({server.uri!r}) as ws:\n"
        "    ws.send('x'); ws.recv()\n"
        "    print('ready', flush=True)\n"
        "    ws.recv()\n"
    )
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[1]), *filter(None, sys.path)]),
        "WIRESPEED_TEST_SUBJECT": SUBJECT,
    }
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as child:
        try:
            assert child.stdout is not None
            assert child.stdout.readline() == "ready\n"
            child.send_signal(signal.SIGINT)
            _, errors = child.communicate(timeout=10)
        finally:
            child.kill()
    assert errors.rstrip().endswith("KeyboardInterrupt")
    assert child.returncode in (1, 130, -signal.SIGINT)


# send


def stalled(scripted: Scripted) -> ScriptedServer:
    """A server that reads nothing until it is released, behind a small buffer; then it returns all frames."""

    def script(wire: Wire) -> Any:
        wire.accept()
        server.pause()
        return wire.read_until_close()

    server = scripted(script, receive_buffer=4096)
    return server


BIG = 16 << 20  # more than the socket buffers of both ends hold


def test_handler_runs_during_send(scripted: Scripted) -> None:
    server = stalled(scripted)
    with connect(server.uri, compression=None) as ws, alarm(server.release.set) as runs, within(10):
        ws.send(bytes(BIG))
    assert len(runs) == 1
    frames, on_the_wire = server.result
    assert [(frame.opcode, len(frame.payload)) for frame in frames] == [(BINARY, BIG)]
    assert on_the_wire == Close(1000)


@pytest.mark.websockets_differs("the connection is not usable after that")
def test_exception_in_handler_leaves_send(scripted: Scripted) -> None:
    """A partly sent frame is completed before anything else: it is never cut."""
    server = stalled(scripted)
    with connect(server.uri, compression=None, close_timeout=5) as ws:
        with alarm(raise_interrupted), within(5), pytest.raises(Interrupted):
            ws.send(bytes(BIG))
        server.release.set()
        with within(10):
            ws.send("after")
    frames, on_the_wire = server.result
    assert frames[-1] == Frame(TEXT, b"after")
    assert [(frame.opcode, len(frame.payload)) for frame in frames[:-1]] == [(BINARY, BIG)]
    assert on_the_wire == Close(1000)


@pytest.mark.wirespeed_only("websockets cannot go on after that")
def test_exception_in_handler_leaves_send_that_has_not_begun(scripted: Scripted) -> None:
    """The send waits for that of another thread: nothing of it is sent."""
    server = stalled(scripted)
    with connect(server.uri, compression=None, close_timeout=5) as ws:
        first = threading.Thread(target=ws.send, args=(bytes(BIG),))
        first.start()
        time.sleep(0.1)
        with alarm(raise_interrupted), within(5), pytest.raises(Interrupted):
            ws.send("second")
        server.release.set()
        with within(10):
            ws.send("after")
        first.join()
    frames, on_the_wire = server.result
    assert [(frame.opcode, len(frame.payload)) for frame in frames] == [(BINARY, BIG), (TEXT, 5)]
    assert frames[-1].payload == b"after"
    assert on_the_wire == Close(1000)


@pytest.mark.wirespeed_only("send_many is ours")
def test_exception_in_handler_leaves_send_many(scripted: Scripted) -> None:
    """Items taken from the iterable are sent."""
    server = stalled(scripted)
    taken: list[int] = []

    def messages() -> Iterator[bytes]:
        for number in range(50):
            taken.append(number)
            yield bytes([number]) * 1_000_000

    with connect(server.uri, compression=None, close_timeout=5) as ws:
        with alarm(raise_interrupted), within(5), pytest.raises(Interrupted):
            ws.send_many(messages())
        server.release.set()
        with within(10):
            ws.send("after")
    frames, on_the_wire = server.result
    assert len(taken) < 50
    assert [frame.payload for frame in frames] == [*(bytes([number]) * 1_000_000 for number in taken), b"after"]
    assert on_the_wire == Close(1000)


@pytest.mark.wirespeed_only("websockets deadlocks")
def test_send_inside_a_handler_during_send(scripted: Scripted) -> None:
    """The message cannot overtake the interrupted frame, nor wait for it: it is sent after it."""
    server = stalled(scripted)

    def handler() -> None:
        server.release.set()
        ws.send("from the handler")

    with connect(server.uri, compression=None, close_timeout=5) as ws, alarm(handler) as runs, within(10):
        ws.send(bytes(BIG))
    assert len(runs) == 1
    frames, on_the_wire = server.result
    assert [(frame.opcode, len(frame.payload)) for frame in frames] == [(BINARY, BIG), (TEXT, 16)]
    assert on_the_wire == Close(1000)


@pytest.mark.wirespeed_only("websockets deadlocks")
def test_exception_in_handler_leaves_the_first_fragment(scripted: Scripted) -> None:
    """The fragment is sent already, and no other message can follow: the connection is closed."""
    server = stalled(scripted)

    def handler() -> None:
        server.release.set()
        raise Interrupted

    ws = connect(server.uri, compression=None, close_timeout=5)
    # Once it waits: encoding this much takes a while.
    with alarm(handler, after=0.5), within(8), pytest.raises(Interrupted):
        ws.send(iter([bytes(BIG), b"never"]))
    assert ws.state.name == "CLOSED"
    with pytest.raises(exceptions.ConnectionClosed):
        ws.send("after")
    frames, on_the_wire = server.result
    assert [(frame.opcode, len(frame.payload)) for frame in frames] == [(BINARY, BIG)]
    assert on_the_wire == Close(1011, "error in fragmented message")


@pytest.mark.wirespeed_only("websockets deadlocks")
def test_exception_in_handler_leaves_the_last_fragment(scripted: Scripted) -> None:
    """It waits for another thread's message."""
    server = stalled(scripted)
    pings = 0

    def flood() -> None:
        nonlocal pings
        try:
            while not server.release.is_set():
                ws.ping(b"%0125d" % pings)
                pings += 1
        except exceptions.ConnectionClosed:
            pass

    def fragments() -> Iterator[bytes]:
        yield b"only"
        thread.start()
        seen = -1
        while seen != pings:
            seen = pings
            time.sleep(0.2)
        timer.start()

    def handler() -> None:
        server.release.set()
        raise Interrupted

    ws = connect(server.uri, compression=None, close_timeout=5, ping_interval=None)
    thread = threading.Thread(target=flood)
    timer = threading.Timer(0.1, os.kill, [os.getpid(), signal.SIGALRM])
    with alarm(handler, after=30), within(12), pytest.raises(Interrupted):
        ws.send(fragments())
    thread.join()
    timer.join()
    assert ws.state.name == "CLOSED"
    assert server.result[1] == Close(1011, "error in fragmented message")


# close, connect, ping


def silent(wire: Wire) -> Any:
    """Accepts and never answers a close frame."""
    wire.accept()
    received = wire.read_until_close()
    wire.read_to_end()
    return received


def test_handler_runs_during_close(scripted: Scripted) -> None:
    ws = connect(scripted(silent).uri, close_timeout=0.4)
    with alarm(lambda: None, 0.05, 0.05) as runs, within(2, at_least=0.4):
        ws.close()
    assert len(runs) >= 2
    assert ws.close_code == 1006


@pytest.mark.wirespeed_only("the Thread.join that websockets waits in does not survive it on CPython 3.11")
def test_exception_in_handler_leaves_close(scripted: Scripted) -> None:
    def script(wire: Wire) -> Any:
        wire.accept()
        received = wire.read_until_close()
        server.pause()
        wire.send(close(1000))
        return received

    server = scripted(script)
    ws = connect(server.uri, close_timeout=10)
    with alarm(raise_interrupted), within(5), pytest.raises(Interrupted):
        ws.close()
    server.release.set()
    with within(5):
        ws.close()  # continues from its position
    assert ws.close_code == 1000
    assert server.result == ([], Close(1000))


def test_exception_in_handler_leaves_connect(scripted: Scripted) -> None:
    def script(wire: Wire) -> bytes:
        wire.read_request()
        return wire.read_to_end()

    server = scripted(script)
    with alarm(raise_interrupted), within(5), pytest.raises(Interrupted):
        connect(server.uri, open_timeout=10)
    assert server.result == b"", "the client ended the connection"


def test_signals_do_not_change_the_open_timeout() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        with alarm(lambda: None, 0.02, 0.02) as runs, within(2, at_least=0.3), pytest.raises(TimeoutError):
            connect(f"ws://127.0.0.1:{port}/", open_timeout=0.3)
    assert len(runs) >= 3


def test_handler_runs_while_waiting_for_a_pong(scripted: Scripted) -> None:
    with connect(scripted(silent).uri, close_timeout=0.1) as ws:
        waiter = ws.ping()
        with alarm(raise_interrupted), within(5), pytest.raises(Interrupted):
            waiter.wait(10)
