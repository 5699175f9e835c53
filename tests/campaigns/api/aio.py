"""The asyncio client: any calls with any values, over one connection to a peer that echoes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any, TypeAlias

import websockets.asyncio.client
from hypothesis import strategies as st

import wirespeed
from interop import asyncio_tools
from interop.asyncio_tools import Setting
from interop.load_scaling import load_scaled
from wirespeed import ClientConnection, ServerConnection

from .conversation import QUIET, Conversation, content, is_single
from .oracle import Misbehaved
from .values import VALUES, Choice, value_of

__all__ = ["PROGRAMS", "Opened", "accepted", "dialled", "run"]

PATIENCE = 20.0

Connection: TypeAlias = "ClientConnection | ServerConnection"

# A call and its arguments.
Step = tuple[str, Choice, Choice]

Call = Callable[[Connection, Any, Any], Any]

SENDS: dict[str, Call] = {
    "send": lambda ws, a, _: ws.send(a),
    "send text": lambda ws, a, b: ws.send(a, text=b),
    "send compress": lambda ws, a, b: ws.send(a, compress=b),
    "send_nowait": lambda ws, a, b: ws.send_nowait(a, text=b),
}

RECEIVES: dict[str, Call] = {
    "recv decode": lambda ws, a, _: ws.recv(a),
    "recv_nowait": lambda ws, a, _: ws.recv_nowait(a),
    "recv_many": lambda ws, a, b: ws.recv_many(a, decode=b),
    "recv_streaming": lambda ws, a, _: _streamed(ws, a),
}

OTHERS: dict[str, Call] = {
    "send_many": lambda ws, a, b: ws.send_many(a, text=b),
    "send_json": lambda ws, a, _: ws.send_json(a),
    "send_msgpack": lambda ws, a, _: ws.send_msgpack(a),
    "recv_json": lambda ws, a, _: ws.recv_json(a),
    "ping": lambda ws, a, _: ws.ping(a),
    "pong": lambda ws, a, _: ws.pong(a),
    "flush": lambda ws, _, __: ws.flush(),
    "broadcast": lambda ws, a, b: wirespeed.broadcast([ws], a, text=b),
    "broadcast to": lambda _, a, __: wirespeed.broadcast(a, "nobody"),
    "look": lambda ws, a, _: (repr(ws), ws.stats(), ws == a, hash(ws), ws.state, ws.latency, ws.close_code),
    "close": lambda ws, a, b: ws.close(a, b),
    "poll": lambda ws, a, _: ws.recv().send(a),
    "throw": lambda ws, a, b: ws.recv().throw(a, b),
}

CALLS = SENDS | RECEIVES | OTHERS

_STEP: st.SearchStrategy[Step] = st.tuples(
    st.one_of(st.sampled_from([*SENDS, "send_many"]), st.sampled_from([*CALLS])),
    VALUES,
    st.one_of(st.just(("none", 0)), value_of()),
)

PROGRAMS = st.lists(_STEP, min_size=1, max_size=8)


async def _streamed(ws: Connection, decode: Any) -> Any:
    parts = [part async for part in ws.recv_streaming(decode)]
    return type(parts[0])().join(parts) if parts else []


def _options(setting: Setting) -> dict[str, Any]:
    return {
        "max_size": None,
        "compression": None,
        "ping_interval": None,
        "logger": QUIET,
        "io_backend": setting.io_backend,
    }


Opened: TypeAlias = "Callable[[Setting], contextlib.AbstractAsyncContextManager[Connection]]"


def dialled(uri: str) -> Opened:
    """Connects a client to an echo server."""
    return lambda setting: wirespeed.connect(uri, proxy=None, **_options(setting))


@contextlib.asynccontextmanager
async def accepted(setting: Setting) -> AsyncIterator[Connection]:
    """A connection of a server with a client that echoes."""
    loop = asyncio.get_running_loop()
    connection: asyncio.Future[ServerConnection] = loop.create_future()
    over = asyncio.Event()

    async def handle(ws: ServerConnection) -> None:
        connection.set_result(ws)
        await over.wait()

    async with wirespeed.serve(handle, "127.0.0.1", 0, **_options(setting)) as server:
        echo = loop.create_task(_echo(server.sockets[0].getsockname()))
        ws = await asyncio.wait_for(connection, load_scaled(PATIENCE))
        try:
            yield ws
        finally:
            ws.abort()
            over.set()
            await asyncio.wait([echo])


async def _echo(address: tuple[str, int]) -> None:
    options: Any = {"proxy": None, "max_size": None, "compression": None, "ping_interval": None}
    with contextlib.suppress(Exception):
        async with websockets.asyncio.client.connect(f"ws://{address[0]}:{address[1]}", **options) as ws:
            async for message in ws:
                await ws.send(message)


def run(opened: Opened, program: list[Step], setting: Setting) -> None:
    """Runs one program.

    Args:
        opened: The connection.
        program: The calls to make.
        setting: The loop and I/O backend of the connection.
    """
    conversations: list[Conversation] = []
    asyncio_tools.run(lambda: _main(opened, program, setting, conversations), loop=setting.loop, timeout=60)
    for conversation in conversations:
        conversation.finish()


async def _main(opened: Opened, program: list[Step], setting: Setting, conversations: list[Conversation]) -> None:
    async with opened(setting) as ws:
        await _run(ws, program, conversations)


async def _run(ws: Connection, program: list[Step], conversations: list[Conversation]) -> None:
    later: list[Any] = []

    def reenter(number: int) -> None:
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

    conversation = Conversation(reenter)
    conversations.append(conversation)
    try:
        for step in program:
            await _try(ws, conversation, step)
            while later:
                with contextlib.suppress(wirespeed.ConnectionClosed):
                    await asyncio.wait_for(later.pop(0), load_scaled(PATIENCE))
        await _end(ws, conversation)
    finally:
        conversation.over = True
        ws.abort()
        await ws.wait_closed()
        while later:
            with contextlib.suppress(wirespeed.ConnectionClosed):
                await later.pop(0)


async def _try(ws: Connection, conversation: Conversation, step: Step) -> None:
    name, first, second = step
    make = conversation.maker.make
    a, b = make(first), make(second)
    if name in RECEIVES or name == "recv_json":
        text = conversation.token()
        try:
            await ws.send(f'"{text}"' if name == "recv_json" else text)
        except wirespeed.ConnectionClosed:
            return
        if name == "recv_json":
            conversation.unknown = conversation.lossy = True
        else:
            conversation.note_own(text)
    expected = content(first, a) if name in SENDS else None
    try:
        result = CALLS[name](ws, a, b)
        if name in ("throw", "poll"):
            return  # a future that nothing awaits
        if hasattr(result, "__await__"):
            result = await asyncio.wait_for(result, load_scaled(PATIENCE))
    except BaseException as exc:
        if isinstance(exc, asyncio.TimeoutError) and name not in ("ping",):
            raise Misbehaved(f"{name} hangs") from exc
        if name in ("throw", "poll") and isinstance(exc, StopIteration):
            conversation.note_received(exc.value)
            return
        if name == "throw" and exc is a:
            return
        conversation.note_error(exc, f"{name}({type(a).__name__}, {type(b).__name__})", a, b)
        if name == "send_many" or (name in SENDS and not is_single(a)):
            conversation.unknown = conversation.closed = True
        if (isinstance(exc, UnicodeError) and name in RECEIVES) or name == "recv_streaming":
            conversation.lossy = True
        return
    if name in SENDS:
        conversation.note_sent(first, a, expected)
    elif name in RECEIVES:
        conversation.note_received(result)
    elif name == "close":
        conversation.closed = True
    elif name in ("send_many", "send_json", "send_msgpack", "broadcast"):
        conversation.unknown = True


async def _end(ws: Connection, conversation: Conversation) -> None:
    # Objects that are collected later may call back at any time.
    conversation.over = True
    last = conversation.token()
    try:
        await ws.send(last)
        conversation.note_own(last)
        while not conversation.received or conversation.received[-1] != last.encode():
            conversation.note_received(await asyncio.wait_for(ws.recv(decode=False), load_scaled(PATIENCE)))
    except wirespeed.ConnectionClosed as exc:
        if not conversation.closed:
            raise Misbehaved(f"nobody has closed it: {exc!r}") from exc
        return
    conversation.compare()
    await ws.close()
    if (ws.close_code, ws.state.name) != (1000, "CLOSED"):
        raise Misbehaved(f"closed with {ws.close_code}")
