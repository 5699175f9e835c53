"""Our intended differences from ``websockets``: the same oracle, with each of our decisions inserted by name.

A case with equal results never gets here. Any other case is run again with these decisions, must then have equal bytes,
and reports which decisions it used. docs/conformance.md explains each to users.
"""

from __future__ import annotations

import codecs
import zlib
from collections.abc import Iterator

from websockets.exceptions import InvalidState, PayloadTooBig, ProtocolError
from websockets.extensions.permessage_deflate import PerMessageDeflate
from websockets.frames import Close, Frame, Opcode
from websockets.protocol import State

from support.frames import CLOSE, TEXT, frame

from .case import Case, Step
from .oracle import Header, Oracle, extension
from .outcome import unmask

DECISIONS = {
    "at-once": "a fault is told as soon as the bytes show it, theirs when the frame is complete",
    "header-when-complete": "mask and size are judged when the header is complete, theirs a few bytes before",
    "rules-before-size": "a header that breaks a rule is a fault of the protocol (1002), however long its frame",
    "shortest-length": "a length that is not in its shortest form is a fault, theirs takes it",
    "top-bit": "a length with its top bit set is a fault of the protocol, theirs takes it for a large one",
    "control-frames-have-no-limit": "the limit of messages does not count for control frames, theirs does",
    "fragments-have-a-limit": "a message has so many fragments at most, theirs any number",
    "close-inside-a-message": "a close frame may come between fragments, theirs is a fault",
    "code-before-reason": "a close frame with a bad code and a bad reason has a bad code, theirs a bad reason",
    "goes-on-after-1011": "who closes inside its own fragmented message hears the peer out, theirs stops listening",
    "checks-the-call-first": "a close with arguments that cannot be sent raises inside a fragmented message, too",
    "quiet-after-close": "no ping follows our close frame and no pong the peer's, theirs may until TCP ends",
    "inflated-size-counts": "the limit of messages is one of inflated bytes, theirs one of compressed bytes, too",
    "final-block": "what follows a final block is a new stream, theirs is lost",
    "windows-are-not-policed": "what refers to more than the agreed window inflates, up to 32 KiB, theirs in part",
    "idle-forgets": "a stream that was cut inside a block goes on after a pause as if it had not been, theirs never",
    "inside-a-block": "compressed data that ends inside a block is a fault, theirs is delivered as far as it goes",
    "first-fault-counts": "of two faults in the same compressed frame the first one is told, theirs that of inflating",
}
"""Names, and what they say."""

_TAIL = b"\x00\x00\xff\xff"
_OPCODES = (0, 1, 2, 8, 9, 10)


class Unexplained(Exception):
    """No decision has a name for this difference."""


class _Inflater:
    """A decompressor that continues after a final block, and has the largest window, whichever was negotiated.

    Attributes:
        ended: Whether a block was final: from then on the one of websockets inflates nothing.
        beyond: Whether data referred to more than the negotiated window: the result of websockets then depends on the
            sizes of its buffers.
        forgot: Whether it has lost its position inside a block, at which no message may end.
    """

    def __init__(self, bits: int) -> None:
        self.bits = bits
        self.ended = self.beyond = self.forgot = False
        self.restart()

    def restart(self) -> None:
        self.stream = zlib.decompressobj(-15)
        self.strict = zlib.decompressobj(-self.bits)
        self.window = bytearray()

    def forget(self) -> None:
        """Keeps only the negotiated window."""
        if self.stream.eof:
            self.restart()
        # Only between blocks does an empty final one end the stream.
        between = self.stream.copy()
        try:
            out = between.decompress(b"\x01\x00\x00\xff\xff")
            self.forgot |= bool(out) or not between.eof or bool(between.unused_data)
        except zlib.error:
            self.forgot = True
        window = bytes(self.window[-(1 << self.bits) :])
        self.stream, self.strict = zlib.decompressobj(-15, zdict=window), zlib.decompressobj(-self.bits, zdict=window)

    def feed(self, data: bytes, room: int | None) -> Iterator[bytes]:
        """Yields the inflated data for each byte: at most ``room`` bytes and one more.

        Raises:
            zlib.error: The data cannot be inflated.
        """
        for at in range(len(data)):
            piece = data[at : at + 1]
            while piece:
                if self.stream.eof:
                    self.restart()
                    self.ended = True
                out = self.stream.decompress(piece, 0 if room is None else room + 1)
                self.window += out
                self.compare(piece, len(out))
                yield out
                if room is not None:
                    room -= len(out)
                    if room < 0:
                        return
                piece = self.stream.unused_data if self.stream.eof else self.stream.unconsumed_tail
        self.ended |= self.stream.eof

    def compare(self, piece: bytes, size: int) -> None:
        """Returns whether a decompressor with the negotiated window accepts the same."""
        if self.beyond:
            return
        try:
            # Small buffers: data that is still in one could be referred to.
            out = self.strict.decompress(piece, min(size, 1) or 1)
            while len(out) < size and (more := self.strict.decompress(self.strict.unconsumed_tail, 1)):
                out += more
        except zlib.error:
            self.beyond = True


class _Incoming:
    """A data frame that is arriving.

    Attributes:
        out: Its bytes as the application gets them.
        plain: The bytes as they are on the wire, unmasked.
    """

    def __init__(self, header: Header, text: codecs.IncrementalDecoder | None, inflater: _Inflater | None) -> None:
        self.header = header
        self.text = text
        self.inflater = inflater
        self.before = None if text is None else text.getstate()
        self.out = bytearray()
        self.plain = bytearray()
        # The frame ends inside a block.
        self.cut = False

    def feed(self, data: bytes, limit: int | None) -> int | None:
        """Processes bytes; returns the code of the protocol error that they show, if any."""
        self.plain += data
        try:
            if self.inflater is None:
                self._add(data)
                return None
            for out in self.inflater.feed(data, None if limit is None else limit - len(self.out)):
                self._add(out)
                if limit is not None and len(self.out) > limit:
                    return 1009
        except UnicodeDecodeError:
            return 1007
        except zlib.error:
            return 1002
        return None

    def _add(self, data: bytes) -> None:
        self.out += data
        if self.text is None:
            return
        self.text.decode(data)
        # The decoder of websockets waits for the third byte where the second cannot be part of a character.
        pending = self.text.getstate()[0]
        if len(pending) > 1:
            (pending + b"\x80" * (2 - len(pending) + (pending[0] >= 0xE0) + (pending[0] >= 0xF0))).decode()

    def finish(self) -> int | None:
        """Processes the end of the message; returns the protocol error, if any."""
        if self.inflater is not None:
            try:
                self.cut = any(self.inflater.feed(_TAIL, 0))
            except zlib.error:
                return 1002
            if self.cut:
                return 1002
        try:
            if self.text is not None:
                self.text.decode(b"", final=True)
        except UnicodeDecodeError:
            return 1007
        return None


class Decided(Oracle):
    """The oracle with our decisions; ``fired`` are the names of those that made a difference."""

    def __init__(self, case: Case) -> None:
        super().__init__(case)
        self.fired: set[str] = set()
        self.protocol.max_message_size = self.protocol.max_fragment_size = None
        # Compression is done here; the oracle's is kept in step, to find out what it would have returned.
        self.sending, self.protocol.extensions = self.protocol.extensions, []
        self.theirs: PerMessageDeflate | None = None
        self.inflater: _Inflater | None = None
        if case.deflate is not None:
            self.theirs = extension(case.deflate)
            self.inflater = _Inflater(case.deflate.remote_bits)
        self.over = False
        # The index of the step; the steps in which the second byte of the header arrived, and the end of its length.
        self.number = self.began = self.measured = 0
        self.header: Header | None = None
        self.control = bytearray()
        self.count = 0
        self.compressed = False
        self.text: codecs.IncrementalDecoder | None = None
        self.incoming: _Incoming | None = None

    def take(self, step: Step) -> None:
        between = self.incoming is None and self.protocol.current_size is None
        if step[0] == "idle" and between and self.inflater is not None:
            self.inflater.forget()
        super().take(step)

    # Calls

    def send(self, name: str, rest: list[object]) -> None:
        self.protocol.extensions = self.sending
        try:
            super().send(name, rest)
        finally:
            self.protocol.extensions = []

    def send_close(self, code: int | None, reason: str) -> None:
        protocol = self.protocol
        if not (protocol.expect_continuation_frame and protocol.state is State.OPEN):
            protocol.send_close(code, reason)
            return
        if not _can_be_sent(code, reason):
            self.fired.add("checks-the-call-first")
            raise ProtocolError("invalid arguments")
        protocol.send_close(1011, reason if code == 1011 else "close during fragmented message")
        self.fired.add("goes-on-after-1011")

    def send_ping(self, data: bytes) -> None:
        if self.protocol.state is State.CLOSING:
            self.fired.update(["quiet-after-close"] if len(data) <= 125 else [])
            raise InvalidState("a close frame was sent")
        self.protocol.send_ping(data)

    def send_pong(self, data: bytes) -> None:
        if self.protocol.state is State.CLOSING and self.over:
            self.fired.update(["quiet-after-close"] if len(data) <= 125 else [])
            raise InvalidState("nothing is received any more")
        self.protocol.send_pong(data)

    # Bytes

    def fail(self, code: int, *decisions: str) -> None:
        self.fired.update(decisions)
        self.over = True
        self.protocol.fail(code, "decided")
        self.set_fault(code)

    def receive(self, data: bytes) -> None:
        self.number += 1
        while data and not self.over:
            if self.header is None:
                self.head.append(data[0])
                data = data[1:]
                if len(self.head) >= 2:
                    self.take_header(data)
                continue
            piece, data = data[: self.missing], data[self.missing :]
            self.missing -= len(piece)
            if self.incoming is None:
                self.control += unmask(piece, self.key(len(self.control)))
            elif (code := self.take_piece(unmask(piece, self.key(len(self.incoming.plain))))) is not None:
                self.classify(code, data[: self.missing])
                return
            if not self.missing:
                self.complete()
        if len(self.head) >= 2 and not self.over:
            header = Header(self.head)
            if self.is_reported(header) or self.is_large(header):
                self.fired.add("header-when-complete")

    def is_reported(self, header: Header) -> bool:
        """Returns whether websockets fails for the first two bytes of a header."""
        return header.masked != (self.case.side == "server") or header.opcode not in _OPCODES

    def is_large(self, header: Header) -> bool:
        """Returns whether websockets fails for the length in it, for any kind of frame."""
        limit = self.their_limit()
        return header.length is not None and limit is not None and header.length > limit

    def inflates_too_large(self, header: Header, payload: bytes) -> bool:
        """Returns whether websockets, which inflates a frame before it checks its header, fails for the
        inflated size.
        """
        if self.theirs is None or header.opcode not in (1, 2) or header.rsv != 4 or self.protocol.current_size is None:
            return False
        assert header.length is not None
        data = unmask(payload[: header.length], header.key) if header.key else payload[: header.length]
        try:
            self.theirs.decode(Frame(Opcode(header.opcode), data, header.fin, True), max_size=self.their_limit())
        except (PayloadTooBig, AssertionError):
            return True
        except ProtocolError:
            pass
        return False

    def key(self, at: int) -> bytes:
        assert self.header is not None
        key = self.header.key or bytes(4)
        return key[at % 4 :] + key[: at % 4]

    def take_header(self, behind: bytes) -> None:
        """Checks a header, complete or partial.

        Args:
            behind: Bytes that arrived after it and are not processed yet.
        """
        header = Header(self.head)
        self.began = self.number if len(self.head) == 2 else self.began
        self.measured = self.number if len(self.head) == header.length_end else self.measured
        # websockets rejects an invalid header at the second byte, at the end of the length, or of the frame.
        reported, large = self.is_reported(header), self.is_large(header)
        waits = header.length is None or len(behind) < header.size - len(self.head) + header.length
        if len(self.head) == header.size and not (reported or large or waits):
            large = self.inflates_too_large(header, behind)
        differs = [] if reported else ["rules-before-size"] if large else ["at-once"] if waits else []
        if header.opcode not in _OPCODES or header.rsv & 3:
            self.fail(1002, *differs)
        elif header.length is None:
            return
        elif header.length < {0: 0, 2: 126, 8: 65_536}[header.form]:
            self.fail(1002, *([] if reported else differs if large else ["shortest-length"]))
        elif header.length >> 63:
            self.fail(1002, *([] if reported else ["top-bit"]))
        elif header.is_control and (not header.fin or header.length > 125):
            self.fail(1002, *differs)
        elif len(self.head) < header.size:
            return
        elif reported:
            self.fail(1002, *([] if self.began == self.number else ["header-when-complete"]))
        elif (header.rsv and (self.case.deflate is None or header.opcode not in (1, 2))) or (
            not header.is_control and (header.opcode == 0) != (self.protocol.current_size is not None)
        ):
            self.fail(1002, *differs)
        elif header.is_control:
            self.fired.update(["control-frames-have-no-limit"] if large else [])
            self.begin(header)
        else:
            self.take_data_header(header)

    def their_limit(self) -> int | None:
        """Returns the maximum length of the next frame for websockets, including our limit of inflated data."""
        limits = [limit for limit in (self.message_left(), self.case.fragment_size) if limit is not None]
        return min(limits, default=None)

    def message_left(self) -> int | None:
        limit = self.case.message_size
        return None if limit is None else limit - (self.protocol.current_size or 0)

    def take_data_header(self, header: Header) -> None:
        self.count += 1
        if header.opcode != 0:
            self.count = 1
            self.compressed = bool(header.rsv)
            self.text = codecs.getincrementaldecoder("utf-8")() if header.opcode == TEXT else None
            if self.compressed and self.case.deflate is not None and self.case.deflate.remote_reset:
                self.inflater = _Inflater(self.case.deflate.remote_bits)
        elif self.case.most_fragments is not None and self.count > self.case.most_fragments:
            self.fail(1009, "fragments-have-a-limit")
            return
        assert header.length is not None
        limits = [None if self.compressed else self.message_left(), self.case.fragment_size]
        if any(limit is not None and header.length > limit for limit in limits):
            self.fail(1009, *([] if self.measured == self.number else ["header-when-complete"]))
            return
        if self.is_large(header):
            self.fired.add("inflated-size-counts")
        self.incoming = _Incoming(header, self.text, self.inflater if self.compressed else None)
        self.begin(header)

    def begin(self, header: Header) -> None:
        assert header.length is not None
        self.header, self.missing = header, header.length
        self.head.clear()
        self.control.clear()
        if not self.missing:
            self.complete()

    def take_piece(self, plain: bytes) -> int | None:
        assert self.incoming is not None
        return self.incoming.feed(plain, self.their_limit())

    def complete(self) -> None:
        """Handles the completed frame."""
        header, incoming = self.header, self.incoming
        assert header is not None
        self.header = None
        if incoming is None:
            self.complete_control(header)
        else:
            code = incoming.finish() if header.fin else None
            self.classify(code, b"")
            if code is None:
                self.hand_over(header, bytes(incoming.out))
                self.keep_in_step(header)
        self.incoming = None

    def complete_control(self, header: Header) -> None:
        payload = bytes(self.control)
        if header.opcode == CLOSE:
            valid = len(payload) != 1
            if len(payload) >= 2:
                valid = _can_be_sent(int.from_bytes(payload[:2], "big"), "")
                try:
                    payload[2:].decode()
                except UnicodeDecodeError:
                    if not valid:
                        self.fail(1002, "code-before-reason")
                        return
            if valid and self.protocol.current_size is not None:
                self.fired.add("close-inside-a-message")
                self.protocol.current_size = None
        self.hand_over(header, payload)
        self.over |= self.protocol.close_rcvd is not None or self.fault is not None

    def hand_over(self, header: Header, payload: bytes) -> None:
        """Gives a frame to websockets, with nothing left in it to differ about."""
        mask = bytes(4) if header.masked else None
        self.protocol.receive_data(frame(header.opcode, payload, fin=header.fin, mask=mask))
        self.collect()

    # The results that websockets would have returned

    def classify(self, code: int | None, behind: bytes) -> None:
        """Returns the reason why websockets judges the arriving frame differently, if it does.

        Args:
            code: Our error code, if there is one.
            behind: The received rest of its payload.
        """
        incoming = self.incoming
        assert incoming is not None
        if code is not None and len(behind) < self.missing:
            self.fail(code, "at-once")
            return
        if behind:
            at = len(incoming.plain)
            self.header = incoming.header
            incoming.plain += unmask(behind, self.key(at))
        data, their_code, of_length = self.their_verdict(incoming)
        if their_code != code or (code is None and data != bytes(incoming.out)):
            self.fired.add(self.name(incoming, code, data, their_code, of_length=of_length))
        if code is not None:
            self.fail(code)

    def their_verdict(self, incoming: _Incoming) -> tuple[bytes, int | None, bool]:
        """Returns the result of websockets for the whole frame: its data, or an error, and whether that is only for the
        length of the frame.
        """
        header, limit = incoming.header, self.their_limit()
        if limit is not None and len(incoming.plain) > limit:
            return b"", 1009, True
        data = bytes(incoming.plain)
        if self.theirs is not None:
            frame = Frame(Opcode(header.opcode), data, header.fin, bool(header.rsv))
            try:
                data = bytes(self.theirs.decode(frame, max_size=limit).data)
            except ProtocolError:
                return b"", 1002, False
            except PayloadTooBig:
                return b"", 1009, False
            except AssertionError:  # too large, where there is no limit: their parser has failed
                return b"", 1011, False
        if incoming.before is not None:
            text = codecs.getincrementaldecoder("utf-8")()
            text.setstate(incoming.before)
            try:
                text.decode(data, header.fin)
            except UnicodeDecodeError:
                return b"", 1007, False
        return data, None, False

    def name(self, incoming: _Incoming, code: int | None, data: bytes, theirs: int | None, *, of_length: bool) -> str:
        """Returns the decision that explains our different result.

        Raises:
            Unexplained: There is none.
        """
        inflater = incoming.inflater
        if code == 1007 and theirs is None and not incoming.header.fin:
            return "at-once"
        if inflater is None:
            raise Unexplained(f"plain data: ours {code}, theirs {theirs}")
        if theirs == 1009 and of_length:
            return "inflated-size-counts"
        if code == 1009 and theirs is None and not incoming.header.fin and len(data) == self.their_limit():
            # All input was processed, and the inflated data beyond the limit is still to come: websockets requests it
            # at the end.
            return "at-once"
        if incoming.cut:
            return "inside-a-block"
        if code is not None and theirs in (1002, 1009):
            return "first-fault-counts"
        if inflater.forgot:
            return "idle-forgets"
        if inflater.beyond:
            return "windows-are-not-policed"
        if inflater.ended:
            return "final-block"
        raise Unexplained(f"compressed data: ours {code}, theirs {theirs}, {len(incoming.out)} and {len(data)} bytes")

    def keep_in_step(self, header: Header) -> None:
        """Continues websockets from our state, for any result, unless it is lost."""
        inflater = self.inflater
        if self.theirs is None or inflater is None or not self.compressed:
            return
        self.theirs.decode_cont_data = not header.fin
        if not (inflater.ended or inflater.beyond or inflater.forgot):
            self.theirs.decoder = inflater.strict.copy()
        elif not hasattr(self.theirs, "decoder"):
            # It has no context between messages, and did not see the frame that would have made one.
            self.theirs.decoder = zlib.decompressobj(wbits=-self.theirs.remote_max_window_bits)


def _can_be_sent(code: int | None, reason: str) -> bool:
    if code is None:
        return not reason
    try:
        return len(Close(code, reason).serialize()) <= 125
    except ProtocolError:
        return False
