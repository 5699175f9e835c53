"""permessage-deflate (RFC 7692) against another implementation of it, and as bytes on the wire.

Tests that do not depend on asyncio, such as those of the offer, are in ``tests/sync``.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import zlib
from collections.abc import Callable
from typing import Any

import pytest

from support.asyncio_tools import Run
from support.connecting import Connect
from support.faults import DEFLATE
from support.frames import CONT, TEXT, Frame
from support.scripted import Scripted, Wire
from support.servers import Serving, WebSocketsServer

# Compresses well, in more than one block and beyond every window.
LONG = "".join(f"{number}: the quick brown fox jumps over the lazy dog\n" for number in range(5000))

RSV1 = 4


def messages() -> list[str | bytes]:
    """Messages of many kinds; later ones repeat earlier ones from far back."""
    noise = random.Random(1).randbytes(50_000)
    return [
        "",
        "a",
        "short " * 3,
        LONG,
        noise,
        LONG,
        b"",
        bytes(100_000),
        noise + noise[:1000],
        "é€" * 10_000,
        LONG[::-1],
        noise,
    ]


async def talk(ws: Any) -> None:
    for message in messages():
        await ws.send(message)
        assert await ws.recv() == message
    await ws.send(LONG[start : start + 1000] for start in range(0, len(LONG), 1000))
    assert await ws.recv() == LONG


# Against another implementation


async def test_negotiated_by_default(server: WebSocketsServer, connect: Connect) -> None:
    async with connect(server.uri + "/negotiated") as ws:
        assert (await ws.recv()).startswith("permessage-deflate")
        assert "permessage-deflate" in ws.request.headers["Sec-WebSocket-Extensions"]
        assert ws.response.headers["Sec-WebSocket-Extensions"].startswith("permessage-deflate")


async def test_switched_off_by_the_client(server: WebSocketsServer, connect: Connect) -> None:
    async with connect(server.uri + "/negotiated", compression=None) as ws:
        assert await ws.recv() == ""
        assert "Sec-WebSocket-Extensions" not in ws.request.headers


async def test_switched_off_by_the_server(serving: Serving, connect: Connect) -> None:
    server = serving(deflate=False)
    async with connect(server.uri) as ws:
        assert "Sec-WebSocket-Extensions" not in ws.response.headers
        await talk(ws)


async def test_default(server: WebSocketsServer, connect: Connect) -> None:
    async with connect(server.uri, max_size=None) as ws:
        await talk(ws)


@pytest.mark.parametrize(("server_resets", "client_resets"), list(itertools.product([False, True], repeat=2)))
async def test_context_takeover(serving: Serving, connect: Connect, server_resets: bool, client_resets: bool) -> None:
    server = serving(deflate={"server_no_context_takeover": server_resets, "client_no_context_takeover": client_resets})
    async with connect(server.uri, max_size=None) as ws:
        accepted = ws.response.headers["Sec-WebSocket-Extensions"]
        assert ("server_no_context_takeover" in accepted) == server_resets
        assert ("client_no_context_takeover" in accepted) == client_resets
        await talk(ws)


@pytest.mark.parametrize("bits", [9, 12, 15])
async def test_windows(serving: Serving, connect: Connect, bits: int) -> None:
    server = serving(deflate={"server_max_window_bits": bits, "client_max_window_bits": bits})
    async with connect(server.uri, max_size=None) as ws:
        assert f"client_max_window_bits={bits}" in ws.response.headers["Sec-WebSocket-Extensions"]
        await talk(ws)


async def test_many_senders(server: WebSocketsServer, connect: Connect) -> None:
    """Messages of all tasks go through one window, in the order in which they are sent."""
    async with connect(server.uri, max_size=None) as ws:

        async def send(sender: int) -> None:
            for number in range(30):
                await ws.send(f"{sender}:{number}:" + LONG[number * 10 : number * 300])
                await asyncio.sleep(0)

        tasks = [asyncio.ensure_future(send(sender)) for sender in range(8)]
        received = sorted([await ws.recv() for _ in range(240)])
        await asyncio.gather(*tasks)
        assert received == sorted(
            f"{sender}:{number}:" + LONG[number * 10 : number * 300] for sender in range(8) for number in range(30)
        )


# On the wire


def collecting(*parameters: str) -> Callable[[Wire], list[Frame]]:
    """Accept compression with these parameters and return the frames of the client."""

    def script(wire: Wire) -> list[Frame]:
        wire.accept("; ".join([DEFLATE, *parameters]))
        frames, _ = wire.read_until_close()
        return frames

    return script


def inflate(frame: Frame, bits: int = 15) -> bytes:
    return zlib.decompressobj(-bits).decompress(frame.payload + b"\x00\x00\xff\xff")


async def test_compressed_on_the_wire(scripted: Scripted, connect: Connect) -> None:
    server = scripted(collecting())
    async with connect(server.uri, close_timeout=1) as ws:
        await ws.send(LONG)
    (frame,) = await server.wait_result()
    assert (frame.opcode, frame.rsv, frame.fin) == (TEXT, RSV1, True)
    assert len(frame.payload) < len(LONG) / 5
    assert not frame.payload.endswith(b"\x00\x00\xff\xff"), "RFC 7692 section 7.2.1 removes the tail"
    assert inflate(frame) == LONG.encode()


def test_context_is_taken_over(scripted: Scripted, run: Run, connect: Connect) -> None:
    """With context takeover a repeated message costs almost nothing; without it the message costs the full
    size again.
    """
    # Data that does not compress by itself, so that the second copy must refer to the first.
    message = random.Random(2).randbytes(4000).hex()

    async def main(uri: str) -> None:
        async with connect(uri, close_timeout=1) as ws:
            await ws.send(message)
            await ws.send(message)

    sizes = {}
    for parameter in ("", "client_no_context_takeover"):
        server = scripted(collecting(*filter(None, [parameter])))
        run(lambda uri=server.uri: main(uri))
        sizes[parameter] = [len(frame.payload) for frame in server.result]
    first, second = sizes[""]
    assert second < first / 10
    first, second = sizes["client_no_context_takeover"]
    assert second == first


async def test_fragments_are_compressed_as_one_message(scripted: Scripted, connect: Connect) -> None:
    """Section 6.1: the bit is on the first frame only, and the payloads joined are one compressed message."""
    server = scripted(collecting())
    async with connect(server.uri, close_timeout=1) as ws:
        await ws.send([LONG[:100_000], LONG[100_000:]])
    frames = await server.wait_result()
    assert [frame.opcode for frame in frames] == [TEXT] + [CONT] * (len(frames) - 1)
    assert [frame.rsv for frame in frames] == [RSV1] + [0] * (len(frames) - 1)
    whole = Frame(TEXT, b"".join(frame.payload for frame in frames))
    assert inflate(whole) == LONG.encode()


async def test_control_frames_are_not_compressed(scripted: Scripted, connect: Connect) -> None:
    server = scripted(collecting())
    async with connect(server.uri, close_timeout=1) as ws:
        await ws.pong("a" * 100)
    assert [(frame.rsv, frame.payload) for frame in await server.wait_result()] == [(0, b"a" * 100)]


@pytest.mark.wirespeed_only("the option is ours")
async def test_one_message_uncompressed(scripted: Scripted, connect: Connect) -> None:
    server = scripted(collecting())
    async with connect(server.uri, close_timeout=1) as ws:
        await ws.send(LONG, compress=False)
        await ws.send(LONG)
        ws.send_nowait(LONG, compress=False)
        await ws.send_many([LONG], compress=False)
        await ws.send("a", compress=True)
    frames = await server.wait_result()
    assert [frame.rsv for frame in frames] == [0, RSV1, 0, 0, RSV1]
    assert frames[0] == frames[2] == frames[3] == Frame(TEXT, LONG.encode())


@pytest.mark.parametrize("value", ["gzip", "", "deflate-frame"])
async def test_unknown_compression(server: WebSocketsServer, connect: Connect, value: str) -> None:
    with pytest.raises(ValueError, match="compression"):
        await connect(server.uri, compression=value)
