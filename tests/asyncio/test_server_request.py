"""The server's ``process_request`` and ``process_response``: answering instead of accepting, changing the answer."""

from __future__ import annotations

import asyncio
import http
import logging
import types
from collections.abc import Callable
from typing import Any, cast

import pytest
from websockets.exceptions import InvalidStatus as WebsocketsInvalidStatus

from support.asyncio_tools import Setting, soon
from support.connecting import Connect
from support.frames import TEXT, Close, Frame
from support.serving import (
    LOGGER,
    ONE_OF_EACH_PORT,
    Raw,
    dial,
    echo,
    idle,
    logged,
    masked,
    request,
    serve,
    unnamed,
    uri,
)
from support.subject import IS_WIRESPEED, exceptions

pytestmark = pytest.mark.wirespeed_only("the server is ours")

if IS_WIRESPEED:
    from wirespeed import Headers, Response, basic_auth

SETTINGS = ONE_OF_EACH_PORT

Wrap = Callable[..., Any]


@pytest.fixture(params=["sync", "async"])
def wrap(request: pytest.FixtureRequest) -> Wrap:
    """Turns a function into a hook: itself, or a coroutine function."""
    if request.param == "sync":
        return lambda function: function

    def asynchronous(function: Any) -> Any:
        async def call(*arguments: Any) -> Any:
            await asyncio.sleep(0.002)
            return function(*arguments)

        return call

    return asynchronous


async def answer(server: Any, data: bytes) -> Any:
    with await Raw.connect(server) as raw:
        await raw.send(data)
        return await raw.reply()


# process_request


async def test_request_accepts(setting: Setting, connect: Connect, wrap: Wrap) -> None:
    """The hook gets the connection that the handler gets, with attributes that the hook sets."""
    seen: list[Any] = []

    def process(ws: Any, request: Any) -> None:
        assert ws.request is request
        assert ws.state.name == "CONNECTING"
        assert request.path == "/mine"
        assert ws.remote_address[0] == "127.0.0.1"
        assert ws.server.is_serving()
        ws.username = "somebody"
        seen.append(ws)

    async def handler(ws: Any) -> None:
        assert ws is seen[0]
        await ws.send(ws.username)
        await echo(ws)

    serving = serve(setting, handler, process_request=wrap(process))
    async with serving as server, connect(uri(server, "/mine")) as ws:
        assert await ws.recv() == "somebody"
        await ws.send("x")
        assert await ws.recv() == "x"
    assert len(seen) == 1


async def test_cannot_send_before_open(setting: Setting, caplog: pytest.LogCaptureFixture) -> None:
    outcome: list[Any] = []

    async def process(ws: Any, request: Any) -> None:
        calls: list[Callable[[], Any]] = [lambda: ws.send_nowait("x"), ws.recv_nowait]
        for call in calls:
            try:
                outcome.append(call())
            except Exception as exc:
                outcome.append(exc)

    async with serve(setting, process_request=process) as server:
        with await Raw.open(server) as raw:
            await raw.send(masked(TEXT, b"first"))
            assert await raw.frame() == Frame(TEXT, b"first", masked=False)
    assert len(outcome) == 2
    assert all(isinstance(exc, Exception) for exc in outcome)


@pytest.mark.parametrize("operation", ["send", "ping"])
async def test_sending_before_open(setting: Setting, operation: str) -> None:
    """Sending raises immediately, because waiting inside ``process_request`` could never end."""
    outcome: list[Any] = []

    async def process(ws: Any, request: Any) -> None:
        try:
            outcome.append(await asyncio.wait_for(ws.send("x") if operation == "send" else ws.ping(), 0.2))
        except Exception as exc:
            outcome.append(exc)

    async with serve(setting, process_request=process) as server:
        with await Raw.open(server) as raw:
            await raw.send(masked(TEXT, b"first"))
            assert await raw.frame() == Frame(TEXT, b"first", masked=False)
    assert len(outcome) == 1
    assert isinstance(outcome[0], Exception)
    assert not isinstance(outcome[0], asyncio.TimeoutError)


@pytest.mark.parametrize("how", ["abort", "close"])
@pytest.mark.no_leaks
@pytest.mark.within(3)
async def test_ending_before_open(setting: Setting, caplog: pytest.LogCaptureFixture, how: str) -> None:
    """The handler is not called, and nothing breaks."""
    handled: list[Any] = []

    async def process(ws: Any, request: Any) -> None:
        if how == "abort":
            ws.abort()
        else:
            await ws.close()

    async def handler(ws: Any) -> None:
        handled.append(ws.state.name)

    async with serve(setting, handler, process_request=process, open_timeout=1, close_timeout=0.2) as server:
        with await Raw.connect(server) as raw:
            await raw.send(request())
            assert b" 101 " not in await asyncio.wait_for(raw.rest(), 0.5)
        await soon(lambda: not server._tasks)
    assert handled == []
    assert logged(caplog) == []


@pytest.mark.no_leaks
@pytest.mark.within(5)
async def test_health_check(setting: Setting, wrap: Wrap) -> None:
    """A plain HTTP request, as a load balancer makes it."""
    calls: list[tuple[str, ...]] = []

    def process(ws: Any, request: Any) -> Any:
        calls.append((request.method, request.path, request.protocol))
        return ws.respond(http.HTTPStatus.OK, "OK é\n") if request.path == "/health" else None

    async with serve(setting, process_request=wrap(process)) as server:
        reply = await answer(server, b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        assert (reply.status, reply.body) == (200, "OK é\n".encode())
        assert reply["Content-Type"] == "text/plain; charset=utf-8"
        assert reply["Content-Length"] == str(len(reply.body))
        assert reply["Connection"] == "close"
        assert reply["Date"]
        assert reply["Server"].startswith("Python/")
        reply = await answer(server, b"HEAD /health HTTP/1.1\r\nHost: x\r\n\r\n")
        assert (reply.status, reply.body, reply["Content-Length"]) == (200, b"", "6")
        assert (await answer(server, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")).status == 426
        assert (await answer(server, b"GET /health HTTP/1.0\r\n\r\n")).status == 200
        assert server.connections == set()
    assert calls == [
        ("GET", "/health", "HTTP/1.1"),
        ("HEAD", "/health", "HTTP/1.1"),
        ("GET", "/", "HTTP/1.1"),
        ("GET", "/health", "HTTP/1.0"),
    ]


@pytest.mark.parametrize("status", [200, 204, 401, 404, 503])
@pytest.mark.no_leaks
async def test_request_refuses(
    setting: Setting, connect: Connect, wrap: Wrap, caplog: pytest.LogCaptureFixture, status: int
) -> None:
    caplog.set_level(logging.INFO, LOGGER)

    def process(ws: Any, request: Any) -> Any:
        response = ws.respond(status, "" if status == 204 else "Go away.\n")
        if status == 401:
            response.headers["WWW-Authenticate"] = 'Basic realm="x"'
        return response

    async with serve(setting, process_request=wrap(process)) as server:
        with pytest.raises(exceptions.InvalidStatus) as raised:
            await connect(uri(server))
        response = raised.value.response
        assert response.status_code == status
        assert response.body == (b"" if status == 204 else b"Go away.\n")
        assert ("WWW-Authenticate" in response.headers) == (status == 401)
        with pytest.raises(WebsocketsInvalidStatus) as refused:
            await dial(uri(server))
        assert refused.value.response.status_code == status
    assert any("refused" in text and str(status) in text for text in logged(caplog, logging.INFO))
    assert logged(caplog) == []


async def test_request_redirects(setting: Setting, connect: Connect, wrap: Wrap) -> None:
    def process(ws: Any, request: Any) -> Any:
        if request.path == "/there":
            return None
        response = ws.respond(302, "There.")
        response.headers["Location"] = "/there"
        return response

    async with serve(setting, process_request=wrap(process)) as server:
        for client in (connect, dial):
            async with client(uri(server)) as ws:
                assert ws.request.path == "/there"


@pytest.mark.parametrize("wrong", ["text", 200, (200, [], b""), True], ids=repr)
async def test_request_returns_another_type(
    setting: Setting, wrap: Wrap, caplog: pytest.LogCaptureFixture, wrong: Any
) -> None:
    async with serve(setting, process_request=wrap(lambda ws, request: wrong)) as server:
        reply = await answer(server, request())
        assert reply.status == 500
        assert b"log" in reply.body
    assert unnamed(logged(caplog)) == ["process_request failed"]
    assert type(wrong).__name__ in str(caplog.records[-1].exc_info)


@pytest.mark.no_leaks
async def test_request_raises(setting: Setting, wrap: Wrap, caplog: pytest.LogCaptureFixture) -> None:
    """The reason is logged, not sent to the client."""

    def process(ws: Any, request: Any) -> Any:
        raise ZeroDivisionError("secret")

    async with serve(setting, process_request=wrap(process)) as server:
        reply = await answer(server, request())
        assert reply.status == 500
        assert b"secret" not in reply.body
        assert reply["Connection"] == "close"
    assert unnamed(logged(caplog)) == ["process_request failed"]
    assert "secret" in caplog.text


@pytest.mark.no_leaks
@pytest.mark.within(3)
async def test_request_takes_too_long(setting: Setting, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, LOGGER)
    cancelled: list[bool] = []

    async def process(ws: Any, request: Any) -> None:
        try:
            await asyncio.sleep(5)
        except asyncio.CancelledError:
            cancelled.append(True)
            raise

    async with serve(setting, process_request=process, open_timeout=0.1) as server:
        with await Raw.connect(server) as raw:
            await raw.send(request())
            assert b"101" not in await raw.rest()
        assert server.connections == set()
    assert cancelled == [True]
    assert any("open_timeout" in text for text in logged(caplog, logging.INFO))
    assert logged(caplog) == []


@pytest.mark.no_leaks
async def test_client_leaves_while_the_request_is_processed(setting: Setting, caplog: pytest.LogCaptureFixture) -> None:
    handled: list[Any] = []
    left = asyncio.Event()

    async def process(ws: Any, request: Any) -> None:
        handled.append("process")
        await asyncio.wait_for(left.wait(), 5)

    async def handler(ws: Any) -> None:
        handled.append("handler")
        await ws.wait_closed()

    async with serve(setting, handler, process_request=process) as server:
        raw = await Raw.connect(server)
        await raw.send(request())
        await soon(lambda: handled)
        raw.reset()
        left.set()
        await soon(lambda: not server._tasks)
    assert logged(caplog) == []


async def test_custom_response(setting: Setting, wrap: Wrap) -> None:
    """Any body and fields are allowed; the server frames the message."""

    def process(ws: Any, request: Any) -> Any:
        headers = Headers([("Content-Type", "image/png"), ("X-Two", "1"), ("X-Two", "2")])
        return Response(418, "Teapot", headers, b"\x89PNG\x00")

    async with serve(setting, process_request=wrap(process)) as server:
        reply = await answer(server, request())
        assert (reply.status, reply.body) == (418, b"\x89PNG\x00")
        assert reply["Content-Type"] == "image/png"
        assert reply["Content-Length"] == "5"
        assert reply.all("X-Two") == ["1", "2"]


@pytest.mark.no_leaks
async def test_large_body(setting: Setting) -> None:
    """More than the socket takes at once, to a client that reads slowly."""
    body = bytes(range(256)) * 20_000

    def process(ws: Any, request: Any) -> Any:
        return Response(200, "OK", Headers({"X": "y"}), body)

    async with serve(setting, process_request=process) as server:
        with await Raw.connect(server, receive_buffer=4096) as raw:
            await raw.send(request())
            reply = await raw.head()
            await asyncio.sleep(0.05)
            assert await raw.rest() == body
            assert reply["Content-Length"] == str(len(body))


@pytest.mark.no_leaks
async def test_hook_answers_101(setting: Setting) -> None:
    """A request that is not for a WebSocket cannot be answered with 101."""

    def process(ws: Any, request: Any) -> Any:
        return Response(101, "Switching Protocols", Headers(), cast(Any, None))

    async with serve(setting, process_request=process) as server:
        reply = await answer(server, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert reply.status == 426


@pytest.mark.parametrize(("right", "status"), [(True, 101), (False, 401)])
@pytest.mark.parametrize("kind", ["function", "coroutine function", "generator-based", "future"])
async def test_check_of_credentials(setting: Setting, kind: str, right: bool, status: int) -> None:
    @types.coroutine
    def generator_based() -> Any:
        yield
        return right

    async def coroutine() -> bool:
        return right

    def check(username: str, password: str) -> Any:
        assert (username, password) == ("me", "it")
        if kind == "function":
            return right
        if kind == "future":
            return asyncio.ensure_future(coroutine())
        return coroutine() if kind == "coroutine function" else generator_based()

    auth = basic_auth("here", check_credentials=check)
    async with serve(setting, process_request=auth) as server:
        with await Raw.connect(server) as raw:
            await raw.send(request("/", "Authorization: Basic bWU6aXQ="))
            assert (await raw.head()).status == status


async def test_credentials_check_without_await(setting: Setting, caplog: pytest.LogCaptureFixture) -> None:
    """A hook that forgets to await returns a coroutine, which is true."""

    async def forgotten() -> bool:
        return False

    async def check(username: str, password: str) -> Any:
        return forgotten()

    async with serve(setting, process_request=basic_auth("here", check_credentials=check)) as server:
        assert (await answer(server, request("/", "Authorization: Basic bWU6aXQ="))).status == 500
    assert "check_credentials must return whether they are right, not coroutine" in caplog.text


# process_response


async def test_response_is_changed(setting: Setting, connect: Connect, wrap: Wrap) -> None:
    def process(ws: Any, request: Any, response: Any) -> None:
        assert request is ws.request
        assert response.status_code == 101
        response.headers["Set-Cookie"] = "session=1"

    async with serve(setting, process_response=wrap(process)) as server, connect(uri(server)) as ws:
        assert ws.response.headers["Set-Cookie"] == "session=1"
        await ws.send("x")
        assert await ws.recv() == "x"
        [other] = server.connections
        assert other.response.headers["Set-Cookie"] == "session=1"


async def test_response_sees_refusals(setting: Setting, wrap: Wrap) -> None:
    """Responses of the hook, and those of the library."""
    statuses: list[int] = []

    def process(ws: Any, request: Any, response: Any) -> None:
        statuses.append(response.status_code)
        response.headers["X-Seen"] = "yes"

    def deny(ws: Any, request: Any) -> Any:
        return ws.respond(404, "no") if request.path == "/deny" else None

    async with serve(setting, process_request=deny, process_response=wrap(process), origins=["http://a"]) as server:
        for data in (request("/deny"), request(), b"GET / HTTP/1.1\r\nOrigin: http://a\r\nHost: x\r\n\r\n"):
            assert (await answer(server, data))["X-Seen"] == "yes"
    assert statuses == [404, 403, 426]


@pytest.mark.no_leaks
async def test_response_is_replaced(setting: Setting, wrap: Wrap, caplog: pytest.LogCaptureFixture) -> None:
    def process(ws: Any, request: Any, response: Any) -> Any:
        return ws.respond(409, "full")

    async with serve(setting, idle, process_response=wrap(process)) as server:
        reply = await answer(server, request())
        assert (reply.status, reply.body) == (409, b"full")
        assert server.connections == set()
    assert logged(caplog) == []


@pytest.mark.parametrize("how", ["raise", "type"])
@pytest.mark.no_leaks
async def test_response_fails(setting: Setting, wrap: Wrap, caplog: pytest.LogCaptureFixture, how: str) -> None:
    def process(ws: Any, request: Any, response: Any) -> Any:
        if how == "type":
            return "text"
        raise ZeroDivisionError("secret")

    async with serve(setting, process_response=wrap(process)) as server:
        reply = await answer(server, request())
        assert reply.status == 500
        assert b"secret" not in reply.body
    assert unnamed(logged(caplog)) == ["process_response failed"]


async def test_response_chooses_the_subprotocol(setting: Setting) -> None:
    def process(ws: Any, request: Any, response: Any) -> None:
        response.headers["Sec-WebSocket-Protocol"] = "b"

    async def handler(ws: Any) -> None:
        await ws.send(ws.subprotocol)

    serving = serve(setting, handler, process_response=process)
    async with serving as server, dial(uri(server), subprotocols=["a", "b"]) as ws:
        assert ws.subprotocol == "b"
        assert await ws.recv() == "b"


@pytest.mark.parametrize("how", ["delete", "replace"])
async def test_response_removes_compression(setting: Setting, how: str) -> None:
    """The response that the client receives counts."""

    def process(ws: Any, request: Any, response: Any) -> Any:
        if how == "delete":
            del response.headers["Sec-WebSocket-Extensions"]
            return None
        names = ("Upgrade", "Connection", "Sec-WebSocket-Accept")
        return Response(101, "Switching Protocols", Headers({name: response.headers[name] for name in names}))

    async with serve(setting, process_response=process) as server, dial(uri(server)) as ws:
        assert ws.protocol.extensions == []
        await ws.send("x" * 1000)
        assert await ws.recv() == "x" * 1000


async def test_hooks_run_before_the_handler(setting: Setting) -> None:
    order: list[str] = []

    async def request_hook(ws: Any, request: Any) -> None:
        order.append("request")

    async def response_hook(ws: Any, request: Any, response: Any) -> None:
        order.append("response")

    async def handler(ws: Any) -> None:
        order.append("handler")

    options: dict[str, Any] = {"process_request": request_hook, "process_response": response_hook}
    async with serve(setting, handler, **options) as server:
        with await Raw.open(server) as raw:
            assert (await raw.until_close())[1] == Close(1000)
    assert order == ["request", "response", "handler"]
