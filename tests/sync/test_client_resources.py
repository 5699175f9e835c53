"""Descriptors, references, warnings and processes: connections leave nothing behind."""

from __future__ import annotations

import copy
import gc
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

from support.checks import no_leaks, open_descriptors
from support.frames import Close, close, frame, text
from support.scripted import Scripted, ScriptedServer, Wire
from support.servers import WebSocketsServer
from support.subject import SUBJECT, connect, exceptions

pytestmark = pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="descriptors are counted in /proc")


def echo_once(wire: Wire) -> None:
    wire.accept()
    received = wire.read_frame()
    wire.send(text(received.payload))
    wire.read_until_close()
    wire.send(close(1000))


def test_no_descriptor_left_after_many_connections() -> None:
    with no_leaks(), ScriptedServer(echo_once) as server:
        for _ in range(50):
            with connect(server.uri) as ws:
                ws.send("hello")
                assert ws.recv(timeout=5) == "hello"


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


@pytest.mark.parametrize(
    "script",
    [refuse, accept_and_break, accept_and_leave, accept_and_reset, Wire.close, Wire.reset],
    ids=lambda script: script.__name__,
)
def test_no_descriptor_left_after_failures(script: Callable[[Wire], None]) -> None:
    with no_leaks():
        with ScriptedServer(script) as server:
            for _ in range(20):
                try:
                    ws: Any = connect(server.uri, open_timeout=5)
                except (exceptions.InvalidHandshake, ConnectionError, EOFError):
                    continue
                with pytest.raises(exceptions.ConnectionClosedError):
                    ws.recv(timeout=5)
                ws.close()
            del server
        ws = None


def test_no_descriptor_left_when_the_deadline_passes() -> None:
    with no_leaks(), ScriptedServer(lambda wire: wire.read_to_end()) as server:
        for _ in range(5):
            with pytest.raises(TimeoutError):
                connect(server.uri, open_timeout=0.05)


def test_failed_connection_closes_its_socket_before_it_is_collected(scripted: Scripted) -> None:
    """The socket is closed when the exception is raised and close() was called; no collection is needed."""
    ws = connect(scripted(accept_and_leave).uri)
    with pytest.raises(exceptions.ConnectionClosedError):
        ws.recv(timeout=5)
    ws.close()
    gc.disable()
    try:
        targets = [target for target in open_descriptors().values() if target.startswith("socket:")]
        with connect(scripted(accept_and_leave).uri) as other, pytest.raises(exceptions.ConnectionClosedError):
            other.recv(timeout=5)
    finally:
        gc.enable()
    assert len(targets) == len(set(targets))


@pytest.mark.wirespeed_only("threads of websockets keep its connections alive")
def test_connection_is_freed(server: WebSocketsServer) -> None:
    """By reference counting alone: a connection is in no cycle."""
    gc.disable()
    try:
        ws = connect(server.uri)
        ws.send("hello")
        assert ws.recv(timeout=5) == "hello"
        ws.close()
        reference = weakref.ref(ws)
        del ws
        assert reference() is None
    finally:
        gc.enable()


@pytest.mark.wirespeed_only("threads of websockets keep its connections alive")
def test_dropped_open_connection_warns(server: WebSocketsServer) -> None:
    """A dropped connection warns, as files and sockets do, and its socket is closed."""
    ws = connect(server.uri)
    target = open_descriptors()[ws.fileno()]
    with pytest.warns(ResourceWarning, match="unclosed"):  # noqa: PT031 - del cannot be anywhere else
        del ws
        gc.collect()
    assert target not in open_descriptors().values()


@pytest.mark.wirespeed_only("threads of websockets keep its connections alive")
def test_dropped_connection_sends_a_close_frame(scripted: Scripted) -> None:
    def script(wire: Wire) -> Any:
        wire.accept()
        return wire.read_until_close()

    server = scripted(script)
    ws = connect(server.uri, compression=None)
    ws.send("last")
    with pytest.warns(ResourceWarning, match="unclosed"):  # noqa: PT031 - del cannot be anywhere else
        del ws
        gc.collect()
    frames, farewell = server.result
    assert [received.payload for received in frames] == [b"last"]
    assert farewell == Close(1001)


@pytest.mark.wirespeed_only("ours")
@pytest.mark.parametrize("function", [copy.copy, copy.deepcopy, pickle.dumps], ids=["copy", "deepcopy", "pickle"])
def test_connection_cannot_be_copied(server: WebSocketsServer, function: Callable[[Any], Any]) -> None:
    with connect(server.uri) as ws:
        with pytest.raises(TypeError):
            function(ws)
        ws.send("still open")
        assert ws.recv(timeout=5) == "still open"


def run(program: str, *arguments: str, timeout: float = 30) -> str:
    """Runs a program in a new interpreter with all warnings as errors; returns its output."""
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[1]), *filter(None, sys.path)]),
        "WIRESPEED_TEST_SUBJECT": SUBJECT,
    }
    command = [sys.executable, "-X", "dev", "-W", "error", "-c", textwrap.dedent(program), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


def test_no_warning_in_development_mode(server: WebSocketsServer) -> None:
    output = run(
        """
        import sys
        from support.subject import connect
        with connect(sys.argv[1]) as ws:
            ws.send("hello")
            print(ws.recv(timeout=5))
        """,
        server.uri,
    )
    assert output == "hello\n"


@pytest.mark.wirespeed_only("websockets has threads, which a fork does not copy")
def test_fork(server: WebSocketsServer) -> None:
    """A child that never touches the connection does not disturb the parent's, even when it exits."""
    output = run(
        """
        import gc, os, sys
        from support.subject import connect
        ws = connect(sys.argv[1])
        ws.send("before"); print(ws.recv(timeout=5), flush=True)
        child = os.fork()
        if child == 0:
            gc.collect()
            with connect(sys.argv[1]) as own:
                own.send("child"); print(own.recv(timeout=5), flush=True)
            sys.stdout.flush()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        ws.send("after"); print(ws.recv(timeout=5), flush=True)
        ws.close()
        print(ws.close_code)
        """,
        server.uri,
    )
    assert output == "before\nchild\nafter\n1000\n"


@pytest.mark.wirespeed_only("websockets has threads, which a fork does not copy")
def test_masking_keys_differ_after_fork() -> None:
    """Random numbers drawn in bulk must not be shared between parent and child."""

    def script(wire: Wire) -> bytes:
        wire.accept()
        return wire.read_exactly(2 + 4 + 1)[2:6]

    with ScriptedServer(script) as server:
        run(
            """
            import os, sys
            from support.subject import connect
            warm = connect(sys.argv[1], compression=None); warm.send("x"); warm.abort()
            child = os.fork()
            ws = connect(sys.argv[1], compression=None); ws.send("x"); ws.abort()
            if child == 0:
                os._exit(0)
            assert os.waitpid(child, 0)[1] == 0
            """,
            server.uri,
        )
    assert len(server.results) == 3
    assert len(set(server.results)) == 3


def test_exit_with_an_open_connection(server: WebSocketsServer) -> None:
    """The interpreter ends immediately and quietly without a close."""
    program = (
        "import sys; from support.subject import connect; ws = connect(sys.argv[1]); ws.send('x'); print(ws.recv(5))"
    )
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[1]), *filter(None, sys.path)]),
        "WIRESPEED_TEST_SUBJECT": SUBJECT,
    }
    done = subprocess.run(
        [sys.executable, "-c", program, server.uri],
        capture_output=True,
        text=True,
        timeout=20,
        env=environment,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "x\n", "")
