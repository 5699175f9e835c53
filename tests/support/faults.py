# ruff: noqa: E501 - one row, one line
"""The misbehaving server as tables: its actions, and the required reactions of the client.

``HANDSHAKE_FAULTS``: answers to the opening handshake that ``connect`` must refuse. ``FRAME_FAULTS``: bytes after a
good handshake that must fail the connection with a given close code on the wire. ``ODDITIES``: unusual bytes that are
valid, which must not fail the connection. ``CLOSING_FAULTS`` are scenarios rather than bytes and live in
``tests/sync/test_client_closing.py``.

Codes are those that RFC 6455 section 7.4.1 assigns; where the RFC leaves the choice, the row names the reason.
"""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Callable, Mapping
from typing import Any

from .frames import (
    BINARY,
    CLOSE,
    CONT,
    PING,
    PONG,
    TEXT,
    binary,
    close,
    deflate,
    frame,
    ping,
    pong,
    text,
)
from .scripted import Disconnected, Wire, accept_key

__all__ = [
    "DEFLATE",
    "FRAME_FAULTS",
    "GREETING",
    "HANDSHAKE_FAULTS",
    "HANDSHAKE_ODDITIES",
    "ODDITIES",
    "FrameFault",
    "HandshakeFault",
    "HandshakeOddity",
    "Oddity",
]

DEFLATE = "Sec-WebSocket-Extensions: permessage-deflate"

# The greeting that the server sends before each frame fault, in the same segment: the application must still get it.
GREETING = "before the fault"


# Opening handshake
# ------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class HandshakeFault:
    """An answer that fails the opening handshake.

    Args:
        answer: runs in the server once the client is connected.
        raises: names of the exceptions, of the library or built in, of which ``connect`` must raise one.
        says: a part of the exception's text, in any case.
        options: keyword arguments of ``connect``.
        differs: why websockets does not pass.
    """

    name: str
    answer: Callable[[Wire], Any]
    raises: tuple[str, ...]
    says: str = ""
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    differs: str = ""


def respond(*lines: str, body: bytes = b"") -> Callable[[Wire], None]:
    """Answers with these lines; ``{accept}`` is the right accept value."""

    def answer(wire: Wire) -> None:
        wire.read_request()
        head = "\r\n".join([*lines, "", ""]).replace("{accept}", accept_key(wire.key))
        wire.send(head.encode("latin-1") + body)
        # In any case the client must end the connection.
        wire.read_to_end()

    return answer


def raw(data: bytes, *, end: bool = False) -> Callable[[Wire], None]:
    """Answers with these bytes, then waits for the client to leave, or ends the connection first."""

    def answer(wire: Wire) -> None:
        wire.read_request()
        wire.send(data)
        if not end:
            wire.read_to_end()

    return answer


def switching(*headers: str) -> Callable[[Wire], None]:
    """A good 101 answer with additional headers."""
    return respond(*GOOD, *headers)


GOOD = (
    "HTTP/1.1 101 Switching Protocols",
    "Upgrade: websocket",
    "Connection: Upgrade",
    "Sec-WebSocket-Accept: {accept}",
)
STATUS, UPGRADE, CONNECTION, ACCEPT = GOOD


def _close_at_once(wire: Wire) -> None:
    wire.close()


def _reset_at_once(wire: Wire) -> None:
    wire.reset()


def _close_after_request(wire: Wire) -> None:
    wire.read_request()


def _reset_after_request(wire: Wire) -> None:
    wire.read_request()
    wire.reset()


def _reset_in_head(wire: Wire) -> None:
    wire.read_request()
    wire.send(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: web")
    wire.reset()


def _endless(head: bytes, piece: bytes, most: int) -> Callable[[Wire], None]:
    """Sends ``piece`` endlessly; the client must give up before ``most`` bytes beyond the sockets' buffers."""

    def answer(wire: Wire) -> None:
        wire.read_request()
        wire.send(head)
        sent = 0
        try:
            while sent < most:
                wire.send(piece)
                sent += len(piece)
        except Disconnected:
            return
        raise AssertionError(f"the client took {sent} bytes of a head without end")

    return answer


MALFORMED = ("InvalidMessage",)
VERSION = ("InvalidMessage", "InvalidProtocol")
REFUSED = ("InvalidStatus",)
# A limit on the head is a security rule; the sans-I/O layer of websockets reports it as the cause of an InvalidMessage.
TOO_BIG = ("SecurityError", "InvalidMessage")
# An end of stream or RST without an answer: no valid message, or the error of the system.
LOST = ("InvalidMessage", "ConnectionError", "EOFError")
NEGOTIATION = ("NegotiationError",)
# Enough to overrun every limit on a head and every socket buffer.
ENDLESS = 64 * 1024 * 1024
READS_ON = "reads and discards the rest after refusing"

HANDSHAKE_FAULTS = [
    # RFC 6455 section 4.1, the checks of the server's response, in their order
    HandshakeFault("status-200", respond("HTTP/1.1 200 OK", "Content-Length: 0"), REFUSED, "200"),
    HandshakeFault("status-204", respond("HTTP/1.1 204 No Content"), REFUSED, "204"),
    HandshakeFault("status-401", respond("HTTP/1.1 401 Unauthorized", "WWW-Authenticate: Basic", "Content-Length: 0"), REFUSED, "401"),
    HandshakeFault("status-403-body", respond("HTTP/1.1 403 Forbidden", "Content-Length: 4", body=b"no!\n"), REFUSED, "403"),
    HandshakeFault("status-500-chunked", respond("HTTP/1.1 500 Oops", "Transfer-Encoding: chunked", body=b"3\r\nno!\r\n0\r\n\r\n"), REFUSED, "500"),
    HandshakeFault("status-502-until-end", raw(b"HTTP/1.1 502 Bad Gateway\r\n\r\nno!", end=True), REFUSED, "502"),
    HandshakeFault("status-426", respond("HTTP/1.1 426 Upgrade Required", "Sec-WebSocket-Version: 8", "Content-Length: 0"), REFUSED, "426"),
    HandshakeFault("redirect-without-location", respond("HTTP/1.1 302 Found", "Content-Length: 0"), REFUSED, "302"),
    HandshakeFault("upgrade-missing", respond(STATUS, CONNECTION, ACCEPT), ("InvalidUpgrade",), "upgrade"),
    HandshakeFault("upgrade-other", respond(STATUS, "Upgrade: h2c", CONNECTION, ACCEPT), ("InvalidUpgrade",), "h2c"),
    HandshakeFault("upgrade-empty", respond(STATUS, "Upgrade:", CONNECTION, ACCEPT), ("InvalidUpgrade", "InvalidHeader"), "upgrade"),
    HandshakeFault("connection-missing", respond(STATUS, UPGRADE, ACCEPT), ("InvalidUpgrade",), "connection"),
    HandshakeFault("connection-other", respond(STATUS, UPGRADE, "Connection: keep-alive", ACCEPT), ("InvalidUpgrade",), "keep-alive"),
    HandshakeFault("accept-missing", respond(STATUS, UPGRADE, CONNECTION), ("InvalidHeader",), "Sec-WebSocket-Accept"),
    HandshakeFault("accept-wrong", respond(STATUS, UPGRADE, CONNECTION, "Sec-WebSocket-Accept: " + accept_key("x")), ("InvalidHeader",), "Sec-WebSocket-Accept"),
    HandshakeFault("accept-empty", respond(STATUS, UPGRADE, CONNECTION, "Sec-WebSocket-Accept:"), ("InvalidHeader",), "Sec-WebSocket-Accept"),
    HandshakeFault("accept-lower-case", respond(STATUS, UPGRADE, CONNECTION, "Sec-WebSocket-Accept: {accept}".lower() + "x"), ("InvalidHeader",), "Sec-WebSocket-Accept"),
    HandshakeFault("accept-duplicate", respond(*GOOD, ACCEPT), ("InvalidHeader",), "Sec-WebSocket-Accept"),
    HandshakeFault("extension-unoffered", switching("Sec-WebSocket-Extensions: x-unheard-of"), NEGOTIATION, "x-unheard-of"),
    HandshakeFault("extension-when-none-offered", switching(DEFLATE), NEGOTIATION, "extension", {"compression": None}),
    HandshakeFault("extension-twice", switching(f"{DEFLATE}, permessage-deflate"), NEGOTIATION),
    HandshakeFault("extension-garbage", switching("Sec-WebSocket-Extensions: permessage-deflate; =;"), ("InvalidHeader", "NegotiationError"), "Sec-WebSocket-Extensions"),
    HandshakeFault("deflate-unknown-parameter", switching(f"{DEFLATE}; speed=fast"), NEGOTIATION),
    HandshakeFault("deflate-duplicate-parameter", switching(f"{DEFLATE}; server_no_context_takeover; server_no_context_takeover"), NEGOTIATION),
    HandshakeFault("deflate-value-for-flag", switching(f"{DEFLATE}; server_no_context_takeover=1"), NEGOTIATION),
    HandshakeFault("deflate-window-7", switching(f"{DEFLATE}; server_max_window_bits=7"), NEGOTIATION),
    HandshakeFault("deflate-window-16", switching(f"{DEFLATE}; server_max_window_bits=16"), NEGOTIATION),
    HandshakeFault("deflate-window-leading-zero", switching(f"{DEFLATE}; server_max_window_bits=012"), NEGOTIATION),
    HandshakeFault("deflate-window-without-value", switching(f"{DEFLATE}; server_max_window_bits"), NEGOTIATION),
    HandshakeFault("deflate-client-window-without-value", switching(f"{DEFLATE}; client_max_window_bits"), NEGOTIATION),
    HandshakeFault("subprotocol-when-none-offered", switching("Sec-WebSocket-Protocol: chat"), NEGOTIATION, "subprotocol"),
    HandshakeFault("subprotocol-unoffered", switching("Sec-WebSocket-Protocol: other"), NEGOTIATION, "other", {"subprotocols": ["chat"]}),
    HandshakeFault("subprotocol-other-case", switching("Sec-WebSocket-Protocol: CHAT"), NEGOTIATION, "CHAT", {"subprotocols": ["chat"]}),
    HandshakeFault("subprotocol-two", switching("Sec-WebSocket-Protocol: chat, super"), ("InvalidHeader", "NegotiationError"), "", {"subprotocols": ["chat", "super"]}),
    HandshakeFault("subprotocol-twice", switching("Sec-WebSocket-Protocol: chat", "Sec-WebSocket-Protocol: chat"), ("InvalidHeader", "NegotiationError"), "", {"subprotocols": ["chat"]}),
    # Not HTTP
    HandshakeFault("garbage", raw(bytes(range(256)) + b"\r\n\r\n"), MALFORMED),
    HandshakeFault("garbage-without-newline-then-end", raw(b"\x00\x01\x02" * 100, end=True), MALFORMED),
    HandshakeFault("ssh-banner", raw(b"SSH-2.0-OpenSSH_9.6\r\n", end=True), MALFORMED),
    HandshakeFault("http-0.9", raw(b"<html><body>hello</body></html>\r\n\r\n", end=True), MALFORMED),
    HandshakeFault("http-1.0", respond("HTTP/1.0 101 Switching Protocols", UPGRADE, CONNECTION, ACCEPT), VERSION),
    HandshakeFault("http-2", respond("HTTP/2 101 Switching Protocols", UPGRADE, CONNECTION, ACCEPT), VERSION),
    HandshakeFault("status-two-digits", respond("HTTP/1.1 10 Switching", UPGRADE, CONNECTION, ACCEPT), MALFORMED),
    HandshakeFault("status-not-a-number", respond("HTTP/1.1 abc Switching", UPGRADE, CONNECTION, ACCEPT), MALFORMED),
    HandshakeFault("status-line-empty", respond("", UPGRADE, CONNECTION, ACCEPT), MALFORMED),
    HandshakeFault("request-echoed", respond("GET / HTTP/1.1", UPGRADE, CONNECTION, ACCEPT), MALFORMED),
    HandshakeFault("header-without-colon", switching("Server nginx"), MALFORMED),
    HandshakeFault("header-name-empty", switching(": nameless"), MALFORMED),
    HandshakeFault("header-name-with-space", switching("Ser ver: nginx"), MALFORMED),
    HandshakeFault("header-space-before-colon", switching("Server : nginx"), MALFORMED),
    HandshakeFault("header-folded", switching("Server: nginx", " continued"), MALFORMED),
    HandshakeFault("header-with-nul", switching("Server: ng\x00inx"), MALFORMED),
    # Limits: a head may have 16 KiB and 128 headers
    HandshakeFault("header-huge", switching("Server: " + "x" * 100_000), TOO_BIG),
    HandshakeFault("head-huge", switching(*[f"X-{n}: " + "x" * 4000 for n in range(100)]), TOO_BIG, differs="limits each line, not the head"),
    HandshakeFault("headers-too-many", switching(*[f"X-{n}: y" for n in range(300)]), TOO_BIG),
    HandshakeFault("status-line-huge", respond("HTTP/1.1 101 " + "x" * 100_000, UPGRADE, CONNECTION, ACCEPT), TOO_BIG),
    HandshakeFault("head-endless", _endless(b"HTTP/1.1 101 Switching Protocols\r\n", b"X-More: " + b"x" * 1000 + b"\r\n", ENDLESS), TOO_BIG, differs=READS_ON),
    HandshakeFault("line-endless", _endless(b"HTTP/1.1 101 ", b"x" * 4096, ENDLESS), TOO_BIG, differs=READS_ON),
    HandshakeFault("interim-endless", _endless(b"", b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" * 100, ENDLESS), ("SecurityError", "InvalidMessage", "InvalidStatus")),
    HandshakeFault(
        "body-endless",
        _endless(b"HTTP/1.1 403 Forbidden\r\n\r\n", b"x" * 65536, ENDLESS),
        ("InvalidStatus", "SecurityError", "InvalidMessage"),
        differs=READS_ON,
    ),
    # The connection ends at each stage
    HandshakeFault("closed-at-once", _close_at_once, LOST),
    HandshakeFault("reset-at-once", _reset_at_once, LOST),
    HandshakeFault("closed-after-request", _close_after_request, LOST),
    HandshakeFault("reset-after-request", _reset_after_request, LOST),
    HandshakeFault("closed-in-status-line", raw(b"HTTP/1.1 101 Swit", end=True), LOST),
    HandshakeFault("closed-after-status-line", raw(b"HTTP/1.1 101 Switching Protocols\r\n", end=True), LOST),
    HandshakeFault("closed-in-headers", raw(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: web", end=True), LOST),
    HandshakeFault("reset-in-headers", _reset_in_head, LOST),
    HandshakeFault(
        "closed-in-body",
        raw(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 100\r\n\r\nno", end=True),
        ("InvalidStatus", "InvalidMessage"),
    ),
]  # fmt: skip


@dataclasses.dataclass(frozen=True)
class HandshakeOddity:
    """An unusual answer that a client must accept; ``pieces`` is the size of the segments that it comes in."""

    name: str
    lines: tuple[str, ...]
    pieces: int = 0
    then: bytes = b""
    messages: tuple[str, ...] = ()
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    differs: str = ""


HANDSHAKE_ODDITIES = [
    HandshakeOddity("byte-by-byte", GOOD, pieces=1),
    HandshakeOddity("frames-in-the-same-segment", GOOD, then=text("a") + text("b"), messages=("a", "b")),
    HandshakeOddity("frames-byte-by-byte", GOOD, pieces=1, then=text("a") + text("b"), messages=("a", "b")),
    HandshakeOddity("header-names-lower-case", (STATUS, "upgrade: websocket", "connection: upgrade", "sec-websocket-accept: {accept}")),
    HandshakeOddity("upgrade-any-case", (STATUS, "Upgrade: WebSocket", CONNECTION, ACCEPT)),
    HandshakeOddity("connection-list", (STATUS, UPGRADE, "Connection: keep-alive, UPGRADE", ACCEPT)),
    HandshakeOddity("connection-two-lines", (STATUS, UPGRADE, "Connection: keep-alive", "Connection: Upgrade", ACCEPT)),
    HandshakeOddity("no-reason-phrase", ("HTTP/1.1 101 ", UPGRADE, CONNECTION, ACCEPT)),
    HandshakeOddity("other-reason-phrase", ("HTTP/1.1 101 Web Socket Protocol Handshake", UPGRADE, CONNECTION, ACCEPT)),
    HandshakeOddity("spaces-around-values", (STATUS, "Upgrade:  \twebsocket \t", "Connection:Upgrade", ACCEPT + "  ")),
    HandshakeOddity("accept-first", (STATUS, ACCEPT, CONNECTION, UPGRADE)),
    HandshakeOddity("hundred-headers", (*GOOD, *[f"X-{n}: y" for n in range(100)])),
    HandshakeOddity("header-of-7000-bytes", (*GOOD, "X-Long: " + "x" * 7000)),
    HandshakeOddity("header-latin-1", (*GOOD, "Server: caf\xe9")),
    HandshakeOddity("header-empty", (*GOOD, "Server:")),
    HandshakeOddity("interim-response", ("HTTP/1.1 103 Early Hints", "Link: </style.css>", "", *GOOD), differs="takes it for the final response"),
]  # fmt: skip


# Frames
# -----------------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class FrameFault:
    """Bytes that fail the connection.

    Args:
        data: what the server sends after ``GREETING``; it sends nothing more until it has the close frame.
        code: the close code that the client must put on the wire; several where the RFC leaves it open.
        extension: the extension header of the server's handshake.
        options: keyword arguments of ``connect``.
        says: names that the exception, its cause or the close reason must mention; wirespeed only.
        differs: why websockets does not pass.
    """

    name: str
    data: bytes
    code: int | tuple[int, ...]
    extension: str | None = None
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    says: str = ""
    differs: str = ""

    @property
    def codes(self) -> tuple[int, ...]:
        return self.code if isinstance(self.code, tuple) else (self.code,)


def _bomb(size: int) -> bytes:
    """Returns a deflated message that inflates to ``size`` bytes from a thousandth of it."""
    return deflate(bytes(size))


def _far_distance() -> bytes:
    """Returns a deflated message that copies from before its own beginning."""
    compressor = zlib.compressobj(wbits=-15, zdict=b"never sent to the client")
    return (compressor.compress(b"never sent to the client") + compressor.flush(zlib.Z_SYNC_FLUSH))[:-4]


SMALL = {"max_size": 1000}
FEW = {"max_fragments": 8}
LATE_UTF8 = "checks UTF-8 at the end of the message"
# Of a text frame with 100,000 bytes only the first part arrives.
PARTIAL = 100_000
OPCODES = {3: "3", 4: "4", 5: "5", 6: "6", 7: "7", 11: "b", 12: "c", 13: "d", 14: "e", 15: "f"}
# RFC 6455 section 7.4: never on the wire, reserved, or out of range.
BAD_CODES = (0, 999, 1004, 1005, 1006, 1015, 1016, 1100, 2000, 2999, 5000, 65535)

FRAME_FAULTS = [
    # RFC 6455 section 5.2
    *[FrameFault(f"reserved-bits-{rsv}", frame(TEXT, b"x", rsv=rsv), 1002) for rsv in (1, 2, 4, 7)],
    *[FrameFault(f"reserved-bits-{rsv}-with-deflate", frame(TEXT, b"x", rsv=rsv), 1002, DEFLATE) for rsv in (1, 2, 3)],
    FrameFault("reserved-bits-on-control", frame(PING, rsv=4), 1002),
    FrameFault("reserved-bits-header-only", frame(BINARY, rsv=2, length=PARTIAL), 1002, differs="reads the whole header first"),
    *[FrameFault(f"opcode-{name}", frame(opcode, b"x"), 1002) for opcode, name in OPCODES.items()],
    FrameFault("length-not-minimal-16", frame(BINARY, b"x" * 125, length_bytes=2), 1002, differs="accepts it"),
    FrameFault("length-not-minimal-64", frame(BINARY, b"x" * 300, length_bytes=8), 1002, differs="accepts it"),
    FrameFault("length-zero-in-16", frame(BINARY, length_bytes=2), 1002, differs="accepts it"),
    FrameFault("length-zero-in-64", frame(BINARY, length_bytes=8), 1002, differs="accepts it"),
    FrameFault("length-top-bit", frame(BINARY, length=1 << 63), 1002, differs="finds it too big"),
    FrameFault("length-all-ones", frame(BINARY, length=(1 << 64) - 1), 1002, differs="finds it too big"),
    # Section 5.1: a client MUST close a connection if it detects a masked frame
    FrameFault("masked-text", frame(TEXT, b"hello", mask=b"\x11\x22\x33\x44"), 1002),
    FrameFault("masked-with-zeros", frame(TEXT, b"hello", mask=bytes(4)), 1002),
    FrameFault("masked-ping", frame(PING, b"hello", mask=b"\x11\x22\x33\x44"), 1002),
    FrameFault("masked-close", frame(CLOSE, b"\x03\xe8", mask=b"\x11\x22\x33\x44"), 1002),
    # Section 5.5
    FrameFault("ping-126", frame(PING, b"x" * 126), 1002),
    FrameFault("pong-126", frame(PONG, b"x" * 126), 1002),
    FrameFault("ping-64k", frame(PING, b"x" * 65536), 1002),
    FrameFault("close-126", frame(CLOSE, b"\x03\xe8" + b"x" * 124), 1002),
    FrameFault("ping-fragmented", frame(PING, b"x", fin=False), 1002),
    FrameFault("pong-fragmented", frame(PONG, b"x", fin=False), 1002),
    FrameFault("close-fragmented", frame(CLOSE, b"\x03\xe8", fin=False), 1002),
    # Section 5.4
    FrameFault("continuation-without-start", frame(CONT, b"x"), 1002),
    FrameFault("continuation-without-start-not-final", frame(CONT, b"x", fin=False), 1002),
    FrameFault("text-inside-text", text("a", fin=False) + text("b"), 1002),
    FrameFault("binary-inside-text", text("a", fin=False) + binary(b"b"), 1002),
    FrameFault("text-inside-binary", binary(b"a", fin=False) + text("b", fin=False), 1002),
    # Section 8.1
    FrameFault("utf8-bad", text(b"\xff"), 1007),
    FrameFault("utf8-overlong", text(b"\xc0\xaf"), 1007),
    FrameFault("utf8-surrogate", text(b"\xed\xa0\x80"), 1007),
    FrameFault("utf8-above-10ffff", text(b"\xf4\x90\x80\x80"), 1007),
    FrameFault("utf8-cut-at-end", text(b"caf\xc3"), 1007),
    FrameFault("utf8-cut-at-end-of-last-fragment", text(b"caf", fin=False) + frame(CONT, b"\xc3"), 1007),
    FrameFault("utf8-bad-across-fragments", text(b"\xc3", fin=False) + frame(CONT, b"A"), 1007),
    FrameFault("utf8-bad-in-fragment", text(b"\xff", fin=False), 1007, differs=LATE_UTF8),
    FrameFault("utf8-bad-in-second-fragment", text(b"ok", fin=False) + frame(CONT, b"\xff", fin=False), 1007, differs=LATE_UTF8),
    FrameFault("utf8-bad-early-in-long-frame", frame(TEXT, b"good then \xff bad", length=PARTIAL), 1007, differs=LATE_UTF8),
    FrameFault("utf8-bad-early-in-long-fragment", text(b"a", fin=False) + frame(CONT, b"\xc0\x80", length=PARTIAL), 1007, differs=LATE_UTF8),
    # Section 7.4 and 5.5.1
    FrameFault("close-1-byte", frame(CLOSE, b"\x03"), 1002),
    *[FrameFault(f"close-code-{code}", close(code), 1002) for code in BAD_CODES],
    FrameFault("close-reason-bad-utf8", close(1000, b"\xff"), 1007),
    FrameFault("close-reason-cut-utf8", close(1000, b"caf\xc3"), 1007),
    # RFC 7692
    FrameFault("deflate-not-negotiated", text(deflate(b"hello"), rsv=4), 1002),
    FrameFault("deflate-bit-on-continuation", text(deflate(b"hello")[:3], fin=False, rsv=4) + frame(CONT, deflate(b"hello")[3:], rsv=4), 1002, DEFLATE),
    FrameFault("deflate-bit-only-on-continuation", text(b"a", fin=False) + frame(CONT, deflate(b"b"), rsv=4), 1002, DEFLATE),
    FrameFault("deflate-bit-on-ping", frame(PING, b"x", rsv=4), 1002, DEFLATE),
    FrameFault("deflate-bit-on-close", frame(CLOSE, b"\x03\xe8", rsv=4), 1002, DEFLATE),
    # RFC 7692 names no code for data that does not inflate
    FrameFault("deflate-garbage", binary(b"\xff" * 20, rsv=4), (1002, 1007), DEFLATE),
    FrameFault("deflate-garbage-in-fragment", binary(b"\xff" * 20, rsv=4, fin=False), (1002, 1007), DEFLATE),
    FrameFault("deflate-distance-before-start", binary(_far_distance(), rsv=4), (1002, 1007), DEFLATE),
    FrameFault("deflate-bad-utf8", text(deflate(b"ok \xff"), rsv=4), 1007, DEFLATE),
    FrameFault("deflate-bad-utf8-in-fragment", text(deflate(b"ok \xff" + b"x" * 100), rsv=4, fin=False), 1007, DEFLATE, differs=LATE_UTF8),
    # Limits: 1009
    FrameFault("message-too-big", binary(bytes(1001)), 1009, options=SMALL, says="max_size"),
    FrameFault("message-too-big-header-only", frame(BINARY, length=1001), 1009, options=SMALL, says="max_size"),
    FrameFault("message-too-big-by-default", frame(BINARY, length=(1 << 20) + 1), 1009, says="max_size"),
    FrameFault("message-too-big-huge", frame(TEXT, length=(1 << 63) - 1), 1009, options=SMALL, says="max_size"),
    FrameFault("message-too-big-in-fragments", binary(bytes(600), fin=False) + frame(CONT, bytes(401), fin=False), 1009, options=SMALL, says="max_size"),
    FrameFault("message-too-big-in-last-fragment-header", binary(bytes(600), fin=False) + frame(CONT, length=401), 1009, options=SMALL, says="max_size"),
    FrameFault("message-too-big-inflated", binary(_bomb(1001), rsv=4), 1009, DEFLATE, SMALL, says="max_size"),
    FrameFault("deflate-bomb", binary(_bomb(1 << 25), rsv=4), 1009, DEFLATE, says="max_size"),
    FrameFault("deflate-bomb-text", text(deflate(b"a" * (1 << 25)), rsv=4), 1009, DEFLATE, says="max_size"),
    FrameFault("deflate-bomb-in-fragment", binary(_bomb(1 << 25), rsv=4, fin=False), 1009, DEFLATE, says="max_size"),
    FrameFault(
        "deflate-bomb-across-fragments",
        binary(_bomb(1500)[:4], rsv=4, fin=False) + frame(CONT, _bomb(1500)[4:], fin=False),
        1009, DEFLATE, SMALL, says="max_size",
    ),
    FrameFault("fragments-too-many", binary(b"", fin=False) + frame(CONT, b"", fin=False) * 8, 1009, options=FEW, says="max_fragments", differs="its limit is an environment variable"),
    FrameFault("fragments-too-many-by-default", binary(b"x", fin=False) + frame(CONT, b"y", fin=False) * 4096, 1009, says="max_fragments"),
    # Bytes that are not WebSocket frames
    FrameFault("http-after-upgrade", b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nServer: one that was not asked for HTTP\r\n\r\n", 1002),
    FrameFault("zeros-are-a-continuation", bytes(1000), 1002),
]  # fmt: skip


# Valid, if unusual
# ------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Oddity:
    """Bytes that are valid.

    Args:
        data: what the server sends.
        messages: what the application must receive, in order.
        pongs: payloads of the pongs that the client must send, in order.
        extension, options: as for faults.
    """

    name: str
    data: bytes
    messages: tuple[str | bytes, ...]
    pongs: tuple[bytes, ...] = ()
    extension: str | None = None
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    differs: str = ""


def _final_block(message: bytes) -> bytes:
    """Returns a message compressed in a block with BFINAL set (RFC 7692 section 7.2.3.4)."""
    compressor = zlib.compressobj(wbits=-15)
    return compressor.compress(message) + compressor.flush(zlib.Z_FINISH) + b"\x00"


def _stored(message: bytes) -> bytes:
    """Returns a message in a block without compression (section 7.2.3.3)."""
    compressor = zlib.compressobj(level=0, wbits=-15)
    return (compressor.compress(message) + compressor.flush(zlib.Z_SYNC_FLUSH))[:-4]


def _two_blocks(first: bytes, second: bytes) -> bytes:
    """Returns a message in two deflate blocks (section 7.2.3.5)."""
    compressor = zlib.compressobj(wbits=-15)
    data = compressor.compress(first) + compressor.flush(zlib.Z_FULL_FLUSH)
    return (data + compressor.compress(second) + compressor.flush(zlib.Z_SYNC_FLUSH))[:-4]


def _with_takeover(*messages: bytes) -> bytes:
    """Returns messages that share one compression window."""
    compressor = zlib.compressobj(wbits=-15)
    frames = []
    for message in messages:
        data = compressor.compress(message) + compressor.flush(zlib.Z_SYNC_FLUSH)
        frames.append(text(data[:-4], rsv=4))
    return b"".join(frames)


def _fragments(opcode: int, pieces: list[bytes], between: bytes = b"", rsv: int = 0) -> bytes:
    """Returns one message in fragments, with other frames between them."""
    frames = []
    for index, piece in enumerate(pieces):
        first, last = index == 0, index == len(pieces) - 1
        frames.append(frame(opcode if first else CONT, piece, fin=last, rsv=rsv if first else 0))
    return between.join(frames)


EURO = "€uro".encode()
HELLO = deflate(b"Hello")

ODDITIES = [
    Oddity("empty-text", text(""), ("",)),
    Oddity("empty-binary", binary(b""), (b"",)),
    Oddity("empty-fragments", _fragments(TEXT, [b"", b"", b""]), ("",)),
    Oddity("empty-first-and-last-fragment", _fragments(TEXT, [b"", b"abc", b""]), ("abc",)),
    Oddity("character-split-across-fragments", _fragments(TEXT, [bytes([byte]) for byte in EURO]), ("€uro",)),
    Oddity("noncharacters", text("\ufffe\uffff\U0010ffff\x00"), ("\ufffe\uffff\U0010ffff\x00",)),
    Oddity("byte-order-mark", text("\ufeffx"), ("\ufeffx",)),
    Oddity("binary-that-is-not-utf8", binary(bytes(range(256))), (bytes(range(256)),)),
    Oddity("ping-between-messages", text("a") + ping(b"1") + text("b"), ("a", "b"), (b"1",)),
    Oddity("ping-between-fragments", _fragments(TEXT, [b"a", b"b", b"c"], ping(b"in")), ("abc",), (b"in", b"in")),
    Oddity("ping-125", ping(bytes(range(125))) + text("a"), ("a",), (bytes(range(125)),)),
    Oddity("ping-empty", ping() + text("a"), ("a",), (b"",)),
    Oddity("pings-in-order", b"".join(ping(b"%d" % n) for n in range(10)) + text("a"), ("a",), tuple(b"%d" % n for n in range(10))),
    Oddity("pong-unsolicited", pong() + pong(b"x" * 125) + text("a"), ("a",)),
    Oddity("length-125", binary(bytes(125)), (bytes(125),)),
    Oddity("length-126", binary(bytes(126)), (bytes(126),)),
    Oddity("length-127", binary(bytes(127)), (bytes(127),)),
    Oddity("length-65535", binary(bytes(65535)), (bytes(65535),)),
    Oddity("length-65536", binary(bytes(65536)), (bytes(65536),)),
    Oddity("exactly-max-size", binary(bytes(1000)), (bytes(1000),), options=SMALL),
    Oddity("exactly-max-size-in-fragments", _fragments(BINARY, [bytes(500), bytes(500)]), (bytes(1000),), options=SMALL),
    Oddity("exactly-max-size-inflated", binary(_bomb(1000), rsv=4), (bytes(1000),), extension=DEFLATE, options=SMALL),
    Oddity("exactly-max-size-by-default", binary(bytes(1 << 20)), (bytes(1 << 20),)),
    Oddity("many-messages", b"".join(text(str(n)) for n in range(1000)), tuple(str(n) for n in range(1000))),
    Oddity("exactly-max-fragments", _fragments(BINARY, [b"x"] * 4096), (b"x" * 4096,)),
    Oddity("no-limits", _fragments(BINARY, [bytes(1 << 20)] * 3), (bytes(3 << 20),), options={"max_size": None}),
    Oddity("deflate-not-used", text("Hello"), ("Hello",), extension=DEFLATE),
    Oddity("deflate-hello", text(HELLO, rsv=4), ("Hello",), extension=DEFLATE),
    Oddity("deflate-in-fragments", _fragments(TEXT, [HELLO[:3], HELLO[3:]], rsv=4), ("Hello",), extension=DEFLATE),
    Oddity("deflate-byte-fragments-with-pings", _fragments(TEXT, [bytes([byte]) for byte in HELLO], ping(b"p"), rsv=4), ("Hello",), (b"p",) * (len(HELLO) - 1), DEFLATE),
    Oddity("deflate-empty-last-fragment", _fragments(TEXT, [HELLO, b""], rsv=4), ("Hello",), extension=DEFLATE),
    Oddity("deflate-stored-block", text(_stored(b"Hello"), rsv=4), ("Hello",), extension=DEFLATE),
    Oddity("deflate-two-blocks", text(_two_blocks(b"Hel", b"lo"), rsv=4), ("Hello",), extension=DEFLATE),
    Oddity("deflate-final-block", text(_final_block(b"Hello"), rsv=4) + text("after"), ("Hello", "after"), extension=DEFLATE + "; server_no_context_takeover"),
    Oddity("deflate-final-block-with-takeover", text(_final_block(b"Hello"), rsv=4) * 2, ("Hello", "Hello"), extension=DEFLATE, differs="cannot inflate after a final block"),
    Oddity("deflate-empty-message", text(b"\x00", rsv=4), ("",), extension=DEFLATE),
    Oddity("deflate-empty-message-in-two-bytes", text(b"\x02\x00", rsv=4), ("",), extension=DEFLATE),
    Oddity("deflate-context-takeover", _with_takeover(b"Hello", b"Hello", b"Hello"), ("Hello",) * 3, extension=DEFLATE),
    Oddity("deflate-mixed-with-plain", text(HELLO, rsv=4) + text("plain") + binary(b"plain"), ("Hello", "plain", b"plain"), extension=DEFLATE),
    Oddity("deflate-one-byte-window-of-text", text(deflate(EURO * 100), rsv=4), ("€uro" * 100,), extension=DEFLATE),
    Oddity("deflate-window-9", text(deflate(b"abc" * 5000, window_bits=9), rsv=4), ("abc" * 5000,), extension=DEFLATE + "; server_max_window_bits=9"),
]  # fmt: skip


def _unique(rows: list[Any]) -> None:
    names = [row.name for row in rows]
    repeated = {name for name in names if names.count(name) > 1}
    if repeated:
        raise ValueError(f"rows with the same name: {', '.join(sorted(repeated))}")


for _rows in (HANDSHAKE_FAULTS, HANDSHAKE_ODDITIES, FRAME_FAULTS, ODDITIES):
    _unique(_rows)
