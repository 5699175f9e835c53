"""Ends of an engine whose handlers do not return, and signals in child processes."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import textwrap
from collections.abc import Iterator

import pytest

from wirespeed import ConnectionClosed
from wirespeed.sync import ClientConnection, connect

pytestmark = [
    pytest.mark.wirespeed_only("websockets has no engine"),
    pytest.mark.skipif(os.name != "posix", reason="no signals"),
]

BOUND = 60
"""Seconds after which something has been forgotten."""

APP = textwrap.dedent("""
    import asyncio, signal, sys, time
    from wirespeed.engine import Engine

    how, timeout = sys.argv[1:]
    engine = Engine("127.0.0.1", workers=1, drain_timeout=float(timeout))

    if how in ("waiting", "serve"):
        @engine.on_message
        async def handler(session, message):
            print("called", flush=True)
            await asyncio.Event().wait()
    elif how == "stubborn":
        @engine.on_message
        async def handler(session, message):
            print("called", flush=True)
            while True:
                try:
                    await asyncio.Event().wait()
                except asyncio.CancelledError:
                    pass
    elif how == "blocking":
        @engine.on_message
        async def handler(session, message):
            print("called", flush=True)
            time.sleep(1000)
    elif how == "quick coroutine":
        @engine.on_message
        async def handler(session, message): ...
    elif how == "broker":
        engine = Engine("127.0.0.1", workers=1, drain_timeout=float(timeout), broker="memory://ending")
        engine.on_message(print)

        @engine.on_broker
        async def handler(event):
            print("called", flush=True)
            await asyncio.Event().wait()
    else:
        @engine.on_message
        def handler(session, message):
            print("called", flush=True)
            time.sleep(1000)

    if how.startswith("quick"):
        @engine.on_connect
        def come(session):
            print("come", flush=True)

    @engine.on_disconnect
    def gone(session, code, reason):
        print("gone", session.path, flush=True)

    async def serve():
        await engine.serve()
        print("served", len(asyncio.all_tasks()), flush=True)

    engine.start()
    print(engine.addresses[0][1], flush=True)
    if how == "serve":
        asyncio.run(serve())
    else:
        engine.run(threads=4 if "threads" in how else 0)
    print("over", signal.getsignal(signal.SIGTERM) is signal.SIG_DFL, flush=True)
""")


class App:
    """A process with an engine, a client that it cannot get rid of, and its output."""

    def __init__(self, how: str, timeout: float) -> None:
        command = [sys.executable, "-X", "faulthandler", "-c", APP, how, str(timeout)]
        self.child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert self.child.stdout is not None
        self.lines: Iterator[str] = (line.strip() for line in self.child.stdout)
        self.port = int(next(self.lines))

    def dial(self, path: str) -> ClientConnection:
        return connect(f"ws://127.0.0.1:{self.port}{path}", proxy=None, close_timeout=0.1)

    def kill(self) -> None:
        self.child.kill()
        self.child.communicate()


@pytest.fixture
def app(how: str, timeout: float) -> Iterator[App]:
    app = App(how, timeout)
    yield app
    app.kill()


@pytest.mark.parametrize("how", ["waiting", "serve", "stubborn", "blocking", "broker", "plain", "threads"])
@pytest.mark.parametrize("timeout", [1000, 1], ids=["second", "drain"])
def test_engine_ends_despite_a_blocked_handler(app: App, how: str, timeout: float) -> None:
    """At a second SIGTERM, and when the time of the drain is over."""
    with app.dial("/") as client:
        if how != "broker":
            client.send("hello")
        assert next(app.lines) == "called"
        app.child.send_signal(signal.SIGTERM)
        if timeout == 1000:
            # It is handled only after the first; the client has its close frame by then.
            with pytest.raises(ConnectionClosed):
                while True:
                    client.recv(BOUND)
            app.child.send_signal(signal.SIGTERM)
        out, errors = app.child.communicate(timeout=BOUND)
    *_, last = out.splitlines()
    assert last == "over True", (out, errors)
    assert app.child.returncode == 0
    if how == "serve":
        assert "served 1" in out, "handlers are left"


@pytest.mark.parametrize("how", ["quick", "quick coroutine", "quick threads"])
@pytest.mark.parametrize("timeout", [0.5])
def test_disconnected_sessions_are_reported(app: App, how: str, timeout: float) -> None:
    """Though the time is over by then."""
    with socket.create_connection(("127.0.0.1", app.port)) as client:
        client.sendall(
            b"GET /cut HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
        )
        assert client.recv(12) == b"HTTP/1.1 101"
        # Signals are handled by now. The close frame is not answered.
        assert next(app.lines) == "come"
        app.child.send_signal(signal.SIGTERM)
        out, errors = app.child.communicate(timeout=BOUND)
    assert (out, errors) == ("gone /cut\nover True\n", "")


CHILD = textwrap.dedent("""
    import multiprocessing, os, signal, sys, threading, time, warnings

    warnings.simplefilter("ignore", DeprecationWarning)  # of threads and forks
    before = sys.argv[1]

    def told(number, frame):
        os._exit(7)

    if before == "function":
        signal.signal(signal.SIGTERM, told)

    def work(began):
        began.set()
        time.sleep(1000)

    def code_of_child():
        fork = multiprocessing.get_context("fork")
        began = fork.Event()
        child = fork.Process(target=work, args=(began,))
        child.start()
        began.wait(60)
        # Again and again: in a child of another thread than the main one CPython 3.13 forgets a signal that comes while
        # nothing waits.
        until = time.monotonic() + 20
        while child.is_alive() and time.monotonic() < until:
            child.terminate()
            child.join(0.2)
        code = child.exitcode
        child.kill()
        return code
""")

PARENT = CHILD + textwrap.dedent("""
    from wirespeed.engine import Engine

    engine = Engine("127.0.0.1", workers=1)
    if before == "coroutine":
        @engine.on_connect
        async def connect(session): ...
    else:
        engine.on_connect(print)
    engine.start()

    def drive():
        print(code_of_child(), engine.has_room(), flush=True)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Timer(0.5, drive).start()
    engine.run()
    print("over")
""")

# The test without an engine.
PLAIN = CHILD + textwrap.dedent("""
    thread = threading.Thread(target=lambda: print(code_of_child(), flush=True))
    thread.start()
    thread.join()
""")


@pytest.mark.skipif(sys.platform != "linux", reason="no fork, or none that is safe")
@pytest.mark.parametrize("before", ["default", "coroutine", "function"])
def test_sigterm_in_child_processes_is_unchanged(before: str) -> None:
    def run(program: str) -> tuple[int, str, str]:
        command = [sys.executable, "-X", "faulthandler", "-c", program, before]
        done = subprocess.run(command, capture_output=True, text=True, timeout=BOUND)
        return done.returncode, done.stdout, done.stderr

    returned, code, errors = run(PLAIN)
    assert (returned, code.strip(), errors) == (0, "7" if before == "function" else "-15", "")
    assert run(PARENT) == (0, f"{code.strip()} True\nover\n", "")
