"""Events of ASGI, one scenario after the other, on our implementation and on uvicorn's own: equal unless a row explains
the difference.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import socket
import struct
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
import websockets.asyncio.client as client
from websockets.exceptions import ConnectionClosed, InvalidStatus

from support.uvicorn_server import OURS, THEIRS, UvicornServer

pytestmark = pytest.mark.wirespeed_only("uvicorn has its own implementation for websockets")

App = Callable[..., Awaitable[Any]]
SAME = object()
TIMEOUT = 20

GONE = ["ClientDisconnected"]


@dataclasses.dataclass(frozen=True)
class Scenario:
    """The actions of an application and of a client, and the observations of both."""

    app: App
    client: Callable[[str], Awaitable[Any]]
    client_sees: Any
    app_sees: Any
    why: str = ""
    client_sees_theirs: Any = SAME
    app_sees_theirs: Any = SAME
    logs: tuple[str, ...] = ()
    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    # Compare close codes only.
    words_differ: bool = False


def short(event: dict[str, Any]) -> Any:
    kind = event["type"].removeprefix("websocket.")
    if kind == "receive":
        return event["text"] if event.get("text") is not None else event["bytes"]
    if kind == "disconnect":
        return (kind, event["code"], event.get("reason") or "")
    return kind


class Events:
    """Receive and send of an application, with a record of its events."""

    def __init__(self, scope: Any, receive: Any, send: Any, seen: list[Any]) -> None:
        self.scope, self._receive, self._send, self.seen = scope, receive, send, seen

    async def receive(self) -> dict[str, Any]:
        event: dict[str, Any] = await self._receive()
        self.seen.append(short(event))
        return event

    async def send(self, kind: str, **fields: Any) -> None:
        await self._send({"type": f"websocket.{kind}", **fields})

    async def try_send(self, kind: str, **fields: Any) -> None:
        """Sends; an exception is recorded."""
        try:
            await self.send(kind, **fields)
        except Exception as exc:
            self.seen.append([type(exc).__name__, *exc.args])

    async def drain(self) -> None:
        while (await self.receive())["type"] != "websocket.disconnect":
            pass


# Clients


async def ends(ws: Any) -> tuple[int, str]:
    with contextlib.suppress(ConnectionClosed):
        while True:
            await asyncio.wait_for(ws.recv(), TIMEOUT)
    return ws.close_code, ws.close_reason


async def listens(uri: str) -> Any:
    async with client.connect(uri) as ws:
        return await ends(ws)


async def is_refused(uri: str) -> Any:
    try:
        async with client.connect(uri):
            return "accepted"
    except InvalidStatus as exc:
        response = exc.response
        return response.status_code, bytes(response.body or b""), response.headers.get("X-Reason")


def closes(*arguments: Any) -> Callable[[str], Awaitable[Any]]:
    async def run(uri: str) -> Any:
        async with client.connect(uri) as ws:
            await ws.send("text")
            await ws.send(b"bytes")
            got = [await ws.recv(), await ws.recv()]
            await ws.close(*arguments)
            return got

    return run


def sends(data: bytes) -> Callable[[str], Awaitable[Any]]:
    """Opens, writes raw bytes, and records the end."""

    async def run(uri: str) -> Any:
        async with client.connect(uri, compression=None) as ws:
            ws.transport.write(data)
            return await ends(ws)

    return run


async def resets(uri: str) -> Any:
    async with client.connect(uri) as ws:
        sock = ws.transport.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        ws.transport.abort()


async def vanishes(uri: str) -> Any:
    async with client.connect(uri) as ws:
        ws.transport.close()


REQUEST = (
    "GET {path} HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n{more}\r\n"
)


def asks(more: str = "", path: str = "/", replace: tuple[str, str] = ("", ""), leave: bool = False) -> Any:
    """Sends a raw request; returns the status, and the data that follows it."""

    async def run(uri: str) -> Any:
        port = int(uri.rpartition(":")[2])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(REQUEST.format(path=path, more=more).replace(*replace).encode("latin-1"))
        try:
            if leave:
                await asyncio.sleep(0.1)
                return None
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), TIMEOUT)
            lines = head.decode("latin-1").split("\r\n")
            fields = sorted(line for line in lines if line.lower().startswith(("sec-websocket-protocol", "x-")))
            return int(lines[0].split()[1]), fields
        except asyncio.IncompleteReadError:
            return None
        finally:
            writer.close()

    return run


# Applications


async def echo(events: Events) -> None:
    await events.receive()
    await events.send("accept")
    while (event := await events.receive())["type"] == "websocket.receive":
        await events.send("send", **{key: event.get(key) for key in ("text", "bytes")})


async def accepts(events: Events) -> None:
    await events.receive()
    await events.send("accept")
    await events.drain()


async def closes_4001(events: Events) -> None:
    await events.receive()
    await events.send("accept")
    await events.send("close", code=4001, reason="enough")
    await events.receive()
    await events.try_send("send", text="more")


async def closes_without_reason(events: Events) -> None:
    await events.receive()
    await events.send("accept")
    await events.send("close", reason=None)
    await events.receive()


async def closes_before(events: Events) -> None:
    await events.receive()
    await events.send("close", code=4000)
    await events.receive()
    await events.try_send("accept")


async def denies(events: Events) -> None:
    await events.receive()
    headers = [(b"x-reason", b"no"), (b"content-type", b"text/html")]
    await events.send("http.response.start", status=401, headers=headers)
    await events.try_send("accept")
    await events.send("http.response.body", body=b"<b>", more_body=True)
    await events.send("http.response.body", body=b"no</b>")
    await events.receive()


async def denies_strangely(events: Events) -> None:
    await events.receive()
    await events.try_send("http.response.start", status=600)
    await events.send("http.response.start", status=599)
    await events.send("http.response.body", body=b"")


async def raises_in_denial(events: Events) -> None:
    await events.receive()
    await events.send("http.response.start", status=404)
    await events.send("http.response.body", body=b"not ", more_body=True)
    raise ZeroDivisionError


async def begins_wrongly(events: Events) -> None:
    await events.receive()
    await events.try_send("send", text="early")
    await events.send("accept")
    await events.try_send("accept")
    await events.send("close")


async def raises_before(events: Events) -> None:
    await events.receive()
    raise ValueError("on purpose")


async def raises_after(events: Events) -> None:
    await events.receive()
    await events.send("accept")
    raise ValueError("on purpose")


async def returns_before(events: Events) -> None:
    await events.receive()


async def returns_after(events: Events) -> None:
    await events.receive()
    await events.send("accept")
    await events.send("send", text="last")


async def returns_something(events: Events) -> int:
    await events.receive()
    await events.send("accept")
    await events.send("close")
    return 5


async def accepts_with(events: Events) -> None:
    await events.receive()
    headers = [(b"X-One", b"1"), (b"x-two", b"caf\xe9"), (b"x-two", b"2")]
    await events.send("accept", subprotocol=events.scope["subprotocols"][-1], headers=headers)
    await events.send("close")


async def accepts_by_header(events: Events) -> None:
    await events.receive()
    await events.send("accept", headers=[(b"sec-websocket-protocol", b"unasked")])
    await events.send("close")


async def injects(events: Events) -> None:
    await events.receive()
    try:
        await events.send("accept", headers=[(b"x-a", b"1\r\nx-b: 2")])
    except Exception:
        events.seen.append("refused")
        raise


async def injects_subprotocol(events: Events) -> None:
    await events.receive()
    try:
        await events.send("accept", subprotocol="a\r\nx-b: 2")
    except Exception:
        events.seen.append("refused")
        raise


async def injects_denial(events: Events) -> None:
    await events.receive()
    try:
        await events.send("http.response.start", status=400, headers=[(b"x-a", b"1\r\nx-b: 2")])
        await events.send("http.response.body", body=b"")
    except Exception:
        events.seen.append("refused")
        raise


async def sends_odd(events: Events) -> None:
    await events.receive()
    await events.send("accept")
    await events.send("send")
    await events.send("send", text=None, bytes=None)
    await events.send("send", bytes=b"", text="not this")
    await events.send("send", text="")
    await events.drain()


async def reads_odd(uri: str) -> Any:
    async with client.connect(uri) as ws:
        return [await ws.recv(), await ws.recv()]


async def sends_until_gone(events: Events) -> None:
    await events.receive()
    await events.send("accept")
    deadline = time.monotonic() + TIMEOUT
    while time.monotonic() < deadline:
        try:
            await events.send("send", bytes=bytes(100_000))
        except OSError as exc:
            events.seen.append(type(exc).__name__)
            raise
        await asyncio.sleep(0)


async def closes_wrongly(events: Events) -> None:
    await events.receive()
    await events.send("accept")
    for fields in ({"code": 999}, {"code": 1006}, {"reason": "x" * 124}):
        try:
            await events.send("close", **fields)
        except Exception as exc:
            events.seen.append(type(exc).__name__)
    await events.send("close", code=3000)


async def waits_before(events: Events) -> None:
    await events.receive()
    await events.receive()
    await events.try_send("accept")
    await events.try_send("send", text="x")


async def answers_without_connect(events: Events) -> None:
    await events.send("accept")
    await events.send("send", text="hello")
    await events.drain()


async def reads_hello(uri: str) -> Any:
    async with client.connect(uri) as ws:
        await ws.send("x")
        return await ws.recv()


MASKED = b"\0\0\0\0"
BIG = b"\x82\xfe" + (2000).to_bytes(2, "big") + MASKED + bytes(2000)
CONNECT = "connect"

# A close frame shows a client that the server has not crashed; uvicorn's own ends TCP.
CLOSE_FRAME = "we send a close frame, theirs ends TCP"
# RFC 6455, section 7.1.5.
LOST = "1005 is a close frame without a code; without any it is 1006"

SCENARIOS = {
    "echo": Scenario(
        echo, closes(), ["text", b"bytes"], [CONNECT, "text", b"bytes", ("disconnect", 1000, "")], logs=("[accepted]",)
    ),
    "client's code and reason": Scenario(
        echo, closes(3000, "bye"), ["text", b"bytes"], [CONNECT, "text", b"bytes", ("disconnect", 3000, "bye")]
    ),
    "client's close without code": Scenario(
        accepts, sends(b"\x88\x80" + MASKED), (1005, ""), [CONNECT, ("disconnect", 1005, "")]
    ),
    "app closes": Scenario(
        closes_4001,
        listens,
        (4001, "enough"),
        [
            CONNECT,
            ("disconnect", 4001, "enough"),
            ["RuntimeError", "Unexpected ASGI message 'websocket.send', after sending 'websocket.close'."],
        ],
    ),
    "app closes by default": Scenario(closes_without_reason, listens, (1000, ""), [CONNECT, ("disconnect", 1000, "")]),
    "app closes before accept": Scenario(
        closes_before,
        is_refused,
        (403, b"", None),
        [
            CONNECT,
            ("disconnect", 1006, ""),
            ["RuntimeError", "Unexpected ASGI message 'websocket.accept', after sending 'websocket.close'."],
        ],
        logs=('"WebSocket /" 403',),
    ),
    "denial": Scenario(
        denies,
        is_refused,
        (401, b"<b>no</b>", "no"),
        [
            CONNECT,
            ["RuntimeError", "Expected ASGI message 'websocket.http.response.body' but got 'websocket.accept'."],
            ("disconnect", 1006, ""),
        ],
        logs=('"WebSocket /" 401',),
    ),
    "denial with a strange status": Scenario(
        denies_strangely,
        is_refused,
        (599, b"", None),
        [CONNECT, ["RuntimeError", "Invalid HTTP status code '600' in response."]],
    ),
    "app raises in a denial": Scenario(
        raises_in_denial,
        asks(),
        (500, []),
        [CONNECT],
        why="nothing of the response has left; theirs answers nothing",
        client_sees_theirs=None,
        logs=("Exception in ASGI",),
    ),
    "events out of order": Scenario(
        begins_wrongly,
        listens,
        (1000, ""),
        [
            CONNECT,
            [
                "RuntimeError",
                "Expected ASGI message 'websocket.accept', 'websocket.close' "
                "or 'websocket.http.response.start' but got 'websocket.send'.",
            ],
            [
                "RuntimeError",
                "Expected ASGI message 'websocket.send' or 'websocket.close', but got 'websocket.accept'.",
            ],
        ],
    ),
    "app raises before accept": Scenario(
        raises_before, is_refused, (500, b"Internal Server Error", None), [CONNECT], logs=("Exception in ASGI",)
    ),
    "app returns before accept": Scenario(
        returns_before,
        is_refused,
        (500, b"Internal Server Error", None),
        [CONNECT],
        logs=("ASGI callable returned without completing handshake.",),
    ),
    "app raises after accept": Scenario(
        raises_after,
        listens,
        (1011, ""),
        [CONNECT],
        why=CLOSE_FRAME,
        client_sees_theirs=(1006, ""),
        logs=("Exception in ASGI application",),
    ),
    "app returns after accept": Scenario(
        returns_after, listens, (1000, ""), [CONNECT], why=CLOSE_FRAME, client_sees_theirs=(1006, "")
    ),
    "app returns something": Scenario(
        returns_something, listens, (1000, ""), [CONNECT], logs=("ASGI callable should return None, but returned '5'.",)
    ),
    "subprotocol and headers": Scenario(
        accepts_with,
        asks("Sec-WebSocket-Protocol: a, b\r\nSec-WebSocket-Protocol: c\r\n"),
        (101, ["Sec-WebSocket-Protocol: c", "x-one: 1", "x-two: 2", "x-two: caf\xe9"]),
        [CONNECT],
    ),
    "subprotocol by header": Scenario(accepts_by_header, asks(), (101, ["sec-websocket-protocol: unasked"]), [CONNECT]),
    "header injection": Scenario(injects, asks(), (500, []), [CONNECT, "refused"]),
    "subprotocol injection": Scenario(injects_subprotocol, asks(), (500, []), [CONNECT, "refused"]),
    "header injection in a denial": Scenario(
        injects_denial,
        asks(),
        (500, []),
        [CONNECT, "refused"],
        why="theirs finds it when the status was taken, and answers nothing",
        client_sees_theirs=None,
    ),
    "odd messages": Scenario(sends_odd, reads_odd, [b"", ""], [CONNECT, ("disconnect", 1000, "")]),
    "too large": Scenario(
        accepts,
        sends(BIG),
        1009,
        [CONNECT, ("disconnect", 1009)],
        words_differ=True,
        options={"ws_max_size": 1000},
    ),
    "no UTF-8": Scenario(
        accepts, sends(b"\x81\x81" + MASKED + b"\xff"), 1007, [CONNECT, ("disconnect", 1007)], words_differ=True
    ),
    "no mask": Scenario(accepts, sends(b"\x81\x01a"), 1002, [CONNECT, ("disconnect", 1002)], words_differ=True),
    "client resets": Scenario(
        accepts,
        resets,
        None,
        [CONNECT, ("disconnect", 1006, "")],
        why=LOST,
        app_sees_theirs=[CONNECT, ("disconnect", 1005, "")],
    ),
    "client vanishes": Scenario(
        accepts,
        vanishes,
        None,
        [CONNECT, ("disconnect", 1006, "")],
        why=LOST,
        app_sees_theirs=[CONNECT, ("disconnect", 1005, "")],
    ),
    "client resets while app sends": Scenario(sends_until_gone, resets, None, [CONNECT, "ClientDisconnected"]),
    "client leaves before the answer": Scenario(
        waits_before, asks(leave=True), None, [CONNECT, ("disconnect", 1006, ""), GONE, GONE]
    ),
    "app answers at once": Scenario(
        answers_without_connect, reads_hello, "hello", [CONNECT, "x", ("disconnect", 1000, "")]
    ),
    "bad close codes": Scenario(closes_wrongly, listens, (3000, ""), [CONNECT, *3 * ["ProtocolError"]]),
    "no key": Scenario(accepts, asks(replace=("Sec-WebSocket-Key", "X-Key")), (400, []), []),
    "bad key": Scenario(accepts, asks(replace=("dGhl", "!")), (400, []), []),
    "other version": Scenario(
        accepts,
        asks(replace=("Version: 13", "Version: 12")),
        (426, []),
        [],
        why="RFC 6455 4.4",
        client_sees_theirs=(400, []),
    ),
    "other method": Scenario(accepts, asks(replace=("GET", "POST")), (405, []), []),
}


def outcome(scenario: Scenario, implementation: str, **options: Any) -> tuple[Any, list[Any]]:
    seen: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> Any:
        return await scenario.app(Events(scope, receive, send, seen))

    async def run(uri: str) -> Any:
        return await asyncio.wait_for(scenario.client(uri), TIMEOUT)

    with UvicornServer(app, ws=implementation, lifespan="off", **{**scenario.options, **options}) as server:
        sees = asyncio.run(run(server.uri))
        deadline = time.monotonic() + TIMEOUT
        while (server.tasks or server.connections) and time.monotonic() < deadline:
            time.sleep(0.002)
        assert (server.connections, server.tasks) == (0, 0)
    return sees, seen


def check(scenario: Scenario, sees: Any, seen: list[Any], *, ours: bool) -> None:
    client_sees, app_sees = scenario.client_sees, scenario.app_sees
    if not ours:
        client_sees = client_sees if scenario.client_sees_theirs is SAME else scenario.client_sees_theirs
        app_sees = app_sees if scenario.app_sees_theirs is SAME else scenario.app_sees_theirs
    if scenario.words_differ:
        sees, seen = sees[0], [event if event == CONNECT else event[:2] for event in seen]
    assert (sees, seen) == (client_sees, app_sees)


@pytest.fixture(autouse=True)
def _all_logs(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    with caplog.at_level(logging.INFO, "uvicorn.error"):
        yield


@pytest.mark.parametrize("implementation", [OURS, THEIRS], ids=["ours", "theirs"])
@pytest.mark.parametrize("name", SCENARIOS)
def test_scenario(name: str, implementation: str, caplog: pytest.LogCaptureFixture) -> None:
    scenario = SCENARIOS[name]
    sees, seen = outcome(scenario, implementation)
    check(scenario, sees, seen, ours=implementation == OURS)
    for text in scenario.logs:
        assert text in caplog.text
    raises = "refused" in seen or name.startswith("app raises")
    assert ("Exception in ASGI application" in caplog.text) == raises
    if implementation == OURS:
        assert ("Traceback" in caplog.text) == raises


@pytest.mark.parametrize("setting", ["asyncio-httptools", "uvloop-h11", "uvloop-httptools"])
@pytest.mark.parametrize("name", SCENARIOS)
def test_scenario_on(name: str, setting: str) -> None:
    loop, http = setting.split("-")
    scenario = SCENARIOS[name]
    sees, seen = outcome(scenario, OURS, loop=loop, http=http)
    check(scenario, sees, seen, ours=True)
