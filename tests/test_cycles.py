"""Cycles of references through native objects: the garbage collector frees them, and open sockets with them.

A native class that refers to Python objects reports them to the collector (``__traverse__``). A class that omits an
object keeps it, and everything that it refers to, alive. Each test therefore makes a cycle through the classes that it
names, and waits for the end of a witness in it. Classes that are named nowhere are found in the source.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import re
import socket
import ssl
import time
import warnings
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from engine.tools import dial
from support.asyncio_tools import soon
from support.certificates import Certificates
from support.servers import WebSocketsServer
from wirespeed import Listener, State, connect
from wirespeed._native import (
    AsyncConnection,
    BlockingConnection,
    ClientOpening,
    ClientPlan,
    LoopState,
    Opened,
    PendingHandshake,
)
from wirespeed._options.client import ClientOptions
from wirespeed._options.server import AsyncServerOptions
from wirespeed.asyncio.loop import new_event_loop
from wirespeed.engine import Engine, Message
from wirespeed.sync import connect as connect_blocking

pytestmark = pytest.mark.wirespeed_only("the classes are ours")

SOURCES = Path(__file__).parents[1] / "crates" / "python" / "src"

PATIENCE = 10.0

NOTHING = {
    "ClientPlan": "what to ask for, as Rust values",
    "ClientTLS": "a configuration of rustls",
    "Connected": "a session",
    "ConnectedSocket": "a descriptor",
    "Disconnected": "a session, numbers and text",
    "EventsWaker": "descriptors",
    "Invalid": "a session, text and bytes",
    "BufferView": "bytes of a read buffer",
    "NativeClientOptions": "numbers and text",
    "NativeDraining": "parts of the engine",
    "NativeHandoff": "a channel",
    "NativeLogs": "text",
    "NativePublisher": "a thread of Rust",
    "NativeServerOptions": "numbers and text",
    "PyJwt": "keys",
    "PyLimits": "numbers and addresses",
    "HandshakeLimiter": "numbers and addresses",
    "PySession": "parts of the engine",
    "CapacityWaker": "descriptors",
    "Sent": "a session",
    "ServerTLS": "a configuration of rustls",
}
"""The classes without references, or whose references lead to no other object: what they hold instead."""

TESTED: dict[str, list[str]] = {}
"""The classes that lie on the cycle of a test, by its name."""

REQUEST = (
    b"GET / HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)


class Witness:
    """An object on a cycle: it lives as long as the cycle."""

    def __init__(self, *refers_to: Any) -> None:
        self.refers_to = list(refers_to)


def on_cycle(*classes: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Marks a test that makes a cycle through native classes, by their names in Rust."""

    def mark(test: Callable[..., None]) -> Callable[..., None]:
        TESTED[test.__name__] = list(classes)
        return test

    return mark


@contextlib.contextmanager
def freed(make: Callable[[], Witness]) -> Iterator[None]:
    """Checks that the cycle of a witness outlives the last reference from outside, but not a collection."""
    gc.collect()
    gc.disable()
    try:
        witness = weakref.ref(make())
        assert witness() is not None, "there is no cycle"
        yield
        with warnings.catch_warnings():
            # Of dropped connections and loops.
            warnings.simplefilter("ignore")
            for _ in range(3):
                gc.collect()
        assert witness() is None
    finally:
        gc.enable()


# All classes


def without_comments(path: Path) -> str:
    return re.sub(r"//[^\n]*", "", path.read_text(encoding="utf-8"))


def classes() -> dict[str, bool]:
    """Returns the native classes by their names in Rust, and whether they report their references."""
    texts = [without_comments(path) for path in sorted(SOURCES.rglob("*.rs"))]
    found: dict[str, bool] = {}
    for text in texts:
        for match in re.finditer(r"#\[pyclass\b[^\]]*\](?:\s*#\[[^\]]*\])*[\w\s()]*?\b(?:struct|enum) (\w+)", text):
            found[match[1]] = False
        # Written by hand, with its slots.
        for match in re.finditer(r"PyType_Spec \{\s*name: \S*\"wirespeed\.[\w.]*?(\w+)\"", text):
            found[match[1]] = "Py_tp_traverse" in text and "Py_TPFLAGS_HAVE_GC" in text
    for text in texts:
        for match in re.finditer(r"#\[pymethods\]\s*impl (\w+) \{(.*?)\n\}", text, re.DOTALL):
            found[match[1]] |= "fn __traverse__" in match[2]
    return found


def test_each_class_reports_its_references() -> None:
    """Or is known to have no references. ``Py_TPFLAGS_HAVE_GC`` does not show it: PyO3 sets it for all classes."""
    found = classes()
    assert {"BlockingConnection", "Waiter", "Operation", "Message"} <= set(found)
    assert {name for name, tells in found.items() if not tells} == set(NOTHING)
    tested = {name for names in TESTED.values() for name in names}
    assert {name for name, tells in found.items() if tells} == tested


# Blocking connections


@on_cycle("BlockingConnection")
def test_open_connection_that_refers_to_itself(server: WebSocketsServer) -> None:
    descriptors: list[int] = []

    def make() -> Witness:
        ws = connect_blocking(server.uri, proxy=None)
        descriptors.append(ws.fileno())
        ws.witness = Witness(ws)  # type: ignore[attr-defined]
        return ws.witness  # type: ignore[attr-defined, no-any-return]

    with freed(make):
        os.fstat(descriptors[0])
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptors[0])


@pytest.mark.parametrize("closed", [False, True], ids=["open", "closed"])
@on_cycle("BlockingConnection", "Ping")
def test_connection_that_keeps_its_ping(server: WebSocketsServer, closed: bool) -> None:
    def make() -> Witness:
        ws = connect_blocking(server.uri, proxy=None)
        ws.last_ping = ws.ping()  # type: ignore[attr-defined]
        ws.last_ping.wait(PATIENCE)  # type: ignore[attr-defined]
        ws.witness = Witness()  # type: ignore[attr-defined]
        if closed:
            ws.close()
        return ws.witness  # type: ignore[attr-defined, no-any-return]

    with freed(make):
        pass


def request_of(tls: ssl.SSLContext | None = None) -> PendingHandshake:
    options = AsyncServerOptions({"ping_interval": None, "ping_timeout": None, "close_timeout": 1}).native
    handshake = PendingHandshake(options, tls is not None)
    if tls is not None:
        handshake.start_tls(tls)
    return handshake


def opened(request: bytes = REQUEST) -> Opened:
    handshake = request_of()
    handshake.receive(request)
    made = handshake.finish()
    ours, theirs = socket.socketpair()
    theirs.close()
    made._adopt(ours.detach())
    return made


@on_cycle("BlockingConnection", "Handshake")
def test_request_that_refers_to_its_connection() -> None:
    def make() -> Witness:
        connection = BlockingConnection(opened())
        witness = Witness(connection)
        connection._handshake.request.path = witness  # type: ignore[assignment]
        return witness

    with freed(make):
        pass


@on_cycle("BlockingConnection")
def test_address_that_refers_to_its_connection() -> None:
    def make() -> Witness:
        witness = Witness()
        witness.refers_to.append(BlockingConnection(opened(), local_address=witness))
        return witness

    with freed(make):
        pass


@on_cycle("Answer")
def test_refusal_that_refers_to_its_answer() -> None:
    def make() -> Witness:
        connection = BlockingConnection(opened(REQUEST.replace(b"Version: 13", b"Version: 7")))
        answer = connection._handshake.answer([])
        error: Any = connection._send_answer(answer)
        error.witness = Witness(answer)
        connection.abort()
        witness: Witness = error.witness
        return witness

    with freed(make):
        pass


# Openings and connections under an ssl.SSLContext


class Marked(ssl.SSLObject):
    """An instance of an application's class, with attributes."""

    made: list[Any] = []  # noqa: RUF012 - all that are made, until a test takes them

    @classmethod
    def _create(cls, *args: Any, **kwargs: Any) -> Any:
        cls.made.append(super()._create(*args, **kwargs))  # type: ignore[misc]
        return cls.made[-1]


def marked(context: ssl.SSLContext) -> ssl.SSLContext:
    context.sslobject_class = Marked
    return context


def attached(refers_to: Any) -> Witness:
    """Returns a witness that refers to the argument, and to which the last SSL object refers."""
    witness = Witness(refers_to)
    Marked.made.pop().witness = witness
    return witness


@on_cycle("PendingHandshake")
def test_opening_of_a_server(certificates: Certificates) -> None:
    context = marked(certificates.server_context())
    with freed(lambda: attached(request_of(context))):
        pass


@on_cycle("ClientOpening")
def test_opening_of_a_client(certificates: Certificates) -> None:
    context = marked(certificates.client_context())
    plan = ClientPlan(ClientOptions({}).native, "localhost", "/", None, [])
    for arguments in {"tls": (context, "localhost")}, {"proxy_tls": (context, "localhost")}:
        with freed(lambda arguments=arguments: attached(ClientOpening(plan, **arguments))):  # type: ignore[misc]
            pass
    # The layer of the proxy lies under that of the server, whose handshake has not begun.
    with freed(lambda: attached(ClientOpening(plan, proxy_tls=(context, "localhost"), tls=(context, "localhost")))):
        Marked.made.pop()


def secured(certificates: Certificates) -> Opened:
    """Returns the server's view of a client after both handshakes, all in memory."""
    opening = request_of(marked(certificates.server_context()))
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = certificates.client_context().wrap_bio(incoming, outgoing, server_hostname="localhost")
    for call in client.do_handshake, lambda: client.write(REQUEST):
        while True:
            with contextlib.suppress(ssl.SSLWantReadError):
                call()
                break
            opening.receive(outgoing.read())
            incoming.write(opening.take_output())
        opening.receive(outgoing.read())
    assert opening.is_complete
    return opening.finish()


@on_cycle("Opened")
def test_opened_websocket(certificates: Certificates) -> None:
    with freed(lambda: attached(secured(certificates))):
        pass


@on_cycle("BlockingConnection")
def test_blocking_connection_under_a_context(certificates: Certificates) -> None:
    def make() -> Witness:
        made = secured(certificates)
        ours, theirs = socket.socketpair()
        theirs.close()
        made._adopt(ours.detach())
        return attached(BlockingConnection(made))

    with freed(make):
        pass


@on_cycle("AsyncConnection")
def test_asyncio_connection_under_a_context(certificates: Certificates) -> None:
    def make() -> Witness:
        made = secured(certificates)
        ours, theirs = socket.socketpair()
        theirs.close()
        made._adopt(ours.detach())
        loop = asyncio.SelectorEventLoop()
        connection = AsyncConnection(made, loop=loop, logger=logging.getLogger())
        loop.close()
        return attached(connection)

    with freed(make):
        pass


# Event loops


def is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


@pytest.mark.parametrize("port", ["fd", "transport"])
@on_cycle("AsyncConnection")
def test_open_asyncio_connection_that_refers_to_itself(server: WebSocketsServer, port: Any) -> None:
    """Its loop continues, closes the connection with a close frame, and then the socket."""

    async def main() -> None:
        async def make() -> Witness:
            ws = await connect(server.uri, proxy=None, io_backend=port)
            descriptors.append(ws.fileno())
            ws.witness = Witness(ws)  # type: ignore[attr-defined]
            return ws.witness  # type: ignore[attr-defined, no-any-return]

        descriptors: list[int] = []
        witness = await make()
        with freed(lambda witness=[witness]: witness.pop()):  # type: ignore[misc]
            del witness
            os.fstat(descriptors[0])
        await soon(lambda: not is_open(descriptors[0]))

    asyncio.run(main())


class Plain(asyncio.SelectorEventLoop):
    """A loop that wirespeed does not know: it watches each connection itself."""

    _wirespeed_nests = False


async def busy(uri: str, loop: Any) -> None:
    """Uses every object that a loop holds of connections, and that these hold, while tasks wait."""
    listening = await connect(uri, proxy=None, io_backend="fd", listener=Listener())
    receiving = await connect(uri, proxy=None, io_backend="fd")
    sending = await connect(uri, proxy=None, io_backend="fd", ping_interval=None)
    operation = receiving.recv()
    tasks = [asyncio.ensure_future(receiving.recv()), asyncio.ensure_future(receiving.wait_closed())]
    ours, theirs = socket.socketpair()
    ready = LoopState.of(loop)._ready(ours.fileno(), True, False)
    if ready is not None:

        async def wait() -> None:
            await ready

        tasks.append(asyncio.ensure_future(wait()))
    await asyncio.sleep(0)
    await sending.send("1")
    await sending.send("2")
    for task in tasks:
        task._log_destroy_pending = False  # type: ignore[attr-defined]
    # An awaited coroutine never warns when it is freed.
    operation.close()
    loop.everything = [listening, receiving, sending, operation, tasks, ours, theirs]
    assert receiving.state is State.OPEN


@pytest.mark.parametrize("closed", [False, True], ids=["open", "closed"])
@pytest.mark.parametrize(
    "make_loop", [asyncio.SelectorEventLoop, Plain, new_event_loop], ids=["stock", "plain", "ours"]
)
@on_cycle(
    "AsyncConnection",
    "EpollCallback",
    "Handshake",
    "LoopState",
    "NativeSelector",
    "Operation",
    "LoopAdapter",
    "EpollRegistry",
    "Reader",
    "Ready",
    "TimerCallback",
    "Waiter",
)
def test_loop_with_connections(server: WebSocketsServer, make_loop: Callable[[], Any], closed: bool) -> None:
    """A loop, its connections and all waiting tasks refer to each other: they are collected together."""

    def make() -> Witness:
        loop = make_loop()
        loop.witness = Witness(loop)
        loop.run_until_complete(busy(server.uri, loop))
        if closed:
            loop.close()
        witness: Witness = loop.witness
        return witness

    with freed(make):
        pass


# The engine


@on_cycle("BatchIterator", "Codecs", "Message", "NativeEngine", "PyBatch", "Undecoded")
def test_engine_whose_codec_keeps_everything() -> None:
    def make() -> Witness:
        kept: list[Any] = []

        def decode(data: bytes) -> dict[str, Any]:
            return {"kept": kept, "data": data}

        engine = Engine("127.0.0.1", workers=1)
        engine.route("/", codec=decode)
        with engine, dial(engine) as client:
            client.send("1")
            client.send("2")
            deadline = time.monotonic() + PATIENCE
            while engine.stats()["events_waiting"] < 3 and time.monotonic() < deadline:
                time.sleep(0.001)
            batch = engine._take(3, PATIENCE)
            assert batch is not None
        later, now = batch._undecoded(), iter(batch)
        undecoded = [next(later) for _ in range(3)][1]
        messages = [next(now) for _ in range(3)]
        assert isinstance(messages[1], Message)
        assert type(undecoded).__name__ == "Undecoded"
        kept += [engine, batch, later, undecoded, now, *messages, batch[1], Witness()]
        witness: Witness = kept[-1]
        return witness

    with freed(make):
        pass


@pytest.mark.parametrize("of", ["engine", "batch", "iterator", "undecoded", "message"])
def test_codec_that_keeps_one_thing(of: str) -> None:
    """Also where only the application's object in the cycle can be cleared."""

    def make() -> Witness:
        kept: dict[str, Any] = {"witness": Witness()}
        engine = Engine("127.0.0.1", workers=1)
        engine.route("/", codec=lambda data: {"kept": kept, "data": data})
        with engine, dial(engine) as client:
            client.send("1")
            deadline = time.monotonic() + PATIENCE
            while engine.stats()["events_waiting"] < 2 and time.monotonic() < deadline:
                time.sleep(0.001)
            batch = engine._take(2, PATIENCE)
            assert batch is not None
        things: dict[str, Callable[[], Any]] = {
            "engine": lambda: engine,
            "batch": lambda: batch,
            "iterator": lambda: iter(batch),
            "undecoded": lambda: list(batch._undecoded())[1],
            "message": lambda: batch[1],
        }
        kept[of] = things[of]()
        witness: Witness = kept["witness"]
        return witness

    with freed(make):
        pass


def test_messages_without_references_are_untracked() -> None:
    """Tracking costs time and memory. Decoded messages of a codec, which are of this class too, are tracked."""
    engine = Engine("127.0.0.1", workers=1)
    engine.route("/made", codec="json")
    engine.route("/plain")
    with engine, dial(engine, "/made") as made, dial(engine, "/plain") as plain:
        for message in '{"a": 1}', '"text"':
            made.send(message)
            plain.send(message)
        messages: dict[str, list[Any]] = {"/made": [], "/plain": []}
        for batch in engine.batches(timeout=PATIENCE):
            for event in batch:
                if isinstance(event, Message):
                    messages[event.session.path].append(event)
            if sum(map(len, messages.values())) == 4:
                break
    tracked = {path: [gc.is_tracked(event) for event in events] for path, events in messages.items()}
    assert tracked == {"/made": [True, False], "/plain": [False, False]}
    assert {type(event) for events in messages.values() for event in events} == {Message}
    assert [event.data for event in messages["/made"]] == [{"a": 1}, "text"]
