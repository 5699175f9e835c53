"""Timeouts that are practically infinite."""

from __future__ import annotations

import math
from typing import Any

import pytest

from support.serving import request
from support.subject import connect
from support.threads import PATIENCE, Raw, serving, uri, wait_until

pytestmark = pytest.mark.wirespeed_only("the server is ours")

ENDLESS = [math.inf, 1e12, 3e6, 10**400]


@pytest.mark.parametrize("seconds", ENDLESS, ids=["inf", "1e12", "3e6", "1e400"])
@pytest.mark.parametrize("sent", [0, 5], ids=["nothing", "half"])
def test_server(seconds: float, sent: int) -> None:
    """The server waits for the rest of a request, and for the next client."""
    names = ("open_timeout", "ping_interval", "ping_timeout", "close_timeout")
    options: dict[str, Any] = dict.fromkeys(names, seconds)
    with serving(**options) as server, Raw(server) as raw:
        raw.send(request()[:sent])
        # The accepting thread waits again.
        wait_until(lambda: len(server._limiter) == 1)
        with connect(uri(server)) as ws:
            ws.send("x")
            assert ws.recv(timeout=PATIENCE) == "x"
        raw.send(request()[sent:])
        assert raw.head().status == 101


@pytest.mark.parametrize("seconds", ENDLESS[:3], ids=["inf", "1e12", "3e6"])
def test_client(seconds: float) -> None:
    names = ("open_timeout", "ping_interval", "ping_timeout", "close_timeout", "happy_eyeballs_delay")
    options: dict[str, Any] = dict.fromkeys(names, seconds)
    with serving() as server:
        for host in ("127.0.0.1", "localhost"):
            with connect(uri(server, host=host), **options) as ws:
                ws.send("x")
                assert ws.recv(timeout=seconds) == "x"
