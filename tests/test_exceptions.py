"""The tree of exceptions, their texts, copying and pickling."""

from __future__ import annotations

import copy
import pickle
import threading
from typing import Any

import pytest

from wirespeed import exceptions
from wirespeed.close_codes import Close, CloseCode
from wirespeed.datastructures import Headers, Response
from wirespeed.exceptions import (
    ConcurrencyError,
    ConnectionClosed,
    ConnectionClosedError,
    ConnectionClosedOK,
    DuplicateParameter,
    InvalidHeader,
    InvalidHeaderFormat,
    InvalidHeaderValue,
    InvalidMessage,
    InvalidMethod,
    InvalidOrigin,
    InvalidParameterName,
    InvalidParameterValue,
    InvalidProtocol,
    InvalidProxy,
    InvalidProxyStatus,
    InvalidState,
    InvalidStatus,
    InvalidUpgrade,
    InvalidURI,
    PayloadTooBig,
    ProtocolError,
    TooManyFragments,
    WebSocketException,
)
from wirespeed.sync import ServerConnection, connect, serve

OK = Close(CloseCode.NORMAL_CLOSURE, "")
BYE = Close(CloseCode.GOING_AWAY, "bye")

TEXTS: list[tuple[WebSocketException, str]] = [
    (WebSocketException("something went wrong"), "something went wrong"),
    (ConnectionClosed(OK, OK, True), "received 1000 (OK); then sent 1000 (OK)"),
    (ConnectionClosed(BYE, OK, False), "sent 1000 (OK); then received 1001 (going away) bye"),
    (ConnectionClosedOK(BYE, BYE, True), "received 1001 (going away) bye; then sent 1001 (going away) bye"),
    (ConnectionClosedError(BYE, None, None), "received 1001 (going away) bye; no close frame sent"),
    (ConnectionClosedError(None, BYE), "sent 1001 (going away) bye; no close frame received"),
    (ConnectionClosedError(None, None), "no close frame received or sent"),
    (ConnectionClosedError(Close(3000, ""), None), "received 3000 (registered); no close frame sent"),
    (ConnectionClosedError(Close(4999, "x"), None), "received 4999 (private use) x; no close frame sent"),
    (ConnectionClosedError(Close(2999, ""), None), "received 2999 (unknown); no close frame sent"),
    (
        ConnectionClosedError(Close(1005, ""), None),
        "received 1005 (no status received [internal]); no close frame sent",
    ),
    (InvalidURI("|", "not at all!"), "| isn't a valid URI: not at all!"),
    (InvalidProxy("|", "not at all!"), "| isn't a valid proxy: not at all!"),
    (InvalidProxyStatus(Response(407, "Nope", Headers())), "proxy rejected connection: HTTP 407"),
    (InvalidMessage("malformed HTTP message"), "malformed HTTP message"),
    (InvalidMethod("HEAD"), "unsupported HTTP method: HEAD"),
    (InvalidProtocol("HTTP/1.0"), "unsupported HTTP version: HTTP/1.0"),
    (InvalidStatus(Response(401, "Nope", Headers())), "server rejected WebSocket connection: HTTP 401"),
    (InvalidHeader("Name"), "missing Name header"),
    (InvalidHeader("Name", None), "missing Name header"),
    (InvalidHeader("Name", ""), "empty Name header"),
    (InvalidHeader("Name", "Value"), "invalid Name header: Value"),
    (InvalidHeaderFormat("Name", "expected token", "a=|", 2), "invalid Name header: expected token at 2 in a=|"),
    (InvalidHeaderValue("Name", "Value"), "invalid Name header: Value"),
    (InvalidOrigin("http://bad.origin"), "invalid Origin header: http://bad.origin"),
    (InvalidOrigin(None), "missing Origin header"),
    (InvalidUpgrade("Upgrade", "websocketproto"), "invalid Upgrade header: websocketproto"),
    (InvalidUpgrade("Connection"), "missing Connection header"),
    (DuplicateParameter("a"), "duplicate parameter: a"),
    (InvalidParameterName("|"), "invalid parameter name: |"),
    (InvalidParameterValue("a", None), "missing value for parameter a"),
    (InvalidParameterValue("a", ""), "empty value for parameter a"),
    (InvalidParameterValue("a", "|"), "invalid value for parameter a: |"),
    (ProtocolError("invalid opcode: 7"), "invalid opcode: 7"),
    (PayloadTooBig(None, 4), "frame exceeds limit of 4 bytes; raise max_size to accept it"),
    (PayloadTooBig(8, 4), "frame with 8 bytes exceeds limit of 4 bytes; raise max_size to accept it"),
    (
        PayloadTooBig(8, 12, 6),
        "frame with 8 bytes after reading 6 bytes exceeds limit of 12 bytes; raise max_size to accept it",
    ),
    (
        TooManyFragments(16),
        "fragmented message exceeds limit of 16 frames; raise max_fragments "
        "(WEBSOCKETS_MAX_FRAGMENTS in place of websockets) to accept it",
    ),
    (InvalidState("WebSocket connection isn't established yet"), "WebSocket connection isn't established yet"),
    (ConcurrencyError("get() or get_iter() is already running"), "get() or get_iter() is already running"),
]


@pytest.mark.parametrize(("exc", "text"), TEXTS, ids=[type(exc).__name__ for exc, _ in TEXTS])
def test_text(exc: WebSocketException, text: str) -> None:
    assert str(exc) == text


def test_same_tree_as_websockets() -> None:
    pytest.importorskip("websockets", minversion="17")
    theirs: Any = pytest.importorskip("websockets.exceptions")
    assert set(exceptions.__all__) == {*theirs.__all__, "StreamClosedError"}
    for name in theirs.__all__:
        ours = [
            base.__name__
            for base in getattr(exceptions, name).__mro__
            # Classes that join the trees, once wirespeed.compat is imported.
            if base.__name__ != "_Root" and not base.__module__.startswith("websockets")
        ]
        assert ours == [base.__name__ for base in getattr(theirs, name).__mro__], name


def test_tree_in_the_documentation() -> None:
    """The drawing on top of the file shows each class below its base."""
    parents: list[str] = []
    seen = set()
    for line in (exceptions.__doc__ or "").splitlines():
        name = line.strip("│├└─ ").split(" ")[0]
        if name not in exceptions.__all__:
            continue
        depth = (len(line) - len(line.lstrip("│├└─ "))) // 4 - 1
        parents[depth:] = [name]
        seen.add(name)
        if depth:
            assert getattr(exceptions, name).__bases__[0].__name__ == parents[depth - 1]
    assert seen == set(exceptions.__all__)


ALL = [exc for exc, _ in TEXTS] + [
    InvalidHeader(name="Name", value="Value"),
    InvalidStatus(response=Response(500, "Oops", Headers(a="b"), b"body")),
]


@pytest.mark.parametrize("clone", [copy.copy, copy.deepcopy, lambda exc: pickle.loads(pickle.dumps(exc))])
@pytest.mark.parametrize("exc", ALL, ids=[type(exc).__name__ for exc in ALL])
def test_clone(exc: WebSocketException, clone: Any) -> None:
    twin = clone(exc)
    assert type(twin) is type(exc)
    assert str(twin) == str(exc)
    assert twin.args == exc.args
    assert twin.__dict__ == exc.__dict__


def test_pickling_a_subclass_with_another_constructor() -> None:
    assert str(pickle.loads(pickle.dumps(_Unusual(5)))) == "missing X-5 header"


class _Unusual(InvalidHeader):
    def __init__(self, number: int) -> None:
        super().__init__(f"X-{number}")


@pytest.mark.parametrize(
    ("exc", "code", "reason"),
    [
        (ConnectionClosedOK(BYE, OK, True), 1001, "bye"),
        (ConnectionClosedError(None, BYE), 1006, ""),
        (ConnectionClosedError(None, None), 1006, ""),
    ],
)
def test_code_and_reason(exc: ConnectionClosed, code: int, reason: str) -> None:
    assert (exc.code, exc.reason) == (code, reason)


def test_cause_names_the_option() -> None:
    exc = ConnectionClosedError(None, Close(1009, "too big"))
    exc.__cause__ = PayloadTooBig(8, 4)
    assert str(exc) == f"sent 1009 (message too big) too big; no close frame received: {exc.__cause__}"


@pytest.mark.parametrize(
    "uri",
    [
        "ws://user:secret@host/",
        "ws://secret@host/",
        "ws://user:se@cret@host/",
        "ws://user:secr/et@host/",
        "ws://user:12/secret@host/#fragment",
        "ws://user:secr?et@host/",
        "ws://user:secr#et@host/",
        "user:secret@host",
        "//user:secret@host",
        "ws://[::1]:secret@host",
        "ws://user:secret@[::1]:80",
        "ws://user:sec\nret@host/",
    ],
)
@pytest.mark.parametrize("kind", [InvalidURI, InvalidProxy])
def test_password_is_not_shown(kind: Any, uri: str) -> None:
    exc = kind(uri, "bad")
    assert exc.args[0] == uri
    for text in (str(exc), repr(exc)):
        assert "user" not in text
        assert "sec" not in text
        assert "ret" not in text
        assert "***@" in text


@pytest.mark.parametrize("uri", ["ws://host/@user", "ws://[::1]/a@b", "no@", "ws://host/?"])
def test_text_that_is_not_a_password_is_shown(uri: str) -> None:
    assert (uri in str(InvalidURI(uri, "bad"))) == (uri != "no@")


def test_query_is_not_shown() -> None:
    assert str(InvalidURI("ws://host/path?token=secret#x", "bad")) == "ws://host/path?*** isn't a valid URI: bad"


@pytest.mark.parametrize("name", ["proxy-authorization", "Sec-WebSocket-Protocol"])
def test_credentials_in_a_header_are_not_shown(name: str) -> None:
    assert str(InvalidHeaderValue(name, "Basic c2VjcmV0\n")) == f"invalid {name} header: ***"


def test_peer_cannot_forge_log_lines() -> None:
    for exc in (
        ConnectionClosedError(Close(1000, "a\nb\x1b[2J\u2028"), None),
        InvalidHeader("Name", "a\r\nb"),
        InvalidStatus(Response(500, "", Headers(), b"a\x1b[2Jb")),
        InvalidURI("ws://a\r\nb/", "bad"),
        InvalidMethod("G\nET"),
    ):
        assert str(exc).isprintable()


@pytest.mark.parametrize(
    ("body", "headers", "excerpt"),
    [
        (b"", {}, ""),
        (b"no\n  such  room\n", {}, ": no such room"),
        (b'{"error": "caf\xc3\xa9"}', {}, ': {"error": "caf\u00e9"}'),
        (
            b"<!DOCTYPE html><html><head><title>403 Forbidden</title><style>b {}</style></head>"
            b"<script>let a;</script><!-- x --><h1>Token expired</h1>",
            {},
            ": 403 Forbidden Token expired",
        ),
        (b"\x1f\x8b\x08\x00\x00", {}, ""),
        (b"\xff\xd8\xff\xe0" * 9, {}, ""),
        (b"text", {"Content-Encoding": "gzip"}, ""),
        (b"x" * 100_000, {}, ": " + "x" * 157 + "..."),
    ],
    ids=["empty", "text", "json", "html", "nul", "binary", "compressed", "long"],
)
def test_body_excerpt(body: bytes, headers: dict[str, str], excerpt: str) -> None:
    exc = InvalidStatus(Response(403, "Forbidden", Headers(headers), body))
    assert str(exc) == f"server rejected WebSocket connection: HTTP 403{excerpt}"


def test_same_texts_as_websockets() -> None:
    """Texts may be longer than those of websockets, after an equal beginning."""
    pytest.importorskip("websockets", minversion="17")
    theirs: Any = pytest.importorskip("websockets.exceptions")
    frames: Any = pytest.importorskip("websockets.frames")
    http11: Any = pytest.importorskip("websockets.http11")

    def convert(value: Any) -> Any:
        if isinstance(value, Close):
            return frames.Close(value.code, value.reason)
        if isinstance(value, Response):
            return http11.Response(value.status_code, value.reason_phrase, {}, bytes(value.body))
        return value

    for exc, text in TEXTS:
        # These two change their arguments.
        if isinstance(exc, (InvalidHeaderFormat, InvalidOrigin)) or (
            isinstance(exc, PayloadTooBig) and exc.current_size
        ):
            continue
        twin = getattr(theirs, type(exc).__name__)(*map(convert, exc.args))
        assert text.startswith(str(twin))


def test_each_call_on_a_closed_connection_raises_an_exception_of_its_own() -> None:
    def say(ws: ServerConnection) -> None:
        ws.close(CloseCode.POLICY_VIOLATION, "no")

    with serve(say, "127.0.0.1", 0) as server:
        threading.Thread(target=server.serve_forever).start()
        with connect(f"ws://127.0.0.1:{server.socket.getsockname()[1]}", proxy=None) as ws:
            raised = []
            for call in (ws.recv, ws.recv, lambda: ws.send("x"), lambda: ws.send("x")):
                with pytest.raises(ConnectionClosedError) as info:
                    call()
                raised.append(info.value)
        server.shutdown()
    close = Close(CloseCode.POLICY_VIOLATION, "no")
    assert len(set(map(id, raised))) == 4
    for exc in raised:
        assert (exc.rcvd, exc.sent, exc.rcvd_then_sent) == (close, close, True)
        assert (exc.code, exc.reason, exc.args) == (1008, "no", (close, close, True))
        assert str(exc) == str(ConnectionClosedError(close, close, True))
        assert str(pickle.loads(pickle.dumps(exc))) == str(exc)
