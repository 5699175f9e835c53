"""Relay paths: clients send to each other without Python code."""

from __future__ import annotations

import threading
from typing import Any

import pytest

import wirespeed
from engine.callers import SECRET, bearer, dial, status, wait_for, wait_for_broker
from wirespeed.engine import JWT, Engine

pytestmark = pytest.mark.wirespeed_only("websockets has no engine")


def test_clients_talk_to_each_other() -> None:
    engine = Engine("127.0.0.1", workers=2)
    engine.relay("/feed/{topic}")
    engine.relay("/echo/{*topic}", echo=True, prefix="chat")
    with engine:
        with dial(engine, "/feed/a") as one, dial(engine, "/feed/a") as two, dial(engine, "/feed/b") as three:
            one.send("hello")
            two.send(b"hi")
            assert [two.recv(20), one.recv(20)] == ["hello", b"hi"]
            assert engine.publish("a", "news") == 2
            assert engine.publish("b", "other news") == 1
            assert [one.recv(20), two.recv(20), three.recv(20)] == ["news", "news", "other news"]
        with dial(engine, "/echo/rooms/1") as ws:
            assert engine.subscribers("chat.rooms.1") == 1
            ws.send("to myself")
            assert ws.recv(20) == "to myself"
        for path in ("/feed/*", "/feed/a%20b", "/feed/_wirespeed.a", "/echo/a//b", "/elsewhere"):
            assert status(engine, path) == 404
        assert engine.stats()["events"] == 0


def test_one_way() -> None:
    engine = Engine("127.0.0.1")
    engine.relay("/watch/{topic}", send=False)
    engine.relay("/tell/{topic}", receive=False)
    with engine, dial(engine, "/watch/a") as watch, dial(engine, "/tell/a") as tell:
        tell.send("told")
        assert watch.recv(20) == "told"
        assert engine.subscribers("a") == 1
        watch.send("who said that I may?")
        with pytest.raises(wirespeed.ConnectionClosedError, match="1008"):
            watch.recv(20)


def test_tokens_grant_access() -> None:
    engine = Engine("127.0.0.1", auth=JWT(SECRET, ["HS256"]))
    engine.relay("/feed/{topic}", max_size=1000)
    with engine:
        reads = bearer(sub="ann", topics={"subscribe": {"allow": ["news"]}, "publish": {"deny": [">"]}})
        both = bearer(sub="bob", topics={"allow": ["news"]})
        assert status(engine, "/feed/news") == 401
        assert status(engine, "/feed/other", additional_headers=reads) == 403
        with (
            dial(engine, "/feed/news", additional_headers=reads) as ann,
            dial(engine, "/feed/news", additional_headers=both) as bob,
        ):
            ann.send("not mine to say")
            wait_for(lambda: engine.stats()["messages_denied"] == 1, "it is counted")
            assert "wirespeed_messages_denied_total" in engine.metrics()
            bob.send("news")
            assert ann.recv(20) == "news"


def test_engines_on_a_broker_are_one() -> None:
    engines = [Engine("127.0.0.1", broker="memory://relay", workers=1) for _ in range(2)]
    for engine in engines:
        engine.relay("/feed/{topic}")
    with engines[0] as first, engines[1] as second, dial(first, "/feed/a") as one, dial(second, "/feed/a") as two:
        for engine in engines:
            wait_for_broker(engine, 1)
        one.send("from the one")
        assert two.recv(20) == "from the one"
        two.send("from the other")
        assert one.recv(20) == "from the other"


def test_flood_does_not_affect_readers() -> None:
    engine = Engine("127.0.0.1", workers=2, outbox_limit=256 * 1024)
    engine.relay("/feed/{topic}")
    count = 10_000
    got: dict[int, int] = {}

    def read(number: int, ws: Any) -> None:
        got[number] = sum(ws.recv(60) == index.to_bytes(4, "big") + bytes(1000) for index in range(count))

    with engine, dial(engine, "/feed/a") as sender:
        readers = [dial(engine, "/feed/a") for _ in range(2)]
        threads = [threading.Thread(target=read, args=pair) for pair in enumerate(readers)]
        for thread in threads:
            thread.start()
        for index in range(count):
            sender.send(index.to_bytes(4, "big") + bytes(1000))
        for thread in threads:
            thread.join(120)
        for reader in readers:
            reader.close()
        assert got == {0: count, 1: count}
        assert engine.stats()["messages_dropped"] == 0


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        (("/feed",), ValueError, "topic"),
        (("/feed/{name}",), ValueError, "topic"),
        (("feed/{topic}",), ValueError, "slash"),
    ],
)
def test_paths_are_checked(arguments: tuple[str], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        Engine("127.0.0.1").relay(*arguments)
    with pytest.raises(ValueError, match="wildcard"):
        Engine("127.0.0.1").relay("/feed/{topic}", prefix="a.*")
    with pytest.raises(TypeError, match="send"):
        Engine("127.0.0.1").relay("/feed/{topic}", send="yes")  # type: ignore[arg-type]
