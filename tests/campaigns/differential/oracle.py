"""``websockets`` as an oracle: its sans-I/O protocol, with the part of its connections that assembles messages.

It gets one frame at a time, as a reader message by message would; the cuts of the bytes have no effect.
"""

from __future__ import annotations

import codecs
import logging
import struct

from websockets.client import ClientProtocol
from websockets.exceptions import InvalidState, PayloadTooBig, ProtocolError
from websockets.extensions.permessage_deflate import PerMessageDeflate
from websockets.frames import Frame as WebsocketsFrame
from websockets.frames import Opcode
from websockets.protocol import State
from websockets.server import ServerProtocol
from websockets.uri import parse_uri
from websockets.version import version

from .case import Case, Deflate, Step
from .outcome import Event, Happening, Outcome, Sent

# The decisions are about this release and later ones; older Pythons get older ones.
IS_KNOWN = int(version.split(".")[0]) >= 17

_LOGGER = logging.getLogger("differential.websockets")
_LOGGER.disabled = True

_KINDS = {Opcode.TEXT: "text", Opcode.BINARY: "binary"}


def extension(deflate: Deflate) -> PerMessageDeflate:
    """The codec of websockets; it has no window of 8 bits, and takes 9."""
    return PerMessageDeflate(
        remote_no_context_takeover=deflate.remote_reset,
        local_no_context_takeover=deflate.local_reset,
        remote_max_window_bits=deflate.remote_bits,
        local_max_window_bits=max(deflate.local_bits, 9),
        compress_settings={"memLevel": deflate.memory_level, "level": deflate.level},
    )


class Header:
    """A frame's header, as far as its bytes have arrived."""

    def __init__(self, data: bytes | bytearray) -> None:
        self.fin = bool(data[0] & 0x80)
        self.rsv = data[0] >> 4 & 7
        self.opcode = data[0] & 0xF
        self.masked = bool(data[1] & 0x80)
        self.form = {126: 2, 127: 8}.get(data[1] & 0x7F, 0)
        # The ends of the length and of the header.
        self.length_end = 2 + self.form
        self.size = self.length_end + (4 if self.masked else 0)
        self.length: int | None = None
        if len(data) >= self.length_end:
            self.length = int.from_bytes(data[2 : self.length_end], "big") if self.form else data[1] & 0x7F
        self.key = bytes(data[self.length_end : self.size])

    @property
    def is_control(self) -> bool:
        return self.opcode >= 8


class Oracle:
    """One connection of websockets."""

    def __init__(self, case: Case) -> None:
        self.case = case
        limits = (case.message_size, case.fragment_size)
        self.protocol: ServerProtocol | ClientProtocol
        if case.side == "server":
            self.protocol = ServerProtocol(state=State.OPEN, max_size=limits, logger=_LOGGER)
        else:
            uri = parse_uri("ws://localhost/")
            self.protocol = ClientProtocol(uri, state=State.OPEN, max_size=limits, logger=_LOGGER)
        if case.deflate is not None:
            self.protocol.extensions = [extension(case.deflate)]
        sent = case.deflate
        if sent is not None and sent.local_bits == 8:
            sent = Deflate(9, sent.remote_bits, sent.local_reset, sent.remote_reset)
        self.reader = Sent(masked=case.side == "client", deflate=sent, late=True)
        self.eof = False
        self.fault: int | None = None
        # The open message.
        self.kind = ""
        self.parts: list[bytes] = []
        self.utf8 = codecs.getincrementaldecoder("utf-8")()
        # The frame being cut from the stream: its header so far, and the number of missing payload bytes.
        self.head = bytearray()
        self.missing = 0
        self.now = Happening()

    def run(self) -> Outcome:
        """Takes all steps."""
        outcome = Outcome()
        for step in self.case.steps:
            self.now = Happening()
            known = self.fault
            self.take(step)
            data = b"".join(self.protocol.data_to_send())
            self.now.frames = self.reader.read(data, faulty=self.fault is not None and known is None)
            outcome.steps.append(self.now)
        received, sent = self.protocol.close_rcvd, self.protocol.close_sent
        outcome.close = 1006 if received is None else int(received.code)
        outcome.sent = None if sent is None else int(sent.code)
        if received is not None and sent is not None:
            outcome.received_first = self.protocol.close_rcvd_then_sent
        return outcome

    def take(self, step: Step) -> None:
        """Takes one step."""
        name, *rest = step
        if name == "receive":
            if not self.eof:
                self.receive(rest[0])
        elif name == "eof":
            self.eof = True
            self.protocol.receive_eof()
            self.collect()
        elif name != "idle":
            try:
                self.send(name, rest)
            except (InvalidState, ProtocolError):
                self.now.refused = True

    def send(self, name: str, rest: list[object]) -> None:
        """Makes a call.

        Raises:
            InvalidState, ProtocolError: websockets refuses it.
        """
        protocol = self.protocol
        if name in ("message", "first"):
            kind, data, _ = rest
            assert isinstance(data, bytes)
            (protocol.send_text if kind == "text" else protocol.send_binary)(data, fin=name == "message")
        elif name == "next":
            data, fin = rest
            assert isinstance(data, bytes)
            protocol.send_continuation(data, fin=bool(fin))
        elif name == "close":
            code, reason = rest
            assert code is None or isinstance(code, int)
            assert isinstance(reason, str)
            self.send_close(code, reason)
        else:
            (data,) = rest
            assert isinstance(data, bytes)
            (self.send_ping if name == "ping" else self.send_pong)(data)

    def send_close(self, code: int | None, reason: str) -> None:
        # As its connections do, one layer above.
        if self.protocol.expect_continuation_frame and self.protocol.state is State.OPEN:
            # The reason of 1011 is the caller's, as with a message whose iterable has failed.
            self.protocol.fail(1011, reason if code == 1011 else "close during fragmented message")
        else:
            self.protocol.send_close(code, reason)

    def send_ping(self, data: bytes) -> None:
        self.protocol.send_ping(data)

    def send_pong(self, data: bytes) -> None:
        self.protocol.send_pong(data)

    def receive(self, data: bytes) -> None:
        """Processes bytes, frame by frame."""
        while data:
            if self.missing:
                piece, data = data[: self.missing], data[self.missing :]
                self.missing -= len(piece)
            else:
                piece, data = data[:1], data[1:]
                self.head += piece
                if len(self.head) >= 2 and len(self.head) == (header := Header(self.head)).size:
                    assert header.length is not None
                    self.missing = header.length
                    self.head.clear()
            self.protocol.receive_data(piece)
            self.collect()

    def collect(self) -> None:
        """Collects the events."""
        for frame in self.protocol.events_received():
            assert isinstance(frame, WebsocketsFrame)
            self.take_frame(frame)
        exc = self.protocol.parser_exc
        if self.fault is None and exc is not None and not isinstance(exc, EOFError):
            codes: dict[type[BaseException], int] = {ProtocolError: 1002, UnicodeDecodeError: 1007, PayloadTooBig: 1009}
            self.set_fault(codes.get(type(exc), 1011))

    def set_fault(self, code: int) -> None:
        self.fault = code
        self.now.events.append(("fault", code))

    def take_frame(self, frame: WebsocketsFrame) -> None:
        if self.fault is not None:
            return
        data = bytes(frame.data)
        if frame.opcode is Opcode.CLOSE:
            code = struct.unpack("!H", data[:2])[0] if data else 1005
            self.now.events.append(("close", code, data[2:].decode()))
        elif frame.opcode in (Opcode.PING, Opcode.PONG):
            self.now.events.append((frame.opcode.name.lower(), data))
        else:
            self.take_data(frame.opcode, data, frame.fin)

    def take_data(self, opcode: Opcode, data: bytes, fin: bool) -> None:
        if opcode is not Opcode.CONT:
            self.kind = _KINDS[opcode]
            self.parts = []
            self.utf8.reset()
        if self.kind == "text":
            # RFC 6455 8.1, which its connections check.
            try:
                self.utf8.decode(data, fin)
            except UnicodeDecodeError as exc:
                self.protocol.fail(1007, f"{exc.reason} at position {exc.start}")
                self.set_fault(1007)
                return
        event: Event
        if self.case.fragments:
            event = (self.kind, data, fin)
        else:
            self.parts.append(data)
            event = (self.kind, b"".join(self.parts), True)
        if fin or self.case.fragments:
            self.now.events.append(event)
