"""Clients that request sessions of an engine, with a token or without."""

from __future__ import annotations

import base64
import hmac
import json
import time
from collections.abc import Callable
from typing import Any

import wirespeed
from wirespeed.engine import Connected, Engine, Session
from wirespeed.sync import ClientConnection, connect

__all__ = ["OTHER_SECRET", "SECRET", "bearer", "dial", "next_session", "status", "token", "wait_for", "wait_for_broker"]

SECRET = "a secret of at least thirty-two bytes"
OTHER_SECRET = "another secret of thirty-two bytes or so"


def dial(engine: Engine, path: str, **options: Any) -> ClientConnection:
    host, port = engine.addresses[0]
    options.setdefault("compression", None)
    return connect(f"ws://{host}:{port}{path}", proxy=None, **options)


def status(engine: Engine, path: str, **options: Any) -> int:
    """Returns the status of the response to a request."""
    try:
        with dial(engine, path, **options):
            return 101
    except wirespeed.InvalidStatus as error:
        return error.response.status_code


def token(secret: str = SECRET, **claims: Any) -> str:
    """Returns a token that is valid for ten minutes, unless the claims differ."""

    def encode(data: bytes) -> str:
        return base64.urlsafe_b64encode(data).rstrip(b"=").decode()

    claims = {"exp": int(time.time()) + 600, **claims}
    head = encode(b'{"alg":"HS256"}') + "." + encode(json.dumps(claims).encode())
    return head + "." + encode(hmac.digest(secret.encode(), head.encode(), "sha256"))


def bearer(secret: str = SECRET, **claims: Any) -> dict[str, str]:
    """Returns the header field with the token."""
    return {"Authorization": "Bearer " + token(secret, **claims)}


def wait_for(condition: Callable[[], object], what: str) -> None:
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.002)


def wait_for_broker(engine: Engine, subscriptions: int) -> None:
    """Waits until an engine has this many subscriptions at its broker."""

    def subscribes() -> bool:
        status = engine.broker_status
        return status is not None and status.is_connected and status.subscriptions == subscriptions

    wait_for(subscribes, f"{subscriptions} subscriptions at the broker")


def next_session(engine: Engine) -> Session:
    """Returns the session of the next open event; earlier events are skipped."""
    for batch in engine.batches(timeout=20):
        assert batch, "nobody came"
        for event in batch:
            if isinstance(event, Connected):
                return event.session
    raise AssertionError("the engine has ended")
