"""TLS with certificates that must not be accepted, and with peers that break TLS."""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
import ssl
from collections.abc import Callable
from typing import Any

import pytest

from support.asyncio_tools import Run, cancelled, spin
from support.certificates import Certificates
from support.checks import describe, no_leaks, within
from support.connecting import Connect
from support.frames import Close, close, text
from support.scripted import Scripted, ScriptedServer, Wire
from support.servers import WebSocketsServer
from support.subject import exceptions
from support.tls_settings import Settings

# Exceptions of a handshake with a wrong certificate, for every TLS implementation.
TLS_ERRORS = (ssl.SSLError, exceptions.InvalidHandshake)
# Exceptions for a peer that does not speak TLS, or stops in the middle.
BROKEN = (*TLS_ERRORS, ConnectionError, EOFError)


# Certificates that must not be accepted


BAD = {
    "expired": ("expired_context", r"expired"),
    "not-yet-valid": ("future_context", r"not yet valid|NotValidYet"),
    "wrong-host": ("wrong_host_context", r"(?i)hostname|not valid for|name"),
    "unknown-authority": ("unknown_authority_context", r"(?i)issuer|authority|unknown ?ca|self-signed"),
    "self-signed": ("self_signed_context", r"(?i)self-signed|issuer|authority|certificate"),
}


@pytest.mark.parametrize("case", BAD.values(), ids=BAD)
def test_bad_certificate(
    certificates: Certificates, tls: Settings, run: Run, connect: Connect, case: tuple[str, str]
) -> None:
    factory, says = case
    settings = tls.trusting()

    async def main(uri: str) -> None:
        with within(8), pytest.raises(TLS_ERRORS) as raised:
            await connect(uri, ssl=settings, open_timeout=5)
        assert re.search(says, describe(raised.value)), describe(raised.value)

    with no_leaks():
        with ScriptedServer(
            lambda wire: pytest.fail("accepted"), ssl_context=getattr(certificates, factory)()
        ) as server:
            run(lambda: main(server.secure_uri))
        assert len(server.results) == 1
        assert isinstance(server.results[0], OSError)


async def test_authority_not_trusted(secure_server: WebSocketsServer, tls: Settings, connect: Connect) -> None:
    with pytest.raises(TLS_ERRORS):
        await connect(secure_server.uri, ssl=tls.trusting_system_only())
    with pytest.raises(TLS_ERRORS):
        await connect(secure_server.uri)
    with pytest.raises(TLS_ERRORS):
        await connect(secure_server.uri, ssl=tls.trusting(), server_hostname="elsewhere.example")


@pytest.mark.parametrize("check", [True, False], ids=["checking", "not-checking"])
async def test_context_is_fully_honoured(
    certificates: Certificates, scripted: Scripted, connect: Connect, check: bool
) -> None:
    """A context that does not verify is the user's decision; its callbacks and limits are the user's too."""
    context = ssl.create_default_context()
    if not check:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    context.maximum_version = ssl.TLSVersion.TLSv1_2

    def script(wire: Wire) -> Any:
        assert isinstance(wire.sock, ssl.SSLSocket)
        wire.accept()
        wire.read_until_close()
        return wire.sock.version()

    server = scripted(script, ssl_context=certificates.self_signed_context())
    if check:
        with pytest.raises(TLS_ERRORS):
            await connect(server.secure_uri, ssl=context)
    else:
        async with connect(server.secure_uri, ssl=context):
            pass
    if not check:
        assert await server.wait_result() == "TLSv1.2"


# Peers that do not speak TLS, or stop


async def test_plain_server(server: WebSocketsServer, tls: Settings, connect: Connect) -> None:
    with within(8), pytest.raises(BROKEN) as raised:
        await connect(f"wss://localhost:{server.port}/", ssl=tls.trusting(), open_timeout=5)
    assert not isinstance(raised.value, TimeoutError)


async def test_tls_server_without_tls(secure_server: WebSocketsServer, connect: Connect) -> None:
    with within(8), pytest.raises((exceptions.InvalidMessage, ConnectionError, EOFError)):
        await connect(f"ws://localhost:{secure_server.port}/", open_timeout=5)


FIRST_BYTES = {
    "closes": lambda sock: sock.recv(1),
    "closes-after-hello": lambda sock: sock.recv(65536),
    "garbage": lambda sock: (sock.recv(65536), sock.sendall(b"\x00" * 100)),
    "alert": lambda sock: (sock.recv(65536), sock.sendall(b"\x15\x03\x03\x00\x02\x02\x28")),
    "cut-server-hello": lambda sock: (sock.recv(65536), sock.sendall(b"\x16\x03\x03\x00\x7a\x02")),
}


@pytest.mark.parametrize("behave", FIRST_BYTES.values(), ids=FIRST_BYTES)
def test_broken_tls_handshake(
    tls: Settings, run: Run, connect: Connect, behave: Callable[[socket.socket], Any]
) -> None:
    settings = tls.trusting()

    async def main(uri: str) -> None:
        with within(8), pytest.raises(BROKEN) as raised:
            await connect(uri, ssl=settings, open_timeout=5)
        assert not isinstance(raised.value, TimeoutError)

    with no_leaks(), ScriptedServer(lambda wire: behave(wire.sock)) as server:
        run(lambda: main(server.secure_uri))


async def test_silent_tls_server(scripted: Scripted, tls: Settings, connect: Connect) -> None:
    server = scripted(lambda wire: wire.read_to_end())
    with within(3, at_least=0.3), pytest.raises(TimeoutError):
        await connect(server.secure_uri, ssl=tls.trusting(), open_timeout=0.3)


@pytest.mark.parametrize("answer", [False, True], ids=["silent", "half-way"])
def test_cancelled_tls_handshake(
    certificates: Certificates, tls: Settings, run: Run, connect: Connect, answer: bool
) -> None:
    """A cancelled handshake leaves no socket behind."""
    settings = tls.trusting()
    context = certificates.server_context() if answer else None

    async def main(uri: str) -> None:
        task = asyncio.ensure_future(asyncio.wait_for(connect(uri, ssl=settings), 30))
        await asyncio.sleep(0.05)
        assert await cancelled(task)
        await spin()

    with no_leaks(), ScriptedServer(Wire.read_to_end, ssl_context=context) as server:
        run(lambda: main(server.secure_uri))


def truncate(wire: Wire) -> None:
    """Ends the TCP connection without close_notify, which an attacker could do as well."""
    sock = wire.sock.detach()
    socket.close(sock)


async def test_truncated(certificates: Certificates, scripted: Scripted, tls: Settings, connect: Connect) -> None:
    def script(wire: Wire) -> None:
        wire.accept(then=text("last"))
        truncate(wire)

    server = scripted(script, ssl_context=certificates.server_context())
    ws = await connect(server.secure_uri, ssl=tls.trusting())
    assert await ws.recv() == "last"
    with pytest.raises(exceptions.ConnectionClosedError) as raised:
        await ws.recv()
    assert raised.value.rcvd is None
    assert ws.close_code == 1006
    await ws.close()


async def test_truncated_after_the_closing_handshake(
    certificates: Certificates, scripted: Scripted, tls: Settings, connect: Connect
) -> None:
    """The close frames were exchanged: nothing can be missing, and many servers end so."""

    def script(wire: Wire) -> Any:
        wire.accept(then=text("last") + close(1000))
        received = wire.read_until_close()
        truncate(wire)
        return received

    server = scripted(script, ssl_context=certificates.server_context())
    async with connect(server.secure_uri, ssl=tls.trusting()) as ws:
        assert [message async for message in ws] == ["last"]
    assert ws.close_code == 1000
    assert await server.wait_result() == ([], Close(1000))


async def test_close_notify_without_close_frame(
    certificates: Certificates, scripted: Scripted, tls: Settings, connect: Connect
) -> None:
    def script(wire: Wire) -> None:
        assert isinstance(wire.sock, ssl.SSLSocket)
        wire.accept(then=text("last"))
        wire.sock.settimeout(2)
        with contextlib.suppress(OSError, ValueError):
            wire.sock = wire.sock.unwrap()

    server = scripted(script, ssl_context=certificates.server_context())
    ws = await connect(server.secure_uri, ssl=tls.trusting())
    assert await ws.recv() == "last"
    with within(5), pytest.raises(exceptions.ConnectionClosedError):
        await ws.recv()
    await ws.close()


async def test_garbage_after_the_handshake(
    certificates: Certificates, scripted: Scripted, tls: Settings, connect: Connect
) -> None:
    """A record that cannot be decrypted."""

    def script(wire: Wire) -> None:
        wire.accept(then=text("last"))
        raw = socket.socket(fileno=wire.sock.detach())
        raw.sendall(b"\x17\x03\x03\x00\x20" + bytes(32))
        raw.settimeout(5)
        try:
            while raw.recv(65536):
                pass
        except OSError:
            pass
        raw.close()

    server = scripted(script, ssl_context=certificates.server_context())
    ws = await connect(server.secure_uri, ssl=tls.trusting(), close_timeout=1)
    assert await ws.recv() == "last"
    with pytest.raises(exceptions.ConnectionClosedError) as raised:
        await ws.recv()
    assert raised.value.rcvd is None
    await ws.close()
