"""TLS, with contexts of ssl, by all combinations of clients and servers."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from support.certificates import Certificates
from wirespeed import TLS
from wirespeed.compat import websockets
from wirespeed.compat.websockets._views import TransportView, socket_view, ssl_object

pytest.importorskip("websockets", minversion="17")


async def echo(ws: Any) -> None:
    async for message in ws:
        await ws.send(message)


async def test_asyncio(client: Any, server: Any, certificates: Certificates) -> None:
    async with server.asyncio.server.serve(echo, "127.0.0.1", 0, ssl=certificates.server_context()) as running:
        port = running.sockets[0].getsockname()[1]
        for address, options in (
            (f"wss://localhost:{port}", {}),
            ("wss://example.invalid", {"host": "127.0.0.1", "port": port, "server_hostname": "localhost"}),
            (f"wss://localhost:{port}", {"ssl_handshake_timeout": 5, "ssl_shutdown_timeout": 5}),
        ):
            async with client.asyncio.client.connect(address, ssl=certificates.client_context(), **options) as ws:
                await ws.send("x" * 100_000)
                assert await ws.recv() == "x" * 100_000
        with pytest.raises(ssl.SSLCertVerificationError):
            await client.asyncio.client.connect(f"wss://localhost:{port}")
        with pytest.raises(ssl.SSLCertVerificationError):
            await client.asyncio.client.connect(
                f"wss://localhost:{port}", ssl=certificates.client_context(), server_hostname="example.com"
            )


def test_server_hostname_and_redirect(client: Any, server: Any, certificates: Certificates) -> None:
    """Every host has that name, as the machines of a cluster may share a certificate."""

    def process_request(connection: Any, request: Any) -> Any:
        if request.path == "/new":
            return None
        response = connection.respond(302, "there")
        response.headers["Location"] = f"wss://localhost:{connection.local_address[1]}/new"
        return response

    async def main() -> None:
        context = certificates.wrong_host_context()
        serving = server.asyncio.server.serve(echo, "127.0.0.1", 0, ssl=context, process_request=process_request)
        async with serving as running:
            address = f"wss://127.0.0.1:{running.sockets[0].getsockname()[1]}/old"
            settings = {"ssl": certificates.client_context(), "server_hostname": "elsewhere.example"}
            async with client.asyncio.client.connect(address, **settings) as ws:
                assert ws.request.path == "/new"
            assert await asyncio.to_thread(path_of, address, settings) == "/new"

    # In a thread to its end: closing waits for the server, which runs on the loop.
    def path_of(address: str, settings: dict[str, Any]) -> str:
        with client.sync.client.connect(address, **settings) as blocking:
            return str(blocking.request.path)

    asyncio.run(asyncio.wait_for(main(), 20))


def test_threads(client: Any, server: Any, certificates: Certificates) -> None:
    def handler(ws: Any) -> None:
        for message in ws:
            ws.send(message)

    context = certificates.client_context()
    if repr(client) == "theirs":
        # websockets reads and writes one TLS connection from two threads. While one thread reads a session ticket of
        # TLS 1.3, OpenSSL counts as inside the handshake, and a write of the other thread fails or blocks.
        context.maximum_version = ssl.TLSVersion.TLSv1_2
    with server.sync.server.serve(handler, "127.0.0.1", 0, ssl=certificates.server_context()) as running:
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        address = f"wss://localhost:{running.socket.getsockname()[1]}"
        try:
            with client.sync.client.connect(address, ssl=context) as ws:
                ws.send("x" * 100_000)
                assert ws.recv() == "x" * 100_000
            with pytest.raises(ssl.SSLCertVerificationError):
                client.sync.client.connect(address)
        finally:
            running.shutdown()
            thread.join()


@pytest.mark.parametrize("kind", ["asyncio", "sync"])
async def test_advice_names_existing_arguments(certificates: Certificates, kind: str) -> None:
    async with websockets.serve(echo, "127.0.0.1", 0, ssl=certificates.server_context()) as running:
        uri = f"wss://localhost:{running.sockets[0].getsockname()[1]}"
        with pytest.raises(ssl.SSLCertVerificationError) as caught:
            if kind == "asyncio":
                await websockets.connect(uri)
            else:
                await asyncio.to_thread(websockets.sync.client.connect, uri)
    assert "ssl.SSLContext" in str(caught.value)
    assert "ca=" not in str(caught.value)
    assert "ca=" not in repr(caught.value)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_advice_for_a_server_that_requires_a_certificate(
    certificates: Certificates, monkeypatch: pytest.MonkeyPatch, version: ssl.TLSVersion
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", certificates.ca_file)
    context = certificates.server_context(client_required=True, version=version)
    async with websockets.serve(echo, "127.0.0.1", 0, ssl=context) as running:
        with pytest.raises(ssl.SSLError) as caught:
            await websockets.connect(f"wss://localhost:{running.sockets[0].getsockname()[1]}")
    assert "pass an ssl.SSLContext with one as ssl=" in str(caught.value)
    assert "cert=" not in str(caught.value)


def told(certificates: Certificates, *, cipher: str = "TLS_AES_128_GCM_SHA256", verified: bool = True) -> Any:
    """Returns the views' results for a connection with native TLS to a server."""
    pem = certificates.server.cert_chain_pems[0].bytes().decode()
    chain = (ssl.PEM_cert_to_DER_cert(pem),)
    protocol = SimpleNamespace(side=websockets.protocol.Side.CLIENT, _server_hostname="localhost")
    return SimpleNamespace(_tls=("TLSv1.3", cipher, 128, None, chain, verified), protocol=protocol, fileno=lambda: 5)


def test_native_tls_as_an_ssl_object(certificates: Certificates) -> None:
    connection = told(certificates)
    tls = ssl_object(connection)
    assert tls.version() == "TLSv1.3"
    assert tls.cipher() == ("TLS_AES_128_GCM_SHA256", "TLSv1.3", 128)
    assert tls.selected_alpn_protocol() is tls.selected_npn_protocol() is tls.compression() is None
    assert (tls.server_hostname, tls.server_side) == ("localhost", False)
    agreed = told(certificates)
    agreed._tls = (*agreed._tls[:3], "http/1.1", *agreed._tls[4:])
    assert ssl_object(agreed).selected_alpn_protocol() == "http/1.1"
    der = tls.getpeercert(binary_form=True)
    assert tls.get_unverified_chain() == [der]
    names = tls.getpeercert()["subjectAltName"]
    assert names == (("DNS", "localhost"), ("IP Address", "127.0.0.1"))
    transport = TransportView(connection)
    assert transport.get_extra_info("peercert")["subjectAltName"] == names
    assert transport.get_extra_info("cipher") == tls.cipher()
    assert socket_view(connection).getpeercert(True) == der
    assert ssl_object(told(certificates, verified=False)).getpeercert() == {}
    for owner in (tls, socket_view(connection)):
        with pytest.raises(NotImplementedError, match=r"pass one as ssl="):
            _ = owner.context
        with pytest.raises(AttributeError, match="wirespeed"):
            _ = owner.unwrap
    with pytest.raises(NotImplementedError, match=r"pass one as ssl="):
        transport.get_extra_info("sslcontext")


def test_no_certificate_of_the_other_end(certificates: Certificates) -> None:
    connection = told(certificates, verified=False)
    connection._tls = (*connection._tls[:4], (), False)
    assert ssl_object(connection).getpeercert() is ssl_object(connection).getpeercert(True) is None


def test_an_interpreter_that_parses_no_certificates(
    certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ssl, "_ssl", None)
    with pytest.raises(NotImplementedError, match="binary_form"):
        ssl_object(told(certificates)).getpeercert()


@pytest.mark.parametrize(
    ("iana", "openssl"),
    [
        ("TLS_CHACHA20_POLY1305_SHA256", "TLS_CHACHA20_POLY1305_SHA256"),
        ("TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384", "ECDHE-RSA-AES256-GCM-SHA384"),
        ("TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256", "ECDHE-ECDSA-AES128-GCM-SHA256"),
        ("TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256", "ECDHE-RSA-CHACHA20-POLY1305"),
    ],
)
def test_names_of_ciphers(certificates: Certificates, iana: str, openssl: str) -> None:
    assert ssl_object(told(certificates, cipher=iana)).cipher()[0] == openssl
    assert openssl in {cipher["name"] for cipher in ssl.create_default_context().get_ciphers()}


def serving(certificates: Certificates) -> ssl.SSLContext:
    return certificates.server_context(client_required=True)


def connecting(certificates: Certificates) -> ssl.SSLContext:
    context = certificates.client_context()
    context.load_cert_chain(certificates.client_cert, certificates.client_key)
    return context


def checked(tls: Any, name: str) -> bool:
    """Returns whether the results of an ssl.SSLObject or SSLSocket are right."""
    return bool(
        tls.version() == "TLSv1.3"
        and tls.cipher()[1:] in (("TLSv1.3", 128), ("TLSv1.3", 256))
        and tls.selected_alpn_protocol() is None
        and name in str(tls.getpeercert()["subjectAltName"])
        and isinstance(tls.getpeercert(True), bytes)
    )


async def test_both_certificates(client: Any, server: Any, certificates: Certificates) -> None:
    async def handler(ws: Any) -> None:
        info = ws.transport.get_extra_info
        assert checked(info("ssl_object"), "client@example.com")
        assert info("peercert")["subjectAltName"] == (("email", "client@example.com"),)
        assert info("sslcontext") is context
        await ws.send("right")
        await ws.wait_closed()  # the client checks while the connection is open

    context = serving(certificates)
    async with server.asyncio.server.serve(handler, "127.0.0.1", 0, ssl=context) as running:
        uri = f"wss://localhost:{running.sockets[0].getsockname()[1]}"
        async with client.asyncio.client.connect(uri, ssl=connecting(certificates)) as ws:
            info = ws.transport.get_extra_info
            assert checked(info("ssl_object"), "localhost")
            assert info("ssl_object").server_hostname == "localhost"
            assert ("DNS", "localhost") in info("peercert")["subjectAltName"]
            assert info("cipher") == info("ssl_object").cipher()
            assert await ws.recv() == "right"


def test_both_certificates_in_threads(client: Any, server: Any, certificates: Certificates) -> None:
    def handler(ws: Any) -> None:
        assert checked(ws.socket, "client@example.com")
        ws.send("right")
        # The client checks while the connection is open.
        with contextlib.suppress(server.exceptions.ConnectionClosedOK):
            ws.recv(timeout=10)

    context, accepting = connecting(certificates), serving(certificates)
    if repr(client) == "theirs":
        # With tickets, its opening handshake times out once in some hundred times: see test_threads.
        accepting.num_tickets = 0
    with server.sync.server.serve(handler, "127.0.0.1", 0, ssl=accepting) as running:
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        try:
            uri = f"wss://localhost:{running.socket.getsockname()[1]}"
            with client.sync.client.connect(uri, ssl=context) as ws:
                assert checked(ws.socket, "localhost")
                assert ws.socket.server_hostname == "localhost"
                assert ws.recv(timeout=10) == "right"
        finally:
            running.shutdown()
            thread.join()


async def test_both_certificates_by_native_tls(certificates: Certificates) -> None:
    cert, key = certificates.server_files()

    async def handler(ws: Any) -> None:
        assert ws.transport.get_extra_info("peercert")["subjectAltName"] == (("email", "client@example.com"),)
        await ws.send("right")

    settings: Any = TLS(ca=certificates.ca_file, cert=cert, key=key)
    async with websockets.serve(handler, "127.0.0.1", 0, ssl=settings) as running:
        uri = f"wss://localhost:{running.sockets[0].getsockname()[1]}"
        own = TLS(ca=certificates.ca_file, cert=certificates.client_cert, key=certificates.client_key)
        async with websockets.connect(uri, ssl=own) as ws:
            assert checked(ws.transport.get_extra_info("ssl_object"), "localhost")
            assert ws.transport.get_extra_info("ssl_object").server_hostname == "localhost"
            assert await ws.recv() == "right"
