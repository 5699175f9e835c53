"""Random heads: usual, forbidden and unusual ones."""

from __future__ import annotations

import random
from collections.abc import Callable

from support.scripted import accept_key

from .heads import KEY, HeadCase, Offer

_NAMES = ["chat", "superchat", "v2.chat", "mqtt"]
_Lines = list[bytes]


def draw_head(seed: str) -> HeadCase:
    """Returns the case of a seed."""
    return _Drawing(random.Random(seed)).case()


class _Drawing:
    def __init__(self, choose: random.Random) -> None:
        self.choose = choose
        self.offer = self.some_offer() if choose.random() < 0.6 else None
        self.subprotocols = tuple(choose.sample(_NAMES, choose.choice([0, 0, 1, 2])))
        self.faults = 0

    def some_offer(self) -> Offer:
        choose = self.choose
        return Offer(
            choose.random() < 0.2,
            choose.random() < 0.2,
            choose.choice([None, None, 9, 10, 12, 15]),
            choose.choice([None, None, 9, 11, 12, 15]),
        )

    def case(self) -> HeadCase:
        choose = self.choose
        kind = choose.choice(["request", "response"])
        first, fields, body = self.request() if kind == "request" else self.response()
        for _ in range(choose.choice([0, 0, 1, 1, 1, 2])):
            first, fields = self.spoil(kind, first, fields)
            self.faults += 1
        head = b"\r\n".join([first, *fields, b"", b""]) + body
        if choose.random() < 0.1:
            head = self.mutate(head)
            self.faults += 2  # a byte may be part of more than one rule
        cuts = [choose.randrange(len(head) + 1) for _ in range(choose.choice([0, 0, 1, 3]))] if head else []
        if head and choose.random() < 0.05:
            cuts = list(range(len(head)))
        eof = kind == "response" and choose.random() < 0.7
        return HeadCase(kind, head, self.subprotocols, self.offer, eof, self.faults, tuple(cuts))

    # Valid heads

    def request(self) -> tuple[bytes, _Lines, bytes]:
        choose = self.choose
        target = choose.choice(["/", "/", "/chat?room=1", "/%20;x=y", "http://localhost/abs", "/a//b", "/?"])
        fields = [
            ("Host", choose.choice(["localhost", "example.com:8080", "[::1]:80", "EXAMPLE.com"])),
            ("Upgrade", choose.choice(["websocket", "WebSocket", "websocket ", "WEBSOCKET"])),
            (
                "Connection",
                choose.choice(["Upgrade", "keep-alive, Upgrade", "upgrade", "Upgrade,keep-alive", ", upgrade"]),
            ),
            ("Sec-WebSocket-Key", KEY),
            ("Sec-WebSocket-Version", "13"),
        ]
        if choose.random() < 0.4:
            offered = choose.sample(_NAMES, choose.choice([1, 2, 3]))
            if choose.random() < 0.3:
                fields += [("Sec-WebSocket-Protocol", name) for name in offered]
            else:
                fields.append(("Sec-WebSocket-Protocol", choose.choice([", ", ",", " ,\t"]).join(offered)))
        if choose.random() < 0.5:
            offers = [self.extension(answer=False) for _ in range(choose.choice([1, 1, 2]))]
            fields.append(("Sec-WebSocket-Extensions", ", ".join(offers)))
        if choose.random() < 0.3:
            fields.append(("Origin", choose.choice(["http://localhost", "null"])))
        return f"GET {target} HTTP/1.1".encode(), self.dress(fields), choose.choice([b"", b"", b"\x81\x80abcd"])

    def response(self) -> tuple[bytes, _Lines, bytes]:
        choose = self.choose
        if choose.random() < 0.2:
            return self.rejection()
        fields = [
            ("Upgrade", choose.choice(["websocket", "WebSocket"])),
            ("Connection", choose.choice(["Upgrade", "upgrade", "keep-alive, Upgrade"])),
            ("Sec-WebSocket-Accept", accept_key(KEY)),
        ]
        if self.subprotocols and choose.random() < 0.6:
            fields.append(("Sec-WebSocket-Protocol", choose.choice(self.subprotocols)))
        if self.offer is not None and choose.random() < 0.6:
            fields.append(("Sec-WebSocket-Extensions", self.extension(answer=True)))
        reason = choose.choice([" Switching Protocols", " ", " OK", " \xe9"])
        first = f"HTTP/1.1 101{reason}".encode("latin-1")
        return first, self.dress(fields), choose.choice([b"", b"", b"\x81\x02hi"])

    def rejection(self) -> tuple[bytes, _Lines, bytes]:
        choose = self.choose
        status = choose.choice([200, 204, 301, 304, 400, 401, 403, 404, 426, 429, 500, 503, 599, 600, 999])
        body = choose.choice([b"", b"no", b"not here, not now"])
        way = choose.choice(["length", "chunked", "end", "cut"])
        fields = [("Content-Type", "text/plain")]
        if way == "length":
            fields.append(("Content-Length", str(len(body))))
        elif way == "cut":
            fields.append(("Content-Length", str(len(body) + 5)))
        elif way == "chunked":
            fields.append(("Transfer-Encoding", "chunked"))
            chunks = [body[:3], body[3:]]
            body = b"".join(
                b"%x%s\r\n%s\r\n" % (len(chunk), choose.choice([b"", b";a=b"]), chunk) for chunk in chunks if chunk
            )
            body += b"0\r\n\r\n"
        return f"HTTP/1.1 {status} No".encode(), self.dress(fields), body

    def extension(self, *, answer: bool) -> str:
        """Returns an element of Sec-WebSocket-Extensions, which may break the rules."""
        choose = self.choose
        name = choose.choice(["permessage-deflate"] * 6 + ["x-other", "permessage-Deflate"])
        parameters = []
        for parameter in ("server_no_context_takeover", "client_no_context_takeover"):
            if choose.random() < 0.3:
                parameters.append(parameter)
        for parameter in ("server_max_window_bits", "client_max_window_bits"):
            if choose.random() < 0.4:
                bits = choose.choice(["9", "10", "12", "15", "8"])
                value = choose.choice([f"={bits}", f"={bits}", f'="{bits}"', f" = {bits}"])
                parameters.append(parameter + ("" if not answer and choose.random() < 0.5 else value))
        if choose.random() < 0.1:
            parameters.append(
                choose.choice(
                    [
                        "server_max_window_bits=7",
                        "client_max_window_bits=16",
                        "unknown",
                        "x=1",
                        "server_no_context_takeover=1",
                        "client_max_window_bits=08",
                        "client_no_context_takeover",
                        "server_max_window_bits=9",
                    ]
                )
            )
        choose.shuffle(parameters)
        return choose.choice(["; ", ";", " ; "]).join([name, *parameters])

    def dress(self, fields: list[tuple[str, str]]) -> _Lines:
        """Writes the fields in different forms of equal meaning."""
        choose = self.choose
        lines = []
        for name, value in fields:
            name = choose.choice([name, name, name.lower(), name.upper()])
            before, behind = choose.choice([(" ", ""), (" ", ""), ("", ""), ("\t", " "), ("  ", "\t")])
            lines.append(f"{name}:{before}{value}{behind}".encode("latin-1"))
        if choose.random() < 0.5:
            choose.shuffle(lines)
        for extra in [b"X-Empty:", b"X-Long: " + b"x" * 300, b'Cookie: a=b; c="d"', b"X-Obs: \xe9\xff"]:
            if choose.random() < 0.1:
                lines.append(extra)
        return lines

    # Invalid heads

    def spoil(self, kind: str, first: bytes, fields: _Lines) -> tuple[bytes, _Lines]:
        """Breaks one rule, or something that looks like a rule."""
        choose = self.choose
        ways: list[Callable[[], tuple[bytes, _Lines]]] = [
            lambda: (first, self.drop(fields)),
            lambda: (first, self.drop(fields)),
            lambda: (first, self.twice(fields)),
            lambda: (first, self.replace(fields)),
            lambda: (first, self.replace(fields)),
            lambda: (first, self.replace(fields)),
            lambda: (first, self.deform(fields)),
            lambda: (first, self.deform(fields)),
            lambda: (first, [*fields, choose.choice(_ODD_FIELDS)]),
            lambda: (choose.choice(_ODD_REQUESTS if kind == "request" else _ODD_RESPONSES), fields),
            lambda: (first, [*fields, *(b"X-%d: y" % number for number in range(choose.choice([110, 125, 130])))]),
            lambda: (first, [*fields, b"X-Long: " + b"x" * choose.choice([4000, 8100, 8300, 17_000])]),
        ]
        return choose.choice(ways)()

    def drop(self, fields: _Lines) -> _Lines:
        at = self.choose.randrange(len(fields) + 1)
        return fields[:at] + fields[at + 1 :]

    def twice(self, fields: _Lines) -> _Lines:
        return [*fields, self.choose.choice(fields)] if fields else fields

    def replace(self, fields: _Lines) -> _Lines:
        """Returns another value for one of the relevant fields."""
        name, values = self.choose.choice(list(_ODD_VALUES.items()))
        line = name + b": " + self.choose.choice(values)
        return [line if field.partition(b":")[0].lower() == name.lower() else field for field in fields]

    def deform(self, fields: _Lines) -> _Lines:
        """Returns an invalid line."""
        choose = self.choose
        if not fields:
            return fields
        at = choose.randrange(len(fields))
        name, _, value = fields[at].partition(b":")
        line = choose.choice(
            [
                name + b" :" + value,
                b" " + fields[at],
                name,
                b":" + value,
                name + b":\x00" + value,
                name + b":" + value + b"\x7f",
                name + b":" + value + b"\r",
                name + b":" + value + b"\n",
                name + b":" + value + b"\r\n folded",
                name + b"\xe9:" + value,
                b"na me:" + value,
                name + b":" + value + b"\x0b",
                name + b"::" + value,
                name + b":" + value + b"\r\nX: y\nZ: w",
                name + b":" + value + b"\x01",
            ]
        )
        return [*fields[:at], line, *fields[at + 1 :]]

    def mutate(self, head: bytes) -> bytes:
        choose = self.choose
        data = bytearray(head)
        for _ in range(choose.choice([1, 1, 3])):
            at = choose.randrange(len(data))
            kind = choose.randrange(3)
            if kind == 0:
                data[at] = choose.randrange(256)
            elif kind == 1:
                del data[at : at + choose.choice([1, 2, 50])]
            else:
                data[at:at] = choose.choice([b"\r\n", b"\n", b" ", b",", b"\x00", choose.randbytes(1)])
            if not data:
                break
        return bytes(data)


_ODD_FIELDS = [
    b"Content-Length: 0",
    b"Content-Length: 5",
    b"Content-Length: x",
    b"Content-Length: 0, 0",
    b"Transfer-Encoding: chunked",
    b"Transfer-Encoding: identity",
    b"Host: other",
    b"Origin: http://other",
    b"Upgrade: h2c",
    b"Connection: close",
    b"Sec-WebSocket-Key: " + KEY.encode(),
    b"Sec-WebSocket-Version: 8",
    b"Sec-WebSocket-Protocol: other",
    b"Sec-WebSocket-Extensions: x-other",
    b"Sec-WebSocket-Extensions: permessage-deflate",
    b"Sec-WebSocket-Protocol: ",
    b"Expect: 100-continue",
    b"Sec-WebSocket-Accept: other",
]

_ODD_VALUES = {
    b"Host": [b"", b"a b", b"user@host", b"a,b", b"a/b", b"h\xc3\xa9", b"localhost:x", b"a\\b", b'"a"'],
    b"Upgrade": [
        b"",
        b"websocket/13",
        b"h2c",
        b"websocket, h2c",
        b"h2c, websocket",
        b"web socket",
        b"websockets",
        b",websocket",
        b"websocket,",
        b'"websocket"',
        b"websocket;q=1",
    ],
    b"Connection": [
        b"",
        b"close",
        b"keep-alive",
        b"Upgrade, ",
        b"Upgrade close",
        b"Upgrade;x",
        b'"Upgrade"',
        b"close, Upgrade",
        b"a/b, Upgrade",
    ],
    b"Sec-WebSocket-Key": [
        b"",
        b"short",
        KEY.encode()[:-1],
        KEY.encode() + b"=",
        b"!" * 24,
        b"QUJD" * 8,
        KEY.encode()[:-3] + b"g==",
        b" " + KEY.encode(),
        KEY.encode()[:-3] + b"h==",
        b"QUJDREVGR0hJSktMTU5P\xc3\xa9==",
        KEY.encode() + b", x",
    ],
    b"Sec-WebSocket-Version": [b"", b"8", b"14", b"13, 8", b"8, 13", b"013", b"13.0", b"+13", b"x"],
    b"Sec-WebSocket-Protocol": [
        b"",
        b",",
        b"chat,,superchat",
        b"a b",
        b"chat;x",
        b'"chat"',
        b"chat, ",
        b"CHAT",
        b"ch\xe9t",
        b"chat, chat",
    ],
    b"Sec-WebSocket-Extensions": [
        b"",
        b",",
        b"permessage-deflate;",
        b";",
        b'permessage-deflate; a="b c"',
        b"permessage-deflate,",
        b"permessage-deflate; a=",
        b'permessage-deflate; server_max_window_bits="1\\0"',
        b"a/b",
        b"permessage-deflate, permessage-deflate",
        b'permessage-deflate; x="',
        b"\xe9",
        b'permessage-deflate; x="a,b"',
    ],
    b"Sec-WebSocket-Accept": [
        b"",
        b"wrong",
        accept_key(KEY).encode()[:-1],
        accept_key(KEY).lower().encode(),
        accept_key(KEY).encode() + b", x",
    ],
}
"""Values that are wrong, or nearly right."""

_ODD_REQUESTS = [
    b"POST / HTTP/1.1",
    b"HEAD / HTTP/1.1",
    b"get / HTTP/1.1",
    b"GET / HTTP/1.0",
    b"GET / HTTP/1.2",
    b"GET / HTTP/2.0",
    b"GET / HTTP/0.9",
    b"GET /",
    b"GET",
    b"GET  / HTTP/1.1",
    b"GET / HTTP/1.1 ",
    b" GET / HTTP/1.1",
    b"GET * HTTP/1.1",
    b"OPTIONS * HTTP/1.1",
    b"GET x HTTP/1.1",
    b"GET /\xe9 HTTP/1.1",
    b"GET /a b HTTP/1.1",
    b"GET http:// HTTP/1.1",
    b"\r\nGET / HTTP/1.1",
    b"GET /\x00 HTTP/1.1",
    b"GET / http/1.1",
    b"G\xc9T / HTTP/1.1",
    b"GET /#fragment HTTP/1.1",
    b"GET /\t HTTP/1.1",
    b"GET /" + b"x" * 8300 + b" HTTP/1.1",
    b"GET / HTTP/11",
    b"CONNECT localhost:80 HTTP/1.1",
    b"\x16\x03\x01\x02\x00",
    b"GET ws://localhost/ HTTP/1.1",
    b"GET https://localhost HTTP/1.1",
    b"GET / HTTP/1.1\r",
]

_ODD_RESPONSES = [
    b"HTTP/1.0 101 Switching Protocols",
    b"HTTP/1.1 101",
    b"HTTP/1.1 0101 x",
    b"HTTP/1.1 10 x",
    b"HTTP/1.1 1011 x",
    b"HTTP/1.1  101 x",
    b"HTTP/2 101 x",
    b"HTTP/1.1 abc x",
    b"HTTP/1.1 +101 x",
    b"HTTP/1.1 101 \x00",
    b"http/1.1 101 x",
    b"\r\nHTTP/1.1 101 x",
    b"HTTP/1.1 099 x",
    b"HTTP/1.1 101\tx",
    b"HTTP/1.1 100 Continue",
    b"ICY 200 OK",
    b" HTTP/1.1 101 x",
    b"HTTP/1.1 103 Early\r\nLink: x\r\n\r\nHTTP/1.1 101 Switching Protocols",
    b"HTTP/1.1 101 \x7f",
    b"HTTP/1.1 101 x\r",
]
