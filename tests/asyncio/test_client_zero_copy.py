"""Views of received bytes: ``zero_copy``."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest

from support.asyncio_tools import Run, soon
from support.connecting import Connect
from support.frames import binary, close
from support.scripted import Scripted, Wire
from support.servers import WebSocketsServer
from support.subject import IS_WIRESPEED

pytestmark = pytest.mark.wirespeed_only("callbacks are ours")

if IS_WIRESPEED:
    from wirespeed import Listener
else:
    Listener = object


def sending(data: bytes, *headers: str) -> Callable[[Wire], Any]:
    def script(wire: Wire) -> Any:
        wire.accept(*headers, then=data)
        return wire.read_until_close()

    return script


class Keeping(Listener):
    """Keeps the views, slices of them and the bytes they showed."""

    def __init__(self) -> None:
        self.kept: list[tuple[memoryview, memoryview, bytes]] = []
        self.others: list[Any] = []

    def on_message(self, ws: Any, message: Any) -> None:
        if isinstance(message, memoryview):
            self.kept.append((message, message[1:-1], bytes(message)))
        else:
            self.others.append(message)


SIZES = [0, 1, 2, 100, 126, 4096, 65_535, 65_536, 200_000, 400_000, 1 << 20]


@pytest.mark.parametrize("compression", ["deflate", None])
def test_views(server: WebSocketsServer, run: Run, connect: Connect, compression: str | None) -> None:
    """A kept view still shows its bytes after later messages and after the connection is freed."""
    keeping = Keeping()
    messages = [bytes([size % 251]) * size for size in SIZES]

    async def main() -> None:
        async with connect(server.uri, listener=keeping, zero_copy=True, compression=compression) as ws:
            for message in messages * 2:
                await ws.send(message)
            await ws.send("text")
            await soon(lambda: keeping.others)

    run(main)
    gc.collect()
    assert keeping.others == ["text"]
    assert [shown for _, _, shown in keeping.kept] == messages * 2
    for view, part, shown in keeping.kept:
        assert view.readonly
        assert (view.format, view.ndim, view.contiguous) == ("B", 1, True)
        assert bytes(view) == shown
        assert bytes(part) == shown[1:-1]


async def test_views_of_one_segment(scripted: Scripted, connect: Connect) -> None:
    """Many messages in one read, and messages cut by its end."""
    count = 3000
    server = scripted(sending(b"".join(binary(b"%d" % number * 50) for number in range(count)) + close(1000)))
    keeping = Keeping()
    ws = await connect(server.uri, listener=keeping, zero_copy=True, compression=None)
    await ws.wait_closed()
    assert [bytes(view) for view, _, _ in keeping.kept] == [b"%d" % number * 50 for number in range(count)]


async def test_view_cannot_be_written(scripted: Scripted, connect: Connect) -> None:
    server = scripted(sending(binary(b"abc") + close(1000)))
    keeping = Keeping()
    ws = await connect(server.uri, listener=keeping, zero_copy=True)
    await ws.wait_closed()
    with pytest.raises(TypeError):
        keeping.kept[0][0][0] = 1


async def test_view_released_by_the_listener(server: WebSocketsServer, connect: Connect) -> None:
    received = []

    class Releasing(Listener):
        def on_message(self, ws: Any, message: memoryview) -> None:
            with message:
                received.append(bytes(message))

    async with connect(server.uri, listener=Releasing(), zero_copy=True) as ws:
        for number in range(20):
            await ws.send(b"%d" % number * 1000)
        await soon(lambda: len(received) == 20)
    assert received == [b"%d" % number * 1000 for number in range(20)]


async def test_view_sent_on(server: WebSocketsServer, connect: Connect) -> None:
    """A view of received bytes may be sent inside the callback."""
    received = []

    class Forwarding(Listener):
        def on_message(self, ws: Any, message: memoryview) -> None:
            received.append(bytes(message))
            if len(received) < 10:
                ws.send_nowait(message)

    async with connect(server.uri, listener=Forwarding(), zero_copy=True, compression=None) as ws:
        await ws.send(bytes(range(256)) * 1000)
        await soon(lambda: len(received) == 10)
    assert set(received) == {bytes(range(256)) * 1000}


def test_abort_inside_a_view(scripted: Scripted, run: Run, connect: Connect) -> None:
    """The bytes outlive the connection."""
    server = scripted(sending(binary(b"abc" * 1000) * 10))
    kept = []

    class Aborting(Listener):
        def on_message(self, ws: Any, message: memoryview) -> None:
            ws.abort()
            kept.append((message, bytes(message)))

    async def main() -> None:
        ws = await connect(server.uri, listener=Aborting(), zero_copy=True)
        await ws.wait_closed()

    run(main)
    gc.collect()
    assert [(bytes(view), shown) for view, shown in kept] == [(b"abc" * 1000, b"abc" * 1000)]


async def test_zero_copy_needs_a_listener(server: WebSocketsServer, connect: Connect) -> None:
    with pytest.raises((TypeError, ValueError), match="zero_copy"):
        await connect(server.uri, zero_copy=True)
