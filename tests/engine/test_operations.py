"""Operation of an engine: figures, drain, signals, restarts, log, certificate."""

from __future__ import annotations

import asyncio
import http.client
import json
import logging
import os
import resource
import signal
import socket
import ssl
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import wirespeed
from support.certificates import Certificates
from support.load_scaling import load_scaled
from wirespeed.engine import Drained, Engine
from wirespeed.sync import ClientConnection, connect

pytestmark = pytest.mark.wirespeed_only("websockets has no engine")

PATIENCE = 20.0


def dial(engine: Engine, path: str = "/", **options: Any) -> ClientConnection:
    host, port = engine.addresses[0]
    return connect(f"ws://{host}:{port}{path}", proxy=None, **options)


def get(address: tuple[str, int], path: str, method: str = "GET", **headers: str) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(*address, timeout=PATIENCE)
    try:
        connection.request(method, path, headers=headers)
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def eventually(what: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_stats_of_all_and_of_each_worker() -> None:
    engine = Engine("127.0.0.1", workers=2)
    engine.echo("/")
    with engine, dial(engine) as ws:
        for message in ("hello", b"\0" * 1000):
            ws.send(message)
            assert ws.recv(PATIENCE) == message
        eventually(lambda: engine.stats()["messages_sent"] == 2)
        stats = engine.stats()
        assert (stats["messages_received"], stats["bytes_received"], stats["bytes_sent"]) == (2, 1005, 1005)
        assert stats["loop_lag"]["count"] > 0
        assert 0 < stats["loop_lag"]["p50"] <= stats["loop_lag"]["p99"] <= load_scaled(5)
        assert len(stats["workers"]) == 2
        for name in ("sessions", "messages_received", "bytes_sent", "panics"):
            assert sum(worker[name] for worker in stats["workers"]) == stats[name]
        assert sum(count for _, count in stats["loop_lag"]["buckets"]) == stats["loop_lag"]["count"]
        assert stats["loop_lag"]["buckets"][-1][0] is None
        json.dumps(stats, allow_nan=False)


def test_metrics_as_text_and_over_http() -> None:
    engine = Engine("127.0.0.1", metrics=("127.0.0.1", 0), metrics_path="/stats", metrics_token="of-the-metrics")
    with engine, dial(engine):
        inside = engine.metrics_address
        assert inside is not None
        eventually(lambda: engine.stats()["sessions"] == 1)
        for text in (
            engine.metrics(),
            get(engine.addresses[0], "/stats", Authorization="Bearer of-the-metrics")[1].decode(),
            get(inside, "/metrics", Authorization="Bearer of-the-metrics")[1].decode(),
        ):
            lines = text.splitlines()
            assert lines[-1] == "# EOF"
            sessions = [line for line in lines if line.startswith("wirespeed_sessions{")]
            assert sum(int(line.split()[-1]) for line in sessions) == 1
        assert get(engine.addresses[0], "/stats")[0] == 401
        assert get(engine.addresses[0], "/metrics")[0] == 426
        assert get(engine.addresses[0], "/health") == (200, b"ok\n")


def test_paths_of_health() -> None:
    with Engine("127.0.0.1", health=("/live", "/up")) as engine:
        at = engine.addresses[0]
        assert [get(at, path)[0] for path in ("/live", "/up", "/health", "/ready")] == [200, 200, 426, 426]
        assert get(at, "/live", "HEAD") == (200, b"")
    with Engine("127.0.0.1", health=False) as engine:
        assert get(engine.addresses[0], "/health")[0] == 426
        assert engine.metrics_address is None


@pytest.mark.parametrize(
    "options",
    [
        {"metrics": ("nowhere", 80)},
        {"metrics_path": "metrics"},
        {"metrics_token": "with space"},
        {"metrics_token": ""},
        {"health": ("health", "/ready")},
        {"drain_timeout": -1},
        {"drain_batch": 0},
        {"page": "short"},
    ],
)
def test_wrong_settings(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        Engine("127.0.0.1", **options)


# ---- the end ----


def test_drain() -> None:
    engine = Engine("127.0.0.1", metrics=("127.0.0.1", 0))
    codes: list[int | None] = []

    def stay(ws: ClientConnection) -> None:
        with pytest.raises(wirespeed.ConnectionClosed) as info:
            ws.recv(PATIENCE)
        codes.append(info.value.rcvd.code if info.value.rcvd else None)

    with engine:
        at = engine.metrics_address
        assert at is not None
        clients = [dial(engine) for _ in range(9)]
        threads = [threading.Thread(target=stay, args=(ws,)) for ws in clients]
        for thread in threads:
            thread.start()
        silent = dial(engine)
        states: list[tuple[int, bytes]] = []
        look = threading.Timer(0.2, lambda: states.append(get(at, "/ready")))
        look.start()
        begin = time.monotonic()
        assert engine.drain(2, batch=3) == Drained(ended=9, cut=1)
        assert 1 < time.monotonic() - begin < load_scaled(4)
        look.join()
        assert states == [(503, b"draining\n")]
        for thread in threads:
            thread.join()
        assert codes == [1012] * 9
        silent.close()
        # All events can still be taken, and then it is over.
        events = [event for batch in engine.batches() for event in batch]
        assert len(events) == 20
        with pytest.raises(wirespeed.InvalidState):
            engine.broadcast("late")


def test_drain_refuses_invalid_close_frames() -> None:
    with Engine("127.0.0.1") as engine:
        with pytest.raises(wirespeed.ProtocolError):
            engine.drain(1, code=1005)
        with pytest.raises(wirespeed.ProtocolError):
            engine.drain(1, reason="x" * 124)
        with pytest.raises(ValueError, match="batch"):
            engine.drain(1, batch=0)
        with dial(engine):
            pass
    with pytest.raises(RuntimeError):
        Engine("127.0.0.1").drain(1)


async def test_drain_on_an_event_loop() -> None:
    async with Engine("127.0.0.1") as engine:
        host, port = engine.addresses[0]
        async with wirespeed.connect(f"ws://{host}:{port}/", proxy=None) as ws:
            draining = asyncio.create_task(engine.adrain(5))
            with pytest.raises(wirespeed.ConnectionClosed):
                await ws.recv()
            assert await draining == Drained(ended=1, cut=0)
        assert [type(event).__name__ async for batch in engine for event in batch] == ["Connected", "Disconnected"]


# ---- processes ----

APP = """
import sys
from wirespeed.engine import Engine

mode, port, *rest = sys.argv[1:]
options = {"handoff": rest[0]} if rest else {}
engine = Engine("127.0.0.1", int(port), workers=2, drain_timeout=3, **options)
engine.echo("/echo")

if mode == "async":
    @engine.on_message
    async def answer(session, message):
        session.send(message)
else:
    @engine.on_message
    def answer(session, message):
        session.send(message)

@engine.on_disconnect
def gone(session, code, reason):
    print("gone", code, flush=True)

engine.start()
print(engine.addresses[0][1], flush=True)
engine.run() if mode != "started" else None
import signal
print("over", signal.getsignal(signal.SIGTERM) is signal.SIG_DFL, flush=True)
"""


class Process:
    def __init__(self, mode: str, port: int = 0, *rest: str) -> None:
        command = [sys.executable, "-X", "faulthandler", "-c", APP, mode, str(port), *rest]
        self.child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self.port = int(self.line())

    def line(self) -> str:
        assert self.child.stdout is not None
        return self.child.stdout.readline().strip()

    def end(self) -> int:
        try:
            return self.child.wait(PATIENCE)
        finally:
            self.child.kill()
            self.child.wait()
            assert self.child.stdout is not None
            self.child.stdout.close()


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_sigterm_drains(mode: str) -> None:
    process = Process(mode)
    try:
        with connect(f"ws://127.0.0.1:{process.port}/", proxy=None) as ws:
            ws.send("hello")
            assert ws.recv(PATIENCE) == "hello"
            process.child.send_signal(signal.SIGTERM)
            with pytest.raises(wirespeed.ConnectionClosed) as info:
                ws.recv(PATIENCE)
            assert info.value.rcvd == wirespeed.Close(1012, "service restart")
        assert process.line() == "gone 1012"
        assert process.line() == "over True"
    finally:
        assert process.end() == 0


def test_a_second_sigterm_stops() -> None:
    process = Process("sync")
    try:
        with connect(f"ws://127.0.0.1:{process.port}/", proxy=None, close_timeout=0.1) as ws:
            # Once it answers, it has its handlers, including those of signals.
            ws.send("hello")
            assert ws.recv(PATIENCE) == "hello"
            begin = time.monotonic()
            process.child.send_signal(signal.SIGTERM)
            time.sleep(0.5)
            process.child.send_signal(signal.SIGTERM)
            assert process.child.wait(PATIENCE) == 0
            assert time.monotonic() - begin < load_scaled(2.5)
            del ws
    finally:
        process.end()


REQUEST = (
    b"GET /echo HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)


def storm(port: int, stop: threading.Event, opened: list[int], failed: list[str]) -> None:
    while not stop.is_set():
        try:
            with socket.create_connection(("127.0.0.1", port), PATIENCE) as sock:
                sock.sendall(REQUEST)
                answer = sock.recv(12)
                # No time wait at this end: ports would run out.
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            if answer == b"HTTP/1.1 101":
                opened.append(1)
            else:
                failed.append(repr(answer))
        except OSError as exc:
            failed.append(repr(exc))


def test_restart_refuses_no_client(tmp_path: Path) -> None:
    path = str(tmp_path / "app.sock")
    processes = [Process("sync", 0, path)]
    port = processes[0].port
    stop, opened, failed = threading.Event(), list[int](), list[str]()
    threads = [threading.Thread(target=storm, args=(port, stop, opened, failed)) for _ in range(4)]
    try:
        with connect(f"ws://127.0.0.1:{port}/echo", proxy=None) as ws:
            for thread in threads:
                thread.start()
            for _ in range(2):
                time.sleep(0.5)
                processes.append(Process("sync", port, path))
                # The process with the listeners ends by itself.
                assert processes[-2].child.wait(PATIENCE) == 0
            with pytest.raises(wirespeed.ConnectionClosed) as info:
                ws.recv(PATIENCE)
            assert info.value.rcvd == wirespeed.Close(1012, "service restart")
        time.sleep(0.3)
        stop.set()
        for thread in threads:
            thread.join()
        assert failed == []
        assert len(opened) > 200
        processes[-1].child.send_signal(signal.SIGTERM)
    finally:
        stop.set()
        statuses = [process.end() for process in processes]
    assert statuses == [0, 0, 0]
    assert not os.path.exists(path)


def test_the_queue_of_a_listener_that_is_closed_is_reset() -> None:
    """The reason why listeners are handed over, and not opened again beside the old ones."""

    def listen(port: int) -> socket.socket:
        one = socket.socket()
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        one.bind(("127.0.0.1", port))
        one.listen()
        return one

    with listen(0) as old:
        port = old.getsockname()[1]
        clients = [socket.create_connection(("127.0.0.1", port)) for _ in range(8)]
        with listen(port):
            old.close()
            for client in clients:
                with client, pytest.raises(ConnectionResetError):
                    client.recv(1)


# ---- the log ----


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> Iterator[Callable[[], list[tuple[str, str]]]]:
    with caplog.at_level(logging.DEBUG, "wirespeed.engine"):
        yield lambda: [(one.levelname, one.getMessage()) for one in caplog.records if one.name == "wirespeed.engine"]


def test_handshakes_that_fail_are_logged_once_without_secrets(log: Callable[[], list[tuple[str, str]]]) -> None:
    with Engine("127.0.0.1") as engine:
        for _ in range(5):
            with pytest.raises(wirespeed.InvalidStatus):
                dial(engine, "/room?token=secret", origin="https://elsewhere.example")
        eventually(lambda: len(log()) == 1)
    (level, text) = log()[0]
    assert level == "INFO"
    assert text.startswith("the opening handshake of 127.0.0.1:")
    assert "secret" not in text


def test_slow_clients_are_logged(log: Callable[[], list[tuple[str, str]]]) -> None:
    with Engine("127.0.0.1", outbox_limit=100_000) as engine, dial(engine, max_queue=1):
        eventually(lambda: engine.stats()["sessions"] == 1)
        while not any("reads too slowly" in text for _, text in log()):
            engine.broadcast(b"\0" * 50_000)
            engine.wait_for_room(timeout=1)
            time.sleep(0.001)
        level, text = next(line for line in log() if "reads too slowly" in line[1])
        assert level == "WARNING"
        assert text.startswith("session 1 of 127.0.0.1:")
        assert text.endswith("it is closed")


MANY = """
import logging, os, resource, sys, time
from wirespeed.engine import Engine

_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (2000, hard))
texts = []
class Keep(logging.Handler):
    def emit(self, record):
        texts.append(record.getMessage())
logging.getLogger("wirespeed.engine").addHandler(Keep())
logging.getLogger("wirespeed.engine").setLevel(logging.DEBUG)
held = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
with Engine("127.0.0.1", workers=1) as engine:
    import socket
    with socket.create_connection(engine.addresses[0]) as client:
        client.sendall(b"nonsense\\r\\n\\r\\n")
        client.recv(100)
    deadline = time.monotonic() + 20
    while not texts and time.monotonic() < deadline:
        time.sleep(0.001)
print(texts)
"""


def test_log_thread_supports_any_descriptor() -> None:
    """Also those that `select` does not support."""
    if (hard := resource.getrlimit(resource.RLIMIT_NOFILE)[1]) != resource.RLIM_INFINITY and hard < 2000:
        pytest.skip("few descriptors")
    done = subprocess.run([sys.executable, "-c", MANY], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert "the opening handshake of" in done.stdout


FEW = """
import logging, resource, socket, sys, time
from wirespeed.engine import Engine

lines = []
class Keep(logging.Handler):
    def emit(self, record):
        lines.append((record.levelname, record.getMessage()))
logging.getLogger("wirespeed.engine").addHandler(Keep())

engine = Engine("127.0.0.1", workers=1)
engine.echo("/")
with engine:
    at = engine.addresses[0]
    # Each client here takes two descriptors: its own and that of the engine.
    used = socket.socket().fileno()
    resource.setrlimit(resource.RLIMIT_NOFILE, (used + 40, used + 40))
    clients = []
    try:
        while True:
            clients.append(socket.create_connection(at))
    except OSError:
        pass
    deadline = time.monotonic() + 20
    while not any("be accepted for now" in text for _, text in lines):
        assert time.monotonic() < deadline, lines
        time.sleep(0.01)
    print(len([line for line in lines if "accepted" in line[1]]), lines[-1], flush=True)
    for client in clients:
        client.close()
    while engine.stats()["connections"]:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    from wirespeed.sync import connect
    with connect(f"ws://{at[0]}:{at[1]}/", proxy=None) as ws:
        ws.send("hello")
        print(ws.recv(20), flush=True)
"""


def test_descriptors_that_run_out_are_logged_once() -> None:
    done = subprocess.run([sys.executable, "-c", FEW], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    first, last = done.stdout.splitlines()
    assert first.startswith("1 ('ERROR', 'no client can be accepted for now: Too many open files")
    assert last == "hello"


def test_the_thread_of_the_log_ends_with_the_engine() -> None:
    def names() -> list[str]:
        return [thread.name for thread in threading.enumerate()]

    before = names().count("wirespeed-log")
    with Engine("127.0.0.1"):
        assert names().count("wirespeed-log") == before + 1
    eventually(lambda: names().count("wirespeed-log") == before)


# ---- the certificate ----


def write(certificates: Certificates, folder: Path) -> None:
    leaf = certificates.ca.issue_cert("localhost")
    (folder / "server.pem").write_bytes(leaf.cert_chain_pems[0].bytes())
    (folder / "server.key").write_bytes(leaf.private_key_pem.bytes())


def serial(engine: Engine, context: ssl.SSLContext) -> str:
    with (
        socket.create_connection(engine.addresses[0], PATIENCE) as sock,
        context.wrap_socket(sock, server_hostname="localhost") as tls,
    ):
        certificate = tls.getpeercert()
        assert certificate
        return str(certificate["serialNumber"])


def test_certificate_is_reloaded(
    certificates: Certificates, tmp_path: Path, log: Callable[[], list[tuple[str, str]]]
) -> None:
    write(certificates, tmp_path)
    tls = wirespeed.TLS(cert=tmp_path / "server.pem", key=tmp_path / "server.key")
    context = certificates.client_context()
    engine = Engine("127.0.0.1", ssl=tls)
    engine.echo("/")

    def is_named(lines: list[tuple[str, str]]) -> bool:
        return any(level == "ERROR" and f"{tmp_path}/server.pem: cert" in text for level, text in lines)

    with engine:
        host, port = engine.addresses[0]
        first = serial(engine, context)
        with connect(f"wss://{host}:{port}/", ssl=context, server_hostname="localhost", proxy=None) as ws:
            # An unusable file changes nothing, and is logged with its name.
            (tmp_path / "server.pem").write_text("-----BEGIN nonsense")
            eventually(lambda: serial(engine, context) == first and is_named(log()))
            write(certificates, tmp_path)
            eventually(lambda: serial(engine, context) != first)
            ws.send("still here")
            assert ws.recv(PATIENCE) == "still here"
        # At once, where waiting is not wanted.
        second = serial(engine, context)
        write(certificates, tmp_path)
        engine.reload_tls()
        assert serial(engine, context) not in (first, second)
        (tmp_path / "server.key").write_text("nonsense")
        with pytest.raises(ValueError, match="key"):
            engine.reload_tls()
        assert serial(engine, context) != second
    assert not any("PRIVATE" in text for _, text in log())


def test_files_of_current_settings_are_watched(certificates: Certificates, tmp_path: Path) -> None:
    """Also after other settings were loaded; the files of the first ones no longer matter."""
    old, new = tmp_path / "old", tmp_path / "new"
    for folder in (old, new):
        folder.mkdir()
        write(certificates, folder)
    context = certificates.client_context()
    with Engine("127.0.0.1", ssl=wirespeed.TLS(cert=old / "server.pem", key=old / "server.key")) as engine:
        first = serial(engine, context)
        engine.reload_tls(wirespeed.TLS(cert=new / "server.pem", key=new / "server.key"))
        second = serial(engine, context)
        assert second != first
        write(certificates, old)
        end = time.monotonic() + 4  # twice as long as it takes until a change is noticed
        while time.monotonic() < end:
            assert serial(engine, context) == second
            time.sleep(0.2)
        write(certificates, new)
        eventually(lambda: serial(engine, context) != second)


def test_files_that_change_before_the_start(certificates: Certificates, tmp_path: Path) -> None:
    """Their content at the engine's start counts, if it is usable."""
    write(certificates, tmp_path)
    context = certificates.client_context()
    settings = wirespeed.TLS(cert=tmp_path / "server.pem", key=tmp_path / "server.key")
    with Engine("127.0.0.1", ssl=settings) as engine:
        first = serial(engine, context)
    write(certificates, tmp_path)
    with Engine("127.0.0.1", ssl=settings) as engine:
        second = serial(engine, context)
        assert second != first
    (tmp_path / "server.key").write_text("-----BEGIN nonsense")
    with Engine("127.0.0.1", ssl=settings) as engine:
        assert serial(engine, context) == first
        write(certificates, tmp_path)
        eventually(lambda: serial(engine, context) not in (first, second))


def test_without_tls_there_is_nothing_to_reload() -> None:
    with Engine("127.0.0.1") as engine, pytest.raises(RuntimeError, match="no TLS"):
        engine.reload_tls()
