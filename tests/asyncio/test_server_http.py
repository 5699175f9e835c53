"""The server's answers to requests that are not for a WebSocket, or invalid."""

from __future__ import annotations

import asyncio
import logging
import ssl
from typing import Any

import pytest

from support import serving
from support.asyncio_tools import Run, Setting, soon
from support.certificates import Certificates
from support.checks import no_leaks, within
from support.frames import TEXT, Frame
from support.serving import LOGGER, ONE_OF_EACH_PORT, Raw, Reply, idle, logged, masked, serve, uri
from support.subject import IS_WIRESPEED
from support.tls_settings import Settings

pytestmark = pytest.mark.wirespeed_only("the server is ours")

if IS_WIRESPEED:
    from wirespeed import TLS

SETTINGS = ONE_OF_EACH_PORT


PLAIN = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
MANY = "".join(f"X-{number}: y\r\n" for number in range(129)).encode()


async def answer(server: Any, data: bytes) -> Reply:
    with await Raw.connect(server) as raw:
        await raw.send(data)
        return await raw.reply()


def check(reply: Reply) -> None:
    """The body is readable text that gives the reason."""
    assert reply["Content-Type"] == "text/plain; charset=utf-8"
    assert reply["Connection"] in ("close", "close, Upgrade")
    assert reply["Content-Length"] == str(len(reply.body))
    text = reply.body.decode()
    assert text.endswith("\n")
    assert len(text) > 10


# Requests that are HTTP

REFUSED: list[tuple[str, bytes, int, str]] = [
    ("plain", PLAIN, 426, "WebSocket"),
    ("post", serving.request(start="POST / HTTP/1.1"), 405, "POST"),
    ("http-1.0", serving.request(start="GET / HTTP/1.0"), 505, "1.0"),
    ("no-host", serving.request(without=("Host",)), 400, "Host"),
    ("two-hosts", serving.request("/", "Host: a", "Host: b"), 400, "Host"),
    ("bad-host", serving.request("/", "Host: a b"), 400, "Host"),
    ("no-connection", serving.request(without=("Connection",)), 426, "Connection"),
    ("no-upgrade", serving.request(without=("Upgrade",)), 426, "Upgrade"),
    ("other-upgrade", serving.request("/", "Upgrade: h2c"), 426, "h2c"),
    ("no-key", serving.request(without=("Sec-WebSocket-Key",)), 400, "Sec-WebSocket-Key"),
    ("short-key", serving.request("/", "Sec-WebSocket-Key: YQ=="), 400, "Sec-WebSocket-Key"),
    ("two-keys", serving.request("/", *[f"Sec-WebSocket-Key: {serving.KEY}"] * 2), 400, "Key"),
    ("version-8", serving.request("/", "Sec-WebSocket-Version: 8"), 426, "8"),
    ("no-version", serving.request(without=("Sec-WebSocket-Version",)), 426, "Sec-WebSocket-Version"),
    ("body", serving.request("/", "Content-Length: 5") + b"hello", 400, "body"),
    ("chunked", serving.request("/", "Transfer-Encoding: chunked") + b"0\r\n\r\n", 400, "body"),
    ("bad-protocol", serving.request("/", "Sec-WebSocket-Protocol: a b"), 400, "Sec-WebSocket-Protocol"),
    ("bad-extension", serving.request("/", "Sec-WebSocket-Extensions: ;"), 400, "Sec-WebSocket-Extensions"),
    ("asterisk", serving.request(start="GET * HTTP/1.1"), 400, "*"),
]  # fmt: skip


@pytest.mark.parametrize(("data", "status", "words"), [row[1:] for row in REFUSED], ids=[row[0] for row in REFUSED])
@pytest.mark.no_leaks
@pytest.mark.within(4)
async def test_refused(
    setting: Setting, caplog: pytest.LogCaptureFixture, data: bytes, status: int, words: str
) -> None:
    caplog.set_level(logging.INFO, LOGGER)
    async with serve(setting, idle) as server:
        reply = await answer(server, data)
        assert reply.status == status, reply
        check(reply)
        assert words.lower() in reply.body.decode().lower()
        assert reply["Date"] is not None
        assert reply["Server"] is not None
        assert server.connections == set()
    assert sum("refused" in text or "failed" in text for text in logged(caplog, logging.INFO)) == 1
    assert logged(caplog) == []


@pytest.mark.parametrize(("data", "status"), [row[1:3] for row in REFUSED], ids=[row[0] for row in REFUSED])
@pytest.mark.no_leaks
async def test_hook_runs_before_the_refusal(setting: Setting, data: bytes, status: int) -> None:
    """The hook may answer requests that would be refused, but cannot accept them by changing the request."""

    def answers(ws: Any, request: Any) -> Any:
        return ws.respond(200, "here I am\n")

    def mends(ws: Any, request: Any) -> None:
        for name in list(request.headers):
            del request.headers[name]
        for line in serving.request().decode().split("\r\n")[1:-2]:
            name, value = line.split(": ", 1)
            request.headers[name] = value

    async with serve(setting, idle, process_request=answers) as server:
        assert (await answer(server, data)).status == 200
    async with serve(setting, idle, process_request=mends) as server:
        assert (await answer(server, data)).status == status


UNSEEN: list[tuple[str, bytes, int]] = [
    ("garbage", b"garbage\r\n\r\n", 400),
    ("http-2", serving.request(start="GET / HTTP/2.0"), 505),
    ("first-line", serving.request("/" + "x" * 2**14), 414),
    ("head", serving.request("/", "X: " + "x" * 2**14), 431),
    ("headers", b"GET / HTTP/1.1\r\n" + MANY + b"\r\n", 431),
]


@pytest.mark.parametrize(("data", "status"), [row[1:] for row in UNSEEN], ids=[row[0] for row in UNSEEN])
@pytest.mark.no_leaks
async def test_hook_is_not_called(setting: Setting, data: bytes, status: int) -> None:
    def process_request(ws: Any, request: Any) -> None:
        pytest.fail("it is asked")

    async with serve(setting, idle, process_request=process_request) as server:
        assert (await answer(server, data)).status == status


async def test_hint_for_browsers(setting: Setting) -> None:
    """A browser that opens the address gets an explanation; a client gets the version that it should use."""
    async with serve(setting, idle) as server:
        reply = await answer(server, PLAIN)
        assert reply["Upgrade"] == "websocket"
        assert reply["Connection"] == "close, Upgrade"
        assert b"ebSocket" in reply.body
        reply = await answer(server, serving.request("/", "Sec-WebSocket-Version: 7"))
        assert reply["Sec-WebSocket-Version"] == "13"


@pytest.mark.no_leaks
async def test_head(setting: Setting) -> None:
    """No body, but the length of that of GET."""
    async with serve(setting, idle) as server:
        reply = await answer(server, b"HEAD / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert reply.status == 405
        assert reply.body == b""
        assert int(reply["Content-Length"] or "") > 0


async def test_keys_in_any_case(setting: Setting) -> None:
    """Field names, and the tokens of Upgrade and Connection, are case-insensitive; more tokens are allowed."""
    data = (
        b"GET / HTTP/1.1\r\nHOST: x\r\nupgrade: foo, WebSocket\r\nConnection: keep-alive\r\nCONNECTION: UPGRADE\r\n"
        b"sec-websocket-key: %s\r\nsec-WEBSOCKET-version: 13\r\n\r\n" % serving.KEY.encode()
    )
    async with serve(setting) as server:
        with await Raw.connect(server) as raw:
            await raw.send(data)
            reply = await raw.head()
            assert reply.status == 101
            assert reply["Sec-WebSocket-Accept"] == "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="
            await raw.send(masked(TEXT, b"x"))
            assert await raw.frame() == Frame(TEXT, b"x", masked=False)


# Invalid or too many bytes

GARBAGE: list[tuple[str, bytes, int]] = [
    ("bytes", b"\x00\xff\x01\xfe" * 10 + b"\r\n\r\n", 400),
    ("text", b"hello, are you there?\r\n\r\n", 400),
    ("redis", b"*1\r\n$4\r\nPING\r\n\r\n", 400),
    ("ssh", b"SSH-2.0-OpenSSH_9.9\r\n", 400),
    ("http2", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505),
    ("http3", b"GET / HTTP/3.0\r\nHost: x\r\n\r\n", 505),
    ("bare-lf", b"GET / HTTP/1.1\nHost: x\n\n", 400),
    ("folded", serving.request("/", "X: a\r\n b"), 400),
    ("space-before-colon", serving.request("/", "X : a"), 400),
    ("no-colon", serving.request("/", "X"), 400),
    ("nul", serving.request("/", "X: a\x00b"), 400),
    ("long-target", b"GET /" + b"a" * 20_000 + b" HTTP/1.1\r\n\r\n", 414),
    ("long-field", serving.request("/", "X: " + "a" * 20_000), 431),
    ("endless", b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 3, 0),
    ("many-fields", PLAIN[:-2] + MANY + b"\r\n", 431),
]


@pytest.mark.parametrize(("data", "status"), [row[1:] for row in GARBAGE], ids=[row[0] for row in GARBAGE])
def test_garbage(setting: Setting, run: Run, caplog: pytest.LogCaptureFixture, data: bytes, status: int) -> None:
    """Garbage is answered as soon as it is detected, although the client keeps the connection open."""

    async def main() -> None:
        async with serve(setting, idle, open_timeout=0.2 if status == 0 else 5) as server:
            with await Raw.connect(server) as raw:
                await raw.send(data)
                if status == 0:
                    assert await raw.rest() == b""
                    return
                reply = await raw.reply()
                assert reply.status == status, reply
                check(reply)

    with caplog.at_level(logging.INFO, LOGGER), no_leaks(), within(5):
        run(main)
    assert len([text for text in logged(caplog, logging.INFO) if "handshake failed" in text]) == 1
    assert logged(caplog) == []


@pytest.mark.parametrize("name", ["Date", "Server"])
async def test_fields_of_refused_garbage(setting: Setting, name: str) -> None:
    async with serve(setting, idle) as server:
        assert (await answer(server, b"garbage\r\n\r\n"))[name] is not None


@pytest.mark.no_leaks
@pytest.mark.within(6)
async def test_endless_head(setting: Setting) -> None:
    """Reading from a client that never stops is limited."""
    async with serve(setting, idle) as server:
        with await Raw.connect(server) as raw, pytest.raises(ConnectionError):
            while True:
                await raw.send(b"a" * 65536)
                await asyncio.sleep(0.01)
        await soon(lambda: not server._tasks)


@pytest.mark.no_leaks
@pytest.mark.within(8)
async def test_flood_behind_a_refused_request(setting: Setting) -> None:
    """The client receives the reason, although it has sent more than the request."""
    async with serve(setting, idle) as server:
        with await Raw.connect(server) as raw:
            await raw.send(PLAIN + b"a" * 500_000)
            reply = await raw.reply()
            assert reply.status == 426
            check(reply)


@pytest.mark.no_leaks
@pytest.mark.within(8)
async def test_garbage_with_a_tail(setting: Setting) -> None:
    async with serve(setting, idle) as server:
        with await Raw.connect(server) as raw:
            await raw.send(b"garbage\r\n\r\n" + b"a" * 500_000)
            reply = await raw.reply()
            assert reply.status == 400
            check(reply)


# The wrong port


@pytest.mark.no_leaks
@pytest.mark.within(8)
async def test_tls_to_a_plain_port(setting: Setting, caplog: pytest.LogCaptureFixture) -> None:
    async with serve(setting, idle) as server:
        host, port = server.sockets[0].getsockname()
        with pytest.raises((ssl.SSLError, OSError)):
            await asyncio.wait_for(asyncio.open_connection(host, port, ssl=ssl.create_default_context()), 5)
        await soon(lambda: not server._tasks)
    [text] = logged(caplog)
    assert "TLS" in text
    assert "ws://" in text
    assert "ssl=" in text


@pytest.mark.parametrize("data", [PLAIN, serving.request(), b"HEAD / HTTP/1.0\r\n\r\n"], ids=["get", "ws", "head"])
@pytest.mark.parametrize("kind", ["native", "context"])
@pytest.mark.no_leaks
@pytest.mark.within(5)
async def test_plain_http_to_a_tls_port(
    setting: Setting, caplog: pytest.LogCaptureFixture, certificates: Certificates, kind: str, data: bytes
) -> None:
    cert, key = certificates.server_files()
    tls: Any = TLS(cert=cert, key=key) if kind == "native" else certificates.server_context()
    async with serve(setting, idle, ssl=tls) as server:
        with await Raw.connect(server) as raw:
            await raw.send(data)
            assert b"HTTP/1.1 101" not in await raw.rest()
        await soon(lambda: not server._tasks)
    [text] = logged(caplog)
    assert "plain HTTP" in text
    assert "wss://" in text


async def test_no_hint_for_garbage(
    setting: Setting, caplog: pytest.LogCaptureFixture, certificates: Certificates
) -> None:
    cert, key = certificates.server_files()
    async with serve(setting, idle, ssl=TLS(cert=cert, key=key)) as server:
        with await Raw.connect(server) as raw:
            await raw.send(b"\x00garbage\r\n\r\n")
            await raw.rest()
    assert logged(caplog) == []


@pytest.mark.no_leaks
@pytest.mark.within(5)
async def test_plain_http_over_tls(setting: Setting, tls: Settings, certificates: Certificates) -> None:
    cert, key = certificates.server_files()
    tls_of_server: Any = TLS(cert=cert, key=key) if tls.kind == "native" else certificates.server_context()
    async with serve(setting, idle, ssl=tls_of_server) as server:
        host, port = server.sockets[0].getsockname()
        context = certificates.client_context()
        reader, writer = await asyncio.open_connection(host, port, ssl=context, server_hostname="localhost")
        writer.write(PLAIN)
        data = await asyncio.wait_for(reader.read(), 5)
        assert data.startswith(b"HTTP/1.1 426 ")
        writer.close()
        assert uri(server).startswith("ws://")
