"""TLS: trust, identity and client certificates."""

from __future__ import annotations

import asyncio
import socket
import ssl
from typing import Any

import pytest

from support.asyncio_tools import cancelled
from support.certificates import Certificates
from support.checks import within
from support.connecting import Connect
from support.frames import Close, close, text
from support.openssl import forget_errors, leave_error
from support.scripted import Scripted, Wire
from support.servers import Serving, WebSocketsServer
from support.subject import exceptions
from support.tls_settings import Settings

# Exceptions of a handshake with a wrong certificate, for every TLS implementation.
TLS_ERRORS = (ssl.SSLError, exceptions.InvalidHandshake)
# Exceptions for a peer that does not speak TLS, or stops in the middle.
BROKEN = (*TLS_ERRORS, ConnectionError, EOFError)


async def echo(ws: Any, message: Any = "hello") -> None:
    await ws.send(message)
    assert await ws.recv() == message


# Successful handshakes


async def test_echo(secure_server: WebSocketsServer, tls: Settings, connect: Connect) -> None:
    async with connect(secure_server.uri, ssl=tls.trusting()) as ws:
        await echo(ws)
        await echo(ws, b"\x00\xff")
        assert ws.remote_address == ("127.0.0.1", secure_server.port)
    assert ws.close_code == 1000


async def test_by_address(secure_server: WebSocketsServer, tls: Settings, connect: Connect) -> None:
    """The certificate names 127.0.0.1 as well."""
    async with connect(f"wss://127.0.0.1:{secure_server.port}/", ssl=tls.trusting()) as ws:
        await echo(ws)


async def test_settings_are_reusable(secure_server: WebSocketsServer, tls: Settings, connect: Connect) -> None:
    settings = tls.trusting()
    for _ in range(3):
        async with connect(secure_server.uri, ssl=settings) as ws:
            await echo(ws)


async def test_sizes_around_a_record(secure_server: WebSocketsServer, tls: Settings, connect: Connect) -> None:
    async with connect(secure_server.uri, ssl=tls.trusting(), compression=None) as ws:
        for size in (0, 1, 16_369, 16_370, 16_383, 16_384, 16_385, 100_000, 1 << 20):
            message = bytes(index * 7 % 256 for index in range(min(size, 4096))).ljust(size, b"\x5a")
            await echo(ws, message)


async def test_big_message_both_ways(secure_server: WebSocketsServer, tls: Settings, connect: Connect) -> None:
    message = bytes(range(256)) * 4096 * 8  # 8 MiB
    async with connect(secure_server.uri, ssl=tls.trusting(), compression=None, max_size=None) as ws:
        await echo(ws, message)


async def test_many_messages_both_ways(secure_server: WebSocketsServer, tls: Settings, connect: Connect) -> None:
    async with connect(secure_server.uri, ssl=tls.trusting(), compression=None) as ws:

        async def send() -> None:
            for number in range(300):
                await ws.send(bytes([number % 256]) * (number * 200))

        task = asyncio.ensure_future(send())
        for number in range(300):
            assert await ws.recv() == bytes([number % 256]) * (number * 200)
        await task


async def test_echo_without_reading_does_not_deadlock(
    secure_server: WebSocketsServer, tls: Settings, connect: Connect
) -> None:
    async with connect(secure_server.uri, ssl=tls.trusting(), compression=None) as ws:
        sending = [asyncio.ensure_future(ws.send(bytes(1 << 20))) for _ in range(12)]
        await asyncio.sleep(0.1)
        for _ in range(12):
            assert len(await ws.recv()) == 1 << 20
        await asyncio.gather(*sending)


async def test_cancelled_recv_loses_nothing(
    certificates: Certificates, scripted: Scripted, tls: Settings, connect: Connect
) -> None:
    message = text("x" * 1000)

    def script(wire: Wire) -> None:
        wire.accept(then=message[:500])
        server.pause()
        wire.send(message[500:] + text("next"))
        wire.read_until_close()

    server = scripted(script, ssl_context=certificates.server_context())
    async with connect(server.secure_uri, ssl=tls.trusting()) as ws:
        task = asyncio.ensure_future(ws.recv())
        await asyncio.sleep(0.1)
        assert await cancelled(task)
        server.release.set()
        assert await ws.recv() == "x" * 1000
        # Decrypted together with the first message: no byte is left on the socket that could wake a poll.
        assert await ws.recv() == "next"


async def test_error_of_another_connection(
    certificates: Certificates,
    secure_server: WebSocketsServer,
    tls: Settings,
    connect: Connect,
    request: pytest.FixtureRequest,
) -> None:
    """An error that OpenSSL keeps for this thread does not fail a read that only needs more data."""
    request.addfinalizer(forget_errors)
    async with connect(secure_server.uri, ssl=tls.trusting()) as ws:
        leave_error(certificates)
        await echo(ws, "x" * 100_000)
    assert ws.close_code == 1000


async def test_many_messages_in_one_record(
    certificates: Certificates, scripted: Scripted, tls: Settings, connect: Connect
) -> None:
    def script(wire: Wire) -> None:
        wire.accept(then=b"".join(text(str(number)) for number in range(1000)))
        wire.read_until_close()

    server = scripted(script, ssl_context=certificates.server_context())
    async with connect(server.secure_uri, ssl=tls.trusting()) as ws:
        assert [await ws.recv() for _ in range(1000)] == [str(number) for number in range(1000)]


async def test_byte_by_byte(certificates: Certificates, scripted: Scripted, tls: Settings, connect: Connect) -> None:
    """Each byte in a record of its own."""

    def script(wire: Wire) -> Any:
        wire.read_request()
        wire.send_in_pieces(wire.accept_bytes() + text("hello") + close(1000))
        return wire.read_until_close()

    server = scripted(script, ssl_context=certificates.server_context())
    async with connect(server.secure_uri, ssl=tls.trusting()) as ws:
        assert [message async for message in ws] == ["hello"]
    assert await server.wait_result() == ([], Close(1000))


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3], ids=lambda version: version.name)
async def test_versions(
    certificates: Certificates, serving: Serving, tls: Settings, connect: Connect, version: ssl.TLSVersion
) -> None:
    server = serving(ssl_context=certificates.server_context(version=version))
    async with connect(server.uri, ssl=tls.trusting()) as ws:
        await echo(ws)
        await echo(ws, bytes(100_000))


async def test_system_roots(
    secure_server: WebSocketsServer, certificates: Certificates, monkeypatch: pytest.MonkeyPatch, connect: Connect
) -> None:
    """Without ``ssl``, or with ``True``, the system's roots count, which SSL_CERT_FILE replaces."""
    monkeypatch.setenv("SSL_CERT_FILE", certificates.ca_file)
    for options in ({}, {"ssl": True}):
        async with connect(secure_server.uri, **options) as ws:
            await echo(ws)


async def test_server_hostname(certificates: Certificates, scripted: Scripted, tls: Settings, connect: Connect) -> None:
    """The given name is checked in the certificate instead of that in the address, and is sent as SNI."""
    names = []
    context = certificates.server_context()
    context.sni_callback = lambda sock, name, context: names.append(name)

    def script(wire: Wire) -> Any:
        wire.accept()
        return wire.read_until_close(), wire.header("Host")

    server = scripted(script, ssl_context=context)
    uri = f"wss://127.0.0.1:{server.port}/"
    async with connect(uri, ssl=tls.trusting(), server_hostname="localhost"):
        pass
    assert names == ["localhost"]
    assert (await server.wait_result())[1] == f"127.0.0.1:{server.port}"


async def test_existing_socket(secure_server: WebSocketsServer, tls: Settings, connect: Connect) -> None:
    sock = socket.create_connection(("127.0.0.1", secure_server.port))
    sock.setblocking(False)
    async with connect("wss://localhost/", sock=sock, ssl=tls.trusting()) as ws:
        await echo(ws)


async def test_unix(
    certificates: Certificates, serving: Serving, tls: Settings, unix_connect: Connect, tmp_path: Any
) -> None:
    path = str(tmp_path / "socket")
    serving(ssl_context=certificates.server_context(), unix_path=path)
    async with unix_connect(path, "wss://localhost/", ssl=tls.trusting()) as ws:
        await echo(ws)


# Client certificates


async def test_client_certificate(client_certificate_server: WebSocketsServer, tls: Settings, connect: Connect) -> None:
    async with connect(client_certificate_server.uri, ssl=tls.with_certificate()) as ws:
        await echo(ws)


@pytest.mark.wirespeed_only("websockets may raise ConnectionClosedError from connect")
@pytest.mark.parametrize("which", ["trusting", "with_strange_certificate"])
async def test_client_certificate_refused(
    client_certificate_server: WebSocketsServer, tls: Settings, connect: Connect, which: str
) -> None:
    """No certificate, or one of another authority. TLS 1.3 notifies the client only after its own handshake is done."""
    with within(8), pytest.raises((*BROKEN, OSError)) as raised:
        await connect(client_certificate_server.uri, ssl=getattr(tls, which)(), open_timeout=5)
    assert not isinstance(raised.value, TimeoutError)


async def test_stalled_peer(certificates: Certificates, scripted: Scripted, tls: Settings, connect: Connect) -> None:
    """send waits, and every message arrives in the end."""

    def script(wire: Wire) -> Any:
        wire.accept()
        server.pause()
        return wire.read_until_close()

    server = scripted(script, ssl_context=certificates.server_context(), receive_buffer=4096)
    async with connect(server.secure_uri, ssl=tls.trusting(), compression=None) as ws:
        tasks = [asyncio.ensure_future(ws.send(bytes([number]) * (1 << 20))) for number in range(16)]
        await asyncio.sleep(0.2)
        assert not all(task.done() for task in tasks)
        server.release.set()
        await asyncio.gather(*tasks)
    assert [frame.payload for frame in (await server.wait_result())[0]] == [
        bytes([number]) * (1 << 20) for number in range(16)
    ]


async def test_ssl_with_a_plain_uri(server: WebSocketsServer, tls: Settings, connect: Connect) -> None:
    with pytest.raises(ValueError, match="ssl"):
        await connect(server.uri, ssl=tls.trusting())
