"""The engine: any calls of it and of a session with any values, and a client that receives the messages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

import wirespeed
from engine.tools import dial, take
from wirespeed.engine import Disconnected, Engine, Publisher, Session
from wirespeed.sync import ClientConnection

from .conversation import QUIET, Conversation, content
from .oracle import Misbehaved
from .values import VALUES, Choice, value_of

PATIENCE = 20.0

# A call and its arguments.
Step = tuple[str, Choice, Choice]

Call = Callable[[Engine, Session, Any, Any], Any]

SENDS: dict[str, Call] = {
    "send": lambda _, session, a, __: session.send(a),
    "send text": lambda _, session, a, b: session.send(a, b),
    "publish": lambda engine, _, a, b: engine.publish("mine", a, text=b),
    "broadcast": lambda engine, _, a, b: engine.broadcast(a, text=b),
    "session publish": lambda _, session, a, __: session.publish("mine", a),
}

OTHERS: dict[str, Call] = {
    "publish to": lambda engine, _, a, b: engine.publish(a, "nobody", key=b),
    "publish exclude": lambda engine, _, a, b: engine.publish("else", "nobody", exclude=a, text=b),
    "publish_many": lambda engine, _, a, b: engine.publish_many(a, text=b),
    "broadcast exclude": lambda engine, _, a, b: engine.broadcast("to all", exclude=a, text=b),
    "session publish to": lambda _, session, a, b: session.publish(a, b),
    "subscribe": lambda _, session, a, __: session.subscribe(a),
    "unsubscribe": lambda _, session, a, __: session.unsubscribe(a) if a != "mine" else None,
    "allow": lambda _, session, a, b: session.allow(a, subscribe=b),
    "deny": lambda _, session, a, b: session.deny(a, "nothing", publish=b),
    "may": lambda _, session, a, b: (session.may_subscribe(a), session.may_publish(b)),
    "refresh": lambda _, session, a, __: session.refresh(a),
    "session room": lambda _, session, a, __: session.wait_for_room(timeout=a),
    "room": lambda engine, _, a, b: engine.wait_for_room(a, timeout=b),
    "has room": lambda engine, _, a, __: engine.has_room(a),
    "subscribers": lambda engine, _, a, __: engine.subscribers(a),
    "session": lambda engine, _, a, __: engine.session(a),
    "batches": lambda engine, _, a, __: next(engine.batches(max_events=a, timeout=0.0)),
    "publisher": lambda _, __, a, b: _with_publisher(lambda publisher: publisher.publish(a, b)),
    "publisher flush": lambda _, __, a, ___: _with_publisher(lambda publisher: publisher.flush(timeout=a)),
    "look": lambda engine, session, a, _: (
        repr(engine),
        repr(session),
        session == a,
        hash(session),
        session.stats(),
        engine.stats(),
    ),
    "close": lambda _, session, a, b: session.close(a, b),
}

CALLS = SENDS | OTHERS

_STEP: st.SearchStrategy[Step] = st.tuples(
    st.one_of(st.sampled_from([*SENDS]), st.sampled_from([*CALLS])), VALUES, st.one_of(st.just(("none", 0)), value_of())
)

PROGRAMS = st.lists(_STEP, min_size=1, max_size=8)


def _with_publisher(use: Callable[[Publisher], object]) -> None:
    with Publisher("memory://api") as publisher:
        use(publisher)


def new_engine() -> Engine:
    """Returns an engine that serves many runs."""
    return Engine("127.0.0.1", 0, workers=1, compression=False, ping_interval=None)


def run(engine: Engine, program: list[Step]) -> None:
    """Runs one program.

    Args:
        engine: A started engine without sessions.
        program: The calls to make.
    """
    client = dial(engine, compression=None, ping_interval=None, max_size=None, logger=QUIET)
    (connected,) = take(engine, 1)
    session = connected.session
    session.subscribe("mine")

    def reenter(number: int) -> None:
        text = conversation.token()
        match number % 6:
            case 0:
                session.send(text)
                conversation.note_own(text)
            case 1:
                engine.publish("mine", text)
                conversation.note_own(text)
            case 2:
                session.subscribe(f"topic.{number % 9}")
            case 3:
                session.unsubscribe(f"topic.{number % 9}")
            case 4:
                engine.publish_many([("mine", text)])
                conversation.note_own(text)
            case _:
                repr(session)
                engine.stats()
                len(engine.sessions)

    conversation = Conversation(reenter)
    try:
        for step in program:
            _try(engine, session, conversation, step)
        _end(session, client, conversation)
    finally:
        conversation.over = True
        client.abort()
        session.close()
        # Takes the last event of the session, so that the next run begins with none.
        for batch in engine.batches(timeout=PATIENCE):
            if any(isinstance(event, Disconnected) for event in batch) or not batch:
                break
    if engine.stats()["panics"]:
        raise Misbehaved("a worker has panicked")
    conversation.finish()


def _try(engine: Engine, session: Session, conversation: Conversation, step: Step) -> None:
    name, first, second = step
    make = conversation.maker.make
    a, b = make(first), make(second)
    if name == "batches" or name in ("room", "session room"):
        pass
    expected = content(first, a) if name in SENDS else None
    try:
        CALLS[name](engine, session, a, b)
    except StopIteration:
        conversation.unknown = True
    except BaseException as exc:
        conversation.note_error(exc, f"{name}({type(a).__name__}, {type(b).__name__})", a, b)
        if name == "publish_many":
            conversation.unknown = True
    else:
        if name in SENDS:
            conversation.note_sent(first, a, expected)
        elif name == "close":
            conversation.closed = True
        elif name not in ("look", "may", "session", "subscribers", "has room"):
            conversation.unknown = True


def _end(session: Session, client: ClientConnection, conversation: Conversation) -> None:
    # Objects that are collected later may call back at any time.
    conversation.over = True
    last = conversation.token()
    try:
        session.send(last)
        conversation.note_own(last)
        while not conversation.received or conversation.received[-1] != last.encode():
            conversation.note_received(client.recv(PATIENCE, decode=False))
    except wirespeed.ConnectionClosed as exc:
        if not conversation.closed:
            raise Misbehaved(f"neither end has closed it: {exc!r}") from exc
        return
    conversation.compare()
