"""Sending and receiving whole messages."""

from __future__ import annotations

import array
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from support.checks import as_close, within
from support.frames import BINARY, CONT, TEXT, Close, Frame, binary, close, frame, text
from support.scripted import Scripted, Wire
from support.servers import WebSocketsServer
from support.subject import connect, exceptions

# Around each change of the length encoding, and of the buffers behind it.
SIZES = [0, 1, 2, 7, 8, 63, 64, 65, 124, 125, 126, 127, 128, 4096, 65_535, 65_536, 65_537, 262_143, 262_145, 1 << 20]


def pattern(size: int) -> bytes:
    """Bytes that reveal a shift, a swap or a masking key that is applied at the wrong offset."""
    return bytes((index * 7 + index // 251) % 256 for index in range(min(size, 65_536))).ljust(size, b"\x5a")


def collect(wire: Wire) -> tuple[list[Frame], Close | None]:
    wire.accept()
    return wire.read_until_close()


# Echo


@pytest.mark.parametrize("compression", ["deflate", None])
@pytest.mark.parametrize("size", SIZES)
def test_binary(server: WebSocketsServer, size: int, compression: str | None) -> None:
    message = pattern(size)
    with connect(server.uri, compression=compression) as ws:
        ws.send(message)
        received = ws.recv(timeout=10)
    assert type(received) is bytes
    assert received == message


@pytest.mark.parametrize("compression", ["deflate", None])
@pytest.mark.parametrize("size", [size for size in SIZES if size <= 1 << 18])
@pytest.mark.parametrize("alphabet", ["a", "é€", "x\U0001f600", "\x00\x7f"], ids=["ascii", "bmp", "astral", "control"])
def test_text(server: WebSocketsServer, alphabet: str, size: int, compression: str | None) -> None:
    message = (alphabet * size)[:size]
    with connect(server.uri, compression=compression) as ws:
        ws.send(message)
        received = ws.recv(timeout=10)
    assert type(received) is str
    assert received == message


def test_big_message_both_ways(server: WebSocketsServer) -> None:
    message = pattern(65_536) * 256  # 16 MiB
    with connect(server.uri, max_size=None, compression=None) as ws:
        ws.send(message)
        assert ws.recv(timeout=20) == message


def test_many_messages_keep_their_order(server: WebSocketsServer) -> None:
    messages = [f"{number:x}" * (number % 50) for number in range(2000)]
    with connect(server.uri) as ws:
        for start in range(0, len(messages), 100):
            for message in messages[start : start + 100]:
                ws.send(message)
            assert [ws.recv(timeout=10) for _ in range(100)] == messages[start : start + 100]


@pytest.mark.parametrize(
    "message",
    [b"spam", bytearray(b"spam"), memoryview(b"spam"), memoryview(b"_spam_")[1:5]],
    ids=["bytes", "bytearray", "memoryview", "slice"],
)
def test_bytes_like_is_binary(scripted: Scripted, message: Any) -> None:
    server = scripted(collect)
    with connect(server.uri, compression=None) as ws:
        ws.send(message)
    assert server.result == ([Frame(BINARY, b"spam")], Close(1000))


@pytest.mark.wirespeed_only("websockets takes bytes, bytearray and memoryview only")
def test_any_contiguous_buffer_is_binary(scripted: Scripted) -> None:
    server = scripted(collect)
    with connect(server.uri, compression=None) as ws:
        ws.send(array.array("H", [0x6161, 0x6262]))
    assert server.result == ([Frame(BINARY, b"aabb")], Close(1000))


def test_sending_does_not_change_the_buffer(server: WebSocketsServer) -> None:
    """Masking must not happen in the caller's memory."""
    message = bytearray(pattern(100_000))
    with connect(server.uri, compression=None) as ws:
        ws.send(message)
        assert ws.recv(timeout=5) == bytes(message)
    assert message == pattern(100_000)
    message.append(0)  # and the buffer is released


def test_str_is_text(scripted: Scripted) -> None:
    server = scripted(collect)
    with connect(server.uri, compression=None) as ws:
        ws.send("späm")
    assert server.result == ([Frame(TEXT, "späm".encode())], Close(1000))


@pytest.mark.parametrize(
    ("message", "as_text", "opcode"),
    [
        (b"spam", True, TEXT),
        (b"spam", False, BINARY),
        ("spam", True, TEXT),
        ("spam", False, BINARY),
        (bytearray(b"spam"), True, TEXT),
    ],
)
def test_text_argument(scripted: Scripted, message: Any, as_text: bool, opcode: int) -> None:
    server = scripted(collect)
    with connect(server.uri, compression=None) as ws:
        ws.send(message, text=as_text)
    assert server.result == ([Frame(opcode, b"spam")], Close(1000))


def test_frames_are_masked_with_fresh_keys(scripted: Scripted) -> None:
    """RFC 6455 section 5.3: each frame has a masking key that cannot be predicted from another."""

    def script(wire: Wire) -> list[bytes]:
        wire.accept()
        return [wire.read_exactly(2 + 4 + 8) for _ in range(50)]

    server = scripted(script)
    ws = connect(server.uri, compression=None)
    for _ in range(50):
        ws.send(bytes(8))
    keys = {data[2:6] for data in server.result}
    ws.close()
    assert len(keys) == 50
    # The masked payload of zeros is the key, twice.
    assert all(data[6:] == data[2:6] * 2 for data in server.results[0])


# Types


@pytest.mark.parametrize("message", [None, 1, 1.5, ..., {"a": 1}, {}], ids=repr)
def test_send_wrong_type(server: WebSocketsServer, message: Any) -> None:
    with connect(server.uri) as ws:
        with pytest.raises(TypeError):
            ws.send(message)
        ws.send("still open")
        assert ws.recv(timeout=5) == "still open"


@pytest.mark.websockets_differs("fails the connection")
def test_send_lone_surrogate(server: WebSocketsServer) -> None:
    with connect(server.uri) as ws:
        with pytest.raises(UnicodeEncodeError):
            ws.send("\ud800")
        ws.send("still open")
        assert ws.recv(timeout=5) == "still open"


@pytest.mark.wirespeed_only("websockets does not check")
def test_send_bytes_as_text_must_be_utf8(server: WebSocketsServer) -> None:
    with connect(server.uri) as ws:
        with pytest.raises(UnicodeDecodeError):
            ws.send(b"\xff", text=True)
        ws.send("still open")
        assert ws.recv(timeout=5) == "still open"


def test_decode(scripted: Scripted) -> None:
    def script(wire: Wire) -> None:
        wire.accept(then=text("é") + binary("é".encode()) + text("é") + binary("é".encode()) + text("") + binary(b""))
        wire.read_until_close()

    with connect(scripted(script).uri) as ws:
        assert ws.recv(timeout=5, decode=False) == "é".encode()
        assert ws.recv(timeout=5, decode=True) == "é"
        assert ws.recv(timeout=5, decode=None) == "é"
        assert ws.recv(5) == "é".encode()
        assert ws.recv(5, False) == b""
        assert ws.recv(5, True) == ""


def test_decode_binary_that_is_not_utf8(scripted: Scripted) -> None:
    """The caller asked for text and the peer sent none: 1007, as for a text frame."""

    def script(wire: Wire) -> Any:
        wire.accept(then=binary(b"\xff"))
        return wire.read_until_close()

    server = scripted(script)
    ws = connect(server.uri)
    with pytest.raises((exceptions.ConnectionClosedError, UnicodeDecodeError)):
        ws.recv(timeout=5, decode=True)
    ws.close()
    assert server.result[1].code in (1007, 1000)


# Fragments


@pytest.mark.parametrize(
    "make",
    [list, tuple, iter, lambda pieces: (piece for piece in pieces)],
    ids=["list", "tuple", "iterator", "generator"],
)
@pytest.mark.parametrize(
    ("pieces", "opcode"), [(["a", "é", "c"], TEXT), ([b"a", b"\xc3\xa9", b"c"], BINARY)], ids=["text", "binary"]
)
def test_send_fragments(scripted: Scripted, make: Callable[..., Any], pieces: list[Any], opcode: int) -> None:
    server = scripted(collect)
    with connect(server.uri, compression=None) as ws:
        ws.send(make(pieces))
        ws.send("next")
    frames, on_the_wire = server.result
    assert on_the_wire == Close(1000)
    assert frames.pop() == Frame(TEXT, b"next")
    assert [frame.opcode for frame in frames] == [opcode] + [CONT] * (len(frames) - 1)
    assert [frame.fin for frame in frames] == [False] * (len(frames) - 1) + [True]
    payloads = [frame.payload for frame in frames]
    assert payloads[:2] == [b"a", "é".encode()]  # one frame for each item
    assert b"".join(payloads) == "aéc".encode()


@pytest.mark.parametrize("compression", ["deflate", None])
def test_send_fragments_to_a_real_server(server: WebSocketsServer, compression: str | None) -> None:
    with connect(server.uri, compression=compression) as ws:
        ws.send(str(number) * 100 for number in range(50))
        assert ws.recv(timeout=5) == "".join(str(number) * 100 for number in range(50))


def test_text_in_bytes_that_split_characters(scripted: Scripted) -> None:
    """RFC 6455 5.6: only the whole message has to be UTF-8."""
    server = scripted(collect)
    with connect(server.uri, compression=None) as ws:
        pieces: list[Any] = [b"a\xc3", b"\xa9", bytearray(b"\xf0\x9f"), b"", b"\x98\x80b"]
        ws.send(pieces, text=True)
    frames, on_the_wire = server.result
    assert [frame.payload for frame in frames] == [b"a\xc3", b"\xa9", b"\xf0\x9f", b"", b"\x98\x80b", b""]
    assert (frames[0].opcode, on_the_wire) == (TEXT, Close(1000))


@pytest.mark.wirespeed_only("websockets sends what the peer has to refuse")
@pytest.mark.parametrize("pieces", [[b"a", b"\xff"], [b"a\xc3", b"x"], [b"a\xc3"]], ids=["alone", "joined", "end"])
def test_text_fragments_that_are_not_utf8(scripted: Scripted, pieces: list[bytes]) -> None:
    server = scripted(collect)
    ws = connect(server.uri, compression=None)
    with pytest.raises(UnicodeDecodeError):
        ws.send(pieces, text=True)
    ws.close()
    assert server.result == ([Frame(TEXT, pieces[0], fin=False)], Close(1011, "error in fragmented message"))


def test_send_fragments_text_argument(scripted: Scripted) -> None:
    server = scripted(collect)
    with connect(server.uri, compression=None) as ws:
        ws.send([b"a", b"b"], text=True)
        ws.send(["a", "b"], text=False)
    opcodes = [frame.opcode for frame in server.result[0] if frame.opcode != CONT]
    assert opcodes == [TEXT, BINARY]


def test_fragments_are_sent_as_they_are_produced(scripted: Scripted) -> None:
    """A fragment is on the wire before the iterable is asked for the next one."""
    arrived = []

    def script(wire: Wire) -> None:
        wire.accept()
        arrived.append(wire.read_frame().payload)
        server.reached.set()
        wire.read_until_close()

    def pieces() -> Iterator[str]:
        yield "first"
        server.wait_reached()
        yield "second"

    server = scripted(script)
    with connect(server.uri, compression=None) as ws:
        ws.send(pieces())
    assert arrived == [b"first"]


@pytest.mark.parametrize("empty", [[], (), iter([])], ids=["list", "tuple", "iterator"])
def test_send_no_fragments(scripted: Scripted, empty: Any) -> None:
    server = scripted(collect)
    with connect(server.uri) as ws:
        ws.send(empty)
    assert server.result == ([], Close(1000))


def test_send_fragments_of_wrong_type(server: WebSocketsServer) -> None:
    ws = connect(server.uri)
    with pytest.raises(TypeError):
        ws.send([1])  # type: ignore[arg-type]
    ws.close()


@pytest.mark.parametrize("pieces", [["a", b"b"], [b"a", "b"], ["a", 1]], ids=repr)
def test_send_fragments_of_mixed_types(scripted: Scripted, pieces: list[Any]) -> None:
    """Half of the message is out and cannot be taken back: the connection fails with 1011."""
    server = scripted(collect)
    ws = connect(server.uri)
    with pytest.raises(TypeError):
        ws.send(pieces)
    with pytest.raises(exceptions.ConnectionClosedError):
        ws.send("x")
    ws.close()
    assert server.result[1].code == 1011


def test_send_fragments_from_a_failing_iterable(scripted: Scripted) -> None:
    def pieces() -> Iterator[str]:
        yield "a"
        raise ZeroDivisionError

    server = scripted(collect)
    ws = connect(server.uri)
    with pytest.raises(ZeroDivisionError):
        ws.send(pieces())
    with pytest.raises(exceptions.ConnectionClosedError) as raised:
        ws.recv(timeout=5)
    assert as_close(raised.value.sent) == server.result[1]
    assert server.result[1].code == 1011
    ws.close()


def test_send_fragments_from_an_iterable_that_fails_first(server: WebSocketsServer) -> None:
    """Nothing was sent yet: the connection stays usable."""

    def pieces() -> Iterator[str]:
        raise ZeroDivisionError
        yield "a"

    with connect(server.uri) as ws:
        with pytest.raises(ZeroDivisionError):
            ws.send(pieces())
        ws.send("still open")
        assert ws.recv(timeout=5) == "still open"


def test_receive_fragments(server: WebSocketsServer) -> None:
    with connect(server.uri + "/fragments?n=30&size=1000") as ws:
        ws.send("go")
        message = ws.recv(timeout=5)
    assert message == "".join(chr(ord("a") + index % 26) * 1000 for index in range(30))


# Iteration


@pytest.mark.parametrize("code", [1000, 1001])
def test_iteration_ends_on_a_clean_close(scripted: Scripted, code: int) -> None:
    def script(wire: Wire) -> Any:
        wire.accept(then=text("a") + text("b") + close(code))
        return wire.read_until_close()

    server = scripted(script)
    with connect(server.uri) as ws:
        assert list(ws) == ["a", "b"]
        assert list(ws) == []
    assert server.result == ([], Close(code))


@pytest.mark.parametrize("code", [1002, 1011, 3000, 4999])
def test_iteration_raises_on_another_close(scripted: Scripted, code: int) -> None:
    def script(wire: Wire) -> Any:
        wire.accept(then=text("a") + close(code, "why"))
        return wire.read_until_close()

    server = scripted(script)
    received = []
    with connect(server.uri) as ws, pytest.raises(exceptions.ConnectionClosedError) as raised:
        for message in ws:
            received.append(message)
    assert received == ["a"]
    assert as_close(raised.value.rcvd) == Close(code, "why")
    assert server.result[1] == Close(code, "why")


# Beyond the API of websockets


@pytest.mark.wirespeed_only("recv_many is ours")
def test_recv_many_takes_what_is_there(scripted: Scripted) -> None:
    def script(wire: Wire) -> None:
        wire.accept(then=b"".join(text(str(number)) for number in range(100)))
        wire.read_until_close()

    with connect(scripted(script).uri) as ws:
        received: list[str | bytes] = []
        while len(received) < 100:
            batch = ws.recv_many(30)
            assert 1 <= len(batch) <= 30
            received += batch
        assert received == [str(number) for number in range(100)]


@pytest.mark.wirespeed_only("recv_many is ours")
def test_recv_many_delivers_before_the_fault(scripted: Scripted) -> None:
    def script(wire: Wire) -> Any:
        wire.accept(then=text("a") + binary(b"b") + frame(3))
        return wire.read_until_close()

    server = scripted(script)
    ws = connect(server.uri)
    received: list[Any] = []
    with pytest.raises(exceptions.ConnectionClosedError):
        while True:
            received += ws.recv_many(10)
    assert received == ["a", b"b"]
    assert server.result[1].code == 1002
    ws.close()


@pytest.mark.wirespeed_only("recv_many is ours")
@pytest.mark.parametrize("limit", [0, -1])
def test_recv_many_needs_a_positive_limit(server: WebSocketsServer, limit: int) -> None:
    with connect(server.uri) as ws, pytest.raises(ValueError, match="limit"):
        ws.recv_many(limit)


@pytest.mark.wirespeed_only("recv_nowait is ours")
def test_recv_nowait(scripted: Scripted) -> None:
    def script(wire: Wire) -> None:
        wire.accept(then=text("a") + text("b"))
        wire.read_until_close()

    with connect(scripted(script).uri) as ws:
        assert ws.recv(timeout=5) == "a"
        assert ws.recv_nowait() == "b"
        with within(1), pytest.raises(Exception) as raised:
            ws.recv_nowait()
        assert not isinstance(raised.value, exceptions.ConnectionClosed)


@pytest.mark.wirespeed_only("send_many is ours")
@pytest.mark.parametrize("make", [list, tuple, iter], ids=["list", "tuple", "iterator"])
def test_send_many(scripted: Scripted, make: Callable[..., Any]) -> None:
    server = scripted(collect)
    with connect(server.uri, compression=None) as ws:
        ws.send_many(make(["a", b"b", bytearray(b"c"), "é"]))
        ws.send_many([])
    expected = [Frame(TEXT, b"a"), Frame(BINARY, b"b"), Frame(BINARY, b"c"), Frame(TEXT, "é".encode())]
    assert server.result == (expected, Close(1000))


@pytest.mark.wirespeed_only("send_many is ours")
def test_send_many_to_a_real_server(server: WebSocketsServer) -> None:
    with connect(server.uri + "/sink") as ws:
        ws.send_many([bytes(64)] * 20_000)
        ws.send("?")
        assert ws.recv(timeout=10) == str(64 * 20_000)


@pytest.mark.wirespeed_only("send_many is ours")
def test_send_many_wrong_type(server: WebSocketsServer) -> None:
    with connect(server.uri) as ws:
        for wrong in ("text", b"bytes"):  # one message, not many of one character
            with pytest.raises(TypeError):
                ws.send_many(wrong)  # type: ignore[arg-type]
        with pytest.raises(TypeError):
            ws.send_many([1])  # type: ignore[list-item]
        ws.send("still open")
        assert ws.recv(timeout=5) == "still open"


@pytest.mark.wirespeed_only("stats is ours")
def test_stats(server: WebSocketsServer) -> None:
    with connect(server.uri, compression=None) as ws:
        before = ws.stats()
        ws.send("hello")
        assert ws.recv(timeout=5) == "hello"
        after = ws.stats()
    assert before != after
