"""Engines with a broker, for tests: their sessions subscribe on request."""

from __future__ import annotations

import contextlib
import threading
import urllib.parse
from typing import Any

import pytest
from typing_extensions import Self

from wirespeed.engine import BrokerEvent, BrokerStatus, Connected, Engine, Message
from wirespeed.sync import ClientConnection, connect

from .brokers import wait_for

__all__ = ["Node", "receive", "silent"]


class Node:
    """An engine whose sessions subscribe to the topics of their query, and confirm it."""

    def __init__(self, url: str, *, connected: bool = True, **options: Any) -> None:
        options = {"workers": 2, "outbox_limit": 64 << 20, **options}
        self.engine = Engine("127.0.0.1", broker=url, **options)
        self.told: list[BrokerEvent] = []
        self.clients: list[ClientConnection] = []
        self.engine.on_broker(self.told.append)
        self.engine.start()
        self.thread = threading.Thread(target=self.serve, daemon=True)
        self.thread.start()
        if connected:
            wait_for(lambda: self.status.is_connected, "the engine wait_for_patterns not reached its broker")

    def serve(self) -> None:
        for batch in self.engine.batches():
            for event in batch:
                match event:
                    case Connected(session):
                        for topic in filter(None, urllib.parse.unquote(session.query).split(",")):
                            session.subscribe(topic)
                        session.send("ready")
                    case Message(session, data):
                        verb, _, topic = str(data).partition(" ")
                        session.subscribe(topic) if verb == "+" else session.unsubscribe(topic)
                        session.send("ready")

    @property
    def status(self) -> BrokerStatus:
        status = self.engine.broker_status
        assert status is not None
        return status

    def client(self, *topics: str) -> ClientConnection:
        host, port = self.engine.addresses[0]
        query = urllib.parse.quote(",".join(topics))
        ws = connect(f"ws://{host}:{port}/?{query}", proxy=None, max_queue=None, max_size=None, ping_interval=None)
        assert ws.recv(20) == "ready"
        self.clients.append(ws)
        return ws

    def wait_for_patterns(self, count: int) -> None:
        """Waits until this many patterns are subscribed to at the broker."""
        wait_for(lambda: self.status.subscriptions == count, f"{count} subscriptions")

    def kinds(self) -> list[str]:
        return [event.kind for event in self.told]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for ws in self.clients:
            with contextlib.suppress(Exception):
                ws.close()
        self.engine.stop()
        self.thread.join(20)
        assert not self.thread.is_alive()


def receive(ws: ClientConnection, count: int) -> list[Any]:
    return [ws.recv(20) for _ in range(count)]


def silent(ws: ClientConnection, seconds: float = 0.3) -> None:
    with pytest.raises(TimeoutError):
        pytest.fail(f"got {ws.recv(seconds)!r}")
