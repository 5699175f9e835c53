"""The opening handshake of the blocking server: access, negotiation, and requests that are not for a WebSocket."""

from __future__ import annotations

import base64
import contextlib
import functools
import http.client
import logging
import re
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from support.checks import within
from support.frames import TEXT, Close
from support.serving import LOGGER, Reply, logged, masked, request, unnamed
from support.subject import IS_WIRESPEED, connect, exceptions
from support.threads import Raw, dial, echo, idle, serving, uri, wait_until

pytestmark = pytest.mark.wirespeed_only("the server is ours")

if IS_WIRESPEED:
    from wirespeed import Headers, NegotiationError, Response, State
    from wirespeed.sync import basic_auth, route
else:
    Headers = NegotiationError = Response = State = Any

Client = Callable[..., Any]

PATTERN = re.compile(r"https?://([a-z]+\.)*example\.com")
FAILED = b"Failed to open a WebSocket connection.\nSee server log for more information.\n"


@pytest.fixture(params=["wirespeed", "websockets"])
def client(request: pytest.FixtureRequest) -> Client:
    return connect if request.param == "wirespeed" else dial


def answer(server: Any, data: bytes) -> Reply:
    """Returns the head of the answer, and the body of a refusal."""
    with Raw(server) as raw:
        raw.send(data)
        reply = raw.head()
        if reply.status != 101:
            reply.body = raw.rest()
        else:
            raw.send(masked(8, b"\x03\xe8"))
            assert raw.until_close()[1] == Close(1000)
        return reply


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> Callable[[], list[tuple[str, str]]]:
    """Returns the server's log records from INFO on, and those of silent clients; without those of its start
    and end.
    """
    caplog.set_level(logging.DEBUG, LOGGER)

    def entries() -> list[tuple[str, str]]:
        found = [(entry.levelname, entry.getMessage()) for entry in caplog.records if entry.name == LOGGER]
        found = [entry for entry in found if entry[0] != "DEBUG" or "has sent nothing" in entry[1]]
        return [entry for entry in found if not entry[1].startswith("server ")]

    return entries


Log = Callable[[], list[tuple[str, str]]]


# Origins


@pytest.mark.parametrize(
    ("origins", "sent", "accepted"),
    [
        (None, ["http://anywhere"], True),
        (["http://a"], ["http://a"], True),
        (["http://a"], ["http://b"], False),
        (["http://a"], [], False),
        (["http://a", None], [], True),
        (["http://a", None], ["http://b"], False),
        ([], [], False),
        (["http://a"], ["http://a", "http://a"], False),
        ([PATTERN], ["https://www.example.com"], True),
        ([PATTERN], ["https://www.example.com.evil.org"], False),
    ],
    ids=str,
)
def test_origins(log: Log, origins: Any, sent: list[str], accepted: bool) -> None:
    with serving(idle, origins=origins) as server:
        reply = answer(server, request("/", *[f"Origin: {value}" for value in sent]))
    assert reply.status == (101 if accepted else 403)
    if accepted:
        assert log() == []
    else:
        assert b"origin" in reply.body.lower()
        [(level, text)] = log()
        assert level == "INFO"
        assert re.match(r"connection [0-9a-f-]{36} from 127\.0\.0\.1:\d+ to / refused: .*Origin", text)


# Subprotocols


@pytest.mark.parametrize(
    ("supported", "offered", "chosen"),
    [(["b", "a"], ["a", "b"], "b"), (["a"], ["b"], None), (["a"], None, None), (None, ["a"], None)],
    ids=str,
)
def test_subprotocols(client: Client, supported: Any, offered: Any, chosen: Any) -> None:
    def handler(ws: Any) -> None:
        ws.send(str(ws.subprotocol))

    with serving(handler, subprotocols=supported) as server, client(uri(server), subprotocols=offered) as ws:
        assert ws.subprotocol == chosen
        assert ws.recv(timeout=5) == str(chosen)


def test_select_subprotocol(client: Client) -> None:
    seen: list[Any] = []

    def select(ws: Any, offered: Any) -> Any:
        seen.append((ws.request.path, offered))
        return offered[-1]

    with serving(select_subprotocol=select) as server, client(uri(server), subprotocols=["a", "b"]) as ws:
        assert ws.subprotocol == "b"
    assert seen == [("/", ["a", "b"])]


def test_select_subprotocol_refuses(log: Log) -> None:
    def select(ws: Any, offered: Any) -> Any:
        raise NegotiationError("nothing that I speak")

    with serving(select_subprotocol=select) as server:
        reply = answer(server, request())
    assert (reply.status, reply.body) == (400, b"Failed to open a WebSocket connection: nothing that I speak.\n")
    assert [level for level, _ in log()] == ["INFO"]


# process_request


def test_health_check() -> None:
    """For a client that knows only HTTP."""

    def process(ws: Any, request: Any) -> Any:
        return ws.respond(http.HTTPStatus.OK, "OK\n") if request.path == "/health" else None

    with serving(process_request=process) as server:
        plain = http.client.HTTPConnection("127.0.0.1", server.socket.getsockname()[1], timeout=5)
        for _ in range(2):
            with within(2):
                plain.request("GET", "/health")
                response = plain.getresponse()
                assert (response.status, response.read()) == (200, b"OK\n")
                assert response.headers["Content-Type"] == "text/plain; charset=utf-8"
                assert response.headers["Server"].startswith("Python/")
        plain.close()
        with connect(uri(server)) as ws:
            ws.send("x")
            assert ws.recv(timeout=5) == "x"


def test_request_refused(client: Client, log: Log) -> None:
    with serving(process_request=lambda ws, _: ws.respond(404, "no")) as server:
        with pytest.raises(Exception, match="404"):
            client(uri(server))
        wait_until(log)
    assert log()[0][1].endswith(" to / refused: HTTP 404: no")


def test_request_sees_the_connection() -> None:
    seen: list[Any] = []

    def process(ws: Any, request: Any) -> None:
        ws.username = "me"
        ws.mine = request.headers["X-Mine"]
        seen.extend([ws, ws.state, ws.server, request is ws.request, ws.server.connections])

    def handler(ws: Any) -> None:
        ws.send(f"{ws.username} {ws.mine} {ws is seen[0]}")

    with serving(handler, process_request=process) as server:
        with connect(uri(server), additional_headers={"X-Mine": "1"}) as ws:
            assert ws.recv(timeout=5) == "me 1 True"
        assert seen[1:] == [State.CONNECTING, server, True, set()]


def test_basic_authentication(client: Client) -> None:
    process = basic_auth("here", credentials=("hello", "iloveyou:)"))
    with serving(lambda ws: ws.send(ws.username), process_request=process) as server:
        with client(uri(server).replace("//", "//hello:iloveyou%3A%29@")) as ws:
            assert ws.recv(timeout=5) == "hello"
        with pytest.raises(Exception, match="401"):
            client(uri(server).replace("//", "//hello:iloveyou@"))
        token = base64.b64encode(b"hello:wrong").decode()
        for value in (None, f"Basic {token}", "Bearer x", "Basic \xe9"):
            reply = answer(server, request("/", *([] if value is None else [f"Authorization: {value}"])))
            assert reply.status == 401
            assert str(reply["WWW-Authenticate"]).startswith('Basic realm="here"')


async def _check(username: str, password: str) -> bool:
    return False


class _Checker:
    async def __call__(self, username: str, password: str) -> bool:
        return False


@pytest.mark.parametrize("check", [_check, functools.partial(_check), _Checker(), _Checker().__call__])
def test_check_by_a_coroutine_function(check: Any) -> None:
    """Its coroutine would be true for any password."""
    from wirespeed.compat.websockets.sync.server import basic_auth as compatible

    for function in (basic_auth, compatible):
        with pytest.raises(TypeError, match="check_credentials must not be a coroutine function"):
            function("here", check_credentials=check)


def _generator() -> Any:
    yield False


async def _async_generator() -> Any:
    yield False


class _Awaitable:
    def __await__(self) -> Any:
        return iter(())


@pytest.mark.parametrize(
    ("check", "kind"),
    [
        (lambda *pair: _check(*pair), "coroutine"),
        (lambda *_: _Awaitable(), "_Awaitable"),
        (lambda *_: _generator(), "generator"),
        (lambda *_: _async_generator(), "async_generator"),
    ],
)
def test_credentials_check_with_invalid_result(caplog: pytest.LogCaptureFixture, check: Any, kind: str) -> None:
    token = base64.b64encode(b"hello:wrong").decode()
    with serving(process_request=basic_auth("here", check_credentials=check)) as server:
        assert answer(server, request("/", f"Authorization: Basic {token}")).status == 500
    assert f"check_credentials must return whether they are right, not {kind}" in caplog.text


def test_routes() -> None:
    """By an attribute that ``route`` sets on the connection."""
    routing = pytest.importorskip("werkzeug.routing")

    def greet(ws: Any, name: str) -> None:
        ws.send(f"hello {name}")

    rules = routing.Map([routing.Rule("/greet/<name>", endpoint=greet), routing.Rule("/echo", endpoint=echo)])
    with route(rules, "127.0.0.1", 0) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        with connect(uri(server, "/greet/me")) as ws:
            assert ws.recv(timeout=5) == "hello me"
        with connect(uri(server, "/echo")) as ws:
            ws.send("x")
            assert ws.recv(timeout=5) == "x"
        assert answer(server, request("/nowhere")).status == 404
        # Paths that a parser of URIs would take for hosts, and an invalid one.
        for target, status in (("//[", 404), ("//x/echo", 404), ("http://[/echo", 400), ("http://x/echo", 101)):
            assert answer(server, request(target)).status == status, target
        assert answer(server, request("/echo", "Host: a", "Host: b")).status == 400
        server.shutdown()
        thread.join(5)
        assert not thread.is_alive()


@pytest.mark.parametrize("hook", ["process_request", "process_response", "select_subprotocol"])
def test_hook_raises(log: Log, caplog: pytest.LogCaptureFixture, hook: str) -> None:
    def process(*_: Any) -> Any:
        raise KeyError("oops")

    hooks: dict[str, Any] = {hook: process}
    with serving(**hooks) as server:
        reply = answer(server, request())
        assert (reply.status, reply.body) == (500, FAILED)
        assert answer(server, request()).status == 500  # and the server continues
    errors = unnamed([text for level, text in log() if level == "ERROR"])
    failed = f"{hook} failed" if hook.startswith("process") else "opening handshake failed"
    assert errors == [failed, f"{failed}; 1 more like it"]
    assert caplog.text.count("KeyError: 'oops'") == 1


@pytest.mark.parametrize("hook", ["process_request", "process_response"])
def test_hook_returns_nonsense(caplog: pytest.LogCaptureFixture, hook: str) -> None:
    hooks: dict[str, Any] = {hook: lambda *_: 404}
    with serving(**hooks) as server:
        assert answer(server, request()).status == 500
    assert f"{hook} must return a Response or None, not int" in caplog.text


def test_hook_returns_a_coroutine(caplog: pytest.LogCaptureFixture) -> None:
    async def process(*_: Any) -> None:
        pass

    with serving(process_request=lambda *arguments: process(*arguments)) as server:
        assert answer(server, request()).status == 500
    assert "must return a Response or None, not coroutine" in caplog.text


@pytest.mark.parametrize(
    "response",
    [(99, "x", {}), (1000, "x", {}), (200, "x", {"X": "a\r\nX-Evil: 1"})],
    ids=["99", "1000", "header"],
)
def test_response_that_cannot_be_sent(caplog: pytest.LogCaptureFixture, response: Any) -> None:
    status, reason, fields = response

    def process(ws: Any, request: Any) -> Any:
        headers = Headers.from_raw(list(fields.items())) if fields else Headers()
        return Response(status, reason, headers, b"")

    with serving(process_request=process) as server:
        reply = answer(server, request())
    assert (reply.status, reply["X-Evil"]) == (500, None)
    assert unnamed(logged(caplog, logging.ERROR)) == ["the response cannot be sent"]
    # The reason is logged.
    assert "Traceback" in caplog.text


def test_reason_of_a_response_is_one_line() -> None:
    def process(ws: Any, request: Any) -> Any:
        return Response(404, "no\r\nX-Evil: 1", Headers(), b"")

    with serving(process_request=process) as server:
        reply = answer(server, request())
    assert (reply.status, reply["X-Evil"]) == (404, None)


def test_request_accepted_by_hand() -> None:
    """A 101 response made by the application."""

    def process(ws: Any, request: Any) -> Any:
        return Response(101, "Switching Protocols", Headers({"Upgrade": "websocket", "X-Mine": "1"}), b"")

    with serving(process_request=process) as server, Raw(server) as raw:
        raw.send(request())
        assert raw.head()["X-Mine"] == "1"
        raw.send(masked(TEXT, b"x"))
        assert raw.frame().payload == b"x"


def test_plain_request_accepted_by_hand() -> None:
    """Only a request for a WebSocket can be accepted."""

    def process(ws: Any, request: Any) -> Any:
        return Response(101, "Switching Protocols", Headers(), b"")

    with serving(process_request=process) as server:
        assert answer(server, b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n").status == 426


def test_client_leaves_during_process_request(log: Log) -> None:
    entered, leave = threading.Event(), threading.Event()
    handled: list[Any] = []

    def process(ws: Any, request: Any) -> None:
        entered.set()
        leave.wait(10)

    with serving(handled.append, process_request=process, close_timeout=1) as server, Raw(server) as raw:
        raw.send(request())
        assert entered.wait(5)
        raw.reset()
        time.sleep(0.05)
        leave.set()
        with within(5):
            server.shutdown()
    assert [entry for entry in log() if entry[0] != "INFO"] == []


@pytest.mark.parametrize("close_timeout", [None, 30], ids=["none", "long"])
def test_refused_client_that_does_not_leave(close_timeout: float | None) -> None:
    """It keeps its thread for two seconds, for any close timeout, and whether it reads or not."""

    def process(ws: Any, request: Any) -> Any:
        if request.path == "/large":
            return ws.respond(402, "x" * 50_000_000)
        return ws.respond(404, "nothing") if request.path == "/none" else None

    requests = [
        (request("/large"), 402),
        (request("/none"), 404),
        (request("/", "Origin: https://elsewhere.example"), 403),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", 426),
    ]
    with (
        serving(process_request=process, origins=[None], close_timeout=close_timeout) as server,
        contextlib.ExitStack() as stack,
    ):
        raws = [stack.enter_context(Raw(server, receive_buffer=4096)) for _ in requests]
        with within(5, at_least=1.5):
            for raw, (data, status) in zip(raws, requests, strict=True):
                raw.send(data)
                assert raw.head().status == status
            wait_until(lambda: not server._threads)


def test_refused_client_that_goes_on_to_send() -> None:
    """It is closed once it has sent too much, and does not keep a thread busy for two seconds."""
    with serving(origins=[None], close_timeout=None) as server, Raw(server) as raw:
        raw.send(request("/", "Origin: https://elsewhere.example"))
        assert raw.head().status == 403
        with within(1), pytest.raises(OSError):
            while True:
                raw.send(bytes(65536))
        wait_until(lambda: not server._threads)


def test_close_timeout_shorter_than_time_of_refused_clients() -> None:
    with serving(origins=[None], close_timeout=0.2) as server, Raw(server) as raw, within(1.5):
        raw.send(request("/", "Origin: https://elsewhere.example"))
        assert raw.head().status == 403
        wait_until(lambda: not server._threads)


# process_response


def test_response_changed(client: Client) -> None:
    def process(ws: Any, request: Any, response: Any) -> None:
        response.headers["X-Mine"] = request.path

    with serving(process_response=process) as server, client(uri(server, "/here")) as ws:
        assert ws.response.headers["X-Mine"] == "/here"
        ws.send("x")
        assert ws.recv(timeout=5) == "x"


def test_response_replaced() -> None:
    def process(ws: Any, request: Any, response: Any) -> Any:
        return ws.respond(402, f"instead of {response.status_code}")

    with serving(process_response=process) as server:
        reply = answer(server, request())
    assert (reply.status, reply.body) == (402, b"instead of 101")


def test_response_sees_refusals() -> None:
    seen: list[Any] = []
    options: dict[str, Any] = {
        "process_request": lambda ws, _: ws.respond(404, "no"),
        "process_response": lambda ws, request, response: seen.append(response.status_code),
    }
    with serving(**options) as server:
        assert answer(server, request()).status == 404
    assert seen == [404]


@pytest.mark.parametrize(("value", "sent"), [("mine/1", "mine/1"), (None, None)], ids=str)
@pytest.mark.parametrize("hooks", [{}, {"process_request": lambda *_: None}], ids=["bare", "hooks"])
def test_server_header(value: Any, sent: Any, hooks: Any) -> None:
    with serving(server_header=value, **hooks) as server:
        assert answer(server, request())["Server"] == sent
        assert answer(server, request(without=("Upgrade",)))["Server"] == sent
        assert answer(server, b"garbage\r\n\r\n")["Server"] == sent


# Requests that are not for a WebSocket


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", 426),
        (request(without=("Upgrade",)), 426),
        (request("/", "Sec-WebSocket-Version: 8"), 426),
        (request(without=("Sec-WebSocket-Key",)), 400),
        (request("/", "Sec-WebSocket-Key: short"), 400),
        (b"garbage\r\n\r\n", 400),
        (b"\x00\x01\x02\x03\r\n\r\n", 400),
        (request(start="POST / HTTP/1.1"), 405),
        (request("/", "X-Long: " + "x" * 20_000), 431),
        (request("/", *["X: y"] * 200), 431),
    ],
    ids=["http", "upgrade", "version", "no-key", "key", "garbage", "binary", "post", "large", "many"],
)
def test_not_a_websocket(log: Log, data: bytes, status: int) -> None:
    handled: list[Any] = []
    with serving(handled.append) as server, within(5):
        assert answer(server, data).status == status
        wait_until(log)
    assert handled == []
    assert [level for level, _ in log()] == ["INFO"]


def test_sending_client_receives_the_refusal() -> None:
    """Further data of the client is received; otherwise it would get a reset instead of the response."""
    with serving() as server, Raw(server) as raw, within(5):
        raw.send(b"garbage\r\n\r\n")
        for _ in range(50):
            raw.send(bytes(100_000))
        assert raw.head().status == 400


def test_tls_to_a_plain_port(log: Log) -> None:
    with serving() as server, Raw(server) as raw:
        raw.send(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(100))
        wait_until(log)
        raw.close()
        wait_until(lambda: len(log()) == 2)
    warnings = [text for level, text in log() if level == "WARNING"]
    assert len(warnings) == 1
    assert re.match(r"a client speaks TLS to a port without TLS \(127.0.0.1:\d+ -> 127.0.0.1:\d+\)", warnings[0])


@pytest.mark.parametrize("sent", [0, 1, 40])
@pytest.mark.parametrize("how", ["close", "reset", "half"])
def test_client_leaves_during_the_request(log: Log, sent: int, how: str) -> None:
    handled: list[Any] = []
    with serving(handled.append) as server, Raw(server) as raw:
        raw.send(request()[:sent])
        time.sleep(0.02)
        if how == "half":
            raw.sock.shutdown(socket.SHUT_WR)
            assert raw.rest() == b""
        else:
            getattr(raw, how)()
        with within(2):
            wait_until(log)
    assert handled == []
    assert [level for level, _ in log()] == ["INFO" if sent else "DEBUG"]


@pytest.mark.parametrize("trickle", [False, True], ids=["silent", "trickle"])
def test_open_timeout(log: Log, trickle: bool) -> None:
    """The timeout is for the whole request, not for each piece of it."""
    with serving(open_timeout=0.3) as server, Raw(server) as raw:
        with within(3, at_least=0.25):
            if trickle:
                raw.sock.settimeout(0.05)
                for byte in request():
                    try:
                        raw.send(bytes([byte]))
                        if raw.sock.recv(1) == b"":
                            break
                    except TimeoutError:
                        continue
                    except ConnectionError:
                        break  # a byte came after the end
                else:
                    pytest.fail("it never ended")
            else:
                assert raw.rest() == b""
        wait_until(log)
    assert [level for level, _ in log()] == ["INFO" if trickle else "DEBUG"]
    assert "open_timeout" in log()[0][1]


def test_open_timeout_does_not_outlive_the_handshake() -> None:
    with serving(open_timeout=0.2) as server, connect(uri(server)) as ws:
        time.sleep(0.4)
        ws.send("x")
        assert ws.recv(timeout=5) == "x"


def test_open_timeout_does_not_cover_hooks() -> None:
    """A thread cannot be interrupted."""

    def process_request(ws: Any, request: Any) -> None:
        time.sleep(0.3)

    with serving(open_timeout=0.1, process_request=process_request) as server, connect(uri(server)) as ws:
        ws.send("hello")
        assert ws.recv() == "hello"


def test_no_open_timeout() -> None:
    with serving(open_timeout=None) as server, Raw(server) as raw:
        time.sleep(0.05)
        raw.send(request())
        assert raw.head().status == 101
        raw.send(masked(8))
        raw.until_close()


def test_client_reads_the_refusal() -> None:
    with serving(echo, process_request=lambda ws, _: ws.respond(403, "x" * 200_000)) as server:
        with pytest.raises(exceptions.InvalidStatus) as info:
            connect(uri(server))
        assert info.value.response.status_code == 403
        reply = answer(server, request())
        assert reply.body == b"x" * 200_000
