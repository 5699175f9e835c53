"""The blocking client: any calls with any values, over one connection to a peer that echoes."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import websockets.sync.client
from hypothesis import strategies as st

import wirespeed
from wirespeed.sync import ClientConnection, ServerConnection, connect, serve

from .conversation import QUIET, Conversation, content, is_single
from .oracle import Misbehaved
from .values import VALUES, Choice, value_of

__all__ = ["PROGRAMS", "accepted", "dialled", "run"]

PATIENCE = 20.0

Connection: TypeAlias = "ClientConnection | ServerConnection"

# A call and its arguments.
Step = tuple[str, Choice, Choice]

Call = Callable[[Connection, Any, Any], Any]

# Calls that return only whether something was sent.
SENDS: dict[str, Call] = {
    "send": lambda ws, a, _: ws.send(a),
    "send text": lambda ws, a, b: ws.send(a, text=b),
    "send compress": lambda ws, a, b: ws.send(a, compress=b),
}

RECEIVES: dict[str, Call] = {
    "recv timeout": lambda ws, a, _: ws.recv(timeout=a),
    "recv decode": lambda ws, a, _: ws.recv(PATIENCE, decode=a),
    "recv busy_poll": lambda ws, a, _: ws.recv(PATIENCE, busy_poll=a),
    "recv_nowait": lambda ws, a, _: ws.recv_nowait(a),
    "recv_many": lambda ws, a, b: ws.recv_many(a, PATIENCE, decode=b),
    "recv_many timeout": lambda ws, a, _: ws.recv_many(3, timeout=a),
    "recv_streaming": lambda ws, a, _: _whole(list(ws.recv_streaming(a))),
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

CALLS = SENDS | RECEIVES | OTHERS

_STEP: st.SearchStrategy[Step] = st.tuples(
    st.one_of(st.sampled_from([*SENDS, "send_many"]), st.sampled_from([*CALLS])),
    VALUES,
    st.one_of(st.just(("none", 0)), value_of()),
)

PROGRAMS = st.lists(_STEP, min_size=1, max_size=8)


def _whole(parts: list[Any]) -> Any:
    return type(parts[0])().join(parts) if parts else []


_OPTIONS: dict[str, Any] = {"max_size": None, "compression": None, "ping_interval": None, "logger": QUIET}


def dialled(uri: str) -> contextlib.AbstractContextManager[Connection]:
    """Connects a client to an echo server."""
    return connect(uri, proxy=None, **_OPTIONS)


@contextlib.contextmanager
def accepted() -> Iterator[Connection]:
    """A connection of a server with a client that echoes."""
    connections: queue.SimpleQueue[ServerConnection] = queue.SimpleQueue()
    over = threading.Event()

    def handle(ws: ServerConnection) -> None:
        connections.put(ws)
        over.wait()

    with serve(handle, "127.0.0.1", 0, **_OPTIONS) as server:
        address = server.socket.getsockname()
        threads = [threading.Thread(target=server.serve_forever), threading.Thread(target=_echo, args=(address,))]
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


def _echo(address: tuple[str, int]) -> None:
    options: Any = {"proxy": None, "max_size": None, "compression": None, "ping_interval": None}
    with (
        contextlib.suppress(Exception),
        websockets.sync.client.connect(f"ws://{address[0]}:{address[1]}", **options) as ws,
    ):
        for message in ws:
            ws.send(message)


def run(opened: contextlib.AbstractContextManager[Connection], program: list[Step]) -> None:
    """Runs one program.

    Args:
        opened: The connection.
        program: The calls to make.
    """
    with opened as ws:
        conversation = _run(ws, program)
    conversation.finish()


def _run(ws: Connection, program: list[Step]) -> Conversation:

    def reenter(number: int) -> None:
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

    conversation = Conversation(reenter)
    try:
        for step in program:
            _try(ws, conversation, step)
        _end(ws, conversation)
    finally:
        conversation.over = True
        ws.abort()
    return conversation


def _try(ws: Connection, conversation: Conversation, step: Step) -> None:
    name, first, second = step
    make = conversation.maker.make
    a, b = make(first), make(second)
    if name in RECEIVES or name == "recv_json":
        # Makes sure that there is something to receive, because the call may wait indefinitely.
        text = conversation.token()
        try:
            ws.send(f'"{text}"' if name == "recv_json" else text)
        except wirespeed.ConnectionClosed:
            return
        if name == "recv_json":
            conversation.unknown = conversation.lossy = True
        else:
            conversation.note_own(text)
    expected = content(first, a) if name in SENDS else None
    try:
        result = CALLS[name](ws, a, b)
    except BaseException as exc:
        conversation.note_error(exc, f"{name}({type(a).__name__}, {type(b).__name__})", a, b)
        if name == "send_many":
            conversation.unknown = True
        if name in SENDS and not is_single(a):
            # Some fragments were sent: the message cannot be completed.
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
    elif name in ("send_many", "send_json", "send_msgpack"):
        conversation.unknown = True


def _end(ws: Connection, conversation: Conversation) -> None:
    """Checks that all sent messages come back, unless the connection has been closed."""
    # Objects that are collected later may call back at any time.
    conversation.over = True
    last = conversation.token()
    try:
        ws.send(last)
        conversation.note_own(last)
        while not conversation.received or conversation.received[-1] != last.encode():
            conversation.note_received(ws.recv(PATIENCE, decode=False))
    except wirespeed.ConnectionClosed as exc:
        if not conversation.closed:
            raise Misbehaved(f"nobody has closed it: {exc!r}") from exc
        return
    conversation.compare()
    ws.close()
    if (ws.close_code, ws.state.name) != (1000, "CLOSED"):
        raise Misbehaved(f"closed with {ws.close_code}")
