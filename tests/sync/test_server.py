"""The blocking server: messages of every kind, the ends of a handler, and listening."""

from __future__ import annotations

import gc
import logging
import os
import socket
import stat
import threading
import time
import uuid
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.checks import within
from support.frames import BINARY, CONT, PING, PONG, TEXT, Close, Frame, close, deflate
from support.serving import LOGGER, logged, masked, request, unnamed
from support.subject import IS_WIRESPEED, connect, exceptions, unix_connect
from support.threads import Raw, dial, echo, idle, serving, uri, wait_until

pytestmark = pytest.mark.wirespeed_only("the server is ours")

if IS_WIRESPEED:
    from wirespeed import State
    from wirespeed.sync import ServerConnection, serve, unix_serve
else:
    ServerConnection = object

Client = Callable[..., Any]

LARGE = os.urandom(1000) * 10_486


@pytest.fixture(params=["wirespeed", "websockets"])
def client(request: pytest.FixtureRequest) -> Client:
    return connect if request.param == "wirespeed" else dial


# Messages


@pytest.mark.parametrize(
    "message",
    ["", "hé", "x" * 70_000, b"", b"\x00\xff", LARGE],
    ids=["empty", "text", "long", "none", "binary", "10MB"],
)
@pytest.mark.parametrize("compression", ["deflate", None])
def test_echo(client: Client, message: Any, compression: str | None) -> None:
    with serving(max_size=None) as server:
        with client(uri(server), compression=compression, max_size=None) as ws:
            for _ in range(2):
                ws.send(message)
                assert ws.recv(timeout=10) == message
        assert ws.close_code == 1000


def test_many_clients_at_once(client: Client) -> None:
    """Each is served while the others are connected."""
    together = threading.Barrier(40)

    def use(number: int, results: list[Any]) -> None:
        with client(uri(server)) as ws:
            together.wait(10)
            for turn in range(20):
                ws.send(f"{number} {turn}")
                results.append(ws.recv(timeout=10))
            together.wait(10)

    with serving() as server:
        results: list[list[Any]] = [[] for _ in range(40)]
        threads = [threading.Thread(target=use, args=(number, results[number])) for number in range(40)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert results == [[f"{number} {turn}" for turn in range(20)] for number in range(40)]


def test_fragments_in() -> None:
    """With a ping between them, which is answered at once."""
    with serving() as server, Raw.open(server) as raw:
        raw.send(masked(TEXT, "hé".encode()[:2], fin=False) + masked(PING, b"now"))
        assert raw.frame() == Frame(PONG, b"now", masked=False)
        raw.send(masked(CONT, b"", fin=False) + masked(CONT, "hé".encode()[2:]))
        assert raw.frame() == Frame(TEXT, "hé".encode(), masked=False)


def test_fragments_out() -> None:
    def handler(ws: Any) -> None:
        ws.send(iter(["a", "b"]))
        assert list(ws.recv_streaming()) == ["c", "d"]

    with serving(handler) as server, Raw.open(server) as raw:
        frames = [raw.frame() for _ in range(3)]
        assert frames[0] == Frame(TEXT, b"a", fin=False, masked=False)
        assert b"".join(frame.payload for frame in frames) == b"ab"
        assert [frame.opcode for frame in frames] == [TEXT, CONT, CONT]
        assert frames[-1].fin
        raw.send(masked(TEXT, b"c", fin=False) + masked(CONT, b"d"))
        assert raw.until_close() == ([], Close(1000))


def test_compression_on_the_wire() -> None:
    offer = "Sec-WebSocket-Extensions: permessage-deflate; client_max_window_bits"
    text = "compress me " * 100
    with serving() as server, Raw(server) as raw:
        raw.send(request("/", offer))
        agreed = raw.head()["Sec-WebSocket-Extensions"]
        assert agreed == "permessage-deflate; server_max_window_bits=12; client_max_window_bits=12"
        raw.send(masked(TEXT, deflate(text.encode(), window_bits=12), rsv=4))
        answer = raw.frame()
        assert answer.rsv == 4
        assert len(answer.payload) < 100


def test_no_compression() -> None:
    with serving(compression=None) as server, Raw(server) as raw:
        raw.send(request("/", "Sec-WebSocket-Extensions: permessage-deflate"))
        assert raw.head()["Sec-WebSocket-Extensions"] is None


def test_message_behind_the_request() -> None:
    """Data in the packet of the request is not lost."""
    with serving() as server, Raw(server) as raw:
        raw.send(request() + masked(BINARY, b"early"))
        assert raw.head().status == 101
        assert raw.frame() == Frame(BINARY, b"early", masked=False)


def test_request_byte_by_byte() -> None:
    with serving() as server, Raw(server) as raw:
        for byte in request():
            raw.send(bytes([byte]))
        assert raw.head().status == 101


@pytest.mark.parametrize(
    ("option", "data", "code"),
    [
        ({"max_size": 10}, masked(TEXT, b"x" * 11), 1009),
        ({"max_fragments": 2}, masked(TEXT, b"x", fin=False) + 2 * masked(CONT, b"x", fin=False), 1009),
        ({}, masked(TEXT, b"\xff"), 1007),
        ({}, masked(3), 1002),
        ({}, b"\x81\x01x", 1002),
    ],
    ids=["max_size", "max_fragments", "utf-8", "opcode", "not masked"],
)
def test_faults_of_the_client(caplog: pytest.LogCaptureFixture, option: dict[str, Any], data: bytes, code: int) -> None:
    ends: list[Any] = []

    def handler(ws: Any) -> None:
        try:
            ws.recv()
        except exceptions.ConnectionClosedError as exc:
            ends.append(exc.sent and exc.sent.code)
            raise

    with serving(handler, **option) as server, Raw.open(server) as raw:
        raw.send(data)
        _, received = raw.until_close()
        assert received is not None
        assert received.code == code
    assert ends == [code]
    assert logged(caplog) == []  # the client's error


def test_keepalive() -> None:
    """A client that does not answer pings is closed with 1011."""
    with serving(idle, ping_interval=0.05, ping_timeout=0.1) as server, Raw.open(server) as raw, within(5):
        frames, received = raw.until_close()
        assert frames
        assert {frame.opcode for frame in frames} == {PING}
        assert received is not None
        assert received.code == 1011


# The connection


def test_connection_attributes(client: Client) -> None:
    seen: list[Any] = []
    done = threading.Event()

    def handler(ws: Any) -> None:
        seen.extend([ws, ws.server, ws.state, ws.request.path, ws.response.status_code, ws.request.headers["X-Test"]])
        seen.extend([ws.local_address, ws.remote_address, ws.subprotocol, ws.close_code, ws.logger])
        done.wait(10)

    with serving(handler) as server, client(uri(server, "/here?x"), additional_headers={"X-Test": "1"}) as ws:
        wait_until(lambda: len(seen) == 11)
        here, there = ws.remote_address, ws.local_address
        assert seen[1:] == [
            server, State.OPEN, "/here?x", 101, "1", here, there, None, None, logging.getLogger(LOGGER),
        ]  # fmt: skip
        connection = seen[0]
        assert isinstance(connection, ServerConnection)
        assert isinstance(connection.id, uuid.UUID)
        assert server.connections == {connection}
        assert server.connections is not server.connections
        done.set()
        assert list(ws) == []
        wait_until(lambda: connection.state is State.CLOSED)
        assert (connection.close_code, server.connections) == (1000, set())


def test_small_messages_leave_at_once() -> None:
    delays: list[int] = []

    def handler(ws: Any) -> None:
        with socket.socket(fileno=os.dup(ws.fileno())) as sock:
            delays.append(sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))

    with serving(handler) as server, connect(uri(server)) as ws:
        assert list(ws) == []
    assert delays == [1]


def test_idle_connections_sleep() -> None:
    """Idle connections block in the socket and use no processor time."""
    with serving() as server, connect(uri(server)) as ws:
        used = time.process_time()
        time.sleep(0.5)
        assert time.process_time() - used < 0.1
        ws.send("x")
        assert ws.recv(timeout=5) == "x"


def test_create_connection() -> None:
    class Mine(ServerConnection):  # type: ignore[misc, valid-type, unused-ignore]
        def send_twice(self, message: str) -> None:
            self.send_many([message, message])

    def handler(ws: Any) -> None:
        ws.send_twice("again")

    with serving(handler, create_connection=Mine) as server, connect(uri(server)) as ws:
        assert list(ws) == ["again", "again"]


@pytest.mark.parametrize("made", [None, object()], ids=["None", "object"])
def test_create_connection_of_another_class(caplog: pytest.LogCaptureFixture, made: Any) -> None:
    with serving(create_connection=lambda *_, **__: made) as server:
        with pytest.raises(exceptions.InvalidStatus, match="500"):
            connect(uri(server))
        wait_until(lambda: logged(caplog, logging.ERROR))
    assert "create_connection must return a ServerConnection" in logged(caplog)[0]


def test_connections_are_freed() -> None:
    """A connection is freed once its handler has returned."""
    kept: list[Any] = []

    def handler(ws: Any) -> None:
        kept.append(weakref.ref(ws))

    with serving(handler) as server:
        for _ in range(3):
            with connect(uri(server)) as ws:
                assert list(ws) == []
        wait_until(lambda: (gc.collect(), all(ref() is None for ref in kept))[1])
        assert len(kept) == 3


# Ends of a handler


def test_handler_returns(client: Client) -> None:
    with serving(lambda ws: ws.send("bye")) as server, client(uri(server)) as ws:
        assert ws.recv(timeout=10) == "bye"
        with pytest.raises(Exception, match="1000"):
            ws.recv(timeout=10)


def test_handler_raises(caplog: pytest.LogCaptureFixture, client: Client) -> None:
    def handler(ws: Any) -> None:
        ws.recv()
        raise RuntimeError("no way")

    with serving(handler) as server, client(uri(server)) as ws:
        ws.send("x")
        with pytest.raises(Exception, match="1011"):
            ws.recv(timeout=10)
        wait_until(lambda: logged(caplog))
    assert unnamed(logged(caplog, logging.ERROR)) == ["connection handler failed"]
    assert "no way" in caplog.text


def test_handler_closes(client: Client) -> None:
    with serving(lambda ws: ws.close(4000, "enough")) as server, client(uri(server)) as ws:
        with pytest.raises(Exception, match="4000"):
            ws.recv(timeout=10)
        assert (ws.close_code, ws.close_reason) == (4000, "enough")


@pytest.mark.parametrize("how", ["close", "reset"])
def test_client_leaves_without_a_close_frame(caplog: pytest.LogCaptureFixture, how: str) -> None:
    with serving(lambda ws: ws.recv()) as server:
        with caplog.at_level(logging.DEBUG, LOGGER), Raw.open(server) as raw:
            wait_until(lambda: server.connections)
            getattr(raw, how)()
            wait_until(lambda: any("handler ended by the end" in entry for entry in logged(caplog, logging.DEBUG)))
        assert logged(caplog) == []


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_handler_exits_its_thread() -> None:
    """``sys.exit`` ends the thread, as everywhere; the connection does not stay open."""

    def handler(ws: Any) -> None:
        raise SystemExit

    with serving(handler) as server, Raw.open(server) as raw:
        _, received = raw.until_close()
        assert received == Close(1011)
        wait_until(lambda: not server.connections)


def test_handler_uses_threads() -> None:
    """A connection may be used by threads of the handler's own."""

    def handler(ws: Any) -> None:
        threads = [threading.Thread(target=ws.send, args=(str(number),)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    with serving(handler) as server, connect(uri(server)) as ws:
        assert sorted(ws) == [str(number) for number in range(8)]


def test_client_that_does_not_read() -> None:
    """Only its own handler waits, and not forever."""

    def handler(ws: Any) -> None:
        if ws.request.path == "/flood":
            while True:
                ws.send(bytes(1 << 20))
        echo(ws)

    with (
        serving(handler, close_timeout=0.2, ping_interval=None) as server,
        Raw.open(server, "/flood", receive_buffer=4096),
        within(5),
    ):
        with connect(uri(server)) as ws:
            ws.send("x")
            assert ws.recv(timeout=5) == "x"
        server.shutdown()


# Listening


def test_localhost() -> None:
    """All addresses of a name, with one port."""
    with serving(echo, "localhost", 0) as server:
        port = server.socket.getsockname()[1]
        assert {sock.getsockname()[1] for sock in server.sockets} == {port}
        expected = {str(info[4][0]) for info in socket.getaddrinfo("localhost", 0, 0, socket.SOCK_STREAM)}
        for host in expected & {sock.getsockname()[0] for sock in server.sockets}:
            with connect(f"ws://[{host}]:{port}" if ":" in host else f"ws://{host}:{port}") as ws:
                ws.send("x")
                assert ws.recv(timeout=5) == "x"


@pytest.mark.parametrize("host", [None, "", ["127.0.0.1"], ("127.0.0.1", "127.0.0.2")], ids=str)
def test_hosts(host: Any) -> None:
    with serving(echo, host, None) as server, connect(uri(server)) as ws:
        ws.send("x")
        assert ws.recv(timeout=5) == "x"
        if isinstance(host, tuple):
            assert [sock.getsockname()[0] for sock in server.sockets] == list(host)


def test_every_socket_is_served() -> None:
    with serving(echo, ["127.0.0.1", "127.0.0.2"], 0) as server:
        first, second = (sock.getsockname() for sock in server.sockets)
        assert first[1] == second[1]
        for host, port in (second, first, second):
            with connect(f"ws://{host}:{port}") as ws:
                ws.send("x")
                assert ws.recv(timeout=5) == "x"


def test_port_in_use() -> None:
    with serving() as server:
        port = server.socket.getsockname()[1]
        with pytest.raises(OSError, match=f"cannot listen on 127.0.0.1:{port}"):
            serve(echo, "127.0.0.1", port)


def test_reuse_port() -> None:
    with serving(reuse_port=True) as server:
        with connect(uri(server)):
            pass  # it is running
        with serving(echo, "127.0.0.1", server.socket.getsockname()[1], reuse_port=True):
            pass
        with connect(uri(server)) as ws:
            ws.send("x")
            assert ws.recv(timeout=5) == "x"


def test_unknown_host() -> None:
    with pytest.raises(OSError):
        serve(echo, "no-such-host.invalid", 0)


def test_sock() -> None:
    sock = socket.socket()
    sock.bind(("127.0.0.1", 0))
    with serving(sock=sock) as server:
        assert server.socket is sock
        assert server.fileno() == sock.fileno() >= 0
        with connect(uri(server)) as ws:
            ws.send("x")
            assert ws.recv(timeout=5) == "x"
    assert sock.fileno() == server.fileno() == -1


def test_listens_before_it_serves() -> None:
    """Early clients are served later."""
    with serve(echo, "127.0.0.1", 0, close_timeout=0.1) as server, Raw(server) as raw:
        raw.send(request())
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        assert raw.head().status == 101
        server.shutdown()
        thread.join(10)
        assert not thread.is_alive()


# Unix sockets


def test_unix(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    seen: list[Any] = []

    def handler(ws: Any) -> None:
        seen.append((ws.local_address, ws.remote_address))
        echo(ws)

    with serving(handler, path, unix=True) as server:
        assert stat.S_ISSOCK(path.stat().st_mode)
        with unix_connect(str(path)) as ws:
            ws.send("x")
            assert ws.recv(timeout=5) == "x"
        with Raw.open(server) as raw:
            raw.send(close()[:1] + b"\x80" + bytes(4))
            assert raw.until_close() == ([], Close(1005))
    assert seen[0] == (str(path), "")
    assert not path.exists()


def test_unix_replaces_stale_socket_file(tmp_path: Path) -> None:
    path = str(tmp_path / "socket")
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(path)
    with serving(echo, path, unix=True), unix_connect(path) as ws:
        ws.send("x")
        assert ws.recv(timeout=5) == "x"


def test_unix_does_not_replace_a_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("precious")
    with pytest.raises(OSError, match="cannot listen on"):
        unix_serve(echo, path)
    assert path.read_text() == "precious"


def test_unix_leaves_the_successor_alone(tmp_path: Path) -> None:
    """A second server on the same path keeps it when the first one ends."""
    path = str(tmp_path / "socket")
    first = unix_serve(echo, path)
    with serving(echo, path, unix=True):
        first.shutdown()
        with unix_connect(path) as ws:
            ws.send("x")
            assert ws.recv(timeout=5) == "x"


@pytest.mark.skipif(not os.path.exists("/proc/self/fd"), reason="the abstract namespace is Linux's")
def test_unix_abstract() -> None:
    path = f"\0wirespeed-{uuid.uuid4()}"
    with serving(echo, path, unix=True) as server, Raw.open(server) as raw:
        raw.send(masked(TEXT, b"x"))
        assert raw.frame().payload == b"x"


def test_unix_path_too_long(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"cannot listen on .*too long"):
        unix_serve(echo, tmp_path / ("x" * 200))


def test_unix_sock(tmp_path: Path) -> None:
    path = str(tmp_path / "socket")
    sock = socket.socket(socket.AF_UNIX)
    sock.bind(path)
    with serving(unix=True, sock=sock), unix_connect(path) as ws:
        ws.send("x")
        assert ws.recv(timeout=5) == "x"
