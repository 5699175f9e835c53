"""The server over TLS: its own and that of the standard library, certificates of clients, new certificates."""

from __future__ import annotations

import asyncio
import os
import ssl
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from support.asyncio_tools import Setting, soon
from support.certificates import Certificates
from support.checks import within
from support.connecting import Connect
from support.frames import CLOSE, TEXT, close
from support.serving import dial, echo, idle, logged, masked, request, serve, uri
from support.subject import IS_WIRESPEED, exceptions
from support.tls_settings import Settings

pytestmark = pytest.mark.wirespeed_only("the server is ours")

if IS_WIRESPEED:
    from wirespeed import TLS


# Exceptions of a client that is refused inside TLS.
REFUSED = (ssl.SSLError, OSError, EOFError, exceptions.InvalidHandshake)

LARGE = os.urandom(1000) * 3000


def server_side(kind: str, certificates: Certificates, *, client: bool = False, **options: Any) -> Any:
    """Settings of a server, of either kind, with the good certificate."""
    if kind == "context":
        return certificates.server_context(client_required=client)
    cert, key = certificates.server_files()
    if client:
        options["ca"] = certificates.ca_file
    return TLS(cert=cert, key=key, **options)


async def peer_of(server: Any, **options: Any) -> ssl.SSLObject:
    """Makes a TLS handshake, and returns the negotiated parameters."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    if "alpn" in options:
        context.set_alpn_protocols(options["alpn"])
    if "version" in options:
        context.minimum_version = context.maximum_version = options["version"]
    host, port = server.sockets[0].getsockname()
    _, writer = await asyncio.wait_for(asyncio.open_connection(host, port, ssl=context), 5)
    found: ssl.SSLObject = writer.get_extra_info("ssl_object")
    writer.transport.abort()
    return found


async def certificate_of(server: Any) -> bytes:
    return (await peer_of(server)).getpeercert(binary_form=True) or b""


def der(leaf: Any) -> bytes:
    pem: bytes = leaf.cert_chain_pems[0].bytes()
    return x509.load_pem_x509_certificate(pem).public_bytes(Encoding.DER)


# Messages


@pytest.mark.parametrize("message", ["hé", b"", LARGE], ids=["text", "empty", "3MB"])
@pytest.mark.no_leaks
async def test_echo(
    setting: Setting, connect: Connect, certificates: Certificates, tls: Settings, message: Any
) -> None:
    """Each of the two implementations on the server, against the other on the client."""
    other = Settings("context" if tls.kind == "native" else "native", certificates)
    async with serve(setting, max_size=None, ssl=server_side(tls.kind, certificates)) as server:
        where = uri(server, scheme="wss", host="localhost")
        for opening in (
            connect(where, ssl=tls.trusting(), max_size=None),
            connect(where, ssl=other.trusting(), max_size=None),
            dial(where, ssl=certificates.client_context()),
        ):
            async with opening as ws:
                for _ in range(3):
                    await ws.send(message)
                    assert await ws.recv() == message
            assert ws.close_code == 1000


@pytest.mark.no_leaks
async def test_many(setting: Setting, connect: Connect, certificates: Certificates, tls: Settings) -> None:
    async def use(server: Any, number: int) -> None:
        async with connect(uri(server, scheme="wss", host="localhost"), ssl=tls.trusting()) as ws:
            for turn in range(20):
                await ws.send(f"{number} {turn}" * 50)
            for turn in range(20):
                assert await ws.recv() == f"{number} {turn}" * 50

    async with serve(setting, ssl=server_side(tls.kind, certificates)) as server:
        await asyncio.gather(*[use(server, number) for number in range(20)])


@pytest.mark.no_leaks
async def test_request_and_frames_at_once(setting: Setting, certificates: Certificates, tls: Settings) -> None:
    """In one record."""
    async with serve(setting, ssl=server_side(tls.kind, certificates)) as server:
        host, port = server.sockets[0].getsockname()
        context = certificates.client_context()
        reader, writer = await asyncio.open_connection(host, port, ssl=context, server_hostname="localhost")
        writer.write(request() + masked(TEXT, b"x") + masked(CLOSE, close(1000)[2:]))
        data = await asyncio.wait_for(reader.read(), 5)
        assert data.startswith(b"HTTP/1.1 101 ")
        assert data.endswith(b"\r\n\r\n\x81\x01x" + close(1000))
        writer.close()


@pytest.mark.no_leaks
async def test_client_disappears(
    setting: Setting, caplog: pytest.LogCaptureFixture, certificates: Certificates, tls: Settings
) -> None:
    codes: list[int] = []

    async def handler(ws: Any) -> None:
        try:
            await ws.recv()
        finally:
            codes.append(ws.close_code)

    async with serve(setting, handler, ssl=server_side(tls.kind, certificates)) as server:
        host, port = server.sockets[0].getsockname()
        context = certificates.client_context()
        reader, writer = await asyncio.open_connection(host, port, ssl=context, server_hostname="localhost")
        writer.write(request())
        await reader.readuntil(b"\r\n\r\n")
        writer.transport.abort()
        await soon(lambda: codes)
    assert codes == [1006]
    assert logged(caplog) == []


# Versions and ALPN


@pytest.mark.parametrize("version", ["1.2", "1.3"])
@pytest.mark.no_leaks
async def test_versions(setting: Setting, certificates: Certificates, version: str) -> None:
    known = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}
    tls = server_side("native", certificates, minimum_version=version, maximum_version=version)
    async with serve(setting, ssl=tls) as server:
        assert (await peer_of(server, version=known[version])).version() == f"TLSv{version}"
        with pytest.raises(REFUSED):
            await peer_of(server, version=known["1.2" if version == "1.3" else "1.3"])


@pytest.mark.parametrize("kind", ["native", "context"])
async def test_alpn(setting: Setting, certificates: Certificates, kind: str) -> None:
    options: dict[str, Any] = {"alpn": ["http/1.1"]} if kind == "native" else {}
    tls = server_side(kind, certificates, **options)
    if kind == "context":
        tls.set_alpn_protocols(["http/1.1"])
    async with serve(setting, ssl=tls) as server:
        assert (await peer_of(server, alpn=["h2", "http/1.1"])).selected_alpn_protocol() == "http/1.1"
        assert (await peer_of(server)).selected_alpn_protocol() is None


# Certificates of clients


@pytest.mark.no_leaks
async def test_client_certificate(
    setting: Setting, connect: Connect, certificates: Certificates, tls: Settings
) -> None:
    async with serve(setting, ssl=server_side(tls.kind, certificates, client=True)) as server:
        where = uri(server, scheme="wss", host="localhost")
        async with connect(where, ssl=tls.with_certificate()) as ws:
            await ws.send("x")
            assert await ws.recv() == "x"


@pytest.mark.parametrize("which", ["missing", "strange"])
@pytest.mark.no_leaks
async def test_client_certificate_is_wrong(
    setting: Setting,
    connect: Connect,
    caplog: pytest.LogCaptureFixture,
    certificates: Certificates,
    tls: Settings,
    which: str,
) -> None:
    caplog.set_level("INFO", "wirespeed.server")
    handled: list[Any] = []

    async def handler(ws: Any) -> None:
        handled.append(ws)

    async with serve(setting, handler, ssl=server_side(tls.kind, certificates, client=True)) as server:
        settings = tls.trusting() if which == "missing" else tls.with_strange_certificate()
        with pytest.raises(REFUSED), within(4):
            await connect(uri(server, scheme="wss", host="localhost"), ssl=settings)
        await soon(lambda: not server._tasks)
    assert handled == []
    assert logged(caplog) == []
    [record] = [record for record in caplog.records if "handshake failed" in record.getMessage()]
    assert not record.exc_info


async def test_client_certificate_is_not_asked_for(
    setting: Setting, connect: Connect, certificates: Certificates
) -> None:
    """With ``ca`` and ``verify=False``."""
    tls = server_side("native", certificates, client=True, verify=False)
    async with serve(setting, ssl=tls) as server:
        where = uri(server, scheme="wss", host="localhost")
        async with connect(where, ssl=Settings("native", certificates).trusting()) as ws:
            await ws.send("x")
            assert await ws.recv() == "x"


# New certificates


def _files(folder: Path, leaf: Any) -> tuple[str, str]:
    cert, key = folder / "cert.pem", folder / "key.pem"
    cert.write_bytes(b"".join(blob.bytes() for blob in leaf.cert_chain_pems))
    key.write_bytes(leaf.private_key_pem.bytes())
    return str(cert), str(key)


@pytest.mark.no_leaks
async def test_reload_files(setting: Setting, connect: Connect, certificates: Certificates, tmp_path: Path) -> None:
    """As after a renewal: open connections stay open."""
    first, second = (certificates.ca.issue_cert("localhost") for _ in range(2))
    cert, key = _files(tmp_path, first)
    async with serve(setting, ssl=TLS(cert=cert, key=key)) as server:
        where = uri(server, scheme="wss", host="localhost")
        async with connect(where, ssl=TLS(ca=certificates.ca_file)) as ws:
            assert await certificate_of(server) == der(first)
            _files(tmp_path, second)
            assert await certificate_of(server) == der(first)
            server.reload_ssl()
            assert await certificate_of(server) == der(second)
            await ws.send("still here")
            assert await ws.recv() == "still here"
            server.reload_ssl()
            assert await certificate_of(server) == der(second)


@pytest.mark.parametrize("wrong", ["missing", "garbage", "other-key", "no-cert", "type", "empty"])
async def test_reload_fails(setting: Setting, certificates: Certificates, tmp_path: Path, wrong: str) -> None:
    """The old certificates stay in use."""
    leaf = certificates.ca.issue_cert("localhost")
    cert, key = _files(tmp_path, leaf)
    expected: Any = (ValueError, ssl.SSLError)
    async with serve(setting, ssl=TLS(cert=cert, key=key)) as server:
        arguments: tuple[Any, ...] = ()
        if wrong == "missing":
            Path(cert).unlink()
            expected = FileNotFoundError
        elif wrong == "garbage":
            Path(cert).write_text("garbage")
        elif wrong == "other-key":
            Path(key).write_bytes(certificates.ca.issue_cert("localhost").private_key_pem.bytes())
        elif wrong == "no-cert":
            arguments = (TLS(ca=certificates.ca_file),)
        elif wrong == "empty":
            Path(key).write_text("")
        else:
            arguments, expected = ("cert.pem",), TypeError
        with pytest.raises(expected):
            server.reload_ssl(*arguments)
        assert await certificate_of(server) == der(leaf)
        if not arguments:
            # Reloading can be repeated.
            _files(tmp_path, leaf)
            server.reload_ssl()


async def test_reload_with_other_settings(setting: Setting, certificates: Certificates) -> None:
    """From one kind to the other, and back."""
    leaf = certificates.ca.issue_cert("localhost")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    leaf.configure_cert(context)
    native = server_side("native", certificates)
    async with serve(setting, ssl=native) as server:
        server.reload_ssl(context)
        assert await certificate_of(server) == der(leaf)
        with pytest.raises(TypeError, match="load_cert_chain"):
            server.reload_ssl()
        server.reload_ssl(native)
        assert await certificate_of(server) == der(certificates.server)


async def test_context_reloads_itself(setting: Setting, certificates: Certificates, tmp_path: Path) -> None:
    context = certificates.server_context()
    leaf = certificates.ca.issue_cert("localhost")
    cert, key = _files(tmp_path, leaf)
    async with serve(setting, ssl=context) as server:
        assert await certificate_of(server) == der(certificates.server)
        context.load_cert_chain(cert, key)
        assert await certificate_of(server) == der(leaf)


async def test_reload_without_tls(setting: Setting, certificates: Certificates) -> None:
    async with serve(setting) as server:
        for arguments in ((), (server_side("native", certificates),)):
            with pytest.raises(TypeError, match="no TLS"):
                server.reload_ssl(*arguments)


# Closing


@pytest.mark.no_leaks
async def test_close(setting: Setting, connect: Connect, certificates: Certificates, tls: Settings) -> None:
    async with serve(setting, idle, ssl=server_side(tls.kind, certificates)) as server:
        ws = await connect(uri(server, scheme="wss", host="localhost"), ssl=tls.trusting())
        other = await dial(uri(server, scheme="wss", host="localhost"), ssl=certificates.client_context())
        server.close(reason="bye")
        with within(3):
            await server.wait_closed()
        await ws.wait_closed()
        await other.wait_closed()
        assert [(peer.close_code, peer.close_reason) for peer in (ws, other)] == [(1001, "bye")] * 2


@pytest.mark.no_leaks
async def test_process_request_over_tls(setting: Setting, certificates: Certificates, tls: Settings) -> None:
    async def process(ws: Any, request: Any) -> Any:
        await asyncio.sleep(0)
        return ws.respond(404, "x" * 300_000)

    async with serve(setting, echo, process_request=process, ssl=server_side(tls.kind, certificates)) as server:
        host, port = server.sockets[0].getsockname()
        context = certificates.client_context()
        reader, writer = await asyncio.open_connection(host, port, ssl=context, server_hostname="localhost")
        writer.write(request())
        data = await asyncio.wait_for(reader.read(), 5)
        assert data.startswith(b"HTTP/1.1 404 ")
        assert data.endswith(b"\r\n\r\n" + b"x" * 300_000)
        writer.close()
