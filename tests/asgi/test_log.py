"""Log records below INFO: those of uvicorn's own implementation, with the client's name, and without secrets."""

from __future__ import annotations

import asyncio
import logging
import re
import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest
import websockets.asyncio.client as client
from websockets.typing import Subprotocol

from support.uvicorn_server import OURS, THEIRS, UvicornServer

pytestmark = pytest.mark.wirespeed_only("uvicorn has its own implementation for websockets")

TIMEOUT = 20
TRACE = 5
SECRETS = {"query": "q-secret", "subprotocol": "s-secret", "cookie": "c-secret", "authorization": "a-secret"}


async def app(scope: Any, receive: Any, send: Any) -> None:
    await receive()
    if scope["path"] == "/no":
        await send({"type": "websocket.http.response.start", "status": 401, "headers": [(b"set-cookie", b"c-secret")]})
        await send({"type": "websocket.http.response.body", "body": b"who?"})
        return
    await send({"type": "websocket.accept", "subprotocol": scope["subprotocols"][-1]})
    while (event := await receive())["type"] == "websocket.receive":
        if scope["path"] == "/late":
            await asyncio.sleep(0.1)
        await send({"type": "websocket.send", **{key: event[key] for key in ("text", "bytes") if event.get(key)}})


async def talk(uri: str) -> None:
    headers = {"Cookie": SECRETS["cookie"], "Authorization": SECRETS["authorization"]}
    async with client.connect(
        f"{uri}/room?token={SECRETS['query']}",
        subprotocols=[Subprotocol("chat"), Subprotocol(SECRETS["subprotocol"])],
        additional_headers=headers,
        user_agent_header=None,
    ) as ws:
        for message in ("hello", "\xe9\n", b"\x00\x01\xff", b"text"):
            await ws.send(message)
            assert await ws.recv() == message
        await (await ws.ping(b"\x00ping"))
        await ws.pong(b"unasked")
        await ws.close(4001, "bye")


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    with caplog.at_level(TRACE, "uvicorn.error"):
        yield caplog


def lines(log: pytest.LogCaptureFixture) -> list[tuple[int, str]]:
    return [(record.levelno, record.getMessage()) for record in log.records if record.name == "uvicorn.error"]


def run(uri: str) -> None:
    asyncio.run(asyncio.wait_for(talk(uri), TIMEOUT))


def test_a_session(log: pytest.LogCaptureFixture) -> None:
    """All records of uvicorn's own for a session, except secrets, intermediate states, and changing values."""
    found = []
    for implementation in (OURS, THEIRS):
        log.clear()
        # The level is that of the fixture: uvicorn sets the one that it is given.
        with UvicornServer(app, ws=implementation, lifespan="off", log_level="trace") as server:
            run(server.uri)
        texts = []
        for level, line in lines(log):
            text = re.sub(r"^127\.0\.0\.1:\d+ - ", "", line)
            assert implementation == THEIRS or level == logging.INFO or text != line, "it says not whose it is"
            if not text.startswith(("= ", "connection open", "> EOF", "> date:", "< host:", "Uvicorn running")):
                texts.append((level, text))
        found.append(texts)
    ours, theirs = found
    for name, value in (
        ("< sec-websocket-protocol", f"chat, {SECRETS['subprotocol']}"),
        ("> Sec-WebSocket-Protocol", SECRETS["subprotocol"]),
        ("< cookie", SECRETS["cookie"]),
        ("< authorization", SECRETS["authorization"]),
    ):
        theirs[theirs.index((logging.DEBUG, f"{name}: {value}"))] = (logging.DEBUG, f"{name}: ***")
    theirs = [(level, text.replace(f"?token={SECRETS['query']}", "?***")) for level, text in theirs]
    varies = re.compile(r"(?<=sec-websocket-key: ).*|(?<=Sec-WebSocket-Accept: ).*")
    for texts in (ours, theirs):
        texts[:] = [(level, varies.sub("", text)) for level, text in texts]
    assert sorted(ours) == sorted(theirs)
    # Records are in the order of events, except that uvicorn's own has the request before the connection.
    assert [text for _, text in ours if text[0] in "<>"] == [text for _, text in theirs if text[0] in "<>"]


def test_no_debug_records_at_info(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "uvicorn.error"), UvicornServer(app, lifespan="off") as server:
        run(server.uri)
    ours = [line for _, line in lines(caplog) if "127.0.0.1" in line and "running" not in line]
    assert len(ours) == 1
    assert re.fullmatch(r'127\.0\.0\.1:\d+ - "WebSocket /room\?\*\*\*" \[accepted\]', ours[0])


def test_no_secrets(log: pytest.LogCaptureFixture) -> None:
    with UvicornServer(app, lifespan="off", log_level="trace") as server:
        run(server.uri)
        with pytest.raises(Exception, match="401"):
            asyncio.run(talk_to_nobody(f"{server.uri}/no?{SECRETS['query']}"))
    text = "\n".join(line for _, line in lines(log))
    assert "= connection is CLOSED" in text
    assert "> HTTP/1.1 401 Unauthorized" in text
    for secret in SECRETS.values():
        assert secret not in text


async def talk_to_nobody(uri: str) -> None:
    async with client.connect(uri, subprotocols=[Subprotocol(SECRETS["subprotocol"])]):
        pass


REQUEST = (
    b"GET %s HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Protocol: a\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n%s\r\n"
)


def session(data: bytes, more: bytes = b"", path: bytes = b"/") -> None:
    with (
        UvicornServer(app, lifespan="off", log_level="debug") as server,
        socket.create_connection(server.address) as sock,
    ):
        sock.settimeout(TIMEOUT)
        sock.sendall(REQUEST % (path, more))
        head = b""
        while b"\r\n\r\n" not in head:
            head += sock.recv(1)
        sock.sendall(data)
        while sock.recv(65536):
            pass
        deadline = time.monotonic() + TIMEOUT
        while server.tasks and time.monotonic() < deadline:
            time.sleep(0.005)


def test_long_messages(log: pytest.LogCaptureFixture) -> None:
    session(b"\x81\xfe\x01\x2c" + bytes(4) + b"x" * 300 + b"\x82\xfe\x01\x2c" + bytes(304) + b"\x88\x80" + bytes(4))
    text = "\n".join(line for _, line in lines(log))
    assert f"< TEXT '{'x' * 75}...' [300 bytes]" in text
    assert f"< BINARY {' '.join(['00'] * 24)} ... [300 bytes]" in text
    assert "< CLOSE 1005 (no status received [internal]) [0 bytes]" in text


def test_peer_data_stays_on_its_log_line(log: pytest.LogCaptureFixture) -> None:
    reason = b"a\nb"
    session(b"\x88\x85" + bytes(4) + (3000).to_bytes(2, "big") + reason, b"X-A: \xe9\x9f\xc2\x85\r\n")
    found = lines(log)
    assert any("CLOSE 3000 (registered) a\\nb [5 bytes]" in line for _, line in found)
    assert any("< x-a: " in line for _, line in found)
    assert all(line.isprintable() for _, line in found)


def test_a_long_head_is_shown_whole(log: pytest.LogCaptureFixture) -> None:
    session(b"\x88\x80" + bytes(4), b"X-Long: " + b"x" * 20_000 + b"\r\nX-Last: 1\r\n")
    found = [line for _, line in lines(log)]
    assert any(line.endswith("< x-last: 1") for line in found)
    assert all(len(line) < 600 for line in found)


def test_undeliverable_messages(log: pytest.LogCaptureFixture) -> None:
    session(b"\x81\x81" + bytes(4) + b"a" + b"\x88\x80" + bytes(4), path=b"/late")
    found = [line.partition(" - ")[2] for _, line in lines(log)]
    assert "x TEXT 'a' [1 byte] not sent: the client has closed" in found
    assert "> TEXT 'a' [1 byte]" not in found
