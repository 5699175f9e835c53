"""The end of an engine: from any thread, repeatedly, with the interpreter, by an interrupt, in a child process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time

import pytest

from engine.tools import dial
from support.load_scaling import load_scaled
from wirespeed.engine import Disconnected, Engine

pytestmark = pytest.mark.wirespeed_only("websockets has no engine")

PRELUDE = """
import asyncio, faulthandler, gc, os, signal, sys, threading, time, weakref
import wirespeed
from wirespeed.engine import Connected, Disconnected, Engine, Message
from wirespeed.sync import connect

def dial(engine, path="/"):
    host, port = engine.addresses[0]
    return connect(f"ws://{host}:{port}{path}", proxy=None)

def interrupt(after=0.3):
    threading.Timer(after, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
"""


def program(body: str, *, status: int = 0, seconds: float = 20.0) -> str:
    """Runs a program to its end; returns its output. The interpreter must report nothing."""
    limit = load_scaled(seconds)
    text = PRELUDE + f"faulthandler.dump_traceback_later({limit - 3}, exit=True)\n" + textwrap.dedent(body)
    command = [sys.executable, "-W", "error", "-W", "ignore::ResourceWarning", "-c", text]
    done = subprocess.run(command, capture_output=True, text=True, timeout=limit + 10, check=False)
    assert done.returncode == status, f"status {done.returncode}\n{done.stdout}\n{done.stderr}"
    for word in ("Fatal", "panicked", "Segmentation", "Exception ignored"):
        assert word not in done.stderr, done.stderr
    return done.stdout


def test_calls_while_the_engine_starts() -> None:
    program("""
        sys.setswitchinterval(1e-5)
        over = False

        def ask(engine):
            while not over:
                try:
                    engine.stats()
                except RuntimeError:
                    pass

        for _ in range(20):
            engine = Engine("127.0.0.1", workers=8)
            over = False
            thread = threading.Thread(target=ask, args=[engine])
            thread.start()
            engine.start()
            over = True
            thread.join()
            engine.stop()
    """)


def test_many_threads_stop_at_once() -> None:
    """A second stop waits as well; every session's end is reported once."""
    for _ in range(10):
        engine = Engine("127.0.0.1", workers=2)
        engine.start()
        clients = [dial(engine) for _ in range(30)]
        barrier = threading.Barrier(4)
        after: list[bool] = []

        def stop(engine: Engine = engine, barrier: threading.Barrier = barrier, after: list[bool] = after) -> None:
            barrier.wait(20)
            engine.stop()
            after.append(engine.stats()["connections"] == 0)

        threads = [threading.Thread(target=stop) for _ in range(4)]
        for thread in threads:
            thread.start()
        events = [event for batch in engine.batches() for event in batch]
        for thread in threads:
            thread.join(20)
            assert not thread.is_alive()
        for client in clients:
            client.close()
        assert sum(isinstance(event, Disconnected) for event in events) == 30
        assert after == [True] * 4


@pytest.mark.parametrize("ending", ["", "sys.exit(3)", "raise SystemExit(3)", "os._exit(3)"])
@pytest.mark.parametrize("busy", ["pass", "threads(daemon=True)", "thread_of_serve()", "publishers()"])
def test_interpreter_exit_while_the_engine_runs(busy: str, ending: str) -> None:
    """The engine was not stopped: daemon threads are in each of its calls, clients flood it."""
    program(
        """
        sys.setswitchinterval(1e-5)
        engine = Engine("127.0.0.1", workers=2)
        clients = []

        def drain():
            for batch in engine.batches(max_events=8):
                for event in batch:
                    if isinstance(event, Message):
                        event.session.send(event.data)

        def threads(daemon):
            for _ in range(3):
                threading.Thread(target=drain, daemon=daemon).start()

        def publishers():
            threads(daemon=True)
            def publish():
                while True:
                    try:
                        engine.broadcast("x" * 100)
                    except BlockingIOError:
                        engine.wait_for_room()
            for _ in range(2):
                threading.Thread(target=publish, daemon=True).start()

        def thread_of_serve():
            @engine.on_message
            async def echo(session, message):
                session.send(message)
            threading.Thread(target=asyncio.run, args=[engine.serve()], daemon=True).start()

        def flood():
            ws = dial(engine)
            while True:
                ws.send("hello")
                ws.recv()

        BUSY = {busy!r}
        if BUSY != "thread_of_serve()":
            engine.start()
        exec(BUSY)
        while BUSY == "thread_of_serve()" and not engine._started:
            time.sleep(0.01)
        for _ in range(2):
            threading.Thread(target=flood, daemon=True).start()
        time.sleep(0.2)
        {ending}
        """.replace("{busy!r}", repr(busy)).replace("{ending}", ending),
        status=3 if ending else 0,
    )


def test_a_thread_in_batches_keeps_the_process_until_it_is_stopped() -> None:
    """As with any thread that is not a daemon: a handler of atexit runs too late, an interrupt does not."""
    out = program("""
        engine = Engine("127.0.0.1")
        engine.start()

        def drain():
            for batch in engine.batches():
                pass
            print("over", flush=True)

        threading.Thread(target=drain).start()
        threading.Timer(0.5, engine.stop).start()
    """)
    assert out == "over\n"


@pytest.mark.parametrize(
    "wait",
    [
        "for batch in engine.batches(): pass",
        "while True: engine.wait_for_room()",
        "engine.run()",
        "engine.run(threads=2)",
        "asyncio.run(engine.serve())",
        "asyncio.run(iterate())",
    ],
)
def test_keyboard_interrupt(wait: str) -> None:
    """Waiting calls are interrupted, and the running engine is stopped: no client is served any more."""
    out = program(
        """
        engine = Engine("127.0.0.1", mailbox_limit=1)
        if "wait_for_room" in {wait!r}:
            # So that there is none for long.
            def full():
                while True:
                    try:
                        engine.broadcast("x" * 65536)
                    except BlockingIOError:
                        pass
                    except wirespeed.InvalidState:
                        return
        if "engine.run" in {wait!r} or "serve" in {wait!r}:
            async def later(session, message):
                session.send(message)
            engine.on_message(later if "serve" in {wait!r} else lambda session, message: session.send(message))

        async def iterate():
            async for batch in engine:
                pass

        began = time.monotonic()
        try:
            with engine:
                if "wait_for_room" in {wait!r}:
                    threading.Thread(target=full, daemon=True).start()
                ws = dial(engine)
                ws.send("x")
                interrupt()
                {wait}
        except KeyboardInterrupt:
            print("interrupted", time.monotonic() - began < 5)
        try:
            dial(engine)
        except OSError:
            print("connection refused")
        """.replace("{wait!r}", repr(wait)).replace("{wait}", wait)
    )
    assert out == "interrupted True\nconnection refused\n"


@pytest.mark.parametrize("threads", [0, 2])
@pytest.mark.parametrize("awaits", [False, True])
def test_a_handler_stops_it(awaits: bool, threads: int) -> None:
    if awaits and threads:
        pytest.skip("there is no such thing")
    out = program(
        """
        engine = Engine("127.0.0.1", workers=2)
        gone = []

        @engine.on_disconnect
        def bye(session, code, reason):
            gone.append(session)

        def stop(session, message):
            engine.stop()
            engine.stop()

        async def stop_later(session, message):
            await asyncio.sleep(0.01)
            stop(session, message)

        engine.on_message(stop_later if AWAITS else stop)
        engine.start()
        clients = [dial(engine) for _ in range(3)]
        clients[0].send("x")
        clients[1].send("x")
        engine.run(**({"threads": THREADS} if THREADS else {}))
        print(len(gone))
        """.replace("AWAITS", repr(awaits)).replace("THREADS", repr(threads))
    )
    assert out == "3\n"


def test_stopped_while_others_publish() -> None:
    out = program("""
        sys.setswitchinterval(1e-5)
        for _ in range(10):
            engine = Engine("127.0.0.1", workers=2, mailbox_limit=1000)
            engine.start()
            threading.Thread(target=lambda: [None for batch in engine.batches()]).start()
            clients = [dial(engine) for _ in range(4)]
            raised = []

            def publish():
                try:
                    while True:
                        try:
                            engine.broadcast("x" * 100)
                        except BlockingIOError:
                            engine.wait_for_room()
                except Exception as exc:
                    raised.append(type(exc).__name__)

            threads = [threading.Thread(target=publish) for _ in range(4)]
            for thread in threads:
                thread.start()
            time.sleep(0.02)
            stoppers = [threading.Thread(target=engine.stop) for _ in range(3)]
            for thread in stoppers:
                thread.start()
            for thread in [*threads, *stoppers]:
                thread.join()
            print(*raised)
    """)
    assert out.splitlines() == [" ".join(["InvalidState"] * 4)] * 10


def test_engine_collected_while_it_runs() -> None:
    """The last reference is dropped: the engine has stopped, its port is free, its threads are gone."""
    out = program("""
        def threads():
            return len(os.listdir("/proc/self/task"))

        before = threads()
        for cycle in (False, True):
            engine = Engine("127.0.0.1", workers=3)
            if cycle:
                engine.on_message(lambda session, message: engine.stats())
            engine.start()
            place = engine.addresses[0]
            clients = [dial(engine) for _ in range(3)]
            sessions = [event.session for event in next(engine.batches())]
            running = threads()
            known = weakref.ref(engine)
            del engine
            gc.collect()
            deadline = time.monotonic() + 10
            # The log thread notices the end, and no call waits for it.
            while threads() > before and time.monotonic() < deadline:
                time.sleep(0.001)
            print(known() is None, running - before, threads() - before, any(one.is_open for one in sessions))
            try:
                sessions[0].send("x")
            except wirespeed.InvalidState:
                print("over")
            again = Engine(*place)
            again.start()
            again.stop()
            while threads() > before and time.monotonic() < deadline:
                time.sleep(0.001)
    """)
    # Three workers, and the log thread.
    assert out == "True 4 0 False\nover\n" * 2


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_engine_is_unusable_in_a_child_process() -> None:
    """Messages that the child sends would wait forever in its memory, or go to the parent's connections."""
    out = program("""
        engine = Engine("127.0.0.1", workers=2)
        engine.start()
        ws = dial(engine)
        (event,) = next(engine.batches())
        session = event.session
        session.subscribe("a")
        calls = {
            "broadcast": lambda: engine.broadcast("x"),
            "publish": lambda: engine.publish("a", "x"),
            "subscribers": lambda: engine.subscribers("a"),
            "batches": lambda: next(engine.batches()),
            "has_room": lambda: engine.has_room(),
            "wait_for_room": lambda: engine.wait_for_room(timeout=1),
            "room": lambda: asyncio.run(engine.room()),
            "stats": lambda: engine.stats(),
            "send": lambda: session.send("x"),
            "session.has_room": lambda: session.has_room,
            "session.wait_for_room": lambda: session.wait_for_room(1),
            "subscribe": lambda: session.subscribe("b"),
            "unsubscribe": lambda: session.unsubscribe("a"),
            "close": lambda: session.close(),
        }
        child = os.fork()
        if child == 0:
            wrong = []
            for name, call in calls.items():
                try:
                    call()
                    wrong.append(name)
                except RuntimeError as exc:
                    if "child process" not in str(exc):
                        wrong.append(f"{name}: {exc!r}")
            engine.stop()
            del engine
            gc.collect()
            print("wrong:", wrong, flush=True)
            os._exit(0)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), session.is_open, engine.stats()["sessions"])
        session.send("still here")
        print(ws.recv(5))
        engine.stop()
    """)
    assert out == "wrong: []\n0 True 1\nstill here\n"


def test_fork_while_the_engine_is_busy() -> None:
    """For any lock held at the fork: the child gets an exception, and ends."""
    out = program("""
        sys.setswitchinterval(1e-5)
        engine = Engine("127.0.0.1", workers=2)
        engine.start()
        clients = [dial(engine) for _ in range(4)]
        sessions = [event.session for _, event in zip(range(4), (e for b in engine.batches() for e in b))]

        def drain():
            for batch in engine.batches():
                pass

        def work():
            try:
                number = 0
                while True:
                    number += 1
                    for session in sessions:
                        session.subscribe(f"a.{number}")
                        session.unsubscribe(f"a.{number}")
                    engine.publish("a.1", "x")
            except wirespeed.InvalidState:
                pass

        for target in (drain, drain, work, work):
            threading.Thread(target=target, daemon=True).start()
        time.sleep(0.1)
        for _ in range(30):
            child = os.fork()
            if child == 0:
                signal.alarm(10)
                told = 0
                for call in (engine.stats, lambda: engine.broadcast("x"), lambda: sessions[0].send("x")):
                    try:
                        call()
                    except RuntimeError:
                        told += 1
                engine.stop()
                os._exit(told)
            status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            if status != 3:
                print("child", status)
                break
        engine.stop()
    """)
    assert out == ""


@pytest.mark.parametrize("kind", ["term", "int"])
def test_signals_from_outside(kind: str) -> None:
    """A program that stops by a handler of its own."""
    text = PRELUDE + textwrap.dedent("""
        engine = Engine("127.0.0.1")
        signal.signal(signal.SIGTERM, lambda number, frame: engine.stop())
        signal.signal(signal.SIGINT, lambda number, frame: engine.stop())
        with engine:
            print("ready", flush=True)
            for batch in engine.batches():
                pass
        print("over", flush=True)
    """)
    process = subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGTERM if kind == "term" else signal.SIGINT)
        began = time.monotonic()
        assert process.communicate(timeout=20)[0] == "over\n"
        assert time.monotonic() - began < load_scaled(5)
        assert process.returncode == 0
    finally:
        process.kill()
        process.wait()
