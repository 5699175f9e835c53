"""What holds for one path of an engine, and what a session knows of its path."""

from __future__ import annotations

import time
from typing import Any

import pytest

import wirespeed
from engine.callers import OTHER_SECRET, SECRET, bearer, dial, next_session, status
from wirespeed.engine import JWT, Engine

pytestmark = pytest.mark.wirespeed_only("websockets has no engine")


def test_each_path_has_settings_of_its_own() -> None:
    engine = Engine("127.0.0.1", auth=JWT(SECRET, ["HS256"]), max_size=100, origins=["https://shop.example"])
    engine.route("/room")
    engine.route("/open", auth=None, origins=["*"], subprotocols=["chat"])
    engine.echo("/other", auth=JWT(OTHER_SECRET, ["HS256"]), max_size=None, compression=True)
    with engine:
        answers = [
            [status(engine, path, additional_headers=headers) for headers in ({}, bearer(sub="ann"))]
            for path in ("/room", "/open", "/other", "/none")
        ]
        assert answers == [[401, 101], [101, 101], [401, 401], [404, 404]]
        assert status(engine, "/open", origin="https://elsewhere.example") == 101
        assert status(engine, "/room", origin="https://elsewhere.example", additional_headers=bearer(sub="ann")) == 403
        with dial(engine, "/open", subprotocols=["chat"]) as ws:
            assert ws.subprotocol == "chat"
        headers = bearer(OTHER_SECRET, sub="ann")
        with dial(engine, "/other", additional_headers=headers, compression="deflate") as ws:
            assert ws.response is not None
            assert "permessage-deflate" in ws.response.headers["Sec-WebSocket-Extensions"]
            ws.send("x" * 200)
            assert ws.recv(20) == "x" * 200


def test_rates_and_outboxes() -> None:
    engine = Engine("127.0.0.1", workers=1, max_messages_per_second=0.01, message_burst=1, rate_policy="disconnect")
    engine.echo("/fast", max_messages_per_second=None)
    engine.echo("/slow")
    engine.route("/lossy", outbox_limit=100_000, policy="drop_newest", max_fragments=10)
    with engine:
        with dial(engine, "/fast") as ws:
            for _ in range(5):
                ws.send("often")
            assert [ws.recv(20) for _ in range(5)] == ["often"] * 5
        with dial(engine, "/slow") as ws:
            ws.send("often")
            ws.send("often")
            with pytest.raises(wirespeed.ConnectionClosedError, match="too many messages"):
                while True:
                    ws.recv(20)
        with dial(engine, "/lossy"):
            session = next_session(engine)
            end = time.monotonic() + 20
            while not engine.stats()["messages_dropped_by_policy"]["drop_newest"]:
                assert time.monotonic() < end, "nothing was dropped"
                session.send(bytes(50_000))
                engine.wait_for_room(timeout=20)
            assert session.is_open


def test_a_session_knows_its_path() -> None:
    engine = Engine("127.0.0.1", workers=1)
    engine.route("/feed/{symbol}", codec="json")
    engine.route("/files/{user}/{*rest}")
    engine.route("/other", codec="msgpack")
    with engine:
        for target, route, params in [
            ("/feed/EUR%2fUSD?a=b", "/feed/{symbol}", {"symbol": "EUR/USD"}),
            ("/feed/J%C3%BCrgen", "/feed/{symbol}", {"symbol": "J\xfcrgen"}),
            ("/feed/%ff", "/feed/{symbol}", {"symbol": "%ff"}),
            ("/files/ann/a%20b/c", "/files/{user}/{*rest}", {"user": "ann", "rest": "a b/c"}),
            ("/other", "/other", {}),
        ]:
            with dial(engine, target):
                session = next_session(engine)
                assert (session.route, session.params) == (route, params)
    with Engine("127.0.0.1") as engine, dial(engine, "/anywhere/at/all"):
        session = next_session(engine)
        assert (session.route, session.params) == (None, {})


@pytest.mark.parametrize(
    ("settings", "error", "text"),
    [
        ({"nonsense": 1}, TypeError, r"route\(\) got an unexpected keyword argument 'nonsense'"),
        ({"auth": "token"}, TypeError, "auth must be a JWT or None"),
        ({"origins": "https://a.example"}, TypeError, "origins"),
        ({"origins": [1]}, TypeError, "origins"),
        ({"subprotocols": "chat"}, TypeError, "subprotocols"),
        ({"compression": "deflate"}, TypeError, "compression"),
        ({"max_size": -1}, ValueError, "max_size"),
        ({"max_size": "1"}, TypeError, "max_size"),
        ({"max_fragments": 0}, ValueError, "max_fragments"),
        ({"outbox_limit": 0}, ValueError, "outbox_limit"),
        ({"outbox_limit": None}, TypeError, "outbox_limit"),
        ({"policy": "drop"}, ValueError, "policy"),
        ({"rate_policy": "wait"}, ValueError, "rate_policy"),
        ({"max_messages_per_second": 0}, ValueError, "max_messages_per_second"),
        ({"max_bytes_per_second": "many"}, TypeError, "max_bytes_per_second"),
        ({"message_burst": 5}, ValueError, "message_burst needs max_messages_per_second"),
        ({"auth": JWT(SECRET, ["HS256"], subprotocol="bearer.")}, ValueError, "subprotocols: browsers"),
    ],
)
def test_settings_are_checked_where_they_are_given(settings: Any, error: type[Exception], text: str) -> None:
    engine = Engine("127.0.0.1")
    with pytest.raises(error, match=text):
        engine.route("/room", codec="json", **settings)
    assert engine._codecs == []
    # Nothing of it is left behind.
    engine.route("/room")
