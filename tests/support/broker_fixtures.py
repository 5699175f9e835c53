"""Fixtures that start brokers. A test module takes them by assignment: ``any_broker = broker_fixtures.any_broker``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from .brokers import Memory, Nats, Redis, broker

__all__ = ["Broker", "Server", "any_broker", "server"]

Broker = Nats | Redis | Memory
Server = Nats | Redis


@pytest.fixture(params=["memory", "nats", "redis"])
def any_broker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Broker]:
    """A broker of each kind."""
    with broker(request.param, tmp_path) as running:
        yield running


@pytest.fixture(params=["nats", "redis"])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Server]:
    """A broker of each kind that is a separate program."""
    with broker(request.param, tmp_path) as running:
        assert not isinstance(running, Memory)
        yield running
