"""Log records of servers, on both packages."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("websockets", minversion="17")


class Lines(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.found: dict[Any, list[str]] = {}
        self.closed = threading.Semaphore(0)

    def emit(self, record: Any) -> None:
        if hasattr(record, "websocket"):
            # Our records name the connection after the event.
            line = record.getMessage().replace(f" ({getattr(record.websocket, '_label', None)})", "")
            self.found.setdefault(record.websocket.id, []).append(line)
        if record.getMessage() == "connection closed":
            self.closed.release()


@pytest.fixture
def lines() -> Iterator[Lines]:
    logger = logging.getLogger("websockets.server")
    handler, level = Lines(), logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield handler
    logger.removeHandler(handler)
    logger.setLevel(level)


def process_request(connection: Any, request: Any) -> Any:
    return connection.respond(404, "nothing") if request.path == "/404" else None


EXPECTED = [
    ["connection open", "connection closed"],
    ["HTTP response sent (404 Not Found)", "connection closed"],
    ["connection rejected (403 Forbidden)", "connection closed"],
    ["connection open", "connection handler failed", "connection closed"],
]


def by_connection(lines: Lines) -> list[list[str]]:
    """Returns the records of each connection. The relative order of a failing handler and the end is ignored."""
    return [[first, *sorted(rest, reverse=True)] for first, *rest in lines.found.values()]


def options(server: Any) -> dict[str, Any]:
    return {"process_request": process_request, "origins": [None], "compression": None}


async def test_log_records_of_an_event_loop(server: Any, lines: Lines) -> None:
    async def handler(ws: Any) -> None:
        if ws.request.path == "/failing":
            raise ZeroDivisionError

    connect = server.asyncio.client.connect
    async with server.asyncio.server.serve(handler, "127.0.0.1", 0, **options(server)) as running:
        uri = f"ws://127.0.0.1:{running.sockets[0].getsockname()[1]}"
        async with connect(f"{uri}/ok") as ws:
            await ws.wait_closed()
        for path, origin in (("/404", None), ("/ok", "https://example.com")):
            with pytest.raises(server.exceptions.InvalidStatus):
                await connect(uri + path, origin=origin)
        async with connect(f"{uri}/failing") as ws:
            await ws.wait_closed()
    assert by_connection(lines) == EXPECTED


def test_log_records_of_threads(server: Any, lines: Lines) -> None:
    def handler(ws: Any) -> None:
        if ws.request.path == "/failing":
            raise ZeroDivisionError

    def visit(address: str, **how: Any) -> None:
        with server.sync.client.connect(address, **how) as ws, contextlib.suppress(Exception):
            ws.recv()

    with server.sync.server.serve(handler, "127.0.0.1", 0, **options(server)) as running:
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        try:
            uri = f"ws://127.0.0.1:{running.socket.getsockname()[1]}"
            visit(f"{uri}/ok")
            assert lines.closed.acquire(timeout=10)
            for path, origin in (("/404", None), ("/ok", "https://example.com")):
                with pytest.raises(server.exceptions.InvalidStatus):
                    visit(uri + path, origin=origin)
                assert lines.closed.acquire(timeout=10)
            visit(f"{uri}/failing")
            assert lines.closed.acquire(timeout=10)
        finally:
            running.shutdown()
            thread.join()
    assert by_connection(lines) == EXPECTED


@pytest.mark.parametrize("kind", ["event loop", "threads"])
def test_hooks_that_raise(caplog: pytest.LogCaptureFixture, kind: str) -> None:
    """The first record has the traceback and the connection; later ones here are a number, which websockets does not
    have.
    """
    from wirespeed.compat.websockets.asyncio.server import serve
    from wirespeed.compat.websockets.exceptions import InvalidStatus
    from wirespeed.compat.websockets.sync.client import connect
    from wirespeed.compat.websockets.sync.server import serve as serve_in_threads

    caplog.set_level(logging.ERROR, "websockets.server")

    def fail(*_: Any) -> None:
        raise ZeroDivisionError

    async def idle(ws: Any) -> None:
        await ws.wait_closed()

    def visit(port: int) -> None:
        for _ in range(3):
            with pytest.raises(InvalidStatus, match="500"):
                connect(f"ws://127.0.0.1:{port}")

    async def main() -> None:
        async with serve(idle, "127.0.0.1", 0, process_request=fail) as running:
            await asyncio.to_thread(visit, running.sockets[0].getsockname()[1])

    if kind == "threads":
        with serve_in_threads(print, "127.0.0.1", 0, process_request=fail) as running:
            thread = threading.Thread(target=running.serve_forever)
            thread.start()
            visit(running.socket.getsockname()[1])
        thread.join()
    else:
        asyncio.run(asyncio.wait_for(main(), 10))
    first, last = caplog.records
    assert first.exc_info is not None
    assert hasattr(first, "websocket")
    assert last.getMessage().endswith("; 2 more like it")


def test_a_quiet_log_costs_nothing(server: Any) -> None:
    """With the logger at WARNING, the default, no response is formatted for the log."""
    from wirespeed.compat.websockets._server import Logged

    class Base:
        def _send_answer(self, answer: Any) -> str:
            return f"gave {answer}"

    class Quiet(Logged, Base):
        logger = logging.getLogger("wirespeed.tests.quiet")

        @property
        def response(self) -> Any:
            raise AssertionError("nobody reads the log")

    Quiet.logger.setLevel(logging.WARNING)
    assert Quiet()._send_answer("it") == "gave it"
