"""Calls on a connection that is running Python code, that of an ``ssl.SSLContext``: none of them deadlocks."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import signal
import ssl
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import pytest

import wirespeed
from support.certificates import Certificates
from support.connecting import Connect
from support.servers import WebSocketsServer

pytestmark = pytest.mark.wirespeed_only("it looks at what is ours")


# Longer than any wait here, shorter than the time limit of a test.
PATIENCE = 5.0

LARGE = bytes(300_000)


def look(ws: Any) -> None:
    values = ws.stats()["messages_sent"], ws.state, ws.latency, ws.close_code, ws.fileno()
    assert [type(value).__name__ for value in values] == ["int", "State", "float", "NoneType", "int"]


def speak(ws: Any) -> None:
    # Too many messages may be queued.
    with contextlib.suppress(BlockingIOError):
        ws.send_nowait("aside")


USES: dict[str, Callable[[Any], None]] = {"look": look, "speak": speak}


class User:
    """Uses a connection, and keeps the results.

    Args:
        ws: The connection.
        use: The operation.
    """

    def __init__(self, ws: Any, use: Callable[[Any], None]) -> None:
        self.ws, self.do = ws, use
        self.count = 0
        self.errors: set[tuple[str, str]] = set()

    def use(self) -> None:
        try:
            self.do(self.ws)
        except BaseException as exc:
            self.errors.add((type(exc).__name__, str(exc)))
        self.count += 1


@contextlib.contextmanager
def switching() -> Iterator[None]:
    """Makes threads switch as often as possible."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        yield
    finally:
        sys.setswitchinterval(interval)


@contextlib.contextmanager
def in_thread(user: User) -> Iterator[None]:
    stop = threading.Event()

    def work() -> None:
        while not stop.is_set():
            user.use()

    thread = threading.Thread(target=work)
    with switching():
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join(PATIENCE)
            assert not thread.is_alive()


class Interrupted:
    """The TLS object of a connection that runs another action in the middle of its work."""

    within: ClassVar[list[Callable[[], None]]] = []

    def __init__(self, layer: Any) -> None:
        self.layer = layer

    def __getattr__(self, name: str) -> Any:
        return getattr(self.layer, name)

    def read(self, *arguments: Any) -> Any:
        for within in Interrupted.within:
            within()
        return self.layer.read(*arguments)

    def write(self, *arguments: Any) -> Any:
        for within in Interrupted.within:
            within()
        return self.layer.write(*arguments)


class Layer(ssl.SSLObject):
    """The object that a context makes."""

    @property
    def _sslobj(self) -> Any:
        return self.interrupted

    @_sslobj.setter
    def _sslobj(self, layer: Any) -> None:
        self.interrupted = Interrupted(layer)


@contextlib.contextmanager
def in_finalizers(user: User) -> Iterator[None]:
    """Runs the collector at each encryption or decryption, which finds a cycle."""

    class Cycle:
        def __init__(self) -> None:
            self.me = self

        def __del__(self) -> None:
            user.use()

    def within() -> None:
        Cycle()
        gc.collect(0)

    Interrupted.within = [within]
    try:
        yield
    finally:
        Interrupted.within = []


@contextlib.contextmanager
def in_signal_handlers(user: User) -> Iterator[None]:
    before = signal.signal(signal.SIGALRM, lambda *_: user.use())
    signal.setitimer(signal.ITIMER_REAL, 5e-4, 5e-4)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def check_refusals(user: User) -> None:
    """Calls succeed or raise that the connection is in use; a panic would be another exception."""
    assert {name for name, _ in user.errors} <= {"RuntimeError"}, user.errors
    assert all("the connection is at work" in text for _, text in user.errors), user.errors


async def exchange(ws: Any, message: str | bytes) -> None:
    await asyncio.wait_for(ws.send(message), PATIENCE)
    while (received := await asyncio.wait_for(ws.recv(), PATIENCE)) == "aside":
        pass
    assert received == message


@pytest.fixture
def secure(connect: Connect, secure_server: WebSocketsServer, certificates: Certificates) -> Callable[[], Any]:
    """Opens a connection with the TLS of the standard library."""

    def opening() -> Any:
        context = certificates.client_context()
        context.sslobject_class = Layer
        return connect(secure_server.uri, ssl=context, compression=None)

    return opening


async def test_another_thread(secure: Callable[[], Any]) -> None:
    """A call from another thread always succeeds."""
    async with secure() as ws:
        user = User(ws, look)
        with in_thread(user):
            for _ in range(40):
                await exchange(ws, LARGE)
                await exchange(ws, "small")
        assert user.errors == set()
        assert user.count > 0


@pytest.mark.parametrize("use", USES)
async def test_finalizers(secure: Callable[[], Any], use: str) -> None:
    async with secure() as ws:
        user = User(ws, USES[use])
        with in_finalizers(user):
            for _ in range(15):
                await exchange(ws, LARGE)
                await exchange(ws, "small")
        await exchange(ws, "last")
        check_refusals(user)
        assert user.count > 0


@pytest.mark.parametrize("use", USES)
async def test_signal_handlers(secure: Callable[[], Any], use: str) -> None:
    async with secure() as ws:
        user = User(ws, USES[use])
        with in_signal_handlers(user):
            for _ in range(30):
                await exchange(ws, LARGE)
                await exchange(ws, "small")
                await asyncio.sleep(0.001)
        await exchange(ws, "last")
        check_refusals(user)
        assert user.count > 0


async def test_abort_from_within(secure: Callable[[], Any]) -> None:
    """Abort ends the connection or is refused: senders and receivers are woken in either case."""
    for _ in range(5):
        ws = await secure()
        aborting = User(ws, lambda ws: ws.abort())
        with in_finalizers(aborting), contextlib.suppress(Exception):
            for _ in range(20):
                await exchange(ws, LARGE)
        check_refusals(aborting)
        ws.abort()
        await asyncio.wait_for(ws.wait_closed(), PATIENCE)


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
def test_message_sent_during_transport_write_follows_it(
    server: WebSocketsServer,
    secure_server: WebSocketsServer,
    certificates: Certificates,
    monkeypatch: pytest.MonkeyPatch,
    tls: bool,
) -> None:
    """A signal handler may run in any Python function, such as a transport's `write`."""
    kind = asyncio.selector_events._SelectorSocketTransport  # type: ignore[attr-defined]
    write = kind.write
    within: list[Callable[[], None]] = []

    def interrupted(transport: Any, data: Any) -> None:
        while within:
            within.pop()()
        write(transport, data)

    async def main() -> None:
        how: dict[str, Any] = {"ssl": certificates.client_context()} if tls else {}
        uri = secure_server.uri if tls else server.uri
        async with wirespeed.connect(uri, compression=None, io_backend="transport", coalesce=False, **how) as ws:
            monkeypatch.setattr(kind, "write", interrupted)
            for _ in range(3):
                within.append(lambda: ws.send_nowait("nested"))
                await ws.send("first")
                assert await asyncio.wait_for(ws.recv(), PATIENCE) == "first"
                assert await asyncio.wait_for(ws.recv(), PATIENCE) == "nested"

    asyncio.run(main())
