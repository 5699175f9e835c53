"""Settings of single paths of an engine, and the session's view of its path."""

from __future__ import annotations

import time
from typing import Any

import pytest

import wirespeed
from engine.callers import OTHER_SECRET, SECRET, bearer, dial, next_session, status, wait_for
from wirespeed.engine import JWT, Engine, Invalid, Message

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


def test_echo_path_leaves_other_paths_to_sessions() -> None:
    engine = Engine("127.0.0.1", workers=1)
    engine.echo("/{name}")
    with engine:
        with dial(engine, "/any") as ws:
            ws.send("back")
            assert ws.recv(20) == "back"
        for path in ("/", "/any/where"):
            with dial(engine, path):
                session = next_session(engine)
                assert (session.path, session.route) == (path, None)


def test_failed_start_leaves_no_paths() -> None:
    with Engine("127.0.0.1", workers=1) as other:
        engine = Engine(*other.addresses[0], workers=1)
        with pytest.raises(OSError, match="in use"):
            engine.start()
    engine.route("/{*room}")
    with engine:
        assert [status(engine, path) for path in ("/room", "/")] == [101, 404]


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("/" + "/".join(f"{{n{number}}}" for number in range(26)), "more than 25 parameters"),
        ("/{{topic}}", "%7B"),
        ("/{a}/{a}", "occurs twice"),
        ("/{a}/{*a}", "occurs twice"),
        ("/{a", "valid name"),
        ("room", "slash"),
    ],
)
def test_patterns_are_checked(path: str, text: str) -> None:
    engine = Engine("127.0.0.1")
    for add in (engine.route, engine.echo, engine.relay):
        with pytest.raises(ValueError, match=text):
            add(path)


def decoded(engine: Engine, path: str, message: str) -> Any:
    """Returns the decoded message of a client."""
    with dial(engine, path) as ws:
        ws.send(message)
        for batch in engine.batches(timeout=20):
            assert batch, "nothing came"
            for event in batch:
                if isinstance(event, Message):
                    return event.data
                if isinstance(event, Invalid):
                    return event.error
    raise AssertionError("the engine has ended")


def test_a_codec_for_all_routes_that_name_none() -> None:
    engine = Engine("127.0.0.1", workers=1, codec="json")
    engine.route("/default")
    engine.route("/plain", codec=None)
    engine.route("/own", codec=bytes.upper)
    with engine:
        assert [decoded(engine, path, "[1]") for path in ("/default", "/plain", "/own")] == [[1], "[1]", b"[1]"]
        assert "malformed" in decoded(engine, "/default", "?")


def test_a_codec_without_routes() -> None:
    engine = Engine("127.0.0.1", workers=1, codec="json")
    engine.echo("/echo")
    with engine:
        assert decoded(engine, "/anywhere", "[1]") == [1]
        with dial(engine, "/echo") as ws:
            ws.send("[1]")
            assert ws.recv(20) == "[1]"
    with pytest.raises(ValueError, match="codec"):
        Engine("127.0.0.1", codec="xml")


def test_undecodable_message_is_logged_without_content(caplog: pytest.LogCaptureFixture) -> None:
    def refuse(data: bytes) -> None:
        raise LookupError(data.decode())

    caplog.set_level("DEBUG", "wirespeed.engine")
    with Engine("127.0.0.1", workers=1, codec=refuse) as engine:
        assert decoded(engine, "/", "secret" * 1000) == "secret" * 1000
        wait_for(lambda: "not valid" in caplog.text, "a record")
    (record,) = (record for record in caplog.records if "not valid" in record.getMessage())
    assert record.getMessage().endswith("not valid: LookupError")
    assert "secret" not in caplog.text
