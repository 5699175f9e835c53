"""Arguments of an engine: each is checked where it is given, and unusual but allowed values work."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import pytest

import wirespeed
from support.certificates import Certificates
from wirespeed.engine import JWT, Connected, Disconnected, Engine, Event
from wirespeed.sync import ClientConnection, connect

pytestmark = pytest.mark.wirespeed_only("websockets has no engine")

SECRET = "a secret of at least thirty-two bytes"


def dial(engine: Engine) -> ClientConnection:
    return connect("ws://{}:{}".format(*engine.addresses[0]), proxy=None, compression=None)


@pytest.mark.parametrize(
    ("name", "value", "error"),
    [
        ("workers", -1, ValueError),
        ("workers", 257, ValueError),
        ("workers", 10**12, ValueError),
        ("workers", 10**30, ValueError),
        ("workers", 1.5, TypeError),
        ("workers", True, TypeError),
        ("workers", None, TypeError),
        ("port", 65_536, ValueError),
        ("port", -1, ValueError),
        ("port", "80", TypeError),
        ("max_events", 0, ValueError),
        ("max_event_bytes", 0, ValueError),
        ("mailbox_limit", 0, ValueError),
        ("mailbox_limit", 2**62, ValueError),
        ("outbox_limit", 0, ValueError),
        ("outbox_limit", -1, ValueError),
        ("outbox_limit", None, TypeError),
        ("total_outbox_limit", 0, ValueError),
        ("total_outbox_limit", 1.5, TypeError),
        ("max_connections", 0, ValueError),
        ("max_connections", "many", TypeError),
        ("max_subscriptions", -1, ValueError),
        ("max_size", -1, ValueError),
        ("max_size", 2**70, ValueError),
        ("open_timeout", -1, ValueError),
        ("open_timeout", 0, ValueError),
        ("open_timeout", math.nan, ValueError),
        ("open_timeout", None, TypeError),
        ("open_timeout", "10", TypeError),
        ("ping_interval", 0, ValueError),
        ("ping_interval", math.nan, ValueError),
        ("ping_timeout", -0.5, ValueError),
        ("ping_timeout", True, TypeError),
        ("close_timeout", -math.inf, ValueError),
        ("busy_poll", -0.001, ValueError),
        ("busy_poll", math.nan, ValueError),
        ("busy_poll", True, TypeError),
        ("busy_poll", None, TypeError),
        ("origins", "https://example.com", TypeError),
        ("origins", [1], TypeError),
        ("origins", ["https://*.example.com"], ValueError),
        ("origins", ["https://example.com/"], ValueError),
        ("origins", ["example.com"], ValueError),
        ("subprotocols", "chat", TypeError),
        ("subprotocols", None, TypeError),
        ("subprotocols", ["a b"], ValueError),
        ("subprotocols", [1], TypeError),
        ("compression", "deflate", TypeError),
        ("policy", 1, TypeError),
        ("ssl", 1, TypeError),
        ("ssl", wirespeed.TLS(), ValueError),
        ("metrics_token", b"token", TypeError),
        ("page", 10**40, TypeError),
        ("auth", "secret", TypeError),
        ("host", 1, TypeError),
        ("path", 1, TypeError),
    ],
)
def test_invalid_arguments(name: str, value: object, error: type[Exception]) -> None:
    arguments: dict[str, Any] = {"host": "127.0.0.1", name: value}
    with pytest.raises(error, match=name):
        Engine(**arguments)


def test_client_certificates_without_an_authority(certificates: Certificates) -> None:
    """A server that requires client certificates must name their authority; otherwise it would accept clients without
    certificates.
    """
    cert, key = certificates.server_files()
    with pytest.raises(ValueError, match="authorities"):
        Engine("127.0.0.1", ssl=wirespeed.TLS(cert=cert, key=key, verify=True))
    with Engine("127.0.0.1", workers=1, ssl=wirespeed.TLS(cert=cert, key=key)) as engine:
        for tls in (wirespeed.TLS(cert=cert, key=key, verify=True), wirespeed.TLS()):
            with pytest.raises(ValueError, match="ssl"):
                engine.reload_tls(tls)
        engine.reload_tls()


@pytest.mark.parametrize("seconds", [1e19, 1e300, math.inf])
def test_infinite_times(seconds: float) -> None:
    """Huge times last as long as the clock, and do not overflow it."""
    names = ("open_timeout", "ping_interval", "ping_timeout", "close_timeout", "busy_poll")
    options: dict[str, Any] = dict.fromkeys(names, seconds)
    with Engine("127.0.0.1", workers=1, **options) as engine, dial(engine) as client:
        (event,) = next(engine.batches(timeout=seconds))
        assert isinstance(event, Connected)
        assert engine.wait_for_room(timeout=seconds)
        event.session.close()
        with pytest.raises(wirespeed.ConnectionClosedOK):
            client.recv(20)
        (event,) = next(engine.batches(timeout=seconds))
        assert isinstance(event, Disconnected)
        assert engine.stats()["panics"] == 0


def test_least_limits() -> None:
    """They are unusual, and work."""
    limits: dict[str, Any] = dict.fromkeys(
        ("workers", "outbox_limit", "mailbox_limit", "max_events", "max_event_bytes", "max_connections"), 1
    )
    with Engine("127.0.0.1", max_subscriptions=0, **limits) as engine, dial(engine) as client:
        seen: list[Event] = []
        client.send(b"a")
        client.send(b"b")
        batches = engine.batches(timeout=20)
        while len(seen) < 3:
            seen += next(batches)
        seen[0].session.send(b"x")
        assert client.recv(20) == b"x"
        with pytest.raises(RuntimeError, match="subscribes to 0 topics"):
            seen[0].session.subscribe("a")


def test_invalid_timeout() -> None:
    with Engine("127.0.0.1") as engine:
        for seconds in (math.nan, -1.0):
            with pytest.raises(ValueError, match="timeout"):
                next(engine.batches(timeout=seconds))
            with pytest.raises(ValueError, match="timeout"):
                engine.wait_for_room(timeout=seconds)
        with pytest.raises(ValueError, match="max_events"):
            next(engine.batches(max_events=0))
        with pytest.raises(ValueError, match="max_events"):
            next(engine.batches(max_events=-1))


@pytest.mark.parametrize("threads", [-1, 2**40, 1.5])
def test_invalid_threads(threads: Any) -> None:
    engine = Engine("127.0.0.1")
    engine.on_message(lambda session, message: None)
    with pytest.raises((TypeError, ValueError), match="threads"):
        engine.run(threads=threads)


@pytest.mark.parametrize("most", [0, -1, None])
def test_invalid_concurrent_handlers(most: Any) -> None:
    engine = Engine("127.0.0.1")
    engine.on_message(lambda session, message: None)
    with pytest.raises((TypeError, ValueError), match="max_handlers"):
        asyncio.run(engine.serve(max_handlers=most))


def test_run_in_a_running_loop_says_what_to_use() -> None:
    """As in a notebook; the error leaves no coroutine that was never awaited."""
    engine = Engine("127.0.0.1")

    @engine.on_message
    async def echo(session: Any, message: str) -> None:
        await session.send(message)

    async def main() -> None:
        with pytest.raises(RuntimeError, match=r"await engine\.serve\(\)"):
            engine.run()

    asyncio.run(main())


def test_token_subprotocol_needs_another_subprotocol() -> None:
    """Browsers fail a connection if none of their subprotocols is chosen."""
    auth = JWT(SECRET, "HS256", subprotocol="bearer.")
    with pytest.raises(ValueError, match="subprotocols"):
        Engine("127.0.0.1", auth=auth)
    Engine("127.0.0.1", auth=auth, subprotocols=["chat"])
    # The token would be chosen, and sent to the client as the negotiated subprotocol.
    with pytest.raises(ValueError, match="taken for a token"):
        Engine("127.0.0.1", auth=auth, subprotocols=["bearer.chat"])


@pytest.mark.parametrize("options", [{"leeway": -1}, {"max_token": 0}, {"max_token": -1}, {"max_token": 2**62}])
def test_what_verifies_no_tokens(options: dict[str, Any]) -> None:
    (name,) = options
    with pytest.raises(ValueError, match=f"{name} must be at least"):
        JWT(SECRET, "HS256", **options)


@pytest.mark.parametrize("code", [-1, 0, 1005, 65_536, 2**40])
def test_invalid_close_codes(code: int) -> None:
    with Engine("127.0.0.1") as engine, dial(engine):
        (event,) = next(engine.batches(timeout=20))
        with pytest.raises(wirespeed.ProtocolError):
            event.session.close(code)
        assert event.session.is_open
