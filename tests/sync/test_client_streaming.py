"""Receiving a message fragment by fragment."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from types import FrameType
from typing import Any

import pytest

from support.checks import within
from support.faults import DEFLATE
from support.frames import CONT, TEXT, binary, deflate, frame, ping, text
from support.scripted import Scripted, Wire
from support.servers import WebSocketsServer
from support.subject import connect, exceptions


def joined(pieces: Iterable[Any]) -> str:
    """Joins all pieces of a text. Only at run time are its pieces known to be text."""
    return "".join(pieces)


def serve(scripted: Scripted, data: bytes, *headers: str) -> str:
    """Starts a server that sends these bytes after the handshake; returns its address."""

    def script(wire: Wire) -> Any:
        wire.accept(*headers, then=data)
        return wire.read_until_close()

    return scripted(script).uri


def test_fragments_of_text(scripted: Scripted) -> None:
    data = text("one", fin=False) + frame(CONT, b"two", fin=False) + frame(CONT, b"three")
    with connect(serve(scripted, data + text("next"))) as ws:
        assert list(ws.recv_streaming()) == ["one", "two", "three"]
        assert ws.recv(timeout=5) == "next"


def test_fragments_of_binary(scripted: Scripted) -> None:
    data = binary(b"one", fin=False) + frame(CONT, b"two")
    with connect(serve(scripted, data)) as ws:
        received = list(ws.recv_streaming())
    assert received == [b"one", b"two"]
    assert {type(piece) for piece in received} == {bytes}


def test_unfragmented(scripted: Scripted) -> None:
    with connect(serve(scripted, text("whole") + binary(b"too"))) as ws:
        assert list(ws.recv_streaming()) == ["whole"]
        assert list(ws.recv_streaming()) == [b"too"]


def test_empty_message(scripted: Scripted) -> None:
    with connect(serve(scripted, text("") + text("next"))) as ws:
        assert joined(ws.recv_streaming()) == ""
        assert ws.recv(timeout=5) == "next"


def test_character_split_across_fragments(scripted: Scripted) -> None:
    """Each piece is valid text by itself; a cut character comes with the piece that completes it."""
    data = text(b"a\xe2", fin=False) + frame(CONT, b"\x82", fin=False) + frame(CONT, b"\xacb")
    with connect(serve(scripted, data)) as ws:
        pieces = list(ws.recv_streaming())
    assert pieces[0] == "a"
    assert joined(pieces) == "a€b"


def test_decode(scripted: Scripted) -> None:
    pieces = text("é", fin=False) + frame(CONT, "€".encode())
    binaries = binary("é".encode(), fin=False) + frame(CONT, "€".encode())
    with connect(serve(scripted, pieces + binaries)) as ws:
        assert list(ws.recv_streaming(decode=False)) == ["é".encode(), "€".encode()]
        assert list(ws.recv_streaming(decode=True)) == ["é", "€"]


def test_control_frames_between(scripted: Scripted) -> None:
    data = text("one", fin=False) + ping(b"x") + frame(CONT, b"two", fin=False) + ping(b"y") + frame(CONT, b"three")
    with connect(serve(scripted, data)) as ws:
        assert joined(ws.recv_streaming()) == "onetwothree"


def test_pieces_arrive_before_the_message_ends(scripted: Scripted) -> None:
    def script(wire: Wire) -> None:
        wire.accept(then=text("one", fin=False))
        server.pause()
        wire.send(frame(CONT, b"two"))
        wire.read_until_close()

    server = scripted(script)
    with connect(server.uri) as ws, within(8):
        pieces = iter(ws.recv_streaming())
        assert next(pieces) == "one"
        server.release.set()
        assert joined(pieces) == "two"


def test_compressed(scripted: Scripted) -> None:
    data = deflate(b"Hello, Hello, Hello")
    frames = text(data[:5], fin=False, rsv=4) + frame(CONT, data[5:])
    with connect(serve(scripted, frames + text("next"), DEFLATE)) as ws:
        assert joined(ws.recv_streaming()) == "Hello, Hello, Hello"
        assert ws.recv(timeout=5) == "next"


def test_a_real_server(server: WebSocketsServer) -> None:
    with connect(server.uri + "/fragments?n=20&size=10000") as ws:
        ws.send("go")
        pieces = list(ws.recv_streaming())
        assert len(pieces) >= 20
        assert joined(pieces) == "".join(chr(ord("a") + index % 26) * 10_000 for index in range(20))


def test_connection_lost_in_the_middle(scripted: Scripted) -> None:
    def script(wire: Wire) -> None:
        wire.accept(then=text("one", fin=False))
        server.pause()

    server = scripted(script)
    ws = connect(server.uri)
    pieces = iter(ws.recv_streaming())
    assert next(pieces) == "one"
    server.release.set()
    with pytest.raises(exceptions.ConnectionClosedError):
        next(pieces)
    ws.close()


def test_bad_utf8_in_the_middle(scripted: Scripted) -> None:
    def script(wire: Wire) -> Any:
        wire.accept(then=text("one", fin=False) + frame(CONT, b"\xff", fin=False))
        return wire.read_until_close()

    server = scripted(script)
    ws = connect(server.uri)
    received = []
    with pytest.raises(exceptions.ConnectionClosedError):
        for piece in ws.recv_streaming():
            received.append(piece)
    assert received == ["one"]
    assert server.result[1].code == 1007
    ws.close()


def test_after_the_connection_closed(server: WebSocketsServer) -> None:
    ws = connect(server.uri)
    ws.close()
    with pytest.raises(exceptions.ConnectionClosedOK):
        next(iter(ws.recv_streaming()))


def test_max_size_still_holds(scripted: Scripted) -> None:
    data = binary(bytes(600), fin=False) + frame(CONT, bytes(600), fin=False)
    ws = connect(serve(scripted, data), max_size=1000)
    with pytest.raises(exceptions.ConnectionClosedError) as raised:
        list(ws.recv_streaming())
    assert raised.value.sent is not None
    assert raised.value.sent.code == 1009
    ws.close()


def test_opcode_of_the_first_fragment_decides(scripted: Scripted) -> None:
    with connect(serve(scripted, frame(TEXT, b"", fin=False) + frame(CONT, b"x"))) as ws:
        pieces = list(ws.recv_streaming())
    assert joined(pieces) == "x"


@pytest.mark.wirespeed_only("it looks at what is ours")
@pytest.mark.parametrize("taken", [1, 2, 3])
def test_interrupted_when_a_fragment_is_taken(scripted: Scripted, taken: int) -> None:
    """A signal handler raises before the fragment was delivered: the rest of that message is dropped, and no other."""
    from wirespeed.sync import ClientConnection

    class Interrupted(ClientConnection):
        left = taken

        def _recv_fragment(self, timeout: float | None = None) -> Any:
            item = super()._recv_fragment(timeout)
            self.left -= 1
            if not self.left:
                raise KeyboardInterrupt
            return item

    data = text("one", fin=False) + frame(CONT, b"two", fin=False) + frame(CONT, b"three")
    with connect(serve(scripted, data + text("next") + text("last")), create_connection=Interrupted) as ws:
        with pytest.raises(KeyboardInterrupt):
            list(ws.recv_streaming())
        assert ws.recv(timeout=5) == "next"
        assert list(ws.recv_streaming()) == ["last"]


@pytest.mark.wirespeed_only("it looks at what is ours")
def test_interrupted_before_a_fragment_is_taken(scripted: Scripted) -> None:
    """No message is dropped then."""
    from wirespeed.sync import ClientConnection

    class Interrupted(ClientConnection):
        interrupts = 1

        def _recv_fragment(self, timeout: float | None = None) -> Any:
            if self.interrupts:
                self.interrupts -= 1
                raise KeyboardInterrupt
            return super()._recv_fragment(timeout)

    data = text("one", fin=False) + frame(CONT, b"two")
    with connect(serve(scripted, data), create_connection=Interrupted) as ws:
        with pytest.raises(KeyboardInterrupt):
            next(ws.recv_streaming())
        assert list(ws.recv_streaming()) == ["one", "two"]


@pytest.mark.wirespeed_only("it looks at what is ours")
def test_interrupted_while_the_rest_is_dropped(scripted: Scripted) -> None:
    """By a signal handler, for example: the next message can still be received in pieces."""
    from wirespeed.sync import ClientConnection

    class Interrupted(ClientConnection):
        interrupts = 1

        def _discard_message(self) -> None:
            super()._discard_message()
            if self.interrupts:
                self.interrupts -= 1
                raise KeyboardInterrupt

    data = text("one", fin=False) + frame(CONT, b"two") + text("next")
    with connect(serve(scripted, data), create_connection=Interrupted) as ws:
        streaming = ws.recv_streaming()
        assert next(streaming) == "one"
        with pytest.raises(KeyboardInterrupt):
            streaming.close()
        assert list(ws.recv_streaming()) == ["next"]


@pytest.mark.wirespeed_only("websockets stays locked")
def test_exception_anywhere_leaves_connection_usable(server: WebSocketsServer) -> None:
    """Like that of a signal handler, before each of its instructions."""

    class Struck(Exception):
        pass

    def strike(at: int) -> Callable[..., Any]:
        left = at

        def trace(frame: FrameType, event: str, argument: object) -> Any:
            nonlocal left
            if frame.f_code.co_name != "recv_streaming":
                return None
            frame.f_trace_opcodes = True
            if event == "opcode":
                left -= 1
                if left == 0:
                    raise Struck
            return trace

        return trace

    struck = True
    with connect(server.uri) as ws:
        at = 0
        while struck:
            at += 1
            ws.send("first")
            before = sys.gettrace()
            sys.settrace(strike(at))
            try:
                struck = False
                list(ws.recv_streaming())
            except Struck:
                struck = True
            finally:
                sys.settrace(before)
            ws.send("last")
            with within(5):
                while "".join(ws.recv_streaming(decode=True)) != "last":
                    pass
    assert at > 50
