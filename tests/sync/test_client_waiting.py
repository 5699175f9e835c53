"""Programs that replace ``select.select``, as gevent does: blocking calls wait with it, so that other greenlets run.

The replacement here runs other parts of the program inside the function. Unlike greenlets they must end before the
function does.
"""

from __future__ import annotations

import contextlib
import select
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from support.frames import close
from support.scripted import Scripted, Wire
from support.servers import WebSocketsServer
from support.subject import IS_WIRESPEED, connect

pytestmark = pytest.mark.wirespeed_only("websockets waits in threads of its own")

if IS_WIRESPEED:
    from wirespeed.sync import serve


PATIENCE = 10.0


class Killed(BaseException):
    """An exception that another part of the program raises in a waiting one."""


class Others:
    """The replacement of ``select.select``, and the parts of the program that run inside it, one for each call."""

    def __init__(self) -> None:
        self.original = select.select
        self.parts: list[Callable[[], Any]] = []
        self.waits: list[tuple[list[int], list[int]]] = []

    def select(self, readers: Any, writers: Any, failing: Any, timeout: float | None = None) -> Any:
        self.waits.append((list(readers), list(writers)))
        if self.parts:
            self.parts.pop(0)()
        return self.original(readers, writers, failing, timeout)

    def kill(self) -> None:
        """Raises in the waiting function, and drops its waits."""
        self.waits.clear()
        raise Killed


@pytest.fixture
def others(monkeypatch: pytest.MonkeyPatch) -> Others:
    others = Others()
    monkeypatch.setattr(select, "select", others.select)
    return others


def test_receive(server: WebSocketsServer, others: Others) -> None:
    with connect(server.uri, proxy=None) as ws:
        assert others.waits, "the opening handshake has waited otherwise"
        # Another part of the program sends, while this one waits for the answer.
        others.parts.append(lambda: ws.send("hello"))
        assert ws.recv(timeout=PATIENCE) == "hello"
        others.waits.clear()
        with pytest.raises(TimeoutError):
            ws.recv(timeout=0.05)
        assert ([ws.fileno()], []) in others.waits
    assert ws.close_code == 1000


def test_two_receivers(server: WebSocketsServer, others: Others) -> None:
    """The second one waits for the first."""

    def receive() -> None:
        with pytest.raises(TimeoutError):
            ws.recv(timeout=0.05)
        ws.send("hello")

    with connect(server.uri, proxy=None) as ws:
        others.parts.append(receive)
        assert ws.recv(timeout=PATIENCE) == "hello"


@pytest.fixture
def stalled(scripted: Scripted) -> tuple[str, threading.Event]:
    """A server that reads nothing until this is set."""
    released = threading.Event()

    def script(wire: Wire) -> None:
        wire.accept()
        released.wait(PATIENCE)
        if wire.read_until_close()[1] is not None:
            with contextlib.suppress(OSError):
                wire.send(close(1000))

    return scripted(script).uri, released


def test_send_without_room(stalled: tuple[str, threading.Event], others: Others) -> None:
    uri, released = stalled
    with connect(uri, proxy=None, compression=None) as ws:
        descriptor = ws.fileno()
        others.waits.clear()
        others.parts.append(released.set)
        ws.send(bytes(32 << 20))
        assert any(descriptor in writers for _, writers in others.waits)


def test_ping(server: WebSocketsServer, others: Others) -> None:
    with connect(server.uri, proxy=None) as ws:
        others.waits.clear()
        assert ws.ping().wait(PATIENCE) >= 0
        assert others.waits


def kill() -> None:
    raise Killed


@pytest.mark.parametrize("call", [lambda ws: ws.recv(), lambda ws: ws.ping().wait()], ids=["recv", "ping"])
def test_exception_in_a_waiting_call(server: WebSocketsServer, others: Others, call: Callable[[Any], Any]) -> None:
    """The call raises it once, and the connection continues."""
    with connect(server.uri, proxy=None) as ws:
        others.parts.append(kill)
        with pytest.raises(Killed):
            call(ws)
        ws.send("hello")
        assert ws.recv(timeout=PATIENCE) == "hello"


def test_exception_in_a_sending_call(stalled: tuple[str, threading.Event], others: Others) -> None:
    """Its partly sent data is sent with the next call."""
    uri, released = stalled
    with connect(uri, proxy=None, compression=None) as ws:
        others.parts.append(kill)
        with pytest.raises(Killed):
            ws.send(bytes(32 << 20))
        released.set()
        ws.send("hello")
    assert ws.close_code == 1000


def interrupted_in_the_iterable(others: Others) -> Iterator[bytes]:
    yield b"begins"
    others.kill()


def interrupted_in_a_large_fragment(others: Others) -> Iterator[bytes]:
    yield b"begins"
    others.parts.append(others.kill)
    yield bytes(32 << 20)


def interrupted_in_one_of_many(others: Others) -> Iterator[bytes]:
    others.parts.append(others.kill)
    while True:
        yield bytes(10_000)


@pytest.mark.parametrize("close_timeout", [60, None])
@pytest.mark.parametrize(
    "fragments", [interrupted_in_the_iterable, interrupted_in_a_large_fragment, interrupted_in_one_of_many]
)
def test_exception_in_a_call_that_sends_fragments(
    stalled: tuple[str, threading.Event],
    others: Others,
    fragments: Callable[[Others], Iterator[bytes]],
    close_timeout: float | None,
) -> None:
    """As with ``gevent.Timeout``: the message cannot be completed, and no call waits for the closing handshake."""
    uri, released = stalled
    ws = connect(uri, proxy=None, compression=None, close_timeout=close_timeout)
    with pytest.raises(Killed):
        ws.send(fragments(others))
    assert ws.state.name == "CLOSED"
    assert not others.waits
    released.set()


def test_server(others: Others) -> None:
    """Its connections wait in this way, too."""

    def handler(connection: Any) -> None:
        others.waits.clear()
        connection.send(connection.recv(timeout=PATIENCE))

    with serve(handler, "127.0.0.1", 0) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            host, port = server.socket.getsockname()[:2]
            with connect(f"ws://{host}:{port}", proxy=None) as ws:
                ws.send("hello")
                assert ws.recv(timeout=PATIENCE) == "hello"
                assert others.waits
        finally:
            server.shutdown()
            thread.join()
