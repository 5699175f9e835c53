"""Headers, requests and responses."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest

from wirespeed.datastructures import Headers, MultipleValuesError, Request, Response
from wirespeed.exceptions import InvalidHeaderFormat, InvalidHeaderValue


@pytest.fixture
def headers() -> Headers:
    return Headers([("Connection", "Upgrade"), ("Server", "first"), ("server", "second")])


def test_order_and_spelling(headers: Headers) -> None:
    assert list(headers) == ["connection", "server"]
    assert len(headers) == 2
    assert list(headers.raw_items()) == [("Connection", "Upgrade"), ("Server", "first"), ("server", "second")]
    assert str(headers) == "Connection: Upgrade\r\nServer: first\r\nserver: second\r\n\r\n"


def test_read(headers: Headers) -> None:
    assert headers["CONNECTION"] == headers["connection"] == headers.get("Connection") == "Upgrade"
    assert "connection" in headers
    assert "CoNnEcTiOn" in headers
    assert "x" not in headers
    assert object() not in headers
    assert headers.get("X-None") is None
    with pytest.raises(KeyError):
        headers["X-None"]


def test_several_values(headers: Headers) -> None:
    assert headers.get_all("SERVER") == ["first", "second"]
    assert headers.get_all("X-None") == []
    with pytest.raises(MultipleValuesError) as raised:
        headers["Server"]
    assert str(raised.value) == "'Server'"
    assert not isinstance(raised.value, KeyError)


def test_assignment_adds(headers: Headers) -> None:
    headers["Upgrade"] = "websocket"
    headers["upgrade"] = "again"
    assert headers.get_all("Upgrade") == ["websocket", "again"]


def test_setdefault(headers: Headers) -> None:
    assert headers.setdefault("connection", "close") == "Upgrade"
    assert headers.setdefault("X-New", "value") == headers["x-new"] == "value"


def test_delete(headers: Headers) -> None:
    del headers["SERVER"]
    assert list(headers.raw_items()) == [("Connection", "Upgrade")]
    with pytest.raises(KeyError):
        del headers["server"]


def test_clear(headers: Headers) -> None:
    headers.clear()
    assert not headers
    assert headers == Headers()
    assert not list(headers.raw_items())


class _KeysOnly:
    def keys(self) -> list[str]:
        return ["a", "B"]

    def __getitem__(self, key: str) -> str:
        return {"a": "1", "B": "2"}[key]


@pytest.mark.parametrize("source", [{"a": "1", "B": "2"}, [("a", "1"), ("B", "2")], Headers(a="1", B="2"), _KeysOnly()])
def test_update(headers: Headers, source: Any) -> None:
    headers.update(source, connection="close")
    assert list(headers.raw_items())[3:] == [("a", "1"), ("B", "2"), ("connection", "close")]


def test_equality(headers: Headers) -> None:
    assert headers == Headers([("connection", "Upgrade"), ("server", "first"), ("SERVER", "second")])
    assert headers != Headers([("connection", "Upgrade"), ("server", "second"), ("server", "first")])
    assert headers != "headers"
    with pytest.raises(TypeError):
        hash(headers)


@pytest.mark.parametrize(
    "clone", [Headers.copy, copy.copy, copy.deepcopy, Headers, lambda headers: pickle.loads(pickle.dumps(headers))]
)
def test_copies_are_independent(headers: Headers, clone: Any) -> None:
    twin = clone(headers)
    assert twin == headers
    assert list(twin.raw_items()) == list(headers.raw_items())
    twin["Connection"] = "close"
    assert headers.get_all("Connection") == ["Upgrade"]


def test_get_all_is_a_copy(headers: Headers) -> None:
    headers.get_all("Server").append("third")
    assert headers.get_all("Server") == ["first", "second"]


@pytest.mark.parametrize("value", ["a\r\nX-Forged: b", "a\nb", "a\rb", "a\0b", "\x7f", "\u20ac"])
def test_bad_value(value: str) -> None:
    headers = Headers()
    with pytest.raises(InvalidHeaderValue):
        headers["Name"] = value
    with pytest.raises(InvalidHeaderValue):
        Headers({"Name": value})
    assert not headers


@pytest.mark.parametrize("name", ["", "a b", "a:", "a\r\nb", "\u00e9", "a\0"])
def test_bad_name(name: str) -> None:
    with pytest.raises(InvalidHeaderFormat) as raised:
        Headers([(name, "value")])
    assert str(raised.value).isprintable()


def test_unusual_values() -> None:
    assert Headers(a="", b="\t caf\xe9")["b"] == "\t caf\xe9"


def test_from_raw_does_not_validate() -> None:
    assert Headers.from_raw([("a b", "\n")]).get_all("A B") == ["\n"]


@pytest.mark.parametrize(
    "name", ["Authorization", "proxy-authorization", "COOKIE", "Set-Cookie", "Sec-WebSocket-Protocol", "X-Api-Key"]
)
def test_repr_hides_credentials(name: str) -> None:
    headers = Headers([("Host", "example.com"), (name, "secret")])
    for shown in (repr(headers), repr(Request("/", headers)), repr(Response(200, "OK", headers))):
        assert "secret" not in shown
        assert "example.com" in shown
        assert name in shown
    assert f"{name}: secret" in str(headers)


def test_empty_name_is_named() -> None:
    with pytest.raises(InvalidHeaderFormat, match="invalid '' header: expected token at 0 in an empty name"):
        Headers({"": "value"})


def test_repr_hides_queries() -> None:
    request = Request("/path?token=secret", Headers({"Referer": "https://example.com/?session=secret"}))
    assert repr(request) == (
        "Request(path='/path?***', headers=Headers([('Referer', 'https://example.com/?***')]), "
        "method='GET', protocol='HTTP/1.1')"
    )
    moved = Response(302, "Found", Headers({"Location": "wss://user:secret@example.com/a?token=secret"}))
    assert "'wss://***@example.com/a?***'" in repr(moved)


def test_request() -> None:
    request = Request("/path", Headers())
    assert (request.method, request.protocol) == ("GET", "HTTP/1.1")
    assert request == Request("/path", Headers(), "GET", "HTTP/1.1")


def test_response() -> None:
    response = Response(200, "OK", Headers())
    assert response.body == b""
    assert repr(response) == "Response(status_code=200, reason_phrase='OK', headers=Headers([]), body=b'')"
    assert len(repr(Response(200, "OK", Headers(), b"x" * 10**6))) < 300
    assert response == Response(200, "OK", Headers(), b"")


def test_same_as_websockets(headers: Headers) -> None:
    """Equal operations on both give equal results."""
    theirs: Any = pytest.importorskip("websockets.datastructures")
    twin = theirs.Headers(list(headers.raw_items()))
    for step in (
        lambda h: h.get_all("server"),
        lambda h: h.update({"a": "b"}),
        lambda h: h.setdefault("C", "d"),
        lambda h: h.__setitem__("A", "e"),
        lambda h: h.pop("c"),
        lambda h: h.__delitem__("connection"),
        lambda h: len(h),
        lambda h: list(h.raw_items()),
        lambda h: list(h.items()) if len(h.get_all("a")) < 2 else "several",
        lambda h: str(h),
    ):
        assert step(headers) == step(twin)
