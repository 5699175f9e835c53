"""More clients in the opening handshake than ``max_pending``: honest clients are still served."""

from __future__ import annotations

import contextlib
import errno
import logging
import resource
import select
import socket
import ssl
import statistics
import struct
import threading
import time
from typing import Any

import pytest

from support.certificates import Certificates
from support.checks import alive, no_leaks, within, without_collecting
from support.flood import flood, raise_descriptors
from support.frames import TEXT, Close
from support.load_scaling import load_scaled
from support.serving import LOGGER, logged, masked, request
from support.subject import IS_WIRESPEED
from support.threads import Raw, echo, serving, wait_until

pytestmark = pytest.mark.wirespeed_only("the server is ours")

if IS_WIRESPEED:
    from wirespeed import TLS

# Much longer than any client waits on an idle machine; shorter than half-open clients live.
SOON = 3.0

# No handshake reaches this limit during a test: seconds.
NEVER = 3600.0


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that evicts silent clients soon when there are too many."""
    from wirespeed._server import accept

    monkeypatch.setattr(accept, "IDLE_TIME", 0.02)


class From(Raw):
    """A client at another address of the loopback interface."""

    def __init__(self, server: Any, host: str) -> None:
        self.buffer = bytearray()
        self.sock = socket.create_connection(server.socket.getsockname(), load_scaled(10), source_address=(host, 0))


def converse(raw: Raw) -> None:
    raw.send(masked(TEXT, b"x") + masked(8, b"\x03\xe8"))
    assert raw.frame().payload == b"x"
    assert raw.until_close() == ([], Close(1000))


def be_served(server: Any, host: str) -> float:
    """Returns the time from the connection to the echo."""
    since = time.monotonic()
    with From(server, host) as raw:
        raw.send(request())
        assert raw.head().status == 101
        raw.send(masked(TEXT, b"x"))
        assert raw.frame().payload == b"x"
        took = time.monotonic() - since
        raw.send(masked(8, b"\x03\xe8"))
        raw.until_close()
    return took


def is_closed(raw: Raw) -> bool:
    """Returns whether the server has closed a connection without sending anything."""
    raw.sock.settimeout(0.01)
    try:
        return not raw.sock.recv(1)
    except TimeoutError:
        return False
    except ConnectionResetError:
        return True
    finally:
        raw.sock.settimeout(load_scaled(10))


def honest_clients(server: Any) -> None:
    """Clients from an address of their own, and from that of the flood, are served.

    The server must have ``open_timeout=NEVER``: then only evictions make room for them. Their time is no criterion,
    because a server on a busy machine needs seconds to accept the thousands of clients before them.
    """
    for host in ("127.0.0.2", "127.0.0.1"):
        times = [be_served(server, host) for _ in range(5)]
        print(f"from {host}: median {statistics.median(times) * 1e3:.1f} ms, at most {max(times) * 1e3:.1f} ms")


def count_threads() -> int:
    return len([thread for thread in threading.enumerate() if thread.name.endswith("(_serve)")])


# Floods


@pytest.mark.parametrize(
    ("count", "addresses"), [(2200, "one"), (2200, "many"), (15_000, "one"), (15_000, "many")], ids=str
)
def test_half_open_clients(caplog: pytest.LogCaptureFixture, count: int, addresses: str) -> None:
    """The clients get no threads, and cause one log record."""
    if resource.getrlimit(resource.RLIMIT_NOFILE)[1] < count + 1384 or not raise_descriptors(4096):
        pytest.skip(f"the hard limit of descriptors is below {count + 1384}: a process cannot have as many clients")
    with serving(open_timeout=NEVER) as server, flood(server.socket.getsockname()[1], count, addresses) as clients:
        clients.there()
        honest_clients(server)
        wait_until(lambda: len(server._limiter) <= 1024)
        honest_clients(server)
        assert count_threads() < 10
        wait_until(lambda: any("max_pending" in text for text in logged(caplog)))
    told = [text for text in logged(caplog) if "max_pending=1024" in text]
    assert len(told) == 1
    assert "times)" in told[0]
    assert ("127.0.0.1" if addresses == "one" else "127.77.") in told[0]


def test_half_open_tls(certificates: Certificates) -> None:
    if not raise_descriptors(4096):
        pytest.skip("the hard limit of descriptors is below 4,096")
    cert, key = certificates.server_files()
    options: dict[str, Any] = {"ssl": TLS(cert=cert, key=key), "max_pending": 100, "open_timeout": NEVER}
    with serving(**options) as server, flood(server.socket.getsockname()[1], 400, half="tls") as clients:
        clients.there()
        for _ in range(5):
            with socket.create_connection(server.socket.getsockname(), load_scaled(10)) as sock:
                context = certificates.client_context()
                with context.wrap_socket(sock, server_hostname="localhost") as secure:
                    secure.sendall(request())
                    assert secure.recv(4096).startswith(b"HTTP/1.1 101 ")
                    with contextlib.suppress(ssl.SSLError, OSError):
                        secure.sendall(masked(8, b"\x03\xe8"))
        wait_until(lambda: len(server._limiter) <= 100)
        wait_until(lambda: count_threads() <= 5)


def test_half_open_tls_before_accept(certificates: Certificates) -> None:
    """It takes a place as well, and is evicted for others."""
    from wirespeed.sync import serve

    cert, key = certificates.server_files()
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = certificates.client_context().wrap_bio(incoming, outgoing, server_hostname="localhost")
    with contextlib.suppress(ssl.SSLWantReadError):
        client.do_handshake()
    with serve(echo, "127.0.0.1", 0, ssl=TLS(cert=cert, key=key)) as server, From(server, "127.0.0.1") as raw:
        raw.send(outgoing.read())
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        # Our thread has answered, and waits for the other half.
        assert raw.sock.recv(1) == b"\x16"
        assert len(server._limiter) == 1
        raw.close()
        wait_until(lambda: len(server._limiter) == 0)
        server.shutdown()
        thread.join()


# Evictions


@pytest.mark.usefixtures("impatient")
def test_silent_client_of_the_busiest_address_is_evicted() -> None:
    """A client alone at its address stays, and so does a client that sends, even a byte now and then."""
    with serving(max_pending=5) as server, contextlib.ExitStack() as stack, within(10):

        def come(host: str) -> Raw:
            raw = stack.enter_context(From(server, host))
            time.sleep(0.03)
            return raw

        alone = come("127.0.0.2")
        slow = come("127.0.0.1")
        others = [come("127.0.0.1") for _ in range(3)]
        whole = request()
        for at in range(3):
            slow.send(whole[at : at + 1])
            time.sleep(0.03)
            others.append(come("127.0.0.1"))
            assert [is_closed(raw) for raw in others] == [True] * (at + 1) + [False] * 3
        assert not is_closed(alone)
        for raw, rest in ((alone, whole), (slow, whole[3:])):
            raw.send(rest)
            assert raw.head().status == 101
            converse(raw)
        stack.close()


@pytest.mark.usefixtures("impatient")
def test_client_in_a_hook_is_not_evicted() -> None:
    """A client that has sent its complete request takes no place."""
    entered = threading.Semaphore(0)
    leave = threading.Event()

    def process(ws: Any, request: Any) -> None:
        if request.path == "/slow":
            entered.release()
            leave.wait(10)

    with serving(max_pending=2, process_request=process) as server, contextlib.ExitStack() as stack, within(10):
        working = []
        for _ in range(4):
            working.append(stack.enter_context(From(server, "127.0.0.1")))
            working[-1].send(request("/slow"))
            assert entered.acquire(timeout=5)
        assert len(server._limiter) == 0
        for _ in range(5):
            stack.enter_context(From(server, "127.0.0.1"))
            time.sleep(0.03)
        be_served(server, "127.0.0.1")
        leave.set()
        for raw in working:
            assert raw.head().status == 101
            converse(raw)
        stack.close()


@pytest.mark.usefixtures("impatient")
def test_refused_clients_are_evicted() -> None:
    """Refused clients take places too, and are evicted for others."""
    with serving(max_pending=3) as server, contextlib.ExitStack() as stack, within(8):
        for _ in range(8):
            raw = stack.enter_context(From(server, "127.0.0.1"))
            raw.send(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            assert raw.head().status in (400, 426)
            time.sleep(0.03)
        wait_until(lambda: len(server._limiter) <= 3)
        with within(SOON):
            be_served(server, "127.0.0.1")
        stack.close()


def test_burst_of_sending_clients_is_not_evicted(caplog: pytest.LogCaptureFixture) -> None:
    """No client is evicted before it had time to send, although there are more clients than may be pending."""
    sock = socket.socket()
    sock.bind(("127.0.0.1", 0))
    sock.listen(100)
    raws = [socket.create_connection(sock.getsockname(), 10) for _ in range(60)]
    for raw in raws:
        raw.sendall(request())
    with serving(echo, sock=sock, max_pending=1), within(10):
        for raw in raws:
            assert raw.recv(4096).startswith(b"HTTP/1.1 101 ")
            raw.sendall(masked(8, b"\x03\xe8"))
            raw.close()
    assert logged(caplog) == []


@pytest.mark.usefixtures("impatient")
def test_free_place_is_taken_immediately(monkeypatch: pytest.MonkeyPatch) -> None:
    """While there are far too many clients, none is accepted until one of them leaves."""
    from wirespeed._server import accept

    monkeypatch.setattr(accept, "IDLE_TIME", 600.0)
    monkeypatch.setattr(accept, "GRACE", 600.0)
    with serving(max_pending=1) as server, contextlib.ExitStack() as stack:
        raws = [stack.enter_context(From(server, "127.0.0.1")) for _ in range(accept.BURST)]
        wait_until(lambda: server._limiter.delay() > 0)
        last = stack.enter_context(From(server, "127.0.0.1"))
        last.send(request())
        wait_until(lambda: server._paused)
        raws[0].send(request())
        assert raws[0].head().status == 101
        assert last.head().status == 101
        for raw in (raws[0], last):
            converse(raw)


def test_closed_clients_get_no_threads() -> None:
    """Thousands of clients that connect and reset would delay others if each got a thread."""
    from wirespeed.sync import serve

    with serve(echo, "127.0.0.1", 0) as server:
        begun: list[Any] = []
        go_on = server._serve
        server._serve = lambda pending: (begun.append(pending.address), go_on(pending))  # type: ignore[assignment, func-returns-value]
        for number in range(60):
            with socket.create_connection(server.socket.getsockname(), 10) as sock:
                sock.sendall((b"", request()[:20], request())[number % 3])
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            # The client comes after them, and is silent after its message: that is no reason to evict it.
            with From(server, "127.0.0.1") as raw:
                raw.send(request() + masked(TEXT, b"x") + masked(8, b"\x03\xe8"))
                raw.sock.shutdown(socket.SHUT_WR)
                assert raw.head().status == 101
                assert raw.frame().payload == b"x"
                assert begun[-1] == raw.sock.getsockname()
            # On a busy machine, a reset may still be in transit.
            assert len(begun) < 20
            wait_until(lambda: len(server._limiter) == 0)
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.usefixtures("impatient")
def test_closed_clients_leave_no_garbage() -> None:
    """Clients leave no garbage for the collector: a flood is faster than that."""
    from wirespeed._server.accept import AcceptedSocket

    with no_leaks(), within(20), without_collecting(), serving(echo, max_pending=2) as server:
        with contextlib.ExitStack() as stack:
            raws = [stack.enter_context(From(server, "127.0.0.1")) for _ in range(60)]
            for count, raw in enumerate(raws):
                with contextlib.suppress(OSError):  # it may have gone already
                    raw.send(request()[: count % 3 * 20])
            wait_until(lambda: len(select.select([raw.sock for raw in raws], [], [], 0)[0]) == 58)
        wait_until(lambda: len(server._limiter) == 0)
        # The accepting thread keeps the last ready clients until others are ready.
        assert alive(AcceptedSocket) <= 2


def test_wakeup_is_consumed() -> None:
    """A wakeup left in the socket would keep the accepting thread from ever sleeping again."""
    with serving() as server:
        for _ in range(3):
            server._wake()
            wait_until(lambda: not select.select([server._woken], [], [], 0)[0])
        be_served(server, "127.0.0.1")


def test_shutdown_during_a_flood() -> None:
    with serving(max_pending=20, open_timeout=0.5) as server, flood(server.socket.getsockname()[1], 60, again=True):
        wait_until(lambda: len(server._limiter) >= 20)
        time.sleep(0.3)
        with within(4):
            server.shutdown()


def test_serve_forever_again(caplog: pytest.LogCaptureFixture) -> None:
    """Clients that were in the opening handshake when it ended are still served."""
    with serving() as server, From(server, "127.0.0.1") as raw:
        raw.send(request()[:20])
        wait_until(lambda: len(server._limiter) == 1)
        thread = threading.Thread(target=server.shutdown)
        thread.start()
        wait_until(lambda: not server.sockets)
        raw.send(request()[20:])
        assert raw.reply().status == 503
        raw.close()
        thread.join(5)
    assert logged(caplog) == []


# Failures of accepting


class Failing(socket.socket):
    """A listening socket whose ``accept`` fails at first."""

    def __init__(self, *failures: int) -> None:
        super().__init__()
        self.failures = list(failures)
        self.bind(("127.0.0.1", 0))

    def accept(self) -> tuple[socket.socket, Any]:
        if self.failures:
            number = self.failures.pop()
            raise OSError(number, errno.errorcode[number])
        return super().accept()


@pytest.mark.parametrize("name", ["ECONNABORTED", "EPROTO", "EHOSTUNREACH", "EPERM"])
def test_lost_connections_are_passed_over(caplog: pytest.LogCaptureFixture, name: str) -> None:
    caplog.set_level(logging.INFO, LOGGER)
    with serving(sock=Failing(*[getattr(errno, name)] * 100)) as server, within(SOON):
        be_served(server, "127.0.0.1")
    assert [text for text in logged(caplog, logging.INFO) if "lost" in text] == [
        f"a connection was lost before it was accepted: {name} (100 times)"
    ]


@pytest.mark.parametrize("failures", [[errno.ENOTDIR], [errno.EPROTO] * 1025], ids=["unknown", "endless"])
def test_permanent_accept_errors(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, failures: list[int]
) -> None:
    """Any error is retried after a pause."""
    from wirespeed._server import accept

    monkeypatch.setattr(accept, "RETRY_DELAY", 0.1)
    with serving(sock=Failing(*failures)) as server, within(5, at_least=0.09):
        be_served(server, "127.0.0.1")
    [text] = logged(caplog)
    assert text.startswith("cannot accept connections for now: ")
    assert errno.errorcode[failures[0]] in text


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE])
def test_half_open_client_is_evicted_without_descriptors(caplog: pytest.LogCaptureFixture, number: int) -> None:
    """A half-open client is evicted although there are fewer than ``max_pending``."""
    listener = Failing()
    with no_leaks(), serving(sock=listener) as server, contextlib.ExitStack() as stack:
        silent = [stack.enter_context(From(server, "127.0.0.1")) for _ in range(3)]
        wait_until(lambda: len(server._limiter) == 3)
        time.sleep(0.03)
        listener.failures = [number, number]
        with within(0.9):
            be_served(server, "127.0.0.1")
        assert [is_closed(raw) for raw in silent] == [True, True, False]
        stack.close()
    texts = logged(caplog)
    assert len(texts) == 2
    assert any("cannot accept connections for now" in text for text in texts)
    assert any("whose opening handshake did not go on" in text for text in texts)
