"""Before the opening handshake is answered, a connection can be ended, but not used."""

from __future__ import annotations

import contextlib
import threading
from typing import Any

import pytest

from support.checks import no_leaks, within
from wirespeed.sync import connect, serve

pytestmark = pytest.mark.wirespeed_only("the server is ours")


@contextlib.contextmanager
def serving(hook: Any) -> Any:
    def handler(ws: Any) -> None:
        ws.send("open")

    with serve(handler, "127.0.0.1", 0, process_request=hook, close_timeout=1) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"ws://127.0.0.1:{server.socket.getsockname()[1]}/"
        finally:
            server.shutdown()
            thread.join()


CALLS: dict[str, Any] = {
    "send": lambda ws: ws.send("early"),
    "send_many": lambda ws: ws.send_many(["early"]),
    "fragments": lambda ws: ws.send(["ear", "ly"]),
    "ping": lambda ws: ws.ping(),
    "pong": lambda ws: ws.pong(),
    "recv": lambda ws: ws.recv(timeout=1),
    "recv_nowait": lambda ws: ws.recv_nowait(),
    "flush": lambda ws: ws.flush(),
}


@pytest.mark.parametrize("name", CALLS)
def test_use_before_open(name: str) -> None:
    raised: list[Exception] = []

    def hook(ws: Any, request: Any) -> None:
        try:
            CALLS[name](ws)
        except Exception as exc:
            raised.append(exc)

    with no_leaks(), within(5), serving(hook) as uri, connect(uri) as ws:
        assert ws.recv() == "open"
    assert [type(exc) for exc in raised] == [RuntimeError]


@pytest.mark.parametrize("how", ["abort", "close"])
def test_end_before_open(how: str) -> None:
    def hook(ws: Any, request: Any) -> None:
        getattr(ws, how)()

    with no_leaks(), within(5), serving(hook) as uri, pytest.raises((EOFError, OSError, Exception)) as caught:
        connect(uri)
    assert "101" not in str(caught.value)
