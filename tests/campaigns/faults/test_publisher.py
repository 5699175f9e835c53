"""A publisher whose connection to the broker breaks: flushed messages have arrived, and possible losses are
reported.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.brokers import Nats, Redis
from support.checks import no_leaks
from support.load_scaling import load_scaled
from support.samples import sample
from support.threads import no_threads_left, wait_until
from wirespeed.engine import Connected, Engine, Publisher
from wirespeed.sync import connect

from .relay import Fault, Relay, Trigger

pytestmark = pytest.mark.wirespeed_only("websockets has no engine")

# Faults that do not end the connection: nothing may be lost.
HARMLESS: tuple[Fault, ...] = ("dribble", "stall", "full")
FATAL: tuple[Fault, ...] = ("reset", "half-close", "blackhole")
STAGES = ("dialling", "idle", "sending", "closing")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    everything = bool(metafunc.config.getoption("--campaign"))
    cells = [
        (kind, fault, stage)
        for number, kind in enumerate((Nats, Redis))
        for row, fault in enumerate((*HARMLESS, *FATAL))
        for column, stage in enumerate(STAGES)
        if everything or (row + column + number) % 4 == 0
    ]
    if not everything:
        cells = sample(cells, 2, metafunc.config.getoption("--rotation"), kind=lambda cell: cell[:1])
    metafunc.parametrize(("kind", "fault", "stage"), cells, ids=[f"{kind.__name__}-{b}-{c}" for kind, b, c in cells])


@contextlib.contextmanager
def subscribed(broker: Nats | Redis) -> Iterator[Any]:
    """Yields a client of an engine, which receives the published messages."""
    with Engine("127.0.0.1", workers=1, broker=broker.url) as engine:
        host, port = engine.addresses[0]
        with connect(f"ws://{host}:{port}/", proxy=None, ping_interval=None) as ws:
            for batch in engine.batches(timeout=20):
                assert isinstance(batch[0], Connected)
                batch[0].session.subscribe("numbers")
                break
            wait_until(lambda: engine.broker_status is not None and engine.broker_status.is_connected)
            wait_until(lambda: len(broker.subscriptions()) == 1)
            yield ws


def received(ws: Any, last: str) -> list[str]:
    found: list[str] = []
    while not found or found[-1] != last:
        found.append(ws.recv(timeout=20))
    return found


def flush(publisher: Publisher) -> bool:
    """Returns whether everything has arrived; if not, an exception was raised."""
    try:
        publisher.flush(load_scaled(20))
    except ConnectionError:
        return False
    return True


def test_publisher(tmp_path: Path, kind: type[Nats | Redis], fault: Fault, stage: str) -> None:
    broker = kind(tmp_path)
    try:
        with no_leaks(), no_threads_left(), subscribed(broker) as ws:
            trigger = Trigger(fault) if stage == "dialling" else None
            with Relay(("127.0.0.1", broker.port), subject_dials=True, trigger=trigger) as relay:
                _publish(ws, f"{kind.scheme}://127.0.0.1:{relay.port}", relay, fault, stage)
    finally:
        broker.close()


def _publish(ws: Any, url: str, relay: Relay, fault: Fault, stage: str) -> None:
    publisher = Publisher(url, close_timeout=load_scaled(20))
    sent: list[str] = []

    def publish(count: int) -> None:
        for _ in range(count):
            sent.append(str(len(sent)))
            publisher.publish("numbers", sent[-1])

    publish(20)
    reported = not flush(publisher)
    if stage == "idle":
        relay.strike(fault)
    elif stage == "sending":
        publish(200)
        relay.strike(fault)
    publish(20)
    reported |= not flush(publisher)
    if reported:
        # It reconnects, and new messages arrive.
        publish(20)
        assert flush(publisher)
    if stage == "closing":
        publish(20)
        relay.strike(fault)
    began = time.monotonic()
    try:
        publisher.close()
    except ConnectionError:
        assert stage == "closing"
        assert fault in FATAL
        # Which of the last messages have arrived is unknown.
        reported = True
        sent[-20:] = []
    assert time.monotonic() - began < load_scaled(30)
    got = received(ws, sent[-1])
    # In order, and none twice.
    assert got == sorted(set(got), key=int)
    if not reported:
        assert got == sent
