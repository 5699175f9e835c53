"""WebSocket URIs."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from wirespeed._net.uri import WebSocketURI, parse_uri
from wirespeed.exceptions import InvalidURI

VALID: list[tuple[str, WebSocketURI]] = [
    ("ws://localhost/", WebSocketURI(False, "localhost", 80, "/", "")),
    ("wss://localhost/", WebSocketURI(True, "localhost", 443, "/", "")),
    ("ws://localhost", WebSocketURI(False, "localhost", 80, "", "")),
    ("WSS://LocalHost/Path", WebSocketURI(True, "localhost", 443, "/Path", "")),
    ("ws://localhost/path?query", WebSocketURI(False, "localhost", 80, "/path", "query")),
    ("ws://localhost/path;params?a=?/", WebSocketURI(False, "localhost", 80, "/path;params", "a=?/")),
    ("ws://localhost?query", WebSocketURI(False, "localhost", 80, "", "query")),
    ("ws://localhost:8765/", WebSocketURI(False, "localhost", 8765, "/", "")),
    ("ws://localhost:/", WebSocketURI(False, "localhost", 80, "/", "")),
    ("wss://localhost:65535", WebSocketURI(True, "localhost", 65535, "", "")),
    ("ws://localhost:00080/", WebSocketURI(False, "localhost", 80, "/", "")),
    ("ws://user:pass@localhost/", WebSocketURI(False, "localhost", 80, "/", "", "user", "pass")),
    ("ws://user:@localhost/", WebSocketURI(False, "localhost", 80, "/", "", "user", "")),
    ("ws://us%40er:pa%3Ass@localhost:1/", WebSocketURI(False, "localhost", 1, "/", "", "us@er", "pa:ss")),
    ("ws://user:a:b@localhost/", WebSocketURI(False, "localhost", 80, "/", "", "user", "a:b")),
    ("ws://caf\u00e9:%C3%A9@localhost/", WebSocketURI(False, "localhost", 80, "/", "", "caf\u00e9", "\u00e9")),
    ("ws://127.0.0.1/", WebSocketURI(False, "127.0.0.1", 80, "/", "")),
    ("ws://[::1]/", WebSocketURI(False, "::1", 80, "/", "")),
    ("ws://[2001:DB8::A]:81", WebSocketURI(False, "2001:db8::a", 81, "", "")),
    ("ws://[fe80::1%25eth0]/", WebSocketURI(False, "fe80::1%eth0", 80, "/", "")),
    ("ws://[fe80::1%eth0]:81/", WebSocketURI(False, "fe80::1%eth0", 81, "/", "")),
    ("wss://\u00fctf-8.example/", WebSocketURI(True, "xn--tf-8-zra.example", 443, "/", "")),
    ("wss://%C3%BCtf-8.example/", WebSocketURI(True, "xn--tf-8-zra.example", 443, "/", "")),
    ("wss://example.com./", WebSocketURI(True, "example.com.", 443, "/", "")),
    ("wss://snake_case.example/", WebSocketURI(True, "snake_case.example", 443, "/", "")),
    ("ws://localhost/caf\u00e9?caf\u00e9", WebSocketURI(False, "localhost", 80, "/caf%C3%A9", "caf%C3%A9")),
    ("ws://localhost/%C3%a9%20%zz", WebSocketURI(False, "localhost", 80, "/%C3%a9%20%zz", "")),
    ("ws://localhost/%C3%A9\u00e9", WebSocketURI(False, "localhost", 80, "/%C3%A9%C3%A9", "")),
    ('ws://localhost/?{"a":[1]}', WebSocketURI(False, "localhost", 80, "/", "%7B%22a%22:[1]%7D")),
    ("ws://localhost/\u2028", WebSocketURI(False, "localhost", 80, "/%E2%80%A8", "")),
]


@pytest.mark.parametrize(("uri", "parsed"), VALID, ids=[ascii(uri) for uri, _ in VALID])
def test_valid(uri: str, parsed: WebSocketURI) -> None:
    assert parse_uri(uri) == parsed


INVALID = [
    ("", "begin it with ws:// or wss://"),
    ("example.com", "begin it with ws:// or wss://"),
    ("localhost:8000/x", "begin it with ws:// or wss://"),
    ("//localhost/", "begin it with ws:// or wss://"),
    ("http://localhost/", "use ws:// instead of http://"),
    ("HTTPS://localhost/", "use wss:// instead of https://"),
    ("ftp://localhost/", "scheme isn't ws or wss"),
    ("ws:localhost", "hostname isn't provided"),
    ("ws:/localhost", "hostname isn't provided"),
    ("ws://", "hostname isn't provided"),
    ("ws:///path", "hostname isn't provided"),
    ("ws://:80/", "hostname isn't provided"),
    ("ws://user:pass@/", "hostname isn't provided"),
    ("ws://localhost/#fragment", "fragment"),
    ("ws://localhost/#", "fragment"),
    ("ws://localhost:99999/", "port"),
    ("ws://localhost:65536/", "port"),
    ("ws://localhost:0/", "port"),
    ("ws://localhost:-1/", "port"),
    ("ws://localhost:+80/", "port"),
    ("ws://localhost:port/", "port"),
    ("ws://localhost:\u0661/", "port"),
    ("ws://localhost:8_0/", "port"),
    ("ws://user@localhost/", "username provided without password"),
    ("ws://a%3Ab:pass@localhost/", "username contains a colon"),
    ("ws://user:p@ss@localhost/", "contains @; write it as %40"),
    ("ws://user:pass@@localhost/", "contains @; write it as %40"),
    ("ws://user:%FF@localhost/", "UTF-8"),
    ("ws://user:%0d%0a@localhost/", "control character"),
    ("ws://::1/", "brackets"),
    ("ws://[::1/", "brackets"),
    ("ws://[::1]x/", "brackets"),
    ("ws://[::g]/", "IPv6"),
    ("ws://[127.0.0.1]/", "IPv6"),
    ("ws://[v1.x]/", "IPv6"),
    ("ws://[fe80::1%]/", "zone"),
    ("ws://[fe80::1%a/b]/", "brackets"),
    ("ws://loc alhost/", "space"),
    ("ws://localhost/a b", "space"),
    (" ws://localhost/", "space"),
    ("ws://localhost/\r\nX: y", "control character"),
    ("ws://localhost/\n", "control character"),
    ("ws://local\thost/", "control character"),
    ("ws://localhost/\0", "control character"),
    ("ws://localhost/\x7f", "control character"),
    ("ws://localhost/\ud800", "surrogate"),
    ("ws://local%0d%0ahost/", "forbidden character"),
    ("ws://local%2fhost/", "forbidden character"),
    ("ws://local%40host/", "forbidden character"),
    ("ws://%FF/", "UTF-8"),
    ("ws://local\\host/", "forbidden character"),
    ("ws://a<b>/", "forbidden character"),
    ("ws://ex\u2100mple/", "host"),
    ("ws://a..b/", "empty label"),
    ("ws://.a/", "empty label"),
    ("ws://" + "a" * 64 + "/", "too long"),
    ("ws://" + "a." * 130 + "/", "too long"),
    ("ws://" + "\u00fc" * 64 + "/", "IDNA"),
    ("ws://a\u3002\u3002b/", "IDNA"),
]


@pytest.mark.parametrize(("uri", "message"), INVALID, ids=[ascii(uri)[:40] for uri, _ in INVALID])
def test_invalid(uri: str, message: str) -> None:
    with pytest.raises(InvalidURI, match=message) as raised:
        parse_uri(uri)
    assert raised.value.uri == uri
    assert raised.value.__cause__ is None
    assert str(raised.value).isprintable()


@pytest.mark.parametrize("uri", [None, b"ws://localhost/", 1])
def test_not_text(uri: Any) -> None:
    with pytest.raises(TypeError, match="uri must be a str"):
        parse_uri(uri)


@pytest.mark.parametrize("user_info", ["us:s3cret", "us:s3/cret", "us:s3#cret", "us:s3@cret", "us:s3 cret"])
@pytest.mark.parametrize("rest", ["host:port", "host/#x", "", "ho st", "[x"])
def test_password_is_never_shown(user_info: str, rest: str) -> None:
    with pytest.raises(InvalidURI) as raised:
        parse_uri(f"ws://{user_info}@{rest}")
    for text in (str(raised.value), repr(raised.value), raised.value.msg):
        assert "s3" not in text
        assert "cret" not in text


def test_repr_hides_the_password() -> None:
    for uri in ("ws://user:secret@localhost/", "ws://localhost/?token=secret"):
        assert "secret" not in repr(parse_uri(uri))


@pytest.mark.parametrize(
    ("uri", "host_header", "authority"),
    [
        ("ws://localhost/", "localhost", "localhost:80"),
        ("ws://localhost:80/", "localhost", "localhost:80"),
        ("ws://localhost:443/", "localhost:443", "localhost:443"),
        ("wss://localhost:443/", "localhost", "localhost:443"),
        ("wss://localhost:80/", "localhost:80", "localhost:80"),
        ("ws://[::1]/", "[::1]", "[::1]:80"),
        ("ws://[::1]:8765/", "[::1]:8765", "[::1]:8765"),
        ("wss://[fe80::1%25eth0]/", "[fe80::1]", "[fe80::1]:443"),
    ],
)
def test_host_header(uri: str, host_header: str, authority: str) -> None:
    assert parse_uri(uri).host_header == host_header
    assert parse_uri(uri).authority == authority


@pytest.mark.parametrize(
    ("uri", "resource_name"),
    [
        ("ws://localhost", "/"),
        ("ws://localhost/", "/"),
        ("ws://localhost/path", "/path"),
        ("ws://localhost?a=b", "/?a=b"),
        ("ws://localhost/path?", "/path"),
        ("ws://localhost//path", "//path"),
    ],
)
def test_resource_name(uri: str, resource_name: str) -> None:
    assert parse_uri(uri).resource_name == resource_name


def test_user_info() -> None:
    assert parse_uri("ws://localhost/").user_info is None
    assert parse_uri("ws://user:pass@localhost/").user_info == ("user", "pass")
    assert parse_uri("ws://:@localhost/").user_info == ("", "")


def test_origin() -> None:
    assert parse_uri("ws://a:b@HOST:80/x").origin == parse_uri("ws://host.").origin
    assert parse_uri("ws://host").origin != parse_uri("wss://host:80").origin
    assert parse_uri("ws://host").origin != parse_uri("ws://host:81").origin


def test_pickle() -> None:
    parsed = parse_uri("ws://user:pass@localhost/")
    assert pickle.loads(pickle.dumps(parsed)) == parsed
    assert hash(parsed) == hash(parse_uri("ws://user:pass@localhost/"))


# Where both accept a URI, they must agree, or the server sees another request. The exceptions are intended: websockets
# encodes percent signs again next to non-ASCII characters, and leaves zones and forbidden characters.
DIFFERENT = [
    "ws://localhost/%C3%A9\u00e9",
    'ws://localhost/?{"a":[1]}',
    "wss://%C3%BCtf-8.example/",
    "ws://[fe80::1%25eth0]/",
]


@pytest.mark.parametrize("uri", [uri for uri, _ in VALID if uri not in DIFFERENT], ids=ascii)
def test_same_as_websockets(uri: str) -> None:
    pytest.importorskip("websockets", minversion="17")
    theirs: Any = pytest.importorskip("websockets.uri")
    twin, ours = theirs.parse_uri(uri), parse_uri(uri)
    assert (ours.secure, ours.host, ours.port, ours.resource_name, ours.user_info) == (
        twin.secure,
        twin.host,
        twin.port,
        twin.resource_name,
        twin.user_info,
    )
