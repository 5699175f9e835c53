"""Random cases: valid, invalid and accidental data of a peer, cut anywhere, with calls in between."""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable

from support.frames import BINARY, CLOSE, CONT, PING, PONG, TEXT, frame

from .case import Case, Deflate, Step

_LIMITS = [*[None] * 12, 1 << 20, 1000, 126, 125, 10, 1, 0]
_CHARACTERS = "a\x00\x7f\u0080\u00e9\u07ff\u0800\ud7ff\ue000\u20ac\uffff\U00010000\U0001f600\U0010ffff"
# Bytes that are not UTF-8, or not yet: overlong forms, surrogates, beyond the last character, incomplete sequences.
_NOT_UTF8 = [
    b"\x80", b"\xbf", b"\xc0\xaf", b"\xc1\xbf", b"\xc3", b"\xc3\x28", b"\xe0\x80\x80", b"\xe0\x9f\xbf", b"\xe2\x82",
    b"\xe2\x28\xa1", b"\xed\xa0\x80", b"\xed\xbf\xbf", b"\xf0\x80\x80\x80", b"\xf0\x8f\xbf\xbf", b"\xf0\x9f\x98",
    b"\xf4\x90\x80\x80", b"\xf5\x80\x80\x80", b"\xfe", b"\xff", b"\xe2\x82\xac\xff", b"a\xf0\x90",
]  # fmt: skip
_CODES = [1000, 1001, 1002, 1003, 1007, 1008, 1009, 1010, 1011, 1012, 1013, 1014, 3000, 3999, 4000, 4999]
_BAD_CODES = [0, 1, 999, 1004, 1005, 1006, 1015, 1016, 1100, 2000, 2999, 5000, 9999, 65_535]


def draw(seed: str) -> Case:
    """Returns the case of a seed."""
    return _Drawing(random.Random(seed)).case()


class _Drawing:
    def __init__(self, choose: random.Random) -> None:
        self.choose = choose
        self.side = choose.choice(["server", "client"])
        self.deflate = self.some_deflate() if choose.random() < 0.5 else None
        self.compressor: Compressor | None = None
        # A fragmented message of the peer is open.
        self.open = False
        self.text = False
        self.compressed = False
        # The sizes of its fragments: limits are tested best where they are reached.
        self.sizes: list[int] = []

    def some_deflate(self) -> Deflate:
        choose = self.choose
        bits = [8, 9, 10, 11, 12, 13, 14, 15, 15, 15, 15]
        return Deflate(
            choose.choice(bits), choose.choice(bits), choose.random() < 0.3, choose.random() < 0.3,
            choose.choice([0, 1, 6, 6, 9]), choose.choice([1, 5, 9]), choose.choice([0, 32, 32, 200]),
        )  # fmt: skip

    def case(self) -> Case:
        choose = self.choose
        steps = self.steps()
        limits = _LIMITS + choose.sample(self.sizes, min(3, len(self.sizes)))
        return Case(
            side=self.side,
            steps=tuple(self.cut(steps)),
            fragments=choose.random() < 0.3,
            message_size=choose.choice(limits),
            fragment_size=choose.choice([*[None] * 12, *_LIMITS]),
            most_fragments=choose.choice([*[None] * 10, 1, 2, 5]),
            deflate=self.deflate,
        )

    # Steps

    def steps(self) -> list[Step]:
        """Returns calls, and pieces of a stream that is not cut yet."""
        choose = self.choose
        style = choose.choice(["honest", "honest", "careless", "careless", "mutated", "noise"])
        steps: list[Step] = []
        calls = choose.choice([0.0, 0.1, 0.4])
        for _ in range(choose.choice([1, 2, 4, 8, 16])):
            if choose.random() < calls:
                steps.append(self.call())
            elif style == "noise":
                steps.append(("receive", choose.randbytes(choose.choice([1, 2, 5, 20, 200]))))
            elif style == "careless" and choose.random() < 0.25:
                steps.append(("receive", self.wrong()))
            else:
                steps.append(("receive", self.right()))
        if choose.random() < 0.3:
            steps.append(("receive", self.close()))
            steps += [("receive", self.right())] * (choose.random() < 0.3)
        if style == "mutated":
            steps = self.mutate(steps)
        steps += [self.call() for _ in range(choose.choice([0, 0, 1, 3]))]
        if choose.random() < 0.3:
            steps.append(("eof",))
            steps += [self.call() for _ in range(choose.choice([0, 1]))]
        return [step for step in steps if step[1:] != (b"",)]

    def cut(self, steps: list[Step]) -> list[Step]:
        """Splits the received data in another way, and keeps the approximate positions of the calls."""
        choose = self.choose
        style = choose.choice(["frames", "bytes", "random", "random", "joined"])
        if style == "frames":
            return steps
        cut: list[Step] = []
        for step in steps:
            if step[0] != "receive":
                cut.append(step)
                continue
            data: bytes = step[1]
            if style == "bytes" and len(data) <= 400:
                cut += [("receive", data[at : at + 1]) for at in range(len(data))]
                continue
            while data:
                most = len(data) if style == "joined" else choose.choice([1, 2, 3, 10, 50, len(data)])
                piece, data = data[:most], data[most:]
                if cut and cut[-1][0] == "receive" and choose.random() < (1 if style == "joined" else 0.3):
                    cut[-1] = ("receive", cut[-1][1] + piece)
                else:
                    cut.append(("receive", piece))
        return cut

    def mutate(self, steps: list[Step]) -> list[Step]:
        """Changes a few bytes."""
        choose = self.choose
        for _ in range(choose.choice([1, 1, 2, 5])):
            at = choose.randrange(len(steps))
            if steps[at][0] != "receive" or not steps[at][1]:
                continue
            data = bytearray(steps[at][1])
            # Headers have the most effect.
            where = choose.choice([choose.randrange(len(data)), choose.randrange(min(len(data), 8))])
            kind = choose.randrange(4)
            if kind == 0:
                data[where] ^= 1 << choose.randrange(8)
            elif kind == 1:
                data[where] = choose.randrange(256)
            elif kind == 2:
                del data[where : where + choose.choice([1, 1, 4, 20])]
            else:
                data[where:where] = choose.randbytes(choose.choice([1, 1, 4]))
            steps[at] = ("receive", bytes(data))
        return steps

    # Our calls

    def call(self) -> Step:
        choose = self.choose
        kind = choose.choice(["text", "binary"])
        compress = choose.choice([None, None, True, False])
        calls: list[Callable[[], Step]] = [
            lambda: ("message", kind, self.content(text=kind == "text"), compress),
            lambda: ("message", kind, self.content(text=kind == "text"), compress),
            lambda: ("first", kind, self.content(text=kind == "text"), compress),
            lambda: ("next", self.content(text=True), choose.random() < 0.5),
            lambda: ("next", self.content(text=True), choose.random() < 0.5),
            lambda: ("ping", self.control()),
            lambda: ("pong", self.control()),
            lambda: ("idle",),
        ]
        if choose.random() < 0.2:
            code = choose.choice([None, None, *_CODES, *_BAD_CODES[:6]])
            return ("close", code, choose.choice(["", "", "bye", "\u20ac" * 41, "x" * 124]))
        return choose.choice(calls)()

    # The data that the peer sends

    def content(self, *, text: bool) -> bytes:
        choose = self.choose
        size = choose.choice([0, 1, 3, 10, 10, 60, 60, 124, 125, 126, 127, 300, 300])
        if choose.random() < 0.01:
            size = choose.choice([4000, 65_535, 65_536, 70_000])
        if text:
            return "".join(choose.choices(_CHARACTERS, k=size)).encode()[: size * 2].decode(errors="ignore").encode()
        return choose.choice([choose.randbytes(size), bytes(size), b"abcdefg" * (size // 7)])

    def control(self) -> bytes:
        return self.choose.randbytes(self.choose.choice([0, 1, 4, 125, 125, 126]))

    def frame(self, opcode: int, payload: bytes, *, fin: bool = True, rsv: int = 0, wrong_mask: bool = False) -> bytes:
        masked = (self.side == "server") != wrong_mask
        mask = self.choose.choice([bytes(4), self.choose.randbytes(4)]) if masked else None
        return frame(opcode, payload, fin=fin, rsv=rsv, mask=mask)

    def right(self) -> bytes:
        """Returns a valid item."""
        choose = self.choose
        kind = choose.random()
        if kind < 0.1:
            return self.frame(PING, choose.randbytes(choose.choice([0, 1, 4, 124, 125])))
        if kind < 0.15:
            return self.frame(PONG, choose.randbytes(choose.choice([0, 4, 125])))
        if kind < 0.25 and not self.open:
            # Returns the beginning of a message, which may never end.
            return self.fragment(self.content(text=False), first=True, fin=False, text=choose.random() < 0.3)
        if kind < 0.6 and self.open:
            return self.fragment(self.content(text=self.text), first=False, fin=choose.random() < 0.3)
        if self.open:
            return self.frame(PING, b"inside")
        return self.message()

    def message(self) -> bytes:
        """Returns a whole message, with allowed frames between its fragments."""
        choose = self.choose
        text = choose.random() < 0.6
        data = self.content(text=text)
        count = choose.choice([1, 1, 1, 2, 3, 5])
        cuts = sorted(choose.randrange(len(data) + 1) for _ in range(count - 1))
        parts = [data[start:stop] for start, stop in zip([0, *cuts], [*cuts, len(data)], strict=True)]
        stream = b""
        for number, part in enumerate(parts):
            stream += self.fragment(part, first=number == 0, fin=number == len(parts) - 1, text=text)
            if number < len(parts) - 1 and choose.random() < 0.3:
                stream += self.frame(choose.choice([PING, PONG]), b"between")
        return stream

    def fragment(self, data: bytes, *, first: bool, fin: bool, text: bool = False) -> bytes:
        if first:
            self.text = text
            self.compressed = self.deflate is not None and self.choose.random() < 0.7
            if text and self.choose.random() < 0.5:
                data = data.decode(errors="ignore").encode()
        self.open = not fin
        self.sizes.append(len(data))
        if self.compressed:
            data = self.compress(data, first=first, fin=fin)
        opcode = CONT if not first else TEXT if self.text else BINARY
        return self.frame(opcode, data, fin=fin, rsv=4 if first and self.compressed else 0)

    def compress(self, data: bytes, *, first: bool, fin: bool) -> bytes:
        assert self.deflate is not None
        choose = self.choose
        if self.compressor is None or (first and self.deflate.remote_reset):
            bits = max(self.deflate.remote_bits, 9)
            self.compressor = Compressor(choose, bits)
        data = self.compressor.compress(data, fin=fin)
        if choose.random() < 0.03:
            data = self.corrupt(data)
        return data

    def corrupt(self, data: bytes) -> bytes:
        choose = self.choose
        kind = choose.randrange(4)
        if kind == 0:
            return data[: choose.randrange(len(data) + 1)]
        if kind == 1:
            return data + choose.randbytes(choose.choice([1, 3, 20]))
        if kind == 2:
            return choose.randbytes(choose.choice([1, 5, 50]))
        at = choose.randrange(len(data) + 1)
        return data[:at] + bytes(byte ^ 1 << choose.randrange(8) for byte in data[at : at + 1]) + data[at + 1 :]

    def close(self) -> bytes:
        choose = self.choose
        kind = choose.random()
        reason = choose.choice([b"", b"bye", "\u20ac".encode() * 41, b"x" * 123])
        if kind < 0.2:
            return self.frame(CLOSE, b"")
        if kind < 0.7:
            return self.frame(CLOSE, choose.choice(_CODES).to_bytes(2, "big") + reason)
        if kind < 0.75:
            return self.frame(CLOSE, b"\x03")
        if kind < 0.85:
            return self.frame(CLOSE, choose.choice(_BAD_CODES).to_bytes(2, "big") + reason)
        code = choose.choice([*_CODES, *_BAD_CODES]).to_bytes(2, "big")
        return self.frame(CLOSE, code + choose.choice(_NOT_UTF8))

    def wrong(self) -> bytes:
        """Returns an item that is invalid, or could be."""
        choose = self.choose
        opcode = choose.choice([TEXT, BINARY, CONT, PING, PONG, CLOSE])
        data = self.content(text=True)
        ways: list[Callable[[], bytes]] = [
            lambda: self.frame(opcode, data[:125], rsv=choose.randrange(1, 8)),
            lambda: self.frame(choose.choice([3, 4, 5, 6, 7, 11, 12, 13, 14, 15]), data),
            lambda: self.bad_text(),
            lambda: self.bad_text(),
            lambda: self.frame(choose.choice([PING, PONG, CLOSE]), data[:100], fin=False),
            lambda: self.frame(choose.choice([PING, PONG, CLOSE]), b"x" * choose.choice([126, 200, 65_536])),
            lambda: self.bad_length(opcode, data),
            lambda: self.bad_length(opcode, data),
            lambda: self.frame(opcode, data[:100], wrong_mask=True),
            lambda: self.frame(choose.choice([CONT, TEXT, BINARY]), data, fin=choose.random() < 0.5),
            lambda: self.close(),
            lambda: self.announced(opcode),
        ]
        if self.deflate is not None:
            ways += [self.bad_deflate, self.bad_deflate, self.bad_deflate]
        return choose.choice(ways)()

    def bad_text(self) -> bytes:
        """Returns text that is not UTF-8, in one frame or over several, compressed or not."""
        choose = self.choose
        data = self.content(text=True)[:60] + choose.choice(_NOT_UTF8) + choose.choice([b"", b"", b"more"])
        count = choose.choice([1, 1, 2, 3])
        cuts = sorted(choose.randrange(len(data) + 1) for _ in range(count - 1))
        parts = [data[start:stop] for start, stop in zip([0, *cuts], [*cuts, len(data)], strict=True)]
        stream = b""
        for number, part in enumerate(parts):
            fin = number == len(parts) - 1 and choose.random() < 0.9
            stream += self.fragment(part, first=number == 0, fin=fin, text=True)
        return stream

    def bad_length(self, opcode: int, data: bytes) -> bytes:
        """Returns a length in another form than the shortest, or with its top bit set."""
        choose = self.choose
        mask = choose.randbytes(4) if self.side == "server" else None
        if choose.random() < 0.4:
            length = choose.choice([1 << 63, (1 << 64) - 1, (1 << 63) + 5])
            return frame(opcode, data[:20], mask=mask, length=length, length_bytes=8)
        return frame(opcode, data[:300], mask=mask, length_bytes=choose.choice([2, 8]))

    def announced(self, opcode: int) -> bytes:
        """Returns a frame of which most does not arrive."""
        choose = self.choose
        mask = choose.randbytes(4) if self.side == "server" else None
        length = choose.choice([126, 1001, 65_536, 1 << 20, (1 << 20) + 1, 1 << 40, (1 << 63) - 1])
        rsv = choose.choice([0, 0, 0, 4, 2])
        return frame(opcode, b"some", mask=mask, length=length, rsv=rsv, fin=choose.random() < 0.8)

    def bad_deflate(self) -> bytes:
        """Returns data that a compressor would not write, or not for these parameters."""
        choose = self.choose
        kind = choose.randrange(7)
        self.open = False
        if kind == 0:
            data = self.corrupt(Compressor(choose, 9).compress(self.content(text=True), fin=True))
        elif kind == 1:
            data = choose.randbytes(choose.choice([1, 2, 10]))
        elif kind == 2:
            # Cut inside a block.
            data = _raw(self.content(text=True))
            data = data[: choose.randrange(len(data) + 1)]
        elif kind == 3:
            data = _raw(bytes(choose.choice([1000, 5000, 100_000])))
        elif kind == 4:
            # A stored block that announces more than there is.
            data = b"\x00\x0a\x00\xf5\xff" + b"0123456789"[: choose.randrange(11)]
        elif kind == 5:
            # It may refer to more than the window holds.
            distance = choose.choice([200, 300, 520, 1100, 5000, 40_000])
            begin = choose.randbytes(100)
            stream = zlib.compressobj(wbits=-15)
            data = stream.compress(begin + bytes(choose.choices(b"abcdefghijkl", k=distance)) + begin)
            data = (data + stream.flush(zlib.Z_SYNC_FLUSH))[:-4]
        else:
            # Text first, then data that cannot be inflated.
            data = Compressor(choose, 9).compress(choose.choice(_NOT_UTF8), fin=False) + b"\xff\xff"
        return self.frame(choose.choice([TEXT, BINARY]), data, rsv=4, fin=choose.random() < 0.9)


def _raw(data: bytes) -> bytes:
    """Returns one stream with a final block."""
    stream = zlib.compressobj(wbits=-9)
    return stream.compress(data) + stream.flush()


class Compressor:
    """A peer's compressor: its streams are valid, and use all features of deflate."""

    def __init__(self, choose: random.Random, bits: int) -> None:
        self.choose = choose
        self.bits = bits
        self.stream = self.new()

    def new(self) -> zlib._Compress:
        level = self.choose.choice([0, 1, 6, 6, 9])
        strategy = self.choose.choice(
            [zlib.Z_DEFAULT_STRATEGY, zlib.Z_DEFAULT_STRATEGY, zlib.Z_FIXED, zlib.Z_HUFFMAN_ONLY]
        )
        return zlib.compressobj(level, zlib.DEFLATED, -self.bits, self.choose.choice([1, 8, 9]), strategy)

    def compress(self, data: bytes, *, fin: bool) -> bytes:
        """Returns the payload of a frame: RFC 7692, section 7.2.1."""
        choose = self.choose
        out = b""
        blocks = choose.choice([1, 1, 1, 2, 4])
        size = len(data) // blocks + 1
        for at in range(0, len(data), size):
            out += self.stream.compress(data[at : at + size])
            if blocks > 1:
                out += self.stream.flush(choose.choice([zlib.Z_FULL_FLUSH, zlib.Z_SYNC_FLUSH]))
        if choose.random() < 0.05:
            # A final block, and a new stream behind it: section 7.2.3.5.
            out += self.stream.flush(zlib.Z_FINISH)
            self.stream = self.new()
            out += b"\x00" if fin else self.stream.flush(zlib.Z_SYNC_FLUSH)
            return out
        out += self.stream.flush(choose.choice([zlib.Z_SYNC_FLUSH, zlib.Z_SYNC_FLUSH, zlib.Z_FULL_FLUSH]))
        if fin and out.endswith(b"\x00\x00\xff\xff") and choose.random() < 0.95:
            out = out[:-4]
        return out
