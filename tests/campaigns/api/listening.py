"""A listener that calls back into the connection, raises, and returns unexpected values; the peer echoes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

from hypothesis import strategies as st

import wirespeed
from support import asyncio_tools
from support.asyncio_tools import Setting
from support.load_scaling import load_scaled

from .conversation import QUIET, Conversation, as_bytes
from .oracle import Mine, Misbehaved
from .values import Choice, value_of

PATIENCE = 20.0

# The behaviour of each callback in turn, and the messages that are sent meanwhile.
Program = tuple[list[int], list[Choice], bool]

PROGRAMS: st.SearchStrategy[Program] = st.tuples(
    st.lists(st.integers(0, 2**20), max_size=12),
    st.lists(value_of("text", "bytes", "mutable", "view", "buffer"), min_size=1, max_size=6),
    st.booleans(),
)


class _Listener(wirespeed.Listener):
    def __init__(self, conversation: Conversation, behaviour: list[int]) -> None:
        self.conversation, self.behaviour = conversation, list(behaviour)
        self.raised = False
        self.calls: list[str] = []
        self.kept: list[Any] = []
        self.over = asyncio.Event()

    def behave(self, what: str) -> Any:
        """Calls back, and then returns a value or raises."""
        self.calls.append(what)
        if self.raised and what != "on_close":
            raise Misbehaved(f"{what} after an exception")
        number = self.behaviour.pop(0) if self.behaviour else 0
        if number:
            self.conversation.nested(number)
        if number % 11 == 10 and what != "on_close":  # a second exception there is only printed
            self.raised = True
            raise Mine(what)
        return [None, 0, True, self, b"x", Mine("returned"), self.behaviour][number % 7]

    def on_open(self, ws: Any) -> Any:
        return self.behave("on_open")

    def on_message(self, ws: Any, message: Any) -> Any:
        self.kept.append(message)
        self.conversation.received.append(as_bytes(message))
        return self.behave("on_message")

    def on_pong(self, ws: Any, data: bytes) -> Any:
        return self.behave("on_pong")

    def on_writable(self, ws: Any) -> Any:
        return self.behave("on_writable")

    def on_close(self, ws: Any, code: int, reason: str) -> Any:
        self.over.set()
        return self.behave("on_close")


def run(uri: str, program: Program, setting: Setting) -> None:
    """Runs one program.

    Args:
        uri: The address of an echo server.
        program: The behaviour of the callbacks and the messages to send.
        setting: The loop and I/O backend of the connection.
    """
    conversations: list[Conversation] = []
    asyncio_tools.run(lambda: _main(uri, program, setting, conversations), loop=setting.loop, timeout=60)
    for conversation in conversations:
        conversation.finish()


async def _main(uri: str, program: Program, setting: Setting, conversations: list[Conversation]) -> None:
    behaviour, choices, zero_copy = program
    later: list[Any] = []
    held: list[Any] = []

    def reenter(number: int) -> None:
        ws = held[0] if held else None
        if ws is None:
            return
        match number % 6:
            case 0:
                text = conversation.token()
                ws.send_nowait(text)
                conversation.note_own(text)
            case 1:
                text = conversation.token()
                later.append(ws.send(text))
                conversation.note_own(text)
            case 2:
                ws.recv_nowait()
            case 3:
                repr(ws)
                ws.stats()
            case 4 if number % 5 == 0:
                ws.abort()
                conversation.closed = True
            case _:
                wirespeed.broadcast([ws], text := conversation.token())
                conversation.perhaps.add(text.encode())

    conversation = Conversation(reenter)
    conversations.append(conversation)
    listener = _Listener(conversation, behaviour)
    options: Any = {"proxy": None, "max_size": None, "compression": None, "ping_interval": None, "logger": QUIET}
    options["io_backend"] = setting.io_backend
    try:
        ws: Any = await wirespeed.connect(uri, listener=listener, zero_copy=zero_copy, **options)
    except Mine:
        return
    held.append(ws)
    last = conversation.token().encode()
    try:
        for choice in choices:
            value = conversation.maker.make(choice)
            try:
                await ws.send(value)
            except (TypeError, ValueError, BufferError):
                continue
            conversation.unknown = True
        while later:
            await later.pop(0)
        await ws.send(last.decode())
        async with _patient():
            # Messages sent within callbacks come back as well.
            while not {last, *conversation.own} <= {*conversation.received} and not listener.over.is_set():
                await asyncio.sleep(0.001)
        if not listener.over.is_set():
            conversation.note_own(last.decode())
            conversation.compare()
            await ws.close()
    except wirespeed.ConnectionClosed as exc:
        if not (conversation.closed or listener.raised):
            raise Misbehaved(f"neither end has closed it: {exc!r}") from exc
    try:
        await asyncio.wait_for(ws.wait_closed(), load_scaled(PATIENCE))
    except Mine:
        if not listener.raised:
            raise Misbehaved("it has raised nothing") from None
    else:
        if listener.raised and listener.calls[-1] != "on_close":
            raise Misbehaved("its exception is not reported")
    if listener.calls.count("on_open") != 1 or listener.calls.count("on_close") != 1 or listener.calls[0] != "on_open":
        raise Misbehaved(f"called as {listener.calls}")
    if listener.calls[-1] != "on_close":
        raise Misbehaved(f"called after the end: {listener.calls}")
    # Kept messages stay unchanged.
    if [as_bytes(message) for message in listener.kept] != conversation.received:
        raise Misbehaved("a view has changed")
    held.clear()
    # The reference cycle: an operation has its connection, which has the raised exception, which has this frame, which
    # has sent.
    while later:
        with contextlib.suppress(wirespeed.ConnectionClosed):
            await later.pop(0)


@contextlib.asynccontextmanager
async def _patient() -> AsyncIterator[None]:
    """Applies a time limit for a busy machine."""
    task = asyncio.current_task()
    assert task is not None
    timer = asyncio.get_running_loop().call_later(load_scaled(PATIENCE), task.cancel)
    try:
        yield
    finally:
        timer.cancel()
