"""One connection in many threads, and two peers that both send a lot."""

from __future__ import annotations

import contextlib
import functools
import operator
import queue
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from support.checks import pong_arrives, within
from support.frames import Close, Frame, binary, close, text
from support.scripted import Scripted, Wire
from support.servers import WebSocketsServer
from support.subject import connect, exceptions
from support.threads import wait_until


class Threads:
    """Runs functions in threads; ``join`` waits, bounded, and raises an exception that one of them raised."""

    def __init__(self) -> None:
        self.threads: list[threading.Thread] = []
        self.errors: queue.SimpleQueue[BaseException] = queue.SimpleQueue()

    def start(self, function: Callable[..., Any], *args: Any) -> threading.Thread:
        def run() -> None:
            try:
                function(*args)
            except BaseException as exc:
                self.errors.put(exc)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        self.threads.append(thread)
        return thread

    def join(self, timeout: float = 20.0) -> None:
        for thread in self.threads:
            thread.join(timeout)
            if thread.is_alive():
                raise TimeoutError("a thread did not end")
        with contextlib.suppress(queue.Empty):
            raise self.errors.get_nowait()


@pytest.fixture
def threads() -> Threads:
    return Threads()


def test_one_receives_many_send(server: WebSocketsServer, threads: Threads) -> None:
    """Every message arrives whole and once, and those of one thread in their order."""
    senders, each = 8, 200
    with connect(server.uri) as ws:

        def send(sender: int) -> None:
            for number in range(each):
                ws.send(f"{sender}:{number}:" + "x" * (number % 7 * 300))

        for sender in range(senders):
            threads.start(send, sender)
        received = [str(ws.recv(timeout=10)) for _ in range(senders * each)]
        threads.join()
    for sender in range(senders):
        numbers = [int(message.split(":")[1]) for message in received if message.startswith(f"{sender}:")]
        assert numbers == list(range(each))
    assert all(message.count("x") == int(message.split(":")[1]) % 7 * 300 for message in received)


@pytest.mark.wirespeed_only("websockets deadlocks")
def test_one_receives_one_sends_without_waiting(server: WebSocketsServer, threads: Threads) -> None:
    """Both directions are full at once; neither thread may wait for the other."""
    message, count = bytes(100_000), 200  # 20 MB each way
    with connect(server.uri, compression=None) as ws:

        def send_all() -> None:
            for _ in range(count):
                ws.send(message)

        threads.start(send_all)
        for _ in range(count):
            assert len(ws.recv(timeout=10)) == len(message)
        threads.join()


@pytest.mark.wirespeed_only("websockets deadlocks")
def test_echo_without_reading_does_not_deadlock(server: WebSocketsServer) -> None:
    """A single thread sends more than all socket buffers hold, and the server sends it back at once.

    The client must continue reading while it waits for room to send: otherwise both ends wait for each other.
    """
    message, count = bytes(1 << 20), 12
    with connect(server.uri, compression=None) as ws, within(30):
        for _ in range(count):
            ws.send(message)
        for _ in range(count):
            assert len(ws.recv(timeout=10)) == len(message)


@pytest.mark.wirespeed_only("websockets deadlocks")
def test_unread_echo_waits_at_max_queue(server: WebSocketsServer, threads: Threads) -> None:
    """Messages that arrive while a thread waits to send are kept up to ``max_queue``; then both ends wait until a
    thread reads.
    """
    message, count = bytes(1 << 20), 64
    with connect(server.uri, compression=None, max_queue=4) as ws, within(30):

        def send_all() -> None:
            for _ in range(count):
                ws.send(message)

        thread = threads.start(send_all)
        wait_until(lambda: ws.stats()["receive_queue_messages"] >= 4)
        thread.join(0.5)
        assert thread.is_alive()
        assert ws.stats()["receive_queue_messages"] < 8
        for _ in range(count):
            assert len(ws.recv(timeout=10)) == len(message)
        threads.join()


@pytest.mark.wirespeed_only("websockets deadlocks")
def test_one_big_echo_without_reading_does_not_deadlock(server: WebSocketsServer) -> None:
    with connect(server.uri, compression=None, max_size=None) as ws, within(30):
        ws.send(bytes(24 << 20))
        assert len(ws.recv(timeout=20)) == 24 << 20


@pytest.mark.wirespeed_only("websockets raises ConcurrencyError")
def test_two_receivers(scripted: Scripted, threads: Threads) -> None:
    """First come, first served: each message goes to exactly one receiver."""
    count = 500

    def script(wire: Wire) -> None:
        wire.accept()
        wire.read_frame()
        wire.send(b"".join(text(str(number)) for number in range(count)) + close(1000))
        wire.read_until_close()

    received: list[list[Any]] = [[], [], []]
    ws = connect(scripted(script).uri)
    for mine in received:

        def receive(mine: list[Any] = mine) -> None:
            mine.extend(ws)

        threads.start(receive)
    ws.send("go")
    threads.join()
    assert sorted(functools.reduce(operator.iadd, received, []), key=int) == [str(number) for number in range(count)]
    for mine in received:
        assert mine == sorted(mine, key=int)
    ws.close()


@pytest.mark.wirespeed_only("websockets raises ConcurrencyError")
def test_two_receivers_one_with_a_timeout(scripted: Scripted, threads: Threads) -> None:
    """The one that times out takes nothing from the other, and ends in its own time."""

    def script(wire: Wire) -> None:
        wire.accept()
        server.pause()
        wire.send(text("for the patient one"))
        wire.read_until_close()

    server = scripted(script)
    received = []
    with connect(server.uri) as ws:
        threads.start(lambda: received.append(ws.recv(timeout=10)))
        with within(1.5, at_least=0.2), pytest.raises(TimeoutError):
            ws.recv(timeout=0.2)
        server.release.set()
        threads.join()
    assert received == ["for the patient one"]


def test_close_ends_a_blocked_recv(server: WebSocketsServer, threads: Threads) -> None:
    """Closing works while another thread receives, and both end in the closing handshake."""
    ws = connect(server.uri)
    ended: list[Exception] = []
    started = threading.Event()

    def receive() -> None:
        started.set()
        try:
            ws.recv()
        except exceptions.ConnectionClosed as exc:
            ended.append(exc)

    threads.start(receive)
    assert started.wait(5)
    with within(5):
        ws.close()
        threads.join()
    assert [type(exc) for exc in ended] == [exceptions.ConnectionClosedOK]
    assert ws.close_code == 1000


def test_close_from_many_threads(server: WebSocketsServer, threads: Threads) -> None:
    ws = connect(server.uri)
    with within(5):
        for _ in range(8):
            threads.start(ws.close)
        threads.join()
    assert ws.close_code == 1000


def test_ping_while_another_thread_receives(server: WebSocketsServer, threads: Threads) -> None:
    with connect(server.uri) as ws:
        received = []
        threads.start(lambda: received.append(ws.recv(timeout=10)))
        for _ in range(20):
            assert pong_arrives(ws.ping())
        ws.send("last")
        threads.join()
    assert received == ["last"]


def test_many_threads_ping(server: WebSocketsServer, threads: Threads) -> None:
    with connect(server.uri) as ws:

        def ping() -> None:
            for _ in range(20):
                assert pong_arrives(ws.ping())

        for _ in range(4):
            threads.start(ping)
        threads.join()


def test_fragments_are_not_interleaved(scripted: Scripted, threads: Threads) -> None:
    """While one thread is inside a fragmented message, a message of another thread waits or is refused."""

    def script(wire: Wire) -> Any:
        wire.accept()
        return wire.read_until_close()

    server = scripted(script)
    inside, proceed = threading.Event(), threading.Event()

    def pieces() -> Iterator[str]:
        yield "one"
        inside.set()
        assert proceed.wait(10)
        yield "two"

    def other() -> None:
        with contextlib.suppress(exceptions.ConcurrencyError):
            ws.send("other")
        proceed.set()

    with connect(server.uri, compression=None) as ws:
        threads.start(ws.send, pieces())
        assert inside.wait(5)
        threads.start(other)
        # Where the second send waits for the first, this lets the first continue.
        proceed.wait(0.2)
        proceed.set()
        threads.join()
    frames, on_the_wire = server.result
    assert on_the_wire == Close(1000)
    opcodes = [frame.opcode for frame in frames]
    assert opcodes in ([1, 0, 0], [1, 0], [1, 0, 0, 1], [1, 0, 1])
    assert b"".join(frame.payload for frame in frames if frame.payload != b"other") == b"onetwo"


def test_lost_connection_wakes_every_thread(scripted: Scripted, threads: Threads) -> None:
    def script(wire: Wire) -> None:
        wire.accept()
        server.pause()
        wire.reset()

    server = scripted(script, receive_buffer=4096)
    ws = connect(server.uri, compression=None)
    ended: queue.SimpleQueue[type] = queue.SimpleQueue()

    def until_closed(function: Callable[[], Any]) -> None:
        try:
            while True:
                function()
        except exceptions.ConnectionClosed as exc:
            ended.put(type(exc))

    for function in (lambda: ws.recv(), lambda: ws.send(bytes(1 << 20)), lambda: ws.send(bytes(1 << 20))):
        threads.start(until_closed, function)
    server.wait_reached()
    server.release.set()
    with within(10):
        threads.join()
    assert [ended.get() for _ in range(3)] == [exceptions.ConnectionClosedError] * 3
    ws.close()


def test_blocked_calls_release_the_interpreter(scripted: Scripted, threads: Threads) -> None:
    """While one thread is blocked in recv, the others run."""

    def script(wire: Wire) -> None:
        wire.accept()
        server.pause()
        wire.send(text("done"))
        wire.read_until_close()

    server = scripted(script)
    progress: list[Any] = []
    with connect(server.uri) as ws:
        threads.start(lambda: progress.append(ws.recv(timeout=10)))
        server.wait_reached()
        with within(5):
            for number in range(100_000):
                progress.append(number)
        assert "done" not in progress
        server.release.set()
        threads.join()
    assert progress[-1] == "done"


def native_threads(status: str) -> int:
    return int(re.findall(r"(?m)^Threads:\s*(\d+)$", status)[0])


@pytest.mark.wirespeed_only("websockets starts threads for each connection")
def test_no_helper_threads(server: WebSocketsServer) -> None:
    before = threading.active_count()
    with open("/proc/self/status") as status:
        native = native_threads(status.read())
    with connect(server.uri, ping_interval=0.05, ping_timeout=5) as ws:
        ws.send("hello")
        assert ws.recv(timeout=5) == "hello"
        with pytest.raises(TimeoutError):
            ws.recv(timeout=0.2)
        assert threading.active_count() <= before
        with open("/proc/self/status") as status:
            # A thread of an earlier test may have ended.
            assert native_threads(status.read()) <= native


def test_many_connections_in_many_threads(server: WebSocketsServer, threads: Threads) -> None:
    def talk(number: int) -> None:
        for turn in range(5):
            with connect(server.uri) as ws:
                ws.send(f"{number} {turn}")
                assert ws.recv(timeout=10) == f"{number} {turn}"

    for number in range(10):
        threads.start(talk, number)
    threads.join()


def test_frames_of_concurrent_senders_stay_whole(scripted: Scripted, threads: Threads) -> None:
    """As bytes on the wire, with a peer that reads slowly so that writes are partial."""
    senders, each = 4, 6

    def script(wire: Wire) -> Any:
        wire.accept()
        server.pause()
        return wire.read_until_close()

    server = scripted(script, receive_buffer=4096)
    with connect(server.uri, compression=None) as ws:

        def send(sender: int) -> None:
            for _ in range(each):
                ws.send(bytes([sender]) * 200_000)

        for sender in range(senders):
            threads.start(send, sender)
        server.wait_reached()
        server.release.set()
        threads.join()
    frames, on_the_wire = server.result
    assert on_the_wire == Close(1000)
    assert len(frames) == senders * each
    assert all(frame == Frame(2, frame.payload[:1] * 200_000) for frame in frames)


def test_sender_continues_reading_when_the_queue_has_room(scripted: Scripted) -> None:
    """A thread waits for room, another takes a message, and the peer reads only after all its own data was taken."""
    piece, last = bytes(300_000), bytes(3_000_000)

    def script(wire: Wire) -> int:
        wire.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8192)
        wire.accept()
        # The queue is full with 16 of them, which are more than 4 MiB.
        for message in [piece] * 16 + [last]:
            wire.send(binary(message))
        size = len(wire.read_frame().payload)
        wire.send(close(1000))
        return size

    server = scripted(script, receive_buffer=8192)
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)
    sock.connect((server.host, server.port))
    ws = connect(server.uri, sock=sock, compression=None, ping_interval=None, max_size=None)
    sender = threading.Thread(target=ws.send, args=[bytes(20_000_000)])
    sender.start()
    with within(15):
        time.sleep(1.0)
        assert ws.recv() == piece
        sender.join(8)
        assert not sender.is_alive(), "it waits forever"
        assert [len(ws.recv()) for _ in range(16)] == [len(piece)] * 15 + [len(last)]
    ws.close()
    assert server.result == 20_000_000
