"""The clients of the table: each as an application with the calls of a conversation."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import dataclasses
import gc
import threading
import weakref
from collections.abc import Callable, Coroutine
from typing import Any

import wirespeed
import wirespeed.sync
from campaigns.common.calls import attempt, complete
from support import asyncio_tools
from support.asyncio_tools import Setting
from wirespeed.compat.websockets import exceptions as drop_in_exceptions
from wirespeed.compat.websockets.asyncio import client as drop_in_asyncio
from wirespeed.compat.websockets.sync import client as drop_in_sync
from wirespeed.exceptions import ConnectionClosed, ConnectionClosedOK, InvalidHandshake, InvalidState

from .conversation import Log, Subject

# Its classes are those of the library that it stands for, where that is installed.
drop_in: Any = drop_in_exceptions

# Talks as the subject.
Conversation = Callable[[Subject], Coroutine[Any, Any, None]]


class Over(Exception):
    """The end of a connection, for APIs that report it by a callback: raised where other APIs raise."""


# Exceptions of calls when a connection cannot be opened, or fails: OSError covers the failures of TLS and TimeoutError,
# and a session of the engine raises InvalidState.
DOCUMENTED: tuple[type[Exception], ...] = (
    ConnectionClosed,
    InvalidState,
    InvalidHandshake,
    OSError,
    TimeoutError,
    Over,
    drop_in.ConnectionClosed,
    drop_in.InvalidHandshake,
)


@dataclasses.dataclass
class Plan:
    """The destination and options of a client.

    Args:
        uri: The destination.
        options: Those that all clients have.
        ssl: TLS settings.
        proxy: The URL of a proxy.
        before: Called right before.
        forget: Set when it is time to drop the connection.
        in_a_cycle: Whether it is dropped as a part of a cycle.
    """

    uri: str
    options: dict[str, Any]
    ssl: Any = None
    proxy: str | None = None
    before: Callable[[], None] = lambda: None
    forget: threading.Event = dataclasses.field(default_factory=threading.Event)
    in_a_cycle: bool = False

    @property
    def arguments(self) -> dict[str, Any]:
        found = {"compression": None, "max_size": None, "proxy": self.proxy, **self.options}
        if self.ssl is not None:
            found["ssl"] = self.ssl
        return found


# Further exceptions of a call on a closed connection: iterators have an end.
CLOSED: tuple[type[Exception], ...] = (*DOCUMENTED, RuntimeError, StopIteration, StopAsyncIteration)


async def leaving(call: Callable[..., Any], *arguments: Any) -> None:
    """Makes a call that may fail as documented."""
    with contextlib.suppress(*CLOSED):
        await attempt(call, *arguments)


def _drop(app: Any, in_a_cycle: bool) -> None:
    """Drops a connection and the objects that only it refers to."""
    held: list[Any] = [app.ws]
    for name in ("ws", "reader", "writer"):
        vars(app).pop(name, None)
    if in_a_cycle:
        held.append(held)
    del held
    gc.collect()


class ConnectionApp:
    """Calls on a connection of either end.

    Args:
        log: Of the conversation.
        ws: The connection, if it is open.
        blocking: Whether its calls block.
    """

    plan: Plan

    def __init__(self, log: Log, ws: Any = None, *, blocking: bool = False) -> None:
        self.log = log
        self.blocking = blocking
        if ws is not None:
            self.hold(ws)

    def hold(self, ws: Any) -> None:
        self.ws = ws
        self.log.watched.append(weakref.ref(ws))

    async def open(self) -> None:
        """A server has its connection already."""

    async def recv(self) -> bytes:
        message = await attempt(self.ws.recv)
        return message.encode() if isinstance(message, str) else bytes(message)

    async def send(self, message: bytes) -> None:
        await attempt(self.ws.send, message)

    async def close(self) -> None:
        await attempt(self.ws.close)

    async def ending(self) -> tuple[int | None, bool]:
        fine = False
        try:
            await attempt(self.ws.recv)
        except (ConnectionClosedOK, drop_in.ConnectionClosedOK):
            fine = True
        except (ConnectionClosed, drop_in.ConnectionClosed):
            pass
        except RuntimeError:
            if self.blocking:
                raise
        return self.ws.close_code, fine

    async def forget(self) -> None:
        """Drops the connection when it is time, in a cycle if requested."""
        if self.blocking:
            assert self.plan.forget.wait(20)
        else:
            await asyncio_tools.soon(self.plan.forget.is_set, timeout=20)
        _drop(self, self.plan.in_a_cycle)
        if not self.blocking:
            # The loop is notified of the closed descriptor.
            await asyncio_tools.spin()

    async def use(self) -> None:
        for name in ("recv", "ping", "pong", "close", *([] if self.blocking else ["wait_closed"])):
            await leaving(getattr(self.ws, name))
        await leaving(self.ws.send, b"x")
        if self.blocking:
            await leaving(next, iter(self.ws), None)
        else:
            await leaving(self.ws.__aiter__().__anext__)


class Client(ConnectionApp):
    def __init__(self, log: Log, plan: Plan, connect: Callable[..., Any], *, blocking: bool, **options: Any) -> None:
        super().__init__(log, blocking=blocking)
        self.plan = plan
        self.connect = connect
        self.options = options

    async def open(self) -> None:
        self.plan.before()
        self.hold(await attempt(self.connect, self.plan.uri, **self.plan.arguments, **self.options))


class Arrivals:
    """A queue of arrived messages for one waiting task; unlike asyncio's queues it can be dropped without a loop."""

    def __init__(self) -> None:
        self._items: collections.deque[Any] = collections.deque()
        self._some = asyncio.Event()

    def put_nowait(self, item: Any) -> None:
        self._items.append(item)
        self._some.set()

    async def get(self) -> Any:
        while not self._items:
            self._some.clear()
            await self._some.wait()
        return self._items.popleft()


class QueueListener(wirespeed.Listener):
    """A listener whose messages can be waited for."""

    def __init__(self) -> None:
        self.queue = Arrivals()

    def on_message(self, ws: Any, message: Any) -> None:
        self.queue.put_nowait(message)

    def on_close(self, ws: Any, code: int, reason: str) -> None:
        self.queue.put_nowait(Over(f"{code} {reason}"))


class Listening(ConnectionApp):
    """A connection whose messages go to a listener."""

    def __init__(self, log: Log, ws: Any = None, listener: QueueListener | None = None) -> None:
        super().__init__(log, ws)
        self.listener = listener or QueueListener()

    async def recv(self) -> bytes:
        found = await self.listener.queue.get()
        if isinstance(found, Over):
            self.listener.queue.put_nowait(found)
            raise found
        return found.encode() if isinstance(found, str) else bytes(found)

    async def ending(self) -> tuple[int | None, bool]:
        return self.ws.close_code, self.ws.close_code == 1000


class ListeningClient(Listening):
    def __init__(self, log: Log, plan: Plan, setting: Setting) -> None:
        super().__init__(log)
        self.plan = plan
        self.setting = setting

    async def open(self) -> None:
        self.plan.before()
        options = {"listener": self.listener, "io_backend": self.setting.io_backend, **self.plan.arguments}
        self.hold(await wirespeed.connect(self.plan.uri, **options))


class Stream(ConnectionApp):
    """A stream of bytes: messages are its lines."""

    def __init__(self, log: Log, plan: Plan, setting: Setting) -> None:
        super().__init__(log)
        self.plan = plan
        self.setting = setting

    async def open(self) -> None:
        self.plan.before()
        options = {"limit": 2**20, "io_backend": self.setting.io_backend, **self.plan.arguments}
        self.reader, self.writer = await wirespeed.open_stream(self.plan.uri, **options)
        self.hold(self.writer.connection)

    async def recv(self) -> bytes:
        line = await self.reader.readline()
        if not line.endswith(b"\n"):
            raise Over("end of the stream")
        return line

    async def send(self, message: bytes) -> None:
        self.writer.write(message)
        await self.writer.drain()

    async def close(self) -> None:
        self.writer.close()
        try:
            await self.writer.wait_closed()
        except ConnectionResetError:
            self.log.reported_loss = True

    async def ending(self) -> tuple[int | None, bool]:
        return self.ws.close_code, self.ws.close_code == 1000

    async def use(self) -> None:
        for call in (self.reader.read, self.reader.readline, self.writer.drain, self.writer.wait_closed):
            await leaving(call)
        await leaving(self.writer.write, b"x")
        self.writer.close()


def make_client(name: str, setting: Setting | None, plan: Plan, log: Log) -> Any:
    """Returns the application of one client of the table."""
    if name == "sync-client":
        return Client(log, plan, wirespeed.sync.connect, blocking=True)
    if name == "drop-in-sync-client":
        return Client(log, plan, drop_in_sync.connect, blocking=True)
    if name == "drop-in-asyncio-client":
        return Client(log, plan, drop_in_asyncio.connect, blocking=False)
    assert setting is not None
    if name == "asyncio-client":
        return Client(log, plan, wirespeed.connect, blocking=False, io_backend=setting.io_backend)
    if name == "listener-client":
        return ListeningClient(log, plan, setting)
    assert name == "stream"
    return Stream(log, plan, setting)


def run_client(name: str, setting: Setting | None, plan: Plan, log: Log, conversation: Conversation) -> None:
    """Holds the conversation in this thread."""
    app = make_client(name, setting, plan, log)
    if setting is None:
        complete(conversation(app))
    else:
        asyncio_tools.run(lambda: conversation(app), loop=setting.loop, timeout=60)
