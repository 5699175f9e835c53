"""Failing handlers and ending programs: the engine continues or ends, and other sessions are unaffected."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
import threading
import time

import pytest

import wirespeed
from engine.tools import dial, running, take, uri
from support.load_scaling import load_scaled
from wirespeed.engine import Disconnected, Engine, Message, Session

pytestmark = pytest.mark.wirespeed_only("websockets has no engine")


@pytest.mark.parametrize("threads", [0, 2])
def test_answer_to_a_client_that_left_is_no_failure(threads: int, caplog: pytest.LogCaptureFixture) -> None:
    """A client may leave before its answer: no traceback is logged."""
    engine = Engine("127.0.0.1", workers=1)
    ended = threading.Event()
    gone = threading.Event()

    @engine.on_message
    def answer(session: Session, message: str) -> None:
        assert ended.wait(20)
        while session.is_open:
            time.sleep(0.01)
        session.send(message)

    @engine.on_disconnect
    def left(session: Session, code: int, reason: str) -> None:
        gone.set()

    with running(engine, threads=threads):
        with dial(engine) as ws:
            ws.send("hello")
        ended.set()
        assert gone.wait(20)
    assert not [record for record in caplog.records if record.name == "wirespeed.engine"]


def test_engine_with_only_an_echo() -> None:
    engine = Engine("127.0.0.1")
    engine.echo("/")
    with engine, dial(engine) as ws:
        ws.send("hello")
        assert ws.recv(20) == "hello"


def fail_as(kind: str) -> None:
    if kind == "CancelledError":
        raise asyncio.CancelledError
    if kind == "SystemExit":
        sys.exit(3)
    raise ValueError(kind)


@pytest.mark.parametrize("kind", ["ValueError", "CancelledError", "SystemExit"])
@pytest.mark.parametrize("way", ["pool", "plain beside coroutines", "coroutine", "coroutine that waits"])
def test_a_handler_that_raises_ends_its_session(way: str, kind: str, caplog: pytest.LogCaptureFixture) -> None:
    """For any exception: queued messages are handled, the end is reported, and other sessions are served."""
    if kind == "SystemExit" and way != "pool":
        pytest.skip("in the main thread it ends the program")
    engine = Engine("127.0.0.1", workers=1)
    seen: list[str] = []
    ended = threading.Event()

    def handle(session: Session, message: str) -> None:
        seen.append(message)
        if message == "fail":
            # Later messages have been sent by now.
            time.sleep(0.1)
            fail_as(kind)
        session.send(message)

    async def handle_later(session: Session, message: str) -> None:
        if way.endswith("waits"):
            await asyncio.sleep(0.01)
        handle(session, message)

    @engine.on_disconnect
    def bye(session: Session, code: int, reason: str) -> None:
        ended.set()

    if way == "plain beside coroutines":

        @engine.on_connect
        async def hello(session: Session) -> None: ...

    engine.on_message(handle_later if way.startswith("coroutine") else handle)
    with running(engine, threads=2 if way == "pool" else 0), dial(engine) as one, dial(engine) as two:
        one.send("fail")
        one.send("behind")
        with pytest.raises(wirespeed.ConnectionClosedError) as info:
            one.recv(20)
        assert info.value.code == 1011
        assert ended.wait(20)
        two.send("still here")
        assert two.recv(20) == "still here"
    assert seen == ["fail", "behind", "still here"]
    records = [record for record in caplog.records if record.name == "wirespeed.engine"]
    assert [record.getMessage().partition(" for")[0] for record in records] == ["the handler of Message"]


def test_sys_exit_in_a_handler_ends_the_program() -> None:
    text = """
import sys, threading, time
from wirespeed.engine import Engine
from wirespeed.sync import connect

for awaits in (False, True):
    engine = Engine("127.0.0.1", workers=2)

    @engine.on_message
    async def handle(session, message):
        if not awaits:
            sys.exit(3)

    @engine.on_connect
    def hello(session):
        if awaits:
            sys.exit(3)

    engine.start()
    host, port = engine.addresses[0]
    with connect(f"ws://{host}:{port}/", proxy=None) as ws:
        ws.send("x")
        try:
            engine.run()
        except SystemExit as exc:
            print(exc.code, flush=True)
    try:
        connect(f"ws://{host}:{port}/", proxy=None)
    except OSError:
        print("connection refused", flush=True)
"""
    done = subprocess.run(
        [sys.executable, "-c", text], capture_output=True, text=True, timeout=load_scaled(20), check=False
    )
    assert (done.returncode, done.stdout) == (0, "3\nconnection refused\n" * 2), done.stderr


def test_number_of_running_handlers() -> None:
    engine = Engine("127.0.0.1", workers=2)
    running_now, most = 0, 0

    @engine.on_message
    async def count(session: Session, message: str) -> None:
        nonlocal running_now, most
        running_now += 1
        most = max(most, running_now)
        await asyncio.sleep(0.001)
        running_now -= 1
        session.send(message)

    async def main() -> None:
        serving = asyncio.create_task(engine.serve(max_handlers=5))
        await asyncio.sleep(0)
        clients = [await wirespeed.connect(uri(engine), proxy=None) for _ in range(20)]
        for ws in clients:
            await ws.send_many(["x"] * 20)
        for ws in clients:
            assert await ws.recv_many(1)
            await ws.close()
        await asyncio.to_thread(engine.stop)
        await serving

    asyncio.run(asyncio.wait_for(main(), 60))
    assert 2 <= most <= 5


@pytest.mark.parametrize("compression", [False, True])
def test_events_that_are_not_taken(compression: bool) -> None:
    """Sockets are no longer read, so clients wait; nothing is lost, and memory is bounded; then everything
    continues.
    """
    limit = 2**20
    # More distinct data than a compression window holds: otherwise the buffers of the sockets hold hundreds of
    # thousands of messages.
    messages = [random.Random(number).randbytes(3500).hex() for number in range(20)]
    engine = Engine("127.0.0.1", workers=2, max_event_bytes=limit, compression=compression)
    with engine:
        clients = [dial(engine, compression="deflate" if compression else None, close_timeout=1) for _ in range(4)]
        sent = [0] * 4
        over = threading.Event()

        def flood(number: int) -> None:
            while not over.is_set():
                clients[number].send(f"{sent[number]} {messages[sent[number] % len(messages)]}")
                sent[number] += 1

        threads = [threading.Thread(target=flood, args=[number]) for number in range(4)]
        for thread in threads:
            thread.start()
        # Until no client makes progress.
        before, deadline = -1, time.monotonic() + load_scaled(30)
        while before != sum(sent):
            assert time.monotonic() < deadline
            before = sum(sent)
            time.sleep(0.5)
        waiting = engine.stats()
        assert waiting["events_waiting"] > 100
        # Each worker may exceed the limit by one turn, and no more.
        assert waiting["event_bytes_waiting"] < limit + 2 * (2**20 + 300_000)
        over.set()
        got: dict[Session, list[int]] = {}
        deadline = time.monotonic() + load_scaled(30)
        for batch in engine.batches(timeout=0.1):
            assert time.monotonic() < deadline, (sent, {session: len(numbers) for session, numbers in got.items()})
            if not any(thread.is_alive() for thread in threads) and sum(map(len, got.values())) == sum(sent):
                break
            for event in batch:
                if isinstance(event, Message):
                    got.setdefault(event.session, []).append(int(str(event.data).partition(" ")[0]))
        for thread in threads:
            thread.join(20)
            assert not thread.is_alive()
        assert sorted(map(len, got.values())) == sorted(sent)
        assert all(numbers == list(range(len(numbers))) for numbers in got.values())
        for ws in clients:
            ws.close()


@pytest.mark.parametrize("way", ["coroutines", "pool"])
def test_a_handler_that_never_returns(way: str) -> None:
    """Its client is no longer read, however much it sends; other clients are served, and it continues when the handler
    returns.
    """
    engine = Engine("127.0.0.1", workers=1, ping_interval=None)
    stuck = threading.Event()
    seen: list[int] = []

    def work(message: str) -> str:
        seen.append(int(message.partition(" ")[0]))
        return message

    if way == "pool":

        @engine.on_message
        def handle(session: Session, message: str) -> None:
            if session.path == "/stuck":
                assert stuck.wait(60)
                work(message)
            else:
                session.send(message)

    else:

        @engine.on_message
        async def handle_later(session: Session, message: str) -> None:
            if session.path == "/stuck":
                while not stuck.is_set():
                    await asyncio.sleep(0.01)
                work(message)
            else:
                session.send(message)

    filling = "x" * 2_000
    with running(engine, threads=2 if way == "pool" else 0):
        flooding = dial(engine, "/stuck", close_timeout=1)
        sent, over = 0, threading.Event()

        def flood() -> None:
            nonlocal sent
            while not over.is_set():
                flooding.send(f"{sent} {filling}")
                sent += 1

        thread = threading.Thread(target=flood)
        thread.start()
        with dial(engine) as ws:
            # Until it is no longer read.
            before, deadline = -1, time.monotonic() + load_scaled(30)
            while before != sent:
                assert time.monotonic() < deadline
                before = sent
                for number in range(50):
                    ws.send(str(number))
                    assert ws.recv(10) == str(number)
                time.sleep(0.5)
            for _ in range(5):
                with dial(engine) as other:
                    other.send("hello")
                    assert other.recv(10) == "hello"
        over.set()
        stuck.set()
        thread.join(20)
        assert not thread.is_alive()
        deadline = time.monotonic() + load_scaled(30)
        while len(seen) < sent:
            assert time.monotonic() < deadline, f"{len(seen)} of {sent}"
            time.sleep(0.01)
        assert seen == list(range(sent))
        flooding.close()


def test_a_session_that_is_not_read_can_be_closed() -> None:
    """Its close frame is read nevertheless."""
    with Engine("127.0.0.1", workers=1) as engine, dial(engine) as ws:
        (event,) = take(engine, 1)
        event.session._set_reading(False)
        time.sleep(0.05)
        ws.send("not read")
        time.sleep(0.05)
        assert engine.stats()["events_waiting"] == 0
        began = time.monotonic()
        event.session.close(4000)
        with pytest.raises(wirespeed.ConnectionClosedError):
            ws.recv(20)
        message, end = take(engine, 2)
        assert isinstance(message, Message)
        assert isinstance(end, Disconnected)
        assert (end.code, end.failure) == (4000, None)
        assert time.monotonic() - began < load_scaled(3)
