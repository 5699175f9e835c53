"""Connections of both APIs: any calls with any values, over one connection to a peer that echoes."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any, TypeAlias

import websockets.asyncio.client
import websockets.sync.client
from hypothesis import strategies as st

import wirespeed
import wirespeed.sync
from campaigns.common.calls import complete
from support import asyncio_tools
from support.asyncio_tools import Setting
from support.load_scaling import load_scaled

from .conversation import QUIET, Conversation, content, is_single
from .oracle import Misbehaved
from .values import VALUES, Choice, value_of

PATIENCE = 20.0

# A call and its arguments.
Step = tuple[str, Choice, Choice]

Call = Callable[[Any, Any, Any], Any]

SENDS: dict[str, Call] = {
    "send": lambda ws, a, _: ws.send(a),
    "send text": lambda ws, a, b: ws.send(a, text=b),
    "send compress": lambda ws, a, b: ws.send(a, compress=b),
}
AWAITED_SENDS = SENDS | {"send_nowait": lambda ws, a, b: ws.send_nowait(a, text=b)}

RECEIVES: dict[str, Call] = {
    "recv timeout": lambda ws, a, _: ws.recv(timeout=a),
    "recv decode": lambda ws, a, _: ws.recv(PATIENCE, decode=a),
    "recv busy_poll": lambda ws, a, _: ws.recv(PATIENCE, busy_poll=a),
    "recv_nowait": lambda ws, a, _: ws.recv_nowait(a),
    "recv_many": lambda ws, a, b: ws.recv_many(a, PATIENCE, decode=b),
    "recv_many timeout": lambda ws, a, _: ws.recv_many(3, timeout=a),
    "recv_streaming": lambda ws, a, _: _whole(list(ws.recv_streaming(a))),
}
AWAITED_RECEIVES: dict[str, Call] = {
    "recv decode": lambda ws, a, _: ws.recv(a),
    "recv_nowait": lambda ws, a, _: ws.recv_nowait(a),
    "recv_many": lambda ws, a, b: ws.recv_many(a, decode=b),
    "recv_streaming": lambda ws, a, _: _streamed(ws, a),
}

OTHERS: dict[str, Call] = {
    "send_many": lambda ws, a, b: ws.send_many(a, text=b),
    "send_json": lambda ws, a, _: ws.send_json(a),
    "send_msgpack": lambda ws, a, _: ws.send_msgpack(a),
    "recv_json": lambda ws, a, _: ws.recv_json(a, timeout=PATIENCE),
    "ping": lambda ws, a, _: ws.ping(a),
    "ping wait": lambda ws, a, _: ws.ping().wait(a),
    "pong": lambda ws, a, _: ws.pong(a),
    "flush": lambda ws, _, __: ws.flush(),
    "look": lambda ws, a, _: (repr(ws), ws.stats(), ws == a, hash(ws), ws.state, ws.latency, ws.close_code),
    "close": lambda ws, a, b: ws.close(a, b),
}
AWAITED_OTHERS = {name: call for name, call in OTHERS.items() if name != "ping wait"} | {
    "recv_json": lambda ws, a, _: ws.recv_json(a),
    "broadcast": lambda ws, a, b: wirespeed.broadcast([ws], a, text=b),
    "broadcast to": lambda _, a, __: wirespeed.broadcast(a, "nobody"),
    "poll": lambda ws, a, _: ws.recv().send(a),
    "throw": lambda ws, a, b: ws.recv().throw(a, b),
}

# The callbacks of generated objects: what they do on a connection, for a number.
Reenter: TypeAlias = Callable[[Any, Conversation, list[Awaitable[Any]], int], None]


def _whole(parts: list[Any]) -> Any:
    return type(parts[0])().join(parts) if parts else []


async def _streamed(ws: Any, decode: Any) -> Any:
    return _whole([part async for part in ws.recv_streaming(decode)])


class Api:
    """The calls of one API.

    Args:
        sends: Calls that return only whether something was sent.
        receives: Calls that receive, for which a message is sent before.
        others: Further calls.
        reenter: What callbacks do.
    """

    def __init__(
        self, sends: dict[str, Call], receives: dict[str, Call], others: dict[str, Call], reenter: Reenter
    ) -> None:
        self.sends = sends
        self.receives = receives
        self.calls = sends | receives | others
        self.reenter = reenter
        step: st.SearchStrategy[Step] = st.tuples(
            st.one_of(st.sampled_from([*sends, "send_many"]), st.sampled_from([*self.calls])),
            VALUES,
            st.one_of(st.just(("none", 0)), value_of()),
        )
        self.programs = st.lists(step, min_size=1, max_size=8)


def _reenter_blocking(ws: Any, conversation: Conversation, _later: list[Awaitable[Any]], number: int) -> None:
    if number % 7 < 3:
        text = conversation.token()
        ws.send(text) if number % 7 < 2 else ws.send_many([text])
        conversation.note_own(text)
        return
    match number % 7:
        case 3:
            conversation.note_received(ws.recv_nowait())
        case 4:
            conversation.note_received(ws.recv(timeout=0))
        case 5:
            ws.ping()
        case _:
            repr(ws)
            ws.stats()
            if number % 50 == 0:
                ws.close()
                conversation.closed = True


def _reenter_awaited(ws: Any, conversation: Conversation, later: list[Awaitable[Any]], number: int) -> None:
    match number % 8:
        case 0 | 1:
            text = conversation.token()
            ws.send_nowait(text)
            conversation.note_own(text)
        case 2:
            text = conversation.token()
            later.append(ws.send(text))
            conversation.note_own(text)
        case 3:
            conversation.note_received(ws.recv_nowait())
        case 4:
            # A fragmented message may be in progress: then the token is left out.
            wirespeed.broadcast([ws], text := conversation.token())
            conversation.perhaps.add(text.encode())
        case 5:
            later.append(ws.flush())
        case _:
            repr(ws)
            ws.stats()
            if number % 50 == 0:
                ws.abort()
                conversation.closed = True


BLOCKING = Api(SENDS, RECEIVES, OTHERS, _reenter_blocking)
AWAITED = Api(AWAITED_SENDS, AWAITED_RECEIVES, AWAITED_OTHERS, _reenter_awaited)


# ---- connections ----

_OPTIONS: dict[str, Any] = {"max_size": None, "compression": None, "ping_interval": None, "logger": QUIET}
_ECHO: dict[str, Any] = {"proxy": None, "max_size": None, "compression": None, "ping_interval": None}


@contextlib.contextmanager
def accepted() -> Iterator[Any]:
    """A connection of a blocking server with a client that echoes."""
    connections: queue.SimpleQueue[Any] = queue.SimpleQueue()
    over = threading.Event()

    def handle(ws: Any) -> None:
        connections.put(ws)
        over.wait()

    def echo(address: tuple[str, int]) -> None:
        uri = f"ws://{address[0]}:{address[1]}"
        with contextlib.suppress(Exception), websockets.sync.client.connect(uri, **_ECHO) as ws:
            for message in ws:
                ws.send(message)

    with wirespeed.sync.serve(handle, "127.0.0.1", 0, **_OPTIONS) as server:
        address = server.socket.getsockname()
        threads = [threading.Thread(target=server.serve_forever), threading.Thread(target=echo, args=(address,))]
        for thread in threads:
            thread.start()
        ws = connections.get(timeout=PATIENCE)
        try:
            yield ws
        finally:
            ws.abort()
            over.set()
            server.shutdown()
            for thread in threads:
                thread.join()


@contextlib.asynccontextmanager
async def accepted_on_loop(setting: Setting) -> AsyncIterator[Any]:
    """A connection of an asyncio server with a client that echoes."""
    loop = asyncio.get_running_loop()
    connection: asyncio.Future[Any] = loop.create_future()
    over = asyncio.Event()

    async def handle(ws: Any) -> None:
        connection.set_result(ws)
        await over.wait()

    async def echo(address: tuple[str, int]) -> None:
        with contextlib.suppress(Exception):
            async with websockets.asyncio.client.connect(f"ws://{address[0]}:{address[1]}", **_ECHO) as ws:
                async for message in ws:
                    await ws.send(message)

    options: dict[str, Any] = {"io_backend": setting.io_backend, **_OPTIONS}
    async with wirespeed.serve(handle, "127.0.0.1", 0, **options) as server:
        echoing = loop.create_task(echo(server.sockets[0].getsockname()))
        ws = await asyncio.wait_for(connection, load_scaled(PATIENCE))
        try:
            yield ws
        finally:
            ws.abort()
            over.set()
            await asyncio.wait([echoing])


# ---- programs ----


def run_blocking(uri: str | None, program: list[Step]) -> None:
    """Runs one program on a connection of the blocking API.

    Args:
        uri: The address of an echo server; ``None``: the connection is one of a server.
        program: The calls to make.
    """
    conversations: list[Conversation] = []
    with accepted() if uri is None else wirespeed.sync.connect(uri, proxy=None, **_OPTIONS) as ws:
        complete(_run(BLOCKING, ws, program, conversations))
    conversations[0].finish()


def run_on_loop(uri: str | None, program: list[Step], setting: Setting) -> None:
    """Runs one program on a connection of an event loop; the arguments are those of ``run_blocking``, and the loop."""
    conversations: list[Conversation] = []
    options: dict[str, Any] = {"io_backend": setting.io_backend, **_OPTIONS}

    async def main() -> None:
        opened = accepted_on_loop(setting) if uri is None else wirespeed.connect(uri, proxy=None, **options)
        async with opened as ws:
            try:
                await _run(AWAITED, ws, program, conversations)
            finally:
                await ws.wait_closed()

    asyncio_tools.run(main, loop=setting.loop, timeout=60)
    for conversation in conversations:
        conversation.finish()


async def _finish(result: Any) -> Any:
    """Waits for the result of a call, if it is awaited."""
    return await asyncio.wait_for(result, load_scaled(PATIENCE)) if hasattr(result, "__await__") else result


async def _run(api: Api, ws: Any, program: list[Step], conversations: list[Conversation]) -> None:
    later: list[Awaitable[Any]] = []
    conversation = Conversation(lambda number: api.reenter(ws, conversation, later, number))
    conversations.append(conversation)
    try:
        for step in program:
            await _try(api, ws, conversation, step)
            while later:
                with contextlib.suppress(wirespeed.ConnectionClosed):
                    await _finish(later.pop(0))
        await _end(api, ws, conversation)
    finally:
        conversation.over = True
        ws.abort()
        while later:
            with contextlib.suppress(wirespeed.ConnectionClosed):
                await later.pop(0)


async def _try(api: Api, ws: Any, conversation: Conversation, step: Step) -> None:
    name, first, second = step
    make = conversation.maker.make
    a, b = make(first), make(second)
    if name in api.receives or name == "recv_json":
        # Makes sure that there is something to receive, because the call may wait indefinitely.
        text = conversation.token()
        try:
            await _finish(ws.send(f'"{text}"' if name == "recv_json" else text))
        except wirespeed.ConnectionClosed:
            return
        if name == "recv_json":
            conversation.unknown = conversation.lossy = True
        else:
            conversation.note_own(text)
    expected = content(first, a) if name in api.sends else None
    try:
        result = api.calls[name](ws, a, b)
        if name in ("throw", "poll"):
            return  # a future that nothing awaits
        result = await _finish(result)
    except BaseException as exc:
        if isinstance(exc, asyncio.TimeoutError) and api is AWAITED and name not in ("ping",):
            raise Misbehaved(f"{name} hangs") from exc
        if name in ("throw", "poll") and isinstance(exc, StopIteration):
            conversation.note_received(exc.value)
            return
        if name == "throw" and exc is a:
            return
        conversation.note_error(exc, f"{name}({type(a).__name__}, {type(b).__name__})", a, b)
        if name == "send_many":
            conversation.unknown = True
            conversation.closed |= api is AWAITED
        if name in api.sends and not is_single(a):
            # Some fragments were sent: the message cannot be completed.
            conversation.unknown = conversation.closed = True
        if (isinstance(exc, UnicodeError) and name in api.receives) or name == "recv_streaming":
            conversation.lossy = True
        return
    if name in api.sends:
        conversation.note_sent(first, a, expected)
    elif name in api.receives:
        conversation.note_received(result)
    elif name == "close":
        conversation.closed = True
    elif name in ("send_many", "send_json", "send_msgpack", "broadcast"):
        conversation.unknown = True


async def _end(api: Api, ws: Any, conversation: Conversation) -> None:
    """Checks that all sent messages come back, unless the connection has been closed."""
    # Objects that are collected later may call back at any time.
    conversation.over = True
    last = conversation.token()
    limit = [PATIENCE] if api is BLOCKING else []
    try:
        await _finish(ws.send(last))
        conversation.note_own(last)
        while not conversation.received or conversation.received[-1] != last.encode():
            conversation.note_received(await _finish(ws.recv(*limit, decode=False)))
    except wirespeed.ConnectionClosed as exc:
        if not conversation.closed:
            raise Misbehaved(f"neither end has closed it: {exc!r}") from exc
        return
    conversation.compare()
    await _finish(ws.close())
    if (ws.close_code, ws.state.name) != (1000, "CLOSED"):
        raise Misbehaved(f"closed with {ws.close_code}")
