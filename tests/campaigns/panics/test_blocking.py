"""A panic in a connection of the blocking API."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Any

import pytest

import wirespeed
from support.brokers import wait_for
from support.certificates import Certificates
from support.servers import WebSocketsServer
from wirespeed import State
from wirespeed.sync import ClientConnection, connect, serve

from .tools import PANICS, Failpoints, is_over, no_descriptors

pytestmark = pytest.mark.wirespeed_only("the panics are ours")

# Long enough to be compressed.
TEXT = "a message " * 500


def dial(uri: str, **options: Any) -> ClientConnection:
    options = {"proxy": None, "ping_interval": None, **options}
    return connect(uri, **options)


def exchange(connection: ClientConnection) -> None:
    connection.send(TEXT)
    assert connection.recv(20) == TEXT


RECEIVING = [
    "protocol.receive",
    "protocol.inflate",
    "driver.read",
    "driver.wait",
    "python.message",
]
SENDING = ["protocol.send", "protocol.deflate", "driver.write"]


@pytest.mark.parametrize("place", RECEIVING)
def test_receiving(place: str, failpoints: Failpoints, server: WebSocketsServer) -> None:
    with dial(server.uri) as other:
        open_before = server.connections()
        with no_descriptors(), dial(server.uri) as connection:
            connection.send(TEXT)
            with failpoints.once(place), pytest.raises(PANICS):
                connection.recv(20)
            assert is_over(connection)
            wait_for(lambda: server.connections() == open_before)
        exchange(other)


@pytest.mark.parametrize("place", SENDING)
def test_sending_while_another_thread_receives(place: str, failpoints: Failpoints, server: WebSocketsServer) -> None:
    with dial(server.uri) as other:
        open_before = server.connections()
        with no_descriptors(), dial(server.uri) as connection:
            exchange(connection)
            outcomes: list[BaseException] = []

            def receive() -> None:
                try:
                    connection.recv()
                except BaseException as exc:
                    outcomes.append(exc)

            threads = [threading.Thread(target=receive) for _ in range(3)]
            for thread in threads:
                thread.start()
            with failpoints.once(place), pytest.raises(PANICS):
                connection.send(TEXT)
            # Waiting threads get an exception, although nothing arrives any more.
            for thread in threads:
                thread.join(20)
            assert not any(thread.is_alive() for thread in threads)
            assert [type(exc) for exc in outcomes] == [wirespeed.ConnectionClosedError] * 3
            assert "panic" in str(outcomes[0].__cause__)
            assert is_over(connection)
            wait_for(lambda: server.connections() == open_before)
        exchange(other)


def test_a_reader_that_panics_outside_the_lock(failpoints: Failpoints, server: WebSocketsServer) -> None:
    """The other threads, which rely on its reading, get an exception too."""
    with no_descriptors(), dial(server.uri) as connection:
        outcomes: list[BaseException] = []

        def receive() -> None:
            try:
                connection.recv()
            except BaseException as exc:
                outcomes.append(exc)

        threads = [threading.Thread(target=receive) for _ in range(3)]
        # The second wait: that for the ping's pong, or of a receiver.
        with failpoints.once("driver.wait"):
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(20)
        assert not any(thread.is_alive() for thread in threads)
        assert all(isinstance(exc, PANICS) for exc in outcomes)
        assert len(outcomes) == 3
        assert is_over(connection)


def test_waiting_for_room(failpoints: Failpoints, serving: Callable[..., WebSocketsServer]) -> None:
    server = serving()
    with no_descriptors(), dial(f"{server.uri}/stalled", compression=None, close_timeout=1) as connection:
        try:
            with failpoints.once("driver.wait_for_room"), pytest.raises(PANICS):
                connection.send(b"x" * (64 << 20))
            assert is_over(connection)
        finally:
            server.release()


@pytest.mark.parametrize("place", ["protocol.close", "driver.closing"])
def test_closing(place: str, failpoints: Failpoints, server: WebSocketsServer) -> None:
    with no_descriptors():
        connection = dial(server.uri)
        with failpoints.once(place), pytest.raises(PANICS):
            connection.close()
        assert is_over(connection)
        connection.close()


@pytest.mark.parametrize("place", ["driver.tls_receive", "driver.tls_send"])
def test_tls(place: str, failpoints: Failpoints, secure_server: WebSocketsServer, certificates: Certificates) -> None:
    tls = wirespeed.TLS(ca=certificates.ca_file)
    with dial(secure_server.uri, ssl=tls) as other:
        with no_descriptors(), dial(secure_server.uri, ssl=tls) as connection:
            exchange(connection)
            with failpoints.once(place), pytest.raises(PANICS):
                exchange(connection)
            assert is_over(connection)
        exchange(other)


@pytest.mark.parametrize("place", ["protocol.head", "driver.opening_client"])
def test_connecting(place: str, failpoints: Failpoints, server: WebSocketsServer) -> None:
    with no_descriptors():
        with failpoints.once(place), pytest.raises(PANICS):
            dial(server.uri)
        with dial(server.uri) as connection:
            exchange(connection)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("place", ["protocol.receive", "protocol.send"])
def test_serving(place: str, failpoints: Failpoints) -> None:
    """One of the server's connections fails; the others continue, and the next one is accepted."""
    from websockets.sync.client import connect as foreign

    def echo(ws: Any) -> None:
        for message in ws:
            ws.send(message)

    before = set(threading.enumerate())
    with no_descriptors(), serve(echo, "127.0.0.1", 0) as server, contextlib.ExitStack() as stack:
        stack.callback(server.shutdown)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        uri = f"ws://127.0.0.1:{server.socket.getsockname()[1]}"
        other = stack.enter_context(foreign(uri, proxy=None, legacy=True))
        with failpoints.once(place), pytest.raises(Exception, match=r"."):
            victim = foreign(uri, proxy=None, legacy=True)
            stack.callback(victim.close)
            victim.send("x")
            victim.recv(20)
        for ws in (other, stack.enter_context(foreign(uri, proxy=None, legacy=True))):
            ws.send("y")
            assert ws.recv(20) == "y"
    # The thread that panicked reports it at its very end: here, and not in another test.
    for thread in set(threading.enumerate()) - before:
        thread.join(20)


@pytest.mark.parametrize("place", ["protocol.head", "driver.opening_server"])
def test_accepting(place: str, failpoints: Failpoints) -> None:
    """At most one client loses its connection: the accepting thread continues."""
    from websockets.sync.client import connect as foreign

    def echo(ws: Any) -> None:
        for message in ws:
            ws.send(message)

    with no_descriptors(), serve(echo, "127.0.0.1", 0) as server, contextlib.ExitStack() as stack:
        stack.callback(server.shutdown)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        uri = f"ws://127.0.0.1:{server.socket.getsockname()[1]}"
        with failpoints.once(place), contextlib.suppress(Exception):
            stack.enter_context(foreign(uri, proxy=None, legacy=True))
        for _ in range(2):
            ws = stack.enter_context(foreign(uri, proxy=None, legacy=True))
            ws.send("y")
            assert ws.recv(20) == "y"


def test_a_finalizer_that_looks_at_another_connection(failpoints: Failpoints, server: WebSocketsServer) -> None:
    """A finalizer that runs during the unwinding may use other connections."""

    class Fragment(bytes):
        def __del__(self) -> None:
            seen.append(other.state)

    seen: list[State] = []
    with dial(server.uri) as other:
        with dial(server.uri) as ws:
            with failpoints.once("protocol.send"), pytest.raises(PANICS):
                ws.send(fragment for fragment in [Fragment(b"first"), b"last"])
            assert is_over(ws)
        assert State.OPEN in seen
        exchange(other)
