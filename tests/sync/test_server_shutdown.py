"""The end of the blocking server, and failures of accepting."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import pytest

from support.checks import no_leaks, within
from support.frames import CLOSE, TEXT, Close
from support.serving import LOGGER, logged, masked, request
from support.subject import IS_WIRESPEED, connect, exceptions
from support.threads import Raw, dial, echo, idle, no_threads_left, serving, uri, wait_until

pytestmark = pytest.mark.wirespeed_only("the server is ours")

if IS_WIRESPEED:
    from wirespeed.sync import serve

Client = Callable[..., Any]


@pytest.fixture(params=["wirespeed", "websockets"])
def client(request: pytest.FixtureRequest) -> Client:
    return connect if request.param == "wirespeed" else dial


@contextlib.contextmanager
def in_thread(function: Callable[..., Any], *arguments: Any, **options: Any) -> Iterator[threading.Thread]:
    thread = threading.Thread(target=function, args=arguments, kwargs=options)
    thread.start()
    try:
        yield thread
    finally:
        thread.join(10)
        assert not thread.is_alive()


@contextlib.contextmanager
def clients(client: Client, server: Any, count: int) -> Iterator[list[Any]]:
    """Starts a number of clients, which receive until the end; the list gets their exceptions."""
    ends: list[Any] = []

    def use() -> None:
        with client(uri(server)) as ws:
            try:
                while True:
                    ws.recv(timeout=10)
            except Exception as exc:
                ends.append(exc)

    threads = [threading.Thread(target=use) for _ in range(count)]
    for thread in threads:
        thread.start()
    wait_until(lambda: len(server.connections) == count)
    yield ends
    for thread in threads:
        thread.join(10)


# With open connections


@pytest.mark.parametrize(
    ("arguments", "expected"), [({}, Close(1001)), ({"code": 1012, "reason": "again"}, Close(1012, "again"))], ids=str
)
def test_connections_are_closed(client: Client, arguments: dict[str, Any], expected: Close) -> None:
    ended: list[Any] = []

    def handler(ws: Any) -> None:
        try:
            ws.recv()
        except exceptions.ConnectionClosed as exc:
            ended.append(exc.sent and exc.sent.code)

    with serving(handler) as server, clients(client, server, 5) as ends:
        with within(5):
            server.shutdown(**arguments)
        assert ended == [expected.code] * 5
        assert server.connections == set()
        assert server.sockets == ()
        assert server.fileno() == -1
    assert [Close(int(end.rcvd.code), end.rcvd.reason) for end in ends] == [expected] * 5


def test_connecting_is_refused_afterwards() -> None:
    with serving() as server:
        address = uri(server)
        server.shutdown()
        with pytest.raises(ConnectionRefusedError):
            connect(address)


def test_clients_that_do_not_answer_are_closed_at_the_same_time() -> None:
    with serving(idle, close_timeout=0.5) as server, contextlib.ExitStack() as stack:
        raws = [stack.enter_context(Raw.open(server)) for _ in range(10)]
        wait_until(lambda: len(server.connections) == 10)
        with within(3, at_least=0.45):
            server.shutdown()
        assert [raw.until_close() for raw in raws] == [([], Close(1001))] * 10


def test_connections_are_waited_for() -> None:
    with serving() as server, Raw.open(server) as raw, in_thread(server.shutdown, close_connections=False) as thread:
        wait_until(lambda: not server.sockets)
        raw.send(masked(TEXT, b"x"))
        assert raw.frame().payload == b"x"
        assert thread.is_alive()
        raw.send(masked(8, b"\x03\xe8"))
        assert raw.until_close() == ([], Close(1000))


def test_second_shutdown_closes_connections() -> None:
    """A waiting shutdown does not keep another one from closing."""
    with serving(idle, close_timeout=0.1) as server, Raw.open(server) as raw:
        wait_until(lambda: server.connections)
        with in_thread(server.shutdown, close_connections=False):
            wait_until(lambda: not server.sockets)
            server.shutdown(code=1012)
            assert raw.until_close() == ([], Close(1012))


def test_no_thread_is_left_when_it_returns() -> None:
    for _ in range(20):
        with serving() as server, clients(connect, server, 3):
            server.shutdown()
            assert [thread.name for thread in threading.enumerate() if thread.name.endswith("(_serve)")] == []


def test_handlers_are_waited_for() -> None:
    steps: list[str] = []

    def handler(ws: Any) -> None:
        idle(ws)
        time.sleep(0.2)
        steps.append("handler")

    def shut_down() -> None:
        server.shutdown()
        steps.append("shutdown")

    waiting = within(3, at_least=0.15)
    with serving(handler) as server, clients(connect, server, 1), waiting, in_thread(shut_down), in_thread(shut_down):
        pass
    assert steps == ["handler", "shutdown", "shutdown"]


# With opening handshakes


@pytest.mark.parametrize("hooks", [{}, {"process_response": lambda *_: None}], ids=["bare", "hooks"])
def test_opening_handshake_is_refused(hooks: Any) -> None:
    handled: list[Any] = []
    with serving(handled.append, **hooks) as server, Raw(server) as raw:
        raw.send(request()[:20])
        time.sleep(0.05)
        with in_thread(server.shutdown) as thread:
            wait_until(lambda: not server.sockets)
            time.sleep(0.05)
            assert thread.is_alive()
            raw.send(request()[20:])
            reply = raw.reply()
            assert (reply.status, reply.body) == (503, b"Server is shutting down.\n")
            assert reply["Server"] is not None
            raw.close()
    assert handled == []


def test_shutdown_during_process_request() -> None:
    entered, leave = threading.Event(), threading.Event()

    def process(*_: Any) -> None:
        entered.set()
        leave.wait(10)

    with serving(process_request=process) as server, Raw(server) as raw:
        raw.send(request())
        assert entered.wait(5)
        with in_thread(server.shutdown):
            wait_until(lambda: not server.sockets)
            leave.set()
            assert raw.reply().status == 503
            raw.close()


def test_connection_that_opens_at_the_last_moment() -> None:
    """The client has been accepted when the server shuts down; no handler has begun."""
    handled: list[Any] = []
    threads: list[threading.Thread] = []

    def meanwhile(record: logging.LogRecord) -> bool:
        if record.levelno == logging.DEBUG and record.getMessage().startswith("connection open ("):
            threads.append(threading.Thread(target=server.shutdown))
            threads[0].start()
            wait_until(lambda: not server.sockets)
            time.sleep(0.1)
        return False

    logger = logging.Logger("meanwhile", logging.DEBUG)
    logger.addFilter(meanwhile)

    def handler(ws: Any) -> None:
        handled.append(ws)
        idle(ws)

    with serving(handler, logger=logger, close_timeout=0.1) as server, Raw(server) as raw:
        raw.send(request())
        assert raw.head().status == 101
        raw.sock.settimeout(3)
        assert raw.until_close() == ([], Close(1001))
        threads[0].join(5)
        assert not threads[0].is_alive()
    assert handled == []


def test_refused_client_that_does_not_leave() -> None:
    """It has some time to read the reason, and no more."""
    with serving(process_request=lambda ws, _: ws.respond(403, "no")) as server, Raw(server) as raw:
        raw.send(request())
        assert raw.reply().status == 403
        with within(4, at_least=1):
            server.shutdown()


def test_silent_client_is_waited_for_until_its_timeout() -> None:
    with serving(open_timeout=0.5) as server, Raw(server) as raw:
        time.sleep(0.1)
        with within(3, at_least=0.2):
            server.shutdown()
        assert raw.rest() == b""


def test_clients_that_connect_continuously(client: Client) -> None:
    """Each client is accepted, refused, or cannot connect; none hangs, and the server ends."""
    stop = threading.Event()
    outcomes: list[str] = []

    def use() -> None:
        while not stop.is_set():
            try:
                with client(uri_) as ws:
                    ws.send("x")
                    ws.recv(timeout=5)
            except Exception as exc:
                outcomes.append(type(exc).__name__)
            else:
                outcomes.append("served")

    with serving() as server:
        uri_ = uri(server)
        threads = [threading.Thread(target=use) for _ in range(8)]
        for thread in threads:
            thread.start()
        wait_until(lambda: outcomes.count("served") > 20)
        with within(8):
            server.shutdown()
        stop.set()
        for thread in threads:
            thread.join(10)
    assert "TimeoutError" not in outcomes


# Callers, repeated calls, and times of shutdown


def test_twice(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, LOGGER), serving() as server, within(2):
        server.shutdown()
        server.shutdown()
    entries = [text for text in logged(caplog, logging.INFO) if "listening" not in text]
    assert entries == ["server closing", "server closed"]


def test_by_a_handler() -> None:
    ended: list[Any] = []

    def handler(ws: Any) -> None:
        if ws.recv() == "stop":
            ws.server.shutdown()
            ended.append(ws.close_code)

    with serving(handler) as server, connect(uri(server)) as other, connect(uri(server)) as ws, within(5):
        ws.send("stop")
        with in_thread(idle, other):
            assert list(ws) == []
        assert (ws.close_code, other.close_code) == (1001, 1001)
        server.shutdown()
    assert ended == [1001]


def test_by_two_handlers() -> None:
    """The handlers do not wait for each other."""
    together = threading.Barrier(2)

    def handler(ws: Any) -> None:
        together.wait(5)
        ws.server.shutdown()

    with serving(handler) as server, connect(uri(server)) as one, connect(uri(server)) as other, within(5):
        with in_thread(idle, other):
            assert list(one) == []
        server.shutdown()


def test_by_process_request() -> None:
    with serving(process_request=lambda ws, _: ws.server.shutdown()) as server, Raw(server) as raw, within(5):
        raw.send(request())
        assert raw.reply().status == 503


def test_before_serve_forever() -> None:
    with no_leaks(), no_threads_left(), within(2):
        server = serve(echo, "127.0.0.1", 0)
        server.shutdown()
        server.serve_forever()
        server.shutdown()
        with serve(echo, "127.0.0.1", 0):
            pass


def test_serve_forever_twice_at_the_same_time() -> None:
    with serving() as server:
        with connect(uri(server)):
            pass  # it is running
        with pytest.raises(RuntimeError, match="serve_forever is running"):
            server.serve_forever()


def test_shutdown_at_any_step() -> None:
    """A shutdown at any step of serve_forever."""
    for turn in range(30):
        with serving():
            time.sleep(turn % 10 / 10_000)


# Signals


class Stop(Exception):
    pass


@contextlib.contextmanager
def alarm(handler: Callable[[], Any], after: float) -> Iterator[None]:
    """Calls this in the main thread, by a signal."""

    def handle(number: int, frame: FrameType | None) -> None:
        handler()

    previous = signal.signal(signal.SIGALRM, handle)
    signal.setitimer(signal.ITIMER_REAL, after)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)


def stop() -> None:
    raise Stop


def test_serve_forever_continues_after_an_exception() -> None:
    with no_leaks(), no_threads_left(), serve(idle, "127.0.0.1", 0, close_timeout=0.1) as server:
        with alarm(stop, 0.1), within(3, at_least=0.09), pytest.raises(Stop):
            server.serve_forever()
        with Raw(server) as raw, alarm(stop, 0.3):
            raw.send(request())
            with pytest.raises(Stop):
                server.serve_forever()
            assert raw.head().status == 101


def test_shutdown_by_a_signal_handler() -> None:
    """It interrupts the accepting thread itself."""

    def use() -> None:
        with connect(uri(server)) as ws:
            closed.extend(ws)
            closed.append(ws.close_code)

    closed: list[Any] = []
    with no_leaks(), no_threads_left():
        server = serve(idle, "127.0.0.1", 0)
        with in_thread(use), alarm(server.shutdown, 0.3), within(5, at_least=0.29):
            server.serve_forever()
    assert closed == [1001]


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("has_threads", [True, False], ids=["threads", "no-threads"])
def test_exception_of_a_signal_handler_leaves_shutdown(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, count: int, has_threads: bool
) -> None:
    """The exception is not logged, and closing continues: by itself, or in the next call."""
    with serving(idle, close_timeout=30) as server, contextlib.ExitStack() as stack:
        raws = [stack.enter_context(Raw.open(server)) for _ in range(count)]
        wait_until(lambda: len(server.connections) == count)
        with monkeypatch.context() as patch:
            if not has_threads:
                patch.setattr(threading.Thread, "start", no_thread)
            with alarm(stop, 0.2), within(5, at_least=0.19), pytest.raises(Stop):
                server.shutdown()
        with in_thread(server.shutdown):
            for raw in raws:
                assert raw.until_close() == ([], Close(1001))
                raw.send(masked(CLOSE, b"\x03\xe9"))
        assert server._closers == []
    assert logged(caplog) == []


def no_thread(_thread: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["SIGINT", "SIGTERM"])
def test_processes_end(number: signal.Signals) -> None:
    """By Ctrl-C with an exception; by a SIGTERM handler that shuts down without."""
    script = """
        import signal
        from wirespeed.sync import serve

        def echo(ws):
            for message in ws:
                ws.send(message)

        with serve(echo, "127.0.0.1", 0) as server:
            signal.signal(signal.SIGTERM, lambda *_: server.shutdown())
            signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job ignores it
            print(server.socket.getsockname()[1], flush=True)
            server.serve_forever()
        print("over", flush=True)
    """
    child = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    with child:
        try:
            assert child.stdout is not None
            port = int(child.stdout.readline())
            with connect(f"ws://127.0.0.1:{port}") as ws, within(8):
                ws.send("x")
                assert ws.recv(timeout=5) == "x"
                child.send_signal(number)
                with pytest.raises(exceptions.ConnectionClosedOK):
                    ws.recv(timeout=5)
                assert ws.close_code == 1001
                output, errors = child.communicate(timeout=5)
        finally:
            child.kill()
    if number == signal.SIGINT:
        assert (output, errors.splitlines()[-1]) == ("", "KeyboardInterrupt")
    else:
        assert (output, errors, child.returncode) == ("over\n", "", 0)


# Failures of accepting


def test_max_pending() -> None:
    """Of too many clients, the one that was silent longest (at least a second) is evicted."""
    with serving(max_pending=2) as server, Raw(server) as one:
        time.sleep(0.03)
        with Raw(server) as two:
            time.sleep(0.03)
            with Raw(server) as three:
                with within(3, at_least=0.8):
                    assert one.rest() == b""
                used = time.process_time()
                time.sleep(0.3)
                assert time.process_time() - used < 0.15  # it sleeps meanwhile
                for raw in (two, three):
                    raw.send(request())
                    assert raw.head().status == 101
                    raw.send(masked(8))
                    raw.until_close()


def test_max_pending_of_several_sockets() -> None:
    """The clients of both sockets count together."""
    with (
        no_leaks(),
        no_threads_left(),
        serve(idle, ["127.0.0.1", "127.0.0.2"], 0, max_pending=1) as server,
        Raw(server) as one,
        socket.create_connection(server.sockets[1].getsockname(), timeout=5) as other,
    ):
        other.sendall(request())
        with in_thread(server.serve_forever):
            assert other.recv(4096).startswith(b"HTTP/1.1 101 ")
            with socket.create_connection(server.sockets[1].getsockname(), timeout=5):
                assert one.rest() == b""
            other.sendall(masked(8))
            server.shutdown()


def test_max_pending_does_not_bound_open_connections(client: Client) -> None:
    with serving(max_pending=1) as server, contextlib.ExitStack() as stack:
        for ws in [stack.enter_context(client(uri(server))) for _ in range(10)]:
            ws.send("x")
            assert ws.recv(timeout=5) == "x"


def test_shutdown_while_paused() -> None:
    with serving(max_pending=1, open_timeout=0.3) as server, Raw(server), within(3):
        time.sleep(0.05)
        server.shutdown()


def test_no_more_threads(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """One client is lost, and the next is served when the system has recovered."""
    start = threading.Thread.start
    failures = 2

    def fail(thread: threading.Thread) -> None:
        nonlocal failures
        if thread.name.endswith("(_serve)") and failures:
            failures -= 1
            raise RuntimeError("can't start new thread")
        start(thread)

    with serving(max_pending=2) as server, Raw(server) as silent:
        wait_until(lambda: len(server._limiter) == 1)
        time.sleep(0.03)
        monkeypatch.setattr(threading.Thread, "start", fail)
        used = time.process_time()
        for _ in range(2):
            with Raw(server) as raw, contextlib.suppress(ConnectionError):
                raw.send(request())
                assert raw.rest() == b""
        with connect(uri(server)) as ws:
            ws.send("x")
            assert ws.recv(timeout=5) == "x"
        assert time.process_time() - used < 0.5
        # A client that needs no thread is not evicted for it.
        assert len(server._limiter) == 1
        silent.send(request())
        assert silent.head().status == 101
        silent.send(masked(CLOSE, b"\x03\xe8"))
    [text] = logged(caplog)
    assert text.startswith("cannot accept connections for now: can't start new thread")


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="descriptors are counted in /proc")
def test_no_more_descriptors() -> None:
    """Clients wait, the server does not spin, logs it once, and continues when there are descriptors."""
    script = """
        import logging, os, resource, sys, threading, time
        from wirespeed.sync import serve

        logging.basicConfig(stream=sys.stdout, format="%(message)s")

        def echo(ws):
            for message in ws:
                ws.send(message)

        with serve(echo, "127.0.0.1", 0) as server:
            thread = threading.Thread(target=server.serve_forever)
            thread.start()
            time.sleep(0.2)
            used = len(os.listdir("/proc/self/fd")) - 1
            resource.setrlimit(resource.RLIMIT_NOFILE, (used + 3, used + 3))
            print(server.socket.getsockname()[1], flush=True)
            sys.stdin.readline()
            before = time.process_time()
            time.sleep(1.5)
            print("used", time.process_time() - before, flush=True)
            sys.stdin.readline()
    """
    child = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with child, contextlib.ExitStack() as stack:
        try:
            assert child.stdin is not None
            assert child.stdout is not None
            where = f"ws://127.0.0.1:{int(child.stdout.readline())}"
            served = [stack.enter_context(connect(where)) for _ in range(3)]
            waiting: list[Any] = []
            with in_thread(lambda: waiting.append(stack.enter_context(connect(where)))):
                assert "cannot accept connections for now" in child.stdout.readline()
                print(file=child.stdin, flush=True)
                word, used = child.stdout.readline().split()
                assert (word, waiting) == ("used", [])
                assert float(used) < 0.3
                served[0].close()
                with within(4):
                    wait_until(lambda: waiting)
            waiting[0].send("x")
            assert waiting[0].recv(timeout=5) == "x"
            with in_thread(stack.close):
                print(file=child.stdin, flush=True)
                assert child.stdout.read() == ""
        finally:
            child.kill()


@pytest.mark.parametrize("sent", ["", "GET / HTTP/1.1\r\nHost: x\r\n"], ids=["silent", "slow"])
def test_clients_without_limit(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, sent: str) -> None:
    """Without ``open_timeout`` closing still does not wait for requests forever."""
    from wirespeed._server.accept import HandshakeLimiterBase

    monkeypatch.setattr(HandshakeLimiterBase, "closing_timeout", 0.4)
    serves = serving(idle, open_timeout=None)
    with no_leaks(), within(5), serves as server, Raw(server) as silent, Raw(server) as late:
        silent.send(sent.encode())
        time.sleep(0.05)
        with in_thread(server.shutdown):
            time.sleep(0.05)
            late.send(request())
            assert late.reply().status == 503
        assert silent.rest() == b""
    told = [text for text in logged(caplog, logging.WARNING) if "when the server closed" in text]
    assert told == ["closed a client that had not sent its request when the server closed: 127.0.0.1"]
