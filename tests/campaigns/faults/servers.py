"""The servers of the table. The first connection has the conversation; for all others, they echo."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import queue
import threading
from collections.abc import Callable, Iterator
from typing import Any

import wirespeed
import wirespeed.sync
from campaigns.common.calls import complete
from support import asyncio_tools
from support.asyncio_tools import Setting
from support.load_scaling import load_scaled
from support.threads import wait_until
from support.uvicorn_server import UvicornServer
from wirespeed.compat.websockets.asyncio import server as drop_in_asyncio
from wirespeed.compat.websockets.sync import server as drop_in_sync
from wirespeed.engine import Connected, Disconnected, Engine, Message, Session
from wirespeed.exceptions import InvalidState

from .clients import Arrivals, ConnectionApp, Conversation, Listening, Over, QueueListener, leaving
from .conversation import Log, Subject

# The path of the connection that has the conversation.
FIRST = "/conversation"

PATIENCE = 30.0


@dataclasses.dataclass
class Serving:
    """A server to start, and the state of its conversation.

    Args:
        log: Of the conversation.
        conversation: Talks as the subject.
        options: Those that all servers have, by their names in most.
        ssl: TLS settings.
        certificate: Its files, for servers that take no settings.
        host: The listening address.

    Attributes:
        address: The bound address.
        done: Set when the conversation is over.
    """

    log: Log
    conversation: Conversation
    options: dict[str, Any]
    ssl: wirespeed.TLS | None = None
    certificate: tuple[str, str] | None = None
    host: str = "127.0.0.1"
    address: tuple[str, int] = ("", 0)
    done: threading.Event = dataclasses.field(default_factory=threading.Event)

    async def talk(self, app: Subject) -> None:
        """Holds the conversation."""
        try:
            await self.conversation(app)
        finally:
            self.done.set()


@contextlib.contextmanager
def serving(name: str, setting: Setting | None, what: Serving) -> Iterator[Serving]:
    """Serves while the block runs; anything that a server leaves behind is a failure."""
    if name.endswith("sync-server"):
        manager = _blocking(name, what)
    elif name == "asgi":
        assert setting is not None
        manager = _asgi(setting, what)
    elif name.startswith("engine"):
        manager = _engine(name, setting, what)
    else:
        assert setting is not None
        manager = _on_a_loop(name, setting, what)
    with manager:
        yield what


# Threads


@contextlib.contextmanager
def _thread(target: Callable[[], None], end: Callable[[], None]) -> Iterator[None]:
    """Runs a function in a thread until the block has ended; its exception is raised here."""
    errors: list[BaseException] = []

    def run() -> None:
        try:
            target()
        except BaseException as exc:
            errors.append(exc)

    thread = threading.Thread(target=run, name="subject", daemon=True)
    thread.start()
    try:
        yield
    finally:
        end()
        thread.join(load_scaled(PATIENCE))
        assert not thread.is_alive(), "the server does not end"
    if errors:
        raise errors[0]


@contextlib.contextmanager
def _blocking(name: str, what: Serving) -> Iterator[None]:
    def handler(ws: Any) -> None:
        if ws.request.path == FIRST:
            complete(what.talk(ConnectionApp(what.log, ws, blocking=True)))
        else:
            for message in ws:
                ws.send(message)

    serve: Any = wirespeed.sync.serve if name == "sync-server" else drop_in_sync.serve
    options = {"compression": None, "max_size": None, **what.options}
    with serve(handler, what.host, 0, ssl=what.ssl, **options) as server:
        what.address = server.socket.getsockname()[:2]
        with _thread(server.serve_forever, server.shutdown):
            yield


# Event loops


@contextlib.contextmanager
def _on_a_loop(name: str, setting: Setting, what: Serving) -> Iterator[None]:
    ready = threading.Event()
    loops: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []

    def stop() -> None:
        for loop, stopped in loops:
            loop.call_soon_threadsafe(stopped.set)

    async def handler(ws: Any) -> None:
        if ws.request.path == FIRST:
            await what.talk(ConnectionApp(what.log, ws))
        else:
            async for message in ws:
                await ws.send(message)

    def listening() -> dict[str, Any]:
        tasks: set[asyncio.Task[None]] = set()

        class Listener(QueueListener):
            def on_open(self, ws: Any) -> None:
                self.is_first = ws.request.path == FIRST
                if self.is_first:
                    task = asyncio.get_running_loop().create_task(what.talk(Listening(what.log, ws, self)))
                    tasks.add(task)
                    task.add_done_callback(tasks.discard)

            def on_message(self, ws: Any, message: Any) -> None:
                if self.is_first:
                    super().on_message(ws, message)
                else:
                    ws.send_nowait(message)

        return {"listener": Listener}

    async def main() -> None:
        stopped = asyncio.Event()
        loops.append((asyncio.get_running_loop(), stopped))
        options = {"ssl": what.ssl, "compression": None, "max_size": None, **what.options}
        serve: Any = wirespeed.serve
        if name == "drop-in-asyncio-server":
            serve = drop_in_asyncio.serve
        else:
            options["io_backend"] = setting.io_backend
        listens = name == "listener-server"
        server = serve(None if listens else handler, what.host, 0, **options, **(listening() if listens else {}))
        async with server as running:
            what.address = running.sockets[0].getsockname()[:2]
            ready.set()
            await stopped.wait()
            loops.clear()

    def run() -> None:
        try:
            asyncio_tools.run(main, loop=setting.loop, timeout=80)
        finally:
            ready.set()

    with _thread(run, stop):
        assert ready.wait(PATIENCE)
        yield


class Asgi(ConnectionApp):
    """An ASGI application: it has events instead of a connection."""

    def __init__(self, log: Log, receive: Any, send: Any) -> None:
        super().__init__(log)
        self._receive = receive
        self._send = send
        self._code: int | None = None
        self._fine = False

    async def recv(self) -> bytes:
        event = await self._receive()
        if event["type"] == "websocket.disconnect":
            self._code = event["code"]
            raise Over(str(event))
        data = event.get("bytes")
        return bytes(data) if data is not None else event["text"].encode()

    async def send(self, message: bytes) -> None:
        await self._send({"type": "websocket.send", "bytes": message})

    async def close(self) -> None:
        if self._code is None:
            await leaving(self._send, {"type": "websocket.close", "code": 1000})

    async def ending(self) -> tuple[int | None, bool]:
        with contextlib.suppress(Over):
            while self._code is None:
                await self.recv()
        return self._code, self._code == 1000

    async def use(self) -> None:
        await leaving(self._send, {"type": "websocket.send", "bytes": b"x"})
        await leaving(self._send, {"type": "websocket.close"})


@contextlib.contextmanager
def _asgi(setting: Setting, what: Serving) -> Iterator[None]:
    async def application(scope: dict[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] != "websocket":
            return
        assert (await receive())["type"] == "websocket.connect"
        await send({"type": "websocket.accept"})
        if scope["path"] == FIRST:
            await what.talk(Asgi(what.log, receive, send))
        else:
            while (event := await receive())["type"] == "websocket.receive":
                await send({"type": "websocket.send", "bytes": event["bytes"]})

    options: dict[str, Any] = {
        "host": what.host,
        "loop": setting.loop,
        "lifespan": "off",
        "ws_per_message_deflate": False,
    }
    for ours, theirs in (("ping_interval", "ws_ping_interval"), ("ping_timeout", "ws_ping_timeout")):
        options[theirs] = what.options[ours]
    if what.certificate is not None:
        options |= dict(zip(("ssl_certfile", "ssl_keyfile"), what.certificate, strict=True))
    with UvicornServer(application, ws_max_size=2**30, **options) as server:
        what.address = server.address
        yield


# The engine


class SessionApp(ConnectionApp):
    """A session of the engine whose events are forwarded by their consumer."""

    def __init__(self, log: Log, session: Session, *, blocking: bool) -> None:
        super().__init__(log, blocking=blocking)
        self.session = session
        self.queue: Any = queue.SimpleQueue() if blocking else Arrivals()
        self.over: tuple[int, str] | None = None

    async def recv(self) -> bytes:
        if self.over is None:
            event = self.queue.get(timeout=PATIENCE) if self.blocking else await self.queue.get()
            if isinstance(event, bytes):
                return event
            self.over = event
        raise Over(str(self.over))

    async def send(self, message: bytes) -> None:
        try:
            # Its result may be awaited on an event loop, and is a bool anywhere else.
            sent: Any = self.session.send(message)
            if not self.blocking:
                await sent
            elif not sent:
                self.session.wait_for_room(PATIENCE)
        except InvalidState as exc:
            raise Over("closed") from exc

    async def close(self) -> None:
        await leaving(self.session.close)

    async def ending(self) -> tuple[int | None, bool]:
        with contextlib.suppress(Over):
            while self.over is None:
                await self.recv()
        assert self.over is not None
        return self.over[0], self.over[0] == 1000

    async def use(self) -> None:
        await leaving(lambda: bool(self.session.send(b"x")) if self.blocking else self.session.send(b"x"))
        await leaving(self.session.close)


def _make_engine(what: Serving) -> Engine:
    options: dict[str, Any] = {
        name: value for name, value in what.options.items() if value is not None or name.startswith("ping")
    }
    # The whole conversation fits: slow clients are tested elsewhere.
    return Engine(what.host, ssl=what.ssl, workers=1, max_size=None, outbox_limit=2**24, **options)


@contextlib.contextmanager
def _engine(name: str, setting: Setting | None, what: Serving) -> Iterator[None]:
    engine = _make_engine(what)
    if name == "engine-echo":
        engine.echo("/")
        engine.echo(FIRST)
        with engine:
            what.address = engine.addresses[0]
            yield
            _check_no_session_is_left(engine)
        return
    if setting is not None:
        with _engine_on_a_loop(engine, setting, what):
            yield
            _check_no_session_is_left(engine)
        return
    apps: dict[Session, SessionApp] = {}
    threads: list[threading.Thread] = []

    def connected(session: Session) -> None:
        if session.path == FIRST:
            app = apps[session] = SessionApp(what.log, session, blocking=True)
            talking = what.talk(app)
            thread = threading.Thread(target=complete, args=[talking], name="conversation", daemon=True)
            thread.start()
            # Threads that join them may check at any time.
            threads.append(thread)

    def received(session: Session, message: Any) -> None:
        if session in apps:
            apps[session].queue.put(bytes(message))
        else:
            session.send(message)

    def left(session: Session, code: int, reason: str) -> None:
        if session in apps:
            apps.pop(session).queue.put((code, reason))

    def take() -> None:
        for batch in engine.batches():
            for event in batch:
                if isinstance(event, Connected):
                    connected(event.session)
                elif isinstance(event, Message):
                    received(event.session, event.data)
                elif isinstance(event, Disconnected):
                    left(event.session, event.code, event.reason)

    if name == "engine-threads":
        engine.on_connect(connected)
        engine.on_message(received)
        engine.on_disconnect(left)

        def run() -> None:
            return engine.run(threads=2)
    else:
        run = take
    engine.start()
    what.address = engine.addresses[0]
    with _thread(run, engine.stop):
        yield
        for thread in threads:
            thread.join(load_scaled(PATIENCE))
            assert not thread.is_alive()
        _check_no_session_is_left(engine)


def _check_no_session_is_left(engine: Engine) -> None:
    wait_until(lambda: engine.stats()["sessions"] == 0)


@contextlib.contextmanager
def _engine_on_a_loop(engine: Engine, setting: Setting, what: Serving) -> Iterator[None]:
    apps: dict[Session, SessionApp] = {}
    tasks: set[asyncio.Task[None]] = set()

    @engine.on_connect
    async def connected(session: Session) -> None:
        if session.path == FIRST:
            app = apps[session] = SessionApp(what.log, session, blocking=False)
            tasks.add(asyncio.get_running_loop().create_task(what.talk(app)))

    @engine.on_message
    async def received(session: Session, message: Any) -> None:
        if session in apps:
            apps[session].queue.put_nowait(bytes(message))
        else:
            await session.send(message)

    @engine.on_disconnect
    async def left(session: Session, code: int, reason: str) -> None:
        if session in apps:
            apps.pop(session).queue.put_nowait((code, reason))

    async def main() -> None:
        await engine.serve(signals=False)
        if tasks:
            await asyncio.wait(tasks, timeout=10)

    engine.start()
    what.address = engine.addresses[0]
    with _thread(lambda: asyncio_tools.run(main, loop=setting.loop, timeout=80), engine.stop):
        yield
