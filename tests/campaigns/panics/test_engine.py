"""A panic in the engine ends one session, and its workers survive."""

from __future__ import annotations

import contextlib
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
from websockets.sync.client import ClientConnection, connect

from engine.tools import take, uri
from support.brokers import wait_for
from wirespeed.engine import Connected, Disconnected, Engine, Message

from .tools import PANICS, Failpoints

pytestmark = pytest.mark.wirespeed_only("websockets has no engine")

TEXT = "a message " * 500


@contextlib.contextmanager
def dial(engine: Engine, path: str = "/", **options: Any) -> Iterator[ClientConnection]:
    """A client of another library, whose code has no failpoints."""
    connection = connect(
        uri(engine, path), **{"proxy": None, "ping_interval": None, "open_timeout": 20, "legacy": True, **options}
    )
    try:
        yield connection
    finally:
        with contextlib.suppress(OSError):
            connection.socket.shutdown(socket.SHUT_RDWR)
        connection.recv_events_thread.join(20)
        connection.socket.close()


class Served:
    """An engine whose sessions echo; other events are kept."""

    def __init__(self, **options: Any) -> None:
        self.engine = Engine("127.0.0.1", **{"workers": 1, "page": "of-the-page-of-the-engine", **options})
        self.engine.relay("/feed/{topic}", echo=True)
        self.engine.route("/{*path}")
        self.sessions: dict[str, Any] = {}
        self.ended: list[Disconnected] = []
        self.thread = threading.Thread(target=self.serve)

    def serve(self) -> None:
        for batch in self.engine.batches():
            for event in batch:
                match event:
                    case Connected(session):
                        self.sessions[session.path] = session
                        session.subscribe("topic")
                        session.send("ready")
                    case Message(session, data):
                        with contextlib.suppress(Exception):
                            session.send(data)
                    case Disconnected():
                        self.ended.append(event)

    def __enter__(self) -> Served:  # noqa: PYI034 - typing.Self needs Python 3.11
        self.engine.start()
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.engine.stop()
        self.thread.join(20)
        assert not self.thread.is_alive()

    @contextlib.contextmanager
    def client(self, path: str) -> Iterator[ClientConnection]:
        with dial(self.engine, path) as ws:
            assert ws.recv(20) == "ready"
            yield ws

    def panics(self, count: int) -> None:
        wait_for(lambda: self.engine.stats()["panics"] == count, f"not {count} panics")


def exchange(ws: ClientConnection) -> None:
    ws.send(TEXT)
    assert ws.recv(20) == TEXT


def ends(ws: ClientConnection) -> None:
    """Reads the remaining data up to the end."""
    with pytest.raises(Exception, match=r"."):
        for _ in range(100):
            ws.recv(20)
    wait_for(lambda: not ws.recv_events_thread.is_alive(), "its TCP is not over")


SESSION = [
    "protocol.receive",
    "protocol.inflate",
    "protocol.deflate",
    "driver.read",
    "driver.write",
    "driver.closing",
    "engine.read",
    "engine.write",
    "engine.settle",
    "engine.push",
    "engine.command",
]


@pytest.mark.parametrize("place", SESSION)
def test_a_session(place: str, failpoints: Failpoints) -> None:
    with Served(compression=True) as served, served.client("/other") as other:
        with served.client("/victim") as victim:
            exchange(victim)
            with failpoints.once(place):
                if place == "driver.closing":
                    served.sessions["/victim"].close()
                else:
                    victim.send(TEXT)
                ends(victim)
            wait_for(lambda: [event.session.path for event in served.ended] == ["/victim"], "nobody was told")
            served.panics(1)
        exchange(other)
        with served.client("/next") as following:
            exchange(following)
        assert served.engine.stats()["sessions"] <= 2


@pytest.mark.parametrize("place", ["engine.deliver", "driver.shared_deflate"])
def test_one_of_many(place: str, failpoints: Failpoints) -> None:
    """A published message reaches all sessions but the one that panics."""
    with Served(compression=True) as served, contextlib.ExitStack() as stack:
        clients = [stack.enter_context(served.client(f"/{number}")) for number in range(5)]
        wait_for(lambda: served.engine.subscribers("topic") == 5)
        for send in (lambda: served.engine.publish("topic", TEXT), lambda: served.engine.broadcast(TEXT)):
            with failpoints.once(place, passes=2 if place == "engine.deliver" else 0):
                send()
                got = []
                for ws in clients:
                    with contextlib.suppress(Exception):
                        got.append(ws.recv(20))
            assert got == [TEXT] * (len(clients) - 1)
            clients = [ws for ws in clients if ws.recv_events_thread.is_alive()]
        served.panics(2)
        for ws in clients:
            exchange(ws)


@pytest.mark.parametrize("place", ["engine.timer", "driver.deadline"])
def test_time(place: str, failpoints: Failpoints) -> None:
    with (
        Served(ping_interval=0.2, ping_timeout=20) as served,
        served.client("/one") as one,
        served.client("/two") as two,
    ):
        with failpoints.once(place):
            wait_for(lambda: len(served.ended) == 1, "no session has ended")
        served.panics(1)
        left = two if served.ended[0].session.path == "/one" else one
        exchange(left)


@pytest.mark.parametrize(
    "place", ["engine.accept", "engine.opening", "engine.answer", "protocol.head", "driver.opening_server"]
)
def test_an_opening(place: str, failpoints: Failpoints) -> None:
    with Served() as served, served.client("/other") as other:
        with failpoints.once(place), pytest.raises(Exception, match=r"."), dial(served.engine):
            pass
        served.panics(1)
        exchange(other)
        with served.client("/next") as following:
            exchange(following)
        assert "/other" not in [event.session.path for event in served.ended]


@pytest.mark.parametrize(
    ("place", "path"),
    [
        ("engine.health", "/health"),
        ("engine.metrics", "/metrics"),
        ("engine.page", "/_wirespeed/figures"),
    ],
)
def test_http(place: str, path: str, failpoints: Failpoints) -> None:
    with Served(metrics_path="/metrics") as served, served.client("/other") as other:
        headers = {"Authorization": "Bearer of-the-page-of-the-engine"} if place == "engine.page" else {}
        request = urllib.request.Request(uri(served.engine, path).replace("ws:", "http:"), headers=headers)
        with failpoints.once(place), pytest.raises((OSError, urllib.error.URLError)):
            urllib.request.urlopen(request, timeout=20).read()
        served.panics(1)
        with urllib.request.urlopen(request, timeout=20) as answer:
            assert answer.status == 200
        exchange(other)


def test_a_relay(failpoints: Failpoints) -> None:
    with Served() as served, dial(served.engine, "/feed/x") as other:
        with dial(served.engine, "/feed/x") as victim:
            victim.send("one")
            assert (victim.recv(20), other.recv(20)) == ("one", "one")
            with failpoints.once("engine.relay"):
                victim.send("two")
                ends(victim)
        served.panics(1)
        other.send("three")
        assert other.recv(20) == "three"


def test_events_are_not_lost(failpoints: Failpoints) -> None:
    """Events of a turn are delivered, though the turn has panicked once."""
    with Engine("127.0.0.1", workers=1) as engine, dial(engine) as ws:
        take(engine, 1)
        with failpoints.once("engine.hand_on"):
            ws.send("x")
            (event,) = take(engine, 1)
        assert isinstance(event, Message)
        assert event.data == "x"
        assert event.session.is_open
        assert engine.stats()["panics"] == 1


def test_the_log(failpoints: Failpoints) -> None:
    """The lock of the log queue is released."""
    with Served() as served, served.client("/other") as other:

        def fail() -> None:
            with contextlib.suppress(OSError), socket.create_connection(served.engine.addresses[0][:2], 20) as raw:
                raw.sendall(b"no request\r\n\r\n")
                raw.recv(1000)

        with failpoints.once("engine.log"):
            fail()
        served.panics(1)
        fail()
        exchange(other)


@pytest.mark.parametrize(
    "place", ["protocol.send", "engine.publish", "engine.mailbox", "engine.subscribe", "engine.take", "python.event"]
)
def test_the_application(place: str, failpoints: Failpoints) -> None:
    """The caller gets an exception; no lock is left behind, and the next call works."""
    with Engine("127.0.0.1", workers=2) as engine, dial(engine) as ws:
        (event,) = take(engine, 1)
        session = event.session

        def call() -> None:
            if place == "engine.publish":
                engine.publish("a", "x")
            elif place in {"protocol.send", "engine.mailbox"}:
                session.send("x")
            elif place == "engine.subscribe":
                session.subscribe("b")
            else:
                ws.send("x")
                wait_for(lambda: engine.stats()["events_waiting"] == 1)
                assert [event.data for event in take(engine, 1) if isinstance(event, Message)] == ["x"]

        with failpoints.once(place), pytest.raises(PANICS):
            call()
        if place == "python.event":
            call()
        elif place == "engine.take":
            take(engine, 1)
        else:
            call()
        assert session.subscribe("a")
        wait_for(lambda: engine.subscribers("a") == 1)
        assert engine.publish("a", "to it") == 1
        while ws.recv(20) != "to it":
            pass
        assert engine.stats()["panics"] == 0


def test_the_end(failpoints: Failpoints) -> None:
    """A panic while all sessions are ended: every end is reported nevertheless, and the engine ends."""
    with Served() as served, contextlib.ExitStack() as stack:
        clients = [stack.enter_context(served.client(f"/{number}")) for number in range(3)]
        with failpoints.once("engine.remove"):
            served.engine.stop()
        for ws in clients:
            ends(ws)
    assert len(served.ended) >= 2
