"""The engine from Python: batches, from threads and on an event loop, and errors on misuse."""

from __future__ import annotations

import asyncio
import base64
import hmac
import json
import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import wirespeed
from wirespeed.engine import JWT, Connected, Disconnected, Engine, Event, Message, Session
from wirespeed.sync import ClientConnection, connect

pytestmark = pytest.mark.wirespeed_only("websockets has no engine")


def uri(engine: Engine, path: str = "/") -> str:
    host, port = engine.addresses[0]
    return f"ws://{host}:{port}{path}"


def dial(engine: Engine, path: str = "/", **options: Any) -> ClientConnection:
    return connect(uri(engine, path), proxy=None, **options)


def take(engine: Engine, count: int) -> list[Event]:
    events: list[Event] = []
    for batch in engine.batches(timeout=20):
        assert batch, f"only {events}"
        events += batch
        if len(events) >= count:
            break
    assert len(events) == count
    return events


def test_batches() -> None:
    with Engine("127.0.0.1", workers=2) as engine:
        assert engine.workers == 2
        with dial(engine, "/room?a=b", additional_headers={"X-Name": "J\xfcrgen"}) as ws:
            ws.send("text")
            ws.send(b"bytes")
            first, second, third = take(engine, 3)
            assert isinstance(first, Connected)
            session = first.session
            assert (session.path, session.query, session.headers["X-Name"]) == ("/room", "a=b", "J\xfcrgen")
            assert session.remote_address == ws.local_address
            assert session.is_open
            match second, third:
                case Message(one, "text"), Message(other, b"bytes"):
                    assert one is session
                    assert other is session
                case _:
                    pytest.fail(f"{second} {third}")
            assert session.send("answer")
            assert session.send(b"\xff")
            assert session.send(b"as text", text=True)
            assert engine.broadcast("to all")
            assert engine.broadcast("to the others", exclude=session)
            assert [ws.recv(20) for _ in range(4)] == ["answer", b"\xff", "as text", "to all"]
            session.close(3000, "enough")
            with pytest.raises(wirespeed.ConnectionClosedError) as info:
                ws.recv(20)
            assert info.value.rcvd == wirespeed.Close(3000, "enough")
        (last,) = take(engine, 1)
        assert isinstance(last, Disconnected)
        assert (last.session, last.code, last.reason, last.failure) == (session, 3000, "enough", None)
        assert not session.is_open
        with pytest.raises(wirespeed.InvalidState):
            session.send("late")
        session.close()
        stats = engine.stats()
        assert (stats["sessions"], stats["sessions_opened"], stats["connections"]) == (0, 1, 0)


def test_invalid_messages_of_a_session() -> None:
    with Engine("127.0.0.1") as engine, dial(engine):
        (event,) = take(engine, 1)
        with pytest.raises(TypeError, match="message must be str or bytes-like, not int"):
            event.session.send(1)  # type: ignore[arg-type]
        with pytest.raises(UnicodeDecodeError):
            event.session.send(b"\xff", text=True)
        with pytest.raises(wirespeed.ProtocolError, match="1005"):
            event.session.close(1005)
        with pytest.raises(wirespeed.ProtocolError, match="124 bytes"):
            event.session.close(1000, "x" * 124)
        assert event.session.is_open


def test_topics() -> None:
    with Engine("127.0.0.1", workers=2, max_subscriptions=3) as engine, dial(engine) as one, dial(engine) as two:
        first, second = (event.session for event in take(engine, 2))
        if first.remote_address != one.local_address:
            first, second = second, first
        assert first.subscribe("prices.*")
        assert not first.subscribe("prices.*")
        assert first.subscribe("prices.>")
        assert second.subscribe("prices.a")
        assert sorted(first.topics) == ["prices.*", "prices.>"]
        assert engine.publish("prices.a", "for both") == 2
        assert engine.publish("prices.a", b"for one", exclude=second, key="a") == 1
        assert engine.publish("prices.a.b", "deep") == 1
        assert engine.publish("other", "nobody") == 0
        assert engine.subscribers("prices.a") == 2
        assert first.unsubscribe("prices.>")
        assert not first.unsubscribe("prices.>")
        assert engine.publish("prices.a.b", "deep") == 0
        assert [one.recv(20), one.recv(20), one.recv(20), two.recv(20)] == ["for both", b"for one", "deep", "for both"]
        assert second.subscribe("b")
        assert second.subscribe("c")
        with pytest.raises(RuntimeError, match="subscribes to 3 topics"):
            second.subscribe("d")
        with pytest.raises(ValueError, match=r'topic "a\.\.b": .*segment'):
            second.subscribe("a..b")
        with pytest.raises(ValueError, match=r'topic "a\.\*"'):
            engine.publish("a.*", "x")


SECRET = "a secret of at least thirty-two bytes"


def token(key: str = SECRET, **claims: Any) -> str:
    def part(data: bytes) -> str:
        return base64.urlsafe_b64encode(data).rstrip(b"=").decode()

    signed = f"{part(json.dumps({'alg': 'HS256', 'typ': 'JWT'}).encode())}.{part(json.dumps(claims).encode())}"
    return f"{signed}.{part(hmac.digest(key.encode(), signed.encode(), 'sha256'))}"


def test_tokens() -> None:
    auth = JWT(SECRET, "HS256", audience="games", cookie="session", query="token", subprotocol="bearer.")
    assert repr(auth) == "<JWT>"
    good = token(sub="ann", exp=time.time() // 1 + 60, aud="games", topics={"allow": ["a.*"]}, level=7)
    with Engine("127.0.0.1", auth=auth, subprotocols=["chat"]) as engine:
        places: list[dict[str, Any]] = [
            {"additional_headers": {"Cookie": f"other=1; session={good}"}},
            {"additional_headers": {"Authorization": f"Bearer {good}"}},
            {"subprotocols": ["chat", f"bearer.{good}"]},
        ]
        for options in places:
            with dial(engine, **options):
                (event,) = take(engine, 1)
                session = event.session
                assert session.user == "ann"
                assert session.claims is not None
                assert session.claims["level"] == 7
                assert session.subprotocol == ("chat" if "subprotocols" in options else None)
                assert session.subscribe("a.b")
                with pytest.raises(PermissionError, match="allows this"):
                    session.subscribe("b")
            take(engine, 1)
        with dial(engine, f"/?token={good}"):
            take(engine, 1)
        take(engine, 1)
        for bad, status in [
            (token(sub="ann", exp=1, aud="games"), 401),
            (token("another secret, and also long enough", sub="ann", exp=2**33, aud="games"), 401),
            (token(sub="ann", exp=2**33, aud="others"), 403),
        ]:
            with pytest.raises(wirespeed.InvalidStatus) as info:
                dial(engine, additional_headers={"Authorization": f"Bearer {bad}"})
            assert info.value.response.status_code == status
            assert bad not in str(info.value.response.body)
        with pytest.raises(wirespeed.InvalidStatus) as info:
            dial(engine)
        assert info.value.response.headers["WWW-Authenticate"].startswith("Bearer")
    with Engine("127.0.0.1") as engine, dial(engine):
        (event,) = take(engine, 1)
        assert (event.session.user, event.session.claims) == (None, None)


@pytest.mark.parametrize(
    ("arguments", "options", "error", "text"),
    [
        (("short", "HS256"), {}, ValueError, "key"),
        ((SECRET, "HS1"), {}, ValueError, "HS1"),
        ((SECRET, ["HS256", "RS256"]), {}, ValueError, "RS256"),
        ((SECRET, "RS256"), {}, ValueError, "key"),
        ((SECRET,), {}, ValueError, "algorithms"),
        ((None, "HS256"), {}, TypeError, "key"),
        ((SECRET, "HS256"), {"jwks": "keys.json"}, TypeError, "both"),
        ((1, "HS256"), {}, TypeError, "key must be str or bytes"),
        ((SECRET, "HS256"), {"header": False}, ValueError, "nowhere"),
        ((None, "RS256"), {"jwks": "/nowhere/keys.json"}, OSError, "/nowhere/keys.json"),
    ],
)
def test_invalid_token_settings(
    arguments: tuple[Any, ...], options: dict[str, Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text) as info:
        JWT(*arguments, **options)
    assert SECRET not in str(info.value)


def test_send_without_waiting_is_refused_when_full() -> None:
    """A publisher that ignores refusals cannot fill the memory; one that waits continues."""
    with Engine("127.0.0.1", workers=1, mailbox_limit=1) as engine, dial(engine) as ws:
        (event,) = take(engine, 1)
        event.session.subscribe("news")
        refused = 0
        for number in range(5000):
            while True:
                try:
                    assert engine.publish("news", str(number)) == 1
                    break
                except BlockingIOError:
                    refused += 1
                    assert engine.wait_for_room(timeout=20)
        assert refused
        assert [ws.recv(20) for _ in range(5000)] == [str(number) for number in range(5000)]


async def test_awaited_sends_match_the_pace_of_the_client() -> None:
    """Ten times the capacity of an outbox to a slow reader, and to a topic: nothing is lost, no client is
    disconnected.
    """
    size, count = 10_000, 200
    async with Engine("127.0.0.1", outbox_limit=200_000) as engine:
        async with wirespeed.connect(f"ws://127.0.0.1:{engine.addresses[0][1]}/", max_queue=4) as ws:
            batch = await anext(engine.__aiter__())
            session = batch[0].session
            session.subscribe("feed")

            async def send() -> bool:
                waited = False
                for number in range(count):
                    sent = session.send(number.to_bytes(size, "big"))
                    waited |= not sent
                    assert await sent
                for number in range(count, 2 * count):
                    assert engine.publish("feed", number.to_bytes(size, "big")) == 1
                    await engine.room("feed")
                return waited

            sending = asyncio.create_task(send())
            for number in range(2 * count):
                message = await asyncio.wait_for(ws.recv(), 20)
                assert isinstance(message, bytes)
                assert int.from_bytes(message, "big") == number
                if number % 20 == 0:
                    await asyncio.sleep(0.005)
            await asyncio.wait_for(sending, 20)
            assert session.is_open
        # A futile wait gets an exception.
        while session.is_open:
            await asyncio.sleep(0.001)
        with pytest.raises(wirespeed.InvalidState):
            session.send("too late")


def test_stop_ends_batches_in_another_thread() -> None:
    engine = Engine("127.0.0.1")
    seen: list[Event] = []

    def gather() -> None:
        for batch in engine.batches():
            seen.extend(batch)

    with engine:
        thread = threading.Thread(target=gather)
        thread.start()
        with dial(engine) as ws:
            ws.send("hello")
            engine.stop()
            with pytest.raises(wirespeed.ConnectionClosedError):
                ws.recv(20)
        thread.join(20)
        assert not thread.is_alive()
    assert isinstance(seen[0], Connected)
    assert isinstance(seen[-1], Disconnected)
    with pytest.raises(wirespeed.InvalidState):
        engine.broadcast("late")
    engine.stop()


async def test_on_an_event_loop() -> None:
    async with Engine("127.0.0.1") as engine:

        async def serve() -> int:
            count = 0
            async for batch in engine:
                for event in batch:
                    if isinstance(event, Message):
                        count += 1
                        event.session.send(event.data)
            return count

        serving = asyncio.create_task(serve())

        async def talk(name: str) -> None:
            async with wirespeed.connect(uri(engine), proxy=None) as ws:
                for number in range(200):
                    await ws.send(f"{name} {number}")
                    if number % 50 == 0:
                        await asyncio.sleep(0.01)
                for number in range(200):
                    assert await ws.recv() == f"{name} {number}"

        await asyncio.wait_for(asyncio.gather(*(talk(f"client {number}") for number in range(10))), 30)
        engine.stop()
        assert await asyncio.wait_for(serving, 20) == 2000


async def exchange(engine: Engine, name: str, count: int) -> None:
    async with wirespeed.connect(uri(engine), proxy=None) as ws:
        assert await ws.recv() == "hello"
        for number in range(count):
            await ws.send(f"{name} {number}")
        for number in range(count):
            assert await ws.recv() == f"{name} {number}"


@pytest.mark.parametrize("suspends", [False, True])
async def test_handlers_that_await(suspends: bool) -> None:
    engine = Engine("127.0.0.1", workers=2)
    gone: list[tuple[int, str]] = []
    running: set[Session] = set()

    @engine.on_connect
    async def hello(session: Session) -> None:
        session.send("hello")

    @engine.on_message
    async def echo(session: Session, message: str) -> None:
        assert session not in running
        running.add(session)
        if suspends and message.endswith("0"):
            await asyncio.sleep(0.001)
        running.remove(session)
        session.send(message)

    @engine.on_disconnect
    def bye(session: Session, code: int, reason: str) -> None:
        gone.append((code, reason))

    async with engine:
        serving = asyncio.create_task(engine.serve(max_handlers=5))
        clients = [exchange(engine, f"client {number}", 300) for number in range(20)]
        await asyncio.wait_for(asyncio.gather(*clients), 30)
        engine.stop()
        await asyncio.wait_for(serving, 20)
    assert gone == [(1000, "")] * 20


@pytest.mark.parametrize("threads", [0, 4])
def test_handlers_on_threads(threads: int) -> None:
    engine = Engine("127.0.0.1")
    engine.on_connect(lambda session: session.send("hello"))
    callers: set[str] = set()

    @engine.on_message
    def echo(session: Session, message: str) -> None:
        callers.add(threading.current_thread().name)
        session.send(message)

    engine.start()
    thread = threading.Thread(target=engine.run, kwargs={"threads": threads}, name="runs")
    thread.start()

    async def main() -> None:
        clients = [exchange(engine, f"client {number}", 300) for number in range(20)]
        await asyncio.wait_for(asyncio.gather(*clients), 30)

    asyncio.run(main())
    engine.stop()
    thread.join(20)
    assert not thread.is_alive()
    assert callers == {"runs"} if threads == 0 else all(name.startswith("wirespeed-handler") for name in callers)


@pytest.mark.parametrize("awaits", [False, True])
def test_a_handler_that_fails_ends_its_session_alone(awaits: bool, caplog: pytest.LogCaptureFixture) -> None:
    engine = Engine("127.0.0.1")

    def echo(session: Session, message: str) -> None:
        if message == "fail":
            raise ValueError("no")
        session.send(message)

    async def echo_later(session: Session, message: str) -> None:
        await asyncio.sleep(0)
        echo(session, message)

    engine.on_message(echo_later if awaits else echo)
    engine.start()
    thread = threading.Thread(target=engine.run)
    thread.start()
    try:
        with dial(engine) as one, dial(engine) as two:
            one.send("fail")
            with pytest.raises(wirespeed.ConnectionClosedError) as info:
                one.recv(20)
            assert info.value.code == 1011
            two.send("still here")
            assert two.recv(20) == "still here"
    finally:
        engine.stop()
        thread.join(20)
    assert not thread.is_alive()
    (record,) = [record for record in caplog.records if record.name == "wirespeed.engine"]
    assert "the handler of Message" in record.getMessage()
    assert record.exc_info is not None


async def test_serving_that_is_cancelled_stops() -> None:
    engine = Engine("127.0.0.1")
    cancelled: list[Session] = []

    @engine.on_message
    async def never(session: Session, message: str) -> None:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            cancelled.append(session)
            raise

    serving = asyncio.create_task(engine.serve())
    await asyncio.sleep(0)
    async with wirespeed.connect(uri(engine), proxy=None) as ws:
        await ws.send("x")
        await asyncio.sleep(0.2)
        serving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await serving
        with pytest.raises(wirespeed.ConnectionClosedOK):
            await ws.recv()
    assert len(cancelled) == 1


def test_invalid_handlers() -> None:
    engine = Engine("127.0.0.1")
    with pytest.raises(RuntimeError, match="there are no handlers"):
        engine.run()
    with pytest.raises(TypeError, match="on_message needs a function, not int"):
        engine.on_message(1)  # type: ignore[type-var]

    @engine.on_message
    async def one(session: Session, message: str) -> None: ...

    with pytest.raises(RuntimeError, match="on_message has a handler already"):
        engine.on_message(one)
    with pytest.raises(ValueError, match="run on an event loop"):
        engine.run(threads=2)


def test_paths_origins_subprotocols() -> None:
    engine = Engine("127.0.0.1", subprotocols=["b", "a"], origins=["https://good.example"])
    engine.echo("/echo/{name}")
    engine.route("/room")
    with engine:
        with dial(engine, "/echo/x", subprotocols=["a", "b"], origin="https://good.example") as ws:
            assert ws.subprotocol == "b"
            ws.send("back")
            assert ws.recv(20) == "back"
        for path, origin, status in [
            ("/", None, 404),
            ("/echo/x/y", None, 404),
            ("/room", "https://bad.example", 403),
            ("/room", None, None),
        ]:
            if status is None:
                dial(engine, path, origin=origin).close()
                continue
            with pytest.raises(wirespeed.InvalidStatus) as info:
                dial(engine, path, origin=origin)
            assert info.value.response.status_code == status
    with Engine("127.0.0.1") as engine:
        host, port = engine.addresses[0]
        dial(engine, origin=f"http://{host}:{port}").close()
        with pytest.raises(wirespeed.InvalidStatus):
            dial(engine, origin="https://elsewhere.example")


def test_unix_socket(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    with Engine(path=path, workers=2) as engine:
        assert engine.addresses == [str(path)]
        with wirespeed.sync.unix_connect(str(path)) as ws:
            ws.send("hello")
            _, message = take(engine, 2)
            assert isinstance(message, Message)
            assert (message.data, message.session.remote_address) == ("hello", None)


def test_invalid_options() -> None:
    with pytest.raises(ValueError, match="host, a path, or both"):
        Engine()
    with pytest.raises(ValueError, match='host "localhost" is no address'):
        Engine("localhost")
    with pytest.raises(ValueError, match='policy must be "disconnect"'):
        Engine("127.0.0.1", policy="drop")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="ping_interval must be a number of seconds"):
        Engine("127.0.0.1", ping_interval=-1)
    engine = Engine("127.0.0.1")
    with pytest.raises(ValueError, match="does not begin with a slash"):
        engine.echo("echo")
    engine.stop()
    with pytest.raises(RuntimeError, match="has not started"):
        engine.broadcast("early")
    with engine:
        with pytest.raises(RuntimeError, match="has started before"):
            engine.start()
        with pytest.raises(RuntimeError, match="add its paths before"):
            engine.echo("/echo")
    with Engine("127.0.0.1") as one, pytest.raises(OSError, match=r".*"):
        Engine(path="/nowhere/at/all").start()
    assert one.addresses


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_child_process_has_no_engine_threads() -> None:
    with Engine("127.0.0.1") as engine:
        child = os.fork()
        if child == 0:
            try:
                engine.broadcast("from a child")
            except RuntimeError as exc:
                os._exit(7 if "child process" in str(exc) else 8)
            os._exit(9)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


def test_calls_without_wait_are_not_interrupted() -> None:
    with Engine("127.0.0.1") as engine:
        assert len(next(iter(engine.batches(timeout=0.05)))) == 0
        assert engine.wait_for_room(timeout=0)
        sessions: set[Session] = set()
        with dial(engine), dial(engine):
            sessions |= {event.session for event in take(engine, 2)}
        assert len(sessions) == 2
        assert repr(sessions.pop()).startswith("<Session ")
