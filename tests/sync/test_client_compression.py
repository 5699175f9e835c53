"""permessage-deflate (RFC 7692) against another implementation of it, and as bytes on the wire."""

from __future__ import annotations

import itertools
import random
import zlib
from collections.abc import Callable
from typing import Any

import pytest

from support.faults import DEFLATE
from support.frames import CONT, TEXT, Frame
from support.scripted import Scripted, Wire
from support.servers import Serving, WebSocketsServer
from support.subject import connect, exceptions

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


def talk(ws: Any) -> None:
    for message in messages():
        ws.send(message)
        assert ws.recv(timeout=10) == message
    ws.send(LONG[start : start + 1000] for start in range(0, len(LONG), 1000))
    assert ws.recv(timeout=10) == LONG


# Against another implementation


def test_negotiated_by_default(server: WebSocketsServer) -> None:
    with connect(server.uri + "/negotiated") as ws:
        assert str(ws.recv(timeout=5)).startswith("permessage-deflate")
        assert "permessage-deflate" in ws.request.headers["Sec-WebSocket-Extensions"]
        assert ws.response.headers["Sec-WebSocket-Extensions"].startswith("permessage-deflate")


def test_switched_off_by_the_client(server: WebSocketsServer) -> None:
    with connect(server.uri + "/negotiated", compression=None) as ws:
        assert ws.recv(timeout=5) == ""
        assert "Sec-WebSocket-Extensions" not in ws.request.headers


def test_switched_off_by_the_server(serving: Serving) -> None:
    with connect(serving(deflate=False).uri) as ws:
        assert "Sec-WebSocket-Extensions" not in ws.response.headers
        talk(ws)


def test_default(server: WebSocketsServer) -> None:
    with connect(server.uri, max_size=None) as ws:
        talk(ws)


@pytest.mark.parametrize(("server_resets", "client_resets"), list(itertools.product([False, True], repeat=2)))
def test_context_takeover(serving: Serving, server_resets: bool, client_resets: bool) -> None:
    server = serving(deflate={"server_no_context_takeover": server_resets, "client_no_context_takeover": client_resets})
    with connect(server.uri, max_size=None) as ws:
        accepted = ws.response.headers["Sec-WebSocket-Extensions"]
        assert ("server_no_context_takeover" in accepted) == server_resets
        assert ("client_no_context_takeover" in accepted) == client_resets
        talk(ws)


@pytest.mark.parametrize("bits", range(9, 16))
def test_server_window(serving: Serving, bits: int) -> None:
    with connect(serving(deflate={"server_max_window_bits": bits}).uri, max_size=None) as ws:
        assert f"server_max_window_bits={bits}" in ws.response.headers["Sec-WebSocket-Extensions"]
        talk(ws)


@pytest.mark.parametrize("bits", range(9, 16))
def test_client_window(serving: Serving, bits: int) -> None:
    """The server inflates with that window, and would fail on a longer distance."""
    with connect(serving(deflate={"client_max_window_bits": bits}).uri, max_size=None) as ws:
        assert f"client_max_window_bits={bits}" in ws.response.headers["Sec-WebSocket-Extensions"]
        talk(ws)


@pytest.mark.parametrize("bits", [9, 12, 15])
@pytest.mark.parametrize("reset", [False, True], ids=["takeover", "no-takeover"])
def test_everything_at_once(serving: Serving, bits: int, reset: bool) -> None:
    deflate = {
        "server_max_window_bits": bits,
        "client_max_window_bits": bits,
        "server_no_context_takeover": reset,
        "client_no_context_takeover": reset,
    }
    with connect(serving(deflate=deflate).uri, max_size=None) as ws:
        talk(ws)


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


def test_compressed_on_the_wire(scripted: Scripted) -> None:
    server = scripted(collecting())
    with connect(server.uri, close_timeout=1) as ws:
        ws.send(LONG)
    (frame,) = server.result
    assert (frame.opcode, frame.rsv, frame.fin) == (TEXT, RSV1, True)
    assert len(frame.payload) < len(LONG) / 5
    assert not frame.payload.endswith(b"\x00\x00\xff\xff"), "RFC 7692 section 7.2.1 removes the tail"
    assert inflate(frame) == LONG.encode()


def test_not_compressed_when_not_negotiated(scripted: Scripted) -> None:
    def script(wire: Wire) -> list[Frame]:
        wire.accept()
        return wire.read_until_close()[0]

    server = scripted(script)
    with connect(server.uri, close_timeout=1) as ws:
        ws.send(LONG)
    assert server.result == [Frame(TEXT, LONG.encode())]


def test_context_is_taken_over(scripted: Scripted) -> None:
    """With context takeover a repeated message costs almost nothing; without it the message costs the full
    size again.
    """
    # Data that does not compress by itself, so that the second copy must refer to the first.
    message = random.Random(2).randbytes(4000).hex()
    sizes = {}
    for parameter in ("", "client_no_context_takeover"):
        server = scripted(collecting(*filter(None, [parameter])))
        with connect(server.uri, close_timeout=1) as ws:
            ws.send(message)
            ws.send(message)
        sizes[parameter] = [len(frame.payload) for frame in server.result]
    first, second = sizes[""]
    assert second < first / 10
    first, second = sizes["client_no_context_takeover"]
    assert second == first


def test_each_message_by_itself_without_takeover(scripted: Scripted) -> None:
    server = scripted(collecting("client_no_context_takeover"))
    with connect(server.uri, close_timeout=1) as ws:
        for _ in range(3):
            ws.send(LONG)
    assert [inflate(frame) for frame in server.result] == [LONG.encode()] * 3


@pytest.mark.parametrize("bits", range(9, 16))
def test_window_on_the_wire(scripted: Scripted, bits: int) -> None:
    server = scripted(collecting(f"client_max_window_bits={bits}"))
    with connect(server.uri, close_timeout=1) as ws:
        ws.send(LONG)
    (frame,) = server.result
    assert inflate(frame, bits) == LONG.encode()


def test_smallest_window(scripted: Scripted) -> None:
    """256 bytes: zlib inflates but does not deflate with it. A client may decline, but must not send invalid data."""
    server = scripted(collecting("client_max_window_bits=8"))
    try:
        ws = connect(server.uri, close_timeout=1)
    except exceptions.NegotiationError:
        return
    ws.send(LONG)
    ws.close()
    (frame,) = server.result
    data = inflate(frame, 8) if frame.rsv else frame.payload
    assert data == LONG.encode()


def test_fragments_are_compressed_as_one_message(scripted: Scripted) -> None:
    """Section 6.1: the bit is on the first frame only, and the payloads joined are one compressed message."""
    server = scripted(collecting())
    with connect(server.uri, close_timeout=1) as ws:
        ws.send([LONG[:100_000], LONG[100_000:]])
    frames = server.result
    assert [frame.opcode for frame in frames] == [TEXT] + [CONT] * (len(frames) - 1)
    assert [frame.rsv for frame in frames] == [RSV1] + [0] * (len(frames) - 1)
    whole = Frame(TEXT, b"".join(frame.payload for frame in frames))
    assert inflate(whole) == LONG.encode()


def test_control_frames_are_not_compressed(scripted: Scripted) -> None:
    server = scripted(collecting())
    with connect(server.uri, close_timeout=1) as ws:
        ws.pong("a" * 100)
    assert [(frame.rsv, frame.payload) for frame in server.result] == [(0, b"a" * 100)]


@pytest.mark.wirespeed_only("the option is ours")
def test_one_message_uncompressed(scripted: Scripted) -> None:
    server = scripted(collecting())
    with connect(server.uri, close_timeout=1) as ws:
        ws.send(LONG, compress=False)
        ws.send(LONG)
    first, second = server.result
    assert first == Frame(TEXT, LONG.encode())
    assert second.rsv == RSV1


def test_offer(server: WebSocketsServer) -> None:
    """The offer is well formed, and allows the server to limit the client's window (section 7.1.2.2)."""
    with connect(server.uri) as ws:
        offers = ws.request.headers["Sec-WebSocket-Extensions"].split(",")
    names = [offer.split(";")[0].strip() for offer in offers]
    assert set(names) == {"permessage-deflate"}
    parameters = [parameter.strip().split("=")[0] for parameter in offers[0].split(";")[1:]]
    assert "client_max_window_bits" in parameters
    assert len(parameters) == len(set(parameters))


@pytest.mark.parametrize("value", ["gzip", "", "deflate-frame"])
def test_unknown_compression(server: WebSocketsServer, value: str) -> None:
    with pytest.raises(ValueError, match="compression"):
        connect(server.uri, compression=value)
