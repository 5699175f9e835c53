"""Changes of a request's headers by ``process_request`` take effect, on either kind of server."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

import wirespeed
from support.serving import logged


def change(connection: Any, request: Any) -> None:
    for name in ("Origin", "Sec-WebSocket-Protocol", "Sec-WebSocket-Extensions"):
        del request.headers[name]
    request.headers["Origin"] = "https://example.com"
    request.headers["Sec-WebSocket-Protocol"] = "b"


OPTIONS: dict[str, Any] = {
    "process_request": change,
    "origins": ["https://example.com"],
    "subprotocols": ["a", "b"],
}


def check(ws: Any) -> None:
    assert ws.subprotocol == "b"
    assert "Sec-WebSocket-Extensions" not in ws.response.headers


def test_on_an_event_loop() -> None:
    async def main() -> None:
        async def handler(ws: Any) -> None:
            await ws.send(f"{ws.subprotocol} {len(await ws.recv())}")

        async with wirespeed.serve(handler, "127.0.0.1", 0, **OPTIONS) as server:
            uri = f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            async with wirespeed.connect(uri, origin="https://other.example", subprotocols=["a", "b"]) as ws:
                check(ws)
                await ws.send("x" * 1000)
                assert await ws.recv() == "b 1000"

    asyncio.run(asyncio.wait_for(main(), 10))


def test_in_threads() -> None:
    def handler(ws: Any) -> None:
        ws.send(f"{ws.subprotocol} {len(ws.recv())}")

    with wirespeed.sync.serve(handler, "127.0.0.1", 0, **OPTIONS) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            uri = f"ws://127.0.0.1:{server.socket.getsockname()[1]}"
            with wirespeed.sync.connect(uri, origin="https://other.example", subprotocols=["a", "b"]) as ws:
                check(ws)
                ws.send("x" * 1000)
                assert ws.recv(timeout=10) == "b 1000"
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize(("supported", "chosen"), [(["c"], None), (None, None), (["b", "a"], "b")])
def test_unsupported_subprotocol_after_changes(supported: list[str] | None, chosen: str | None) -> None:
    """A client whose subprotocols are not supported gets none, as without changes."""

    def add(connection: Any, request: Any) -> None:
        request.headers["X-User"] = "me"

    async def main() -> None:
        async def handler(ws: Any) -> None:
            await ws.wait_closed()

        async with wirespeed.serve(handler, "127.0.0.1", 0, process_request=add, subprotocols=supported) as server:
            uri = f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            async with wirespeed.connect(uri, subprotocols=["a", "b"]) as ws:
                assert ws.subprotocol == chosen
                assert "permessage-deflate" in ws.response.headers["Sec-WebSocket-Extensions"]

    asyncio.run(asyncio.wait_for(main(), 10))


def test_subprotocol_removed_from_the_request(caplog: pytest.LogCaptureFixture) -> None:
    """The client offered it, but the changed request does not."""

    async def main() -> None:
        async def handler(ws: Any) -> None:
            raise AssertionError("it is not open")

        options: dict[str, Any] = {"process_request": change, "select_subprotocol": lambda ws, offered: "a"}
        async with wirespeed.serve(handler, "127.0.0.1", 0, **options) as server:
            uri = f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            with pytest.raises(wirespeed.InvalidStatus, match="500"):
                await wirespeed.connect(uri, origin="https://other.example", subprotocols=["a", "b"])

    asyncio.run(asyncio.wait_for(main(), 10))
    [line] = logged(caplog)
    assert line.startswith("opening handshake failed (")
    assert "subprotocol must be one that the client offers, not 'a'" in caplog.text
