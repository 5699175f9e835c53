"""Batches as sequences, and messages that are decoded in them."""

from __future__ import annotations

import dataclasses
import gc
import json
import sys
import time
import weakref
from typing import Annotated, Any

import msgspec
import pytest

from engine.tools import dial, running, uri
from wirespeed.engine import Batch, Connected, Disconnected, Engine, Event, Invalid, Message, Session
from wirespeed.exceptions import ConnectionClosed
from wirespeed.sync import connect

PATIENCE = 15.0


class Order(msgspec.Struct):
    symbol: str
    size: int


@dataclasses.dataclass
class Level:
    price: float


FAR, BACK = slice(5, None, sys.maxsize), slice(None, None, -sys.maxsize)
"""What comes after the first one is beyond all numbers."""


def one_batch(engine: Engine, count: int) -> Batch:
    """Returns a batch with this many events."""
    deadline = time.monotonic() + PATIENCE
    while engine.stats()["events_waiting"] < count:
        assert time.monotonic() < deadline
        time.sleep(0.001)
    batch = engine._take(count, PATIENCE)
    assert batch is not None
    assert len(batch) == count
    return batch


def filled(engine: Engine, messages: int = 5) -> Batch:
    with connect(uri(engine)) as client:
        for number in range(messages):
            client.send(str(number))
    return one_batch(engine, messages + 2)


def kind(event: Event) -> str:
    return f"{type(event).__name__} {event.data}" if isinstance(event, Message) else type(event).__name__


def test_a_batch_is_a_sequence() -> None:
    with Engine("127.0.0.1", workers=1) as engine:
        batch = filled(engine)
        kinds = ["Connected", *(f"Message {number}" for number in range(5)), "Disconnected"]
        assert batch
        assert [kind(event) for event in batch] == kinds
        assert [kind(event) for event in batch] == kinds, "again"
        assert [kind(batch[index]) for index in range(7)] == kinds
        assert [kind(batch[index]) for index in range(-7, 0)] == kinds
        for part in slice(2), slice(1, -1), slice(None, None, -1), slice(5, 1, -2), slice(9, 12), FAR, BACK:
            assert [kind(event) for event in batch[part]] == kinds[part]
        assert [kind(event) for event in reversed(batch)] == kinds[::-1]
        for index in -8, 7, 2**40, -(2**40), 10**30, -(10**30):
            with pytest.raises(IndexError):
                batch[index]
        with pytest.raises(TypeError):
            batch["0"]  # type: ignore[call-overload]
        events = iter(batch)
        assert events.__length_hint__() == 7
        next(events)
        assert events.__length_hint__() == 6
        assert len(list(events)) == 6
        assert events.__length_hint__() == 0
        assert list(events) == []
        assert repr(batch) == "<Batch of 7>"


def test_batch_has_one_object_per_session() -> None:
    with Engine("127.0.0.1", workers=1) as engine:
        sessions = {id(event.session) for event in filled(engine)}
        assert len(sessions) == 1


def test_kept_message_is_unchanged() -> None:
    """Message objects without references are reused; kept ones stay unchanged."""
    with Engine("127.0.0.1", workers=1) as engine:
        batch = filled(engine, 50)
        alone = {id(event) for event in batch if isinstance(event, Message)}
        assert len(alone) <= 3, "each message has an object of its own"
        kept: list[Message] = []
        previous: Event | None = None
        for number, event in enumerate(batch, -1):
            assert not isinstance(event, Message) or event.data == str(number)
            if isinstance(event, Message) and number % 3 == 0:
                kept.append(event)
            if isinstance(previous, Message):
                assert previous.data == str(number - 1), "it was filled while somebody had it"
            previous = event
        assert [event.data for event in kept] == [str(number) for number in range(0, 50, 3)]
        assert [event.data for event in list(batch) if isinstance(event, Message)] == [
            str(number) for number in range(50)
        ]


class Counted:
    """Counts its instances."""

    alive = 0

    def __init__(self, data: bytes) -> None:
        self.data = data
        Counted.alive += 1

    def __del__(self) -> None:
        Counted.alive -= 1


def test_references_of_messages_are_released() -> None:
    engine = Engine("127.0.0.1", workers=1)
    engine.route("/", codec=lambda data: Counted(data))
    with engine:
        batch = filled(engine, 50)
        session = batch[0].session
        references = sys.getrefcount(session)
        iterator = iter(batch)
        most = max(Counted.alive for _ in iterator)
        assert most <= 3, "what was said before is kept"
        assert Counted.alive == 0, "an iterator at its end keeps messages"
        assert next(iterator, None) is None
        kept = list(batch)
        assert Counted.alive == 50
        del kept
        iterator = iter(batch)
        assert all(isinstance(next(iterator), (Connected, Message)) for _ in range(3))
        assert Counted.alive > 0
        del iterator
        assert Counted.alive == 0
        assert sys.getrefcount(session) == references


def test_released_object_may_use_the_iterator() -> None:
    """The previous content of a message object is released when it is reused: that may run any code."""
    seen: list[str] = []

    class Greedy(Counted):
        def __del__(self) -> None:
            try:
                next(iterators[0])
            except (RuntimeError, StopIteration) as error:
                seen.append(type(error).__name__)
            super().__del__()

    engine = Engine("127.0.0.1", workers=1)
    engine.route("/", codec=lambda data: Greedy(data))
    with engine:
        batch = filled(engine, 20)
        iterators = [iter(batch)]
        texts = [event.data.data for event in iterators[0] if isinstance(event, Message)]
        assert texts == [str(number).encode() for number in range(20)]
        assert "RuntimeError" in seen, "nothing was released in between"


def test_messages_are_made_by_engines_only() -> None:
    with pytest.raises(TypeError, match="Message"):
        Message()
    with Engine("127.0.0.1", workers=1) as engine:
        message = filled(engine, 1)[1]
        for name in "session", "data", "other":
            with pytest.raises(AttributeError):
                setattr(message, name, 1)
        assert type(message).__module__ == "wirespeed.engine"


def test_unread_events_are_freed() -> None:
    """The session's object is freed with the batch, though its end event was not read."""
    with Engine("127.0.0.1", workers=1) as engine:
        batch = filled(engine)
        session = weakref.ref(batch[0].session)
        assert session() is not None
        del batch
        gc.collect()
        assert session() is None


def test_a_message_outlives_its_batch_and_its_engine() -> None:
    with Engine("127.0.0.1", workers=1) as engine:
        event = filled(engine)[3]
    assert isinstance(event, Message)
    assert event.data == "2"
    assert not event.session.is_open


def ask(codec: Any, *messages: str | bytes, **how: Any) -> tuple[list[Any], Any, dict[str, Any]]:
    """Returns the decoded messages of a client, its close code, and figures."""
    engine = Engine("127.0.0.1", workers=1)
    engine.route("/orders", codec=codec, **how)
    got: list[Any] = []
    sessions: set[Session] = set()
    with engine, dial(engine, "/orders") as client:
        for message in messages:
            client.send(message)
        while len(got) < len(messages):
            for event in next(engine.batches(timeout=PATIENCE)):
                sessions.add(event.session)
                if isinstance(event, Message):
                    got.append(event.data)
                elif isinstance(event, Invalid):
                    got.append((event.data, event.error))
        if how.get("close_invalid") is False:
            client.close()
        else:
            sessions.pop().close()  # again, of a refused one: nothing
            with pytest.raises(ConnectionClosed):
                client.recv(timeout=PATIENCE)
        return got, client.close_code, engine.stats()


@pytest.mark.parametrize(
    ("codec", "message", "expected"),
    [
        ("json", '{"a": [1, null]}', {"a": [1, None]}),
        ("json", b'"binary"', "binary"),
        ("json", '"\\u00e9\u00e9"', "\u00e9\u00e9"),
        ("msgpack", msgspec.msgpack.encode({"a": 1}), {"a": 1}),
        (Order, '{"symbol": "EURUSD", "size": 3}', Order("EURUSD", 3)),
        (Order, msgspec.msgpack.encode(Order("EURUSD", 3)), Order("EURUSD", 3)),
        (Level, '{"price": 1.5}', Level(1.5)),
        (list[int], "[1, 2]", [1, 2]),
        (Annotated[bytes, msgspec.Meta(max_length=3)], '"AAAA"', bytes(3)),
        (int | str, '"x"', "x"),
        (msgspec.json.Decoder(Order), b'{"symbol": "EURUSD", "size": 3}', Order("EURUSD", 3)),
        (json.loads, "[1]", [1]),
        (lambda data: data.upper(), "abc", b"ABC"),
    ],
)
def test_messages_are_decoded(codec: Any, message: str | bytes, expected: Any) -> None:
    got, code, stats = ask(codec, message)
    assert got == [expected]
    assert type(got[0]) is type(expected)
    assert code == 1000
    assert stats["messages_invalid"] == 0


@pytest.mark.parametrize(
    ("codec", "message", "text"),
    [
        ("json", "{", "truncated"),
        ("json", "", "truncated"),
        ("json", "1\n2", "malformed"),
        ("msgpack", b"\xc1", "malformed"),
        ("msgpack", "1", "text message"),
        (Order, '{"symbol": "EURUSD", "size": "3"}', "Expected `int`, got `str` - at `$.size`"),
        (Order, '{"size": 3}', "missing required field `symbol`"),
    ],
)
def test_undecodable_message_closes_the_session(codec: Any, message: str | bytes, text: str) -> None:
    got, code, stats = ask(codec, message)
    ((data, error),) = got
    assert data == message
    assert text in error
    assert code == 1007
    assert stats["messages_invalid"] == 1


def test_undecodable_message_may_be_kept() -> None:
    got, code, stats = ask("json", "1", "?", "2", close_invalid=False)
    assert [got[0], got[2]] == [1, 2]
    assert got[1][0] == "?"
    assert code == 1000
    assert stats["messages_invalid"] == 1


def test_codec_reason_is_cut_at_a_character() -> None:
    def refuse(_: bytes) -> None:
        raise ValueError("\u20ac" * 100)

    engine = Engine("127.0.0.1", workers=1)
    engine.route("/", codec=refuse)
    with engine, dial(engine) as client:
        client.send("x")
        events: list[Event] = []
        while len(events) < 2:
            events += next(engine.batches(timeout=PATIENCE))
        assert isinstance(events[1], Invalid)
        assert events[1].error == "\u20ac" * 100
        with pytest.raises(ConnectionClosed):
            client.recv(timeout=PATIENCE)
        assert client.close_code == 1007
        assert client.close_reason == "\u20ac" * 41


def test_system_exit_in_a_codec_ends_the_program() -> None:
    def leave(_: bytes) -> None:
        raise KeyboardInterrupt

    engine = Engine("127.0.0.1", workers=1)
    engine.route("/", codec=leave)
    with engine, dial(engine) as client:
        client.send("x")
        batch = one_batch(engine, 2)
        events = iter(batch)
        assert isinstance(next(events), Connected)
        for _ in range(2):  # it is not skipped
            with pytest.raises(KeyboardInterrupt):
                next(events)
        assert engine.stats()["messages_invalid"] == 0


def test_repeated_access_is_counted_once() -> None:
    engine = Engine("127.0.0.1", workers=1)
    engine.route("/", codec="json", close_invalid=False)
    with engine, dial(engine) as client:
        for message in "}", "{", "1":
            client.send(message)
        batch = one_batch(engine, 4)
        for _ in range(3):
            assert [type(event) for event in batch] == [Connected, Invalid, Invalid, Message]
        assert isinstance(batch[-2], Invalid)
        assert engine.stats()["messages_invalid"] == 2


def test_a_codec_that_refers_to_its_engine_is_collected() -> None:
    engine = Engine("127.0.0.1", workers=1)

    def decode(data: bytes, engine: Engine = engine) -> tuple[Engine, bytes]:
        return engine, data

    engine.route("/", codec=decode)
    with engine, dial(engine) as client:
        client.send("x")
        batch = one_batch(engine, 2)
        gc.collect()
        event = batch[1]
        assert isinstance(event, Message)
        assert event.data == (engine, b"x"), "it was cleared while it is in use"
    gone = weakref.ref(engine)
    del engine, decode, event, batch
    gc.collect()
    assert gone() is None


def test_a_codec_that_uses_the_iterator_it_is_called_by() -> None:
    events: list[Any] = []

    def greedy(_: bytes) -> Any:
        return next(events[0])

    engine = Engine("127.0.0.1", workers=1)
    engine.route("/", codec=greedy)
    with engine, dial(engine) as client:
        client.send("x")
        events.append(iter(one_batch(engine, 2)))
        next(events[0])
        refused = next(events[0])
        assert isinstance(refused, Invalid)
        assert "borrowed" in refused.error


@pytest.mark.parametrize(
    ("codec", "error", "text"),
    [
        ("xml", ValueError, "codec must be"),
        (3, TypeError, "3"),
        (NotImplemented, TypeError, "NotImplemented"),
    ],
)
def test_invalid_codec(codec: Any, error: type[Exception], text: str) -> None:
    engine = Engine("127.0.0.1", workers=1)
    with pytest.raises(error, match=text):
        engine.route("/", codec=codec)
    engine.route("/", codec="json")  # nothing is left of it


def test_each_route_has_its_own_codec() -> None:
    engine = Engine("127.0.0.1", workers=1)
    engine.route("/plain")
    engine.route("/json", codec="json")
    engine.route("/orders", codec=Order)
    got: dict[str, Any] = {}
    with engine, dial(engine, "/plain") as plain, dial(engine, "/json") as any_json, dial(engine, "/orders") as orders:
        for client in plain, any_json, orders:
            client.send('{"symbol": "A", "size": 1}')
        while len(got) < 3:
            for event in next(engine.batches(timeout=PATIENCE)):
                if isinstance(event, Message):
                    got[event.session.path] = event.data
    assert got == {
        "/plain": '{"symbol": "A", "size": 1}',
        "/json": {"symbol": "A", "size": 1},
        "/orders": Order("A", 1),
    }


@pytest.mark.parametrize("threads", [0, 2])
def test_handlers_get_decoded_and_undecodable_messages(threads: int) -> None:
    engine = Engine("127.0.0.1", workers=1)
    engine.route("/", codec=Order)
    seen: list[Any] = []

    @engine.on_message
    def took(session: Any, order: Order) -> None:
        seen.append(order)

    @engine.on_invalid
    def refused(session: Any, data: str | bytes, error: str) -> None:
        seen.append((data, error))

    @engine.on_disconnect
    def left(session: Any, code: int, reason: str) -> None:
        seen.append(code)

    with running(engine, threads=threads), dial(engine) as client:
        client.send('{"symbol": "A", "size": 1}')
        client.send("[]")
        with pytest.raises(ConnectionClosed):
            client.recv(timeout=PATIENCE)
        engine.drain(timeout=PATIENCE)
    assert seen == [Order("A", 1), ("[]", "Expected `object`, got `array`"), 1007]


def test_objects_without_length_are_described() -> None:
    engine = Engine("127.0.0.1", workers=1)
    engine.route("/", codec=Order)
    with engine, dial(engine) as client:
        client.send('{"symbol": "secret", "size": 1}')
        client.send("secret")
        batch = one_batch(engine, 3)
        texts = [repr(event) for event in batch]
    assert texts[1].startswith("Message(<Session ")
    assert texts[1].endswith(", Order)")
    assert ", str of 6, " in texts[2]
    assert "secret" not in texts[1] + texts[2]


def test_match_statements() -> None:
    def name(event: Event) -> Any:
        match event:
            case Connected(session):
                return "in", session.id
            case Message(_, data):
                return data
            case Invalid(_, data, _):
                return "invalid", data
            case Disconnected(_, code, _):
                return code

    engine = Engine("127.0.0.1", workers=1)
    engine.route("/", codec="json")
    with engine:
        with dial(engine) as client:
            client.send("1")
            client.send("x")
        batch = one_batch(engine, 4)
        assert [name(event) for event in batch] == [("in", batch[0].session.id), 1, ("invalid", "x"), 1000]
