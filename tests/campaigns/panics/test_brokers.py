"""A panic on the way to or from a broker is a broken connection to the broker."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.brokers import broker, wait_for
from support.nodes import Node
from wirespeed.engine import Publisher

from .tools import PANICS, Failpoints

pytestmark = pytest.mark.wirespeed_only("websockets has no engine")


@pytest.fixture(params=["memory", "nats", "redis"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    with broker(request.param, tmp_path) as running:
        yield running.url


def goes_on(one: Node, two: Node) -> None:
    """Checks that both engines are connected, and that a published message reaches a client of the other."""
    wait_for(lambda: one.status.is_connected and two.status.is_connected, "a node has no broker any more")
    ws = two.client("later")
    wait_for(lambda: two.status.subscriptions >= 1)

    def arrives() -> bool:
        one.engine.publish("later", "x")
        with contextlib.suppress(TimeoutError):
            return bool(ws.recv(0.2) == "x")
        return False

    wait_for(arrives, "nothing arrives any more")


def test_publishing(url: str, failpoints: Failpoints) -> None:
    """The caller gets an exception; local subscribers have the message, and the queue is not locked."""
    with Node(url) as one, Node(url) as two:
        with failpoints.once("brokers.push"), pytest.raises(PANICS):
            one.engine.publish("topic", "x")
        goes_on(one, two)


@pytest.mark.parametrize("place", ["brokers.take", "brokers.arrive"])
def test_the_thread(place: str, url: str, failpoints: Failpoints) -> None:
    with Node(url) as one, Node(url) as two:
        ws = two.client("topic")
        two.wait_for_patterns(1)
        with failpoints.once(place):
            one.engine.publish("topic", "x")
        goes_on(one, two)
        assert ws.state.name == "OPEN"
        wait_for(lambda: one.status.published + one.status.unconfirmed >= 1, "nothing is accounted for")


def test_panic_with_messages_in_flight(url: str, failpoints: Failpoints) -> None:
    """Messages in flight are unconfirmed; the queue is not locked, and publishers continue."""
    with Node(url) as one, Node(url) as two:
        one.client("topic")
        two.client("topic")
        wait_for(lambda: one.status.subscriptions == 1 == two.status.subscriptions)
        over = threading.Event()

        def publish(node: Node) -> None:
            while not over.is_set():
                node.engine.publish("topic", "x" * 100)
                over.wait(0.0005)

        threads = [threading.Thread(target=publish, args=[node], daemon=True) for node in (one, two)]
        for thread in threads:
            thread.start()
        try:
            for passes in (200, 300, 400):
                with failpoints.once("brokers.arrive", passes):
                    pass
                wait_for(lambda: one.status.is_connected and two.status.is_connected, "a node has no broker any more")
        finally:
            over.set()
            for thread in threads:
                thread.join(20)
        assert not any(thread.is_alive() for thread in threads)
        goes_on(one, two)


def test_notices(url: str, failpoints: Failpoints) -> None:
    with Node(url) as one:
        with failpoints.once("brokers.notice"):
            two = Node(url, connected=False)
        with two:
            goes_on(one, two)


def test_flush(url: str, failpoints: Failpoints) -> None:
    """`flush` returns, and reports unconfirmed messages or none."""
    with Node(url) as one, Node(url) as two:
        two.client("topic")
        two.wait_for_patterns(1)
        publisher = Publisher(url)
        try:
            done = threading.Event()
            with failpoints.once("brokers.take"):
                publisher.publish("topic", "x")

                def flush() -> None:
                    with contextlib.suppress(Exception):
                        publisher.flush(60)
                    done.set()

                thread = threading.Thread(target=flush)
                thread.start()
            assert done.wait(30)
            thread.join()
        finally:
            publisher.close()
        goes_on(one, two)
