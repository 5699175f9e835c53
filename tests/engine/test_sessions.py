"""Session information of an engine, several messages in one call, and tokens that replace others."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import wirespeed
from engine.callers import OTHER_SECRET, SECRET, bearer, dial, next_session, token, wait_for, wait_for_broker
from wirespeed.engine import JWT, Disconnected, Engine, Message, Session

pytestmark = pytest.mark.wirespeed_only("websockets has no engine")


def until(engine: Engine, kind: type) -> Any:
    for batch in engine.batches(timeout=20):
        assert batch, "nothing has happened"
        for event in batch:
            if isinstance(event, kind):
                return event
    raise AssertionError("the engine has ended")


def test_several_messages_in_one_call() -> None:
    with Engine("127.0.0.1", workers=2) as engine, dial(engine, "/") as ws:
        session = next_session(engine)
        session.subscribe("prices.*")
        items: list[Any] = [("prices.a", "1"), ("prices.b", b"2", "b"), ("nobody", "3"), ("prices.a", "4", None)]
        published = engine.publish_many(items)
        assert (published, published.forwarded) == (3, False)
        assert [ws.recv(20) for _ in range(3)] == ["1", b"2", "4"]
        # Of any kind, and of any length.
        assert engine.publish_many(("prices.a", str(number)) for number in range(1000)) == 1000
        assert [ws.recv(20) for _ in range(1000)] == [str(number) for number in range(1000)]
        assert engine.publish_many([("prices.a", b"text")], text=True) == 1
        assert ws.recv(20) == "text"
        assert engine.publish_many([]) == 0


@pytest.mark.parametrize(
    ("bad", "error", "text"),
    [
        (("prices.*", "x"), ValueError, "item 2: topic"),
        (("a..b", "x"), ValueError, "item 2: topic"),
        (("prices.a", 1), TypeError, "item 2: message must be str or bytes-like, not int"),
        (("prices.a",), TypeError, "item 2: it must be"),
        ("ab", TypeError, "item 2: it must be"),
        ((1, "x"), TypeError, "item 2: the topic must be a str"),
        (("prices.a", "x", 1), TypeError, "item 2: the key must be a str"),
        (("prices.a", "\ud800"), UnicodeError, "item 2"),
    ],
)
def test_invalid_message_is_named(bad: Any, error: type[Exception], text: str) -> None:
    with Engine("127.0.0.1") as engine, dial(engine, "/") as ws:
        next_session(engine).subscribe("prices.*")
        with pytest.raises(error, match=text):
            engine.publish_many([("prices.a", "1"), ("prices.a", "2"), bad, ("prices.a", "3")])
        engine.publish("prices.a", "after")
        assert [ws.recv(20) for _ in range(3)] == ["1", "2", "after"]


def test_exception_of_an_iterator_propagates() -> None:
    def items() -> Iterator[tuple[str, str]]:
        yield "a", "1"
        raise LookupError("no more")

    with Engine("127.0.0.1") as engine, dial(engine, "/") as ws:
        next_session(engine).subscribe("a")
        with pytest.raises(LookupError, match="no more"):
            engine.publish_many(items())
        assert ws.recv(20) == "1"
        with pytest.raises(TypeError, match="iterable"):
            engine.publish_many(1)  # type: ignore[arg-type]


def test_keyboard_interrupt_takes_precedence() -> None:
    def items() -> Iterator[tuple[str, bytes]]:
        for _ in range(100):
            yield "a", bytes(1000)
        raise KeyboardInterrupt

    with Engine("127.0.0.1", workers=1, mailbox_limit=1) as engine, dial(engine, "/"):
        next_session(engine).subscribe("a")
        contexts = []
        for _ in range(3):
            with pytest.raises(KeyboardInterrupt) as raised:
                engine.publish_many(items())
            contexts.append(raised.value.__context__)
        assert isinstance(contexts[-1], BlockingIOError)


def test_ending_session_is_not_listed() -> None:
    with Engine("127.0.0.1", workers=1) as engine, dial(engine, "/"):
        session = next_session(engine)
        assert engine.sessions == [session]
        # The client does not answer before it reads.
        session.close()
        assert not session.is_open
        assert (engine.sessions, engine.session(session.id)) == ([], None)


def test_invalid_values_raise_clear_errors() -> None:
    engine = Engine("127.0.0.1", workers=1, topics_by_default="none")
    with engine, dial(engine, "/"):
        session = next_session(engine)
        with pytest.raises(PermissionError, match="topics_by_default"):
            session.subscribe("a")
        with pytest.raises(PermissionError, match="topics_by_default"):
            session.publish("a", "b")
    calls: list[Callable[[], object]] = [
        lambda: engine.publish("a", "b"),
        lambda: engine.broadcast("b"),
        lambda: engine.publish_many([("a", "b")]),
        engine.has_room,
        engine.wait_for_room,
    ]
    for call in calls:
        with pytest.raises(wirespeed.InvalidState, match="the engine has stopped"):
            call()
    with pytest.raises(wirespeed.InvalidState, match="the session is closed"):
        session.send("x")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_child_process_gets_no_sessions() -> None:
    """The thread that held the lock may not exist in the child."""
    engine = Engine("127.0.0.1", workers=1, auth=JWT(SECRET, ["HS256"]))
    with engine, dial(engine, "/", additional_headers=bearer(sub="ann")):
        session = next_session(engine)
        assert session.user == "ann"
        for name in "user", "claims":
            child = os.fork()
            if child == 0:
                try:
                    getattr(session, name)
                except RuntimeError as exc:
                    os._exit(7 if "child process" in str(exc) else 8)
                finally:
                    os._exit(9)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


def test_refused_batch_reports_its_position() -> None:
    with Engine("127.0.0.1", workers=1, mailbox_limit=1) as engine, dial(engine, "/") as ws:
        next_session(engine).subscribe("a")
        items = [("a", str(number)) for number in range(20_000)]
        with pytest.raises(BlockingIOError, match="item") as info:
            engine.publish_many(items)
        done = info.value.characters_written
        assert 0 < done < len(items)
        assert [ws.recv(20) for _ in range(done)] == [str(number) for number in range(done)]


def test_several_messages_reach_other_engines() -> None:
    with (
        Engine("127.0.0.1", broker="memory://many") as first,
        Engine("127.0.0.1", broker="memory://many") as second,
        dial(second, "/") as ws,
    ):
        next_session(second).subscribe("a")
        wait_for_broker(second, 1)
        published = first.publish_many([("a", "1"), ("a", "2")])
        assert (published, published.forwarded) == (0, True)
        assert [ws.recv(20), ws.recv(20)] == ["1", "2"]


def test_list_of_sessions() -> None:
    engine = Engine("127.0.0.1", workers=2)
    engine.route("/room")
    engine.echo("/echo")
    with engine, dial(engine, "/room") as ws:
        session = next_session(engine)
        assert engine.sessions == [session]
        assert engine.sessions[0] is session
        assert engine.session(session.id) is session
        assert engine.session(10**6) is None
        with dial(engine, "/echo") as other:
            other.send("x")
            other.recv(20)
            newest, oldest = engine.sessions
            assert (newest.path, oldest) == ("/echo", session)
            newest.close(3000, "go away")
            with pytest.raises(wirespeed.ConnectionClosedError, match="go away"):
                other.recv(20)
        ws.close()
        assert until(engine, Disconnected).session is session
        assert engine.session(session.id) is None
    with pytest.raises(RuntimeError, match="has not started"):
        Engine("127.0.0.1").sessions  # noqa: B018


def test_early_lookup_returns_the_same_session() -> None:
    with Engine("127.0.0.1", workers=1) as engine, dial(engine, "/"):
        wait_for(lambda: engine.sessions, "it is there")
        (found,) = engine.sessions
        assert next_session(engine) is found


def test_counters_of_a_session() -> None:
    with Engine("127.0.0.1") as engine, dial(engine, "/") as ws:
        session = next_session(engine)
        session.subscribe("a")
        ws.send("1234")
        assert until(engine, Message).session is session
        session.send("12")
        assert ws.recv(20) == "12"
        stats = session.stats()
        seconds = stats.pop("open_seconds")
        assert 0 < seconds < 3600
        expected = {
            "messages_received": 1,
            "bytes_received": 4,
            "messages_sent": 1,
            "bytes_sent": 2,
            "messages_dropped": 0,
            "messages_limited": 0,
            "messages_denied": 0,
            "queued_bytes": 0,
            "subscriptions": 1,
        }
        # Its end is known when the thread's turn is over.
        assert {**stats, "queued_bytes": 0} == expected
        ws.close()
        until(engine, Disconnected)
        last = session.stats()
        assert last.pop("open_seconds") >= seconds
        assert {**last, "subscriptions": 1} == expected
    assert session.stats()["bytes_received"] == 4


def test_a_later_token() -> None:
    engine = Engine("127.0.0.1", auth=JWT(SECRET, ["HS256"], leeway=0))
    engine.route("/room")
    engine.route("/open", auth=None)
    with engine:
        with dial(engine, "/room", additional_headers=bearer(sub="ann", topics={"allow": ["old"]})) as ws:
            session = next_session(engine)
            session.allow("given")
            session.refresh(token(sub="ann", name="Ann", topics={"allow": ["new"]}))
            assert session.claims is not None
            assert (session.user, session.claims["name"]) == ("ann", "Ann")
            assert [session.may_publish(name) for name in ("old", "new", "given")] == [False, True, True]
            for bad, text in [
                (token(sub="bob"), "another user"),
                (token(sub="ann", exp=1), "expired"),
                (token(OTHER_SECRET, sub="ann"), "signature"),
                ("nonsense", "not a signed token"),
            ]:
                with pytest.raises(PermissionError, match=text):
                    session.refresh(bad)
            assert session.claims["name"] == "Ann"
            session.refresh(token(sub="ann", exp=int(time.time()) + 3))
            with pytest.raises(wirespeed.ConnectionClosedError, match="token expired"):
                ws.recv(20)
            with pytest.raises(wirespeed.InvalidState):
                session.refresh(token(sub="ann"))
        with dial(engine, "/open"), pytest.raises(RuntimeError, match="requires no token"):
            next_session(engine).refresh(token(sub="ann"))


async def test_a_handler_that_refreshes() -> None:
    engine = Engine("127.0.0.1", auth=JWT(SECRET, ["HS256"]))

    @engine.on_message
    async def handle(session: Session, message: str) -> None:
        try:
            session.refresh(message)
        except PermissionError as error:
            await session.send(f"no: {error}")
        else:
            await session.send("yes")

    serving = asyncio.create_task(engine.serve())
    await asyncio.sleep(0)
    host, port = engine.addresses[0]
    uri = f"ws://{host}:{port}/"
    async with wirespeed.connect(uri, proxy=None, additional_headers=bearer(sub="ann")) as ws:
        await ws.send(token(sub="ann"))
        assert await asyncio.wait_for(ws.recv(), 20) == "yes"
        await ws.send(token(sub="bob"))
        assert await asyncio.wait_for(ws.recv(), 20) == "no: the token is of another user than the session, or of none"
    await asyncio.get_running_loop().run_in_executor(None, engine.stop)
    await serving
