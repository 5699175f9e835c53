"""TLS information of connections."""

from __future__ import annotations

import ssl
import sys
import threading
from typing import Any

import pytest

import wirespeed
from support.certificates import Certificates
from wirespeed import TLS, TLSInfo
from wirespeed.tls import tls_info


def handshake(client: ssl.SSLContext, server: ssl.SSLContext) -> tuple[ssl.SSLObject, ssl.SSLObject]:
    """Returns both ends of a TLS connection in memory."""
    one, other = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = client.wrap_bio(one, other, server_hostname="localhost"), server.wrap_bio(other, one, server_side=True)
    waiting = set(ends)
    while waiting:
        for end in tuple(waiting):
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
            waiting.remove(end)
    return ends


def mutual(certificates: Certificates) -> ssl.SSLContext:
    context = certificates.client_context()
    context.load_cert_chain(certificates.client_cert, certificates.client_key)
    return context


def test_an_ssl_object(certificates: Certificates) -> None:
    client, server = handshake(mutual(certificates), certificates.server_context(client_required=True))
    for end, other in ((client, server), (server, client)):
        info = tls_info(end)
        assert info is not None
        assert (info.version, info.cipher, info.secret_bits) == ("TLSv1.3", other.cipher()[0], other.cipher()[2])  # type: ignore[index]
        assert info.alpn is None
        assert info.verified is True
        assert info.ssl_object is end
        assert info.peer_certificates[0] == end.getpeercert(True)
        # OpenSSL sends the authority too, if it knows it. Before Python 3.13 it is not reported.
        authority = ssl.PEM_cert_to_DER_cert(certificates.ca.cert_pem.bytes().decode())
        assert info.peer_certificates[1:] == ((authority,) if sys.version_info >= (3, 13) else ())
        assert "peer_certificates" not in repr(info)


def test_an_ssl_object_without_certificate(certificates: Certificates) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    client, server = handshake(context, certificates.server_context())
    info = tls_info(server)
    assert info is not None
    assert (info.peer_certificates, info.verified) == ((), False)
    info = tls_info(client)
    assert info is not None
    assert (len(info.peer_certificates), info.verified) == (1, False)


def test_information_of_the_core() -> None:
    assert tls_info(None) is None
    told = ("TLSv1.3", "TLS_AES_256_GCM_SHA384", 256, "http/1.1", (b"one", b"two"), True)
    info = tls_info(told)
    assert info == TLSInfo(
        version="TLSv1.3",
        cipher="TLS_AES_256_GCM_SHA384",
        secret_bits=256,
        alpn="http/1.1",
        peer_certificates=(b"one", b"two"),
        verified=True,
    )


async def test_without_tls() -> None:
    async def handler(ws: Any) -> None:
        assert ws.tls is None
        await ws.send("x")

    async with wirespeed.serve(handler, "127.0.0.1", 0) as server:
        uri = f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with wirespeed.connect(uri) as ws:
            assert ws.tls is None
            assert await ws.recv() == "x"


NATIVE = {"native": True, "ssl": False}


@pytest.mark.parametrize("kind", NATIVE)
async def test_on_an_event_loop(certificates: Certificates, kind: str) -> None:
    seen: list[TLSInfo | None] = []

    async def handler(ws: Any) -> None:
        seen.append(ws.tls)

    async with wirespeed.serve(handler, "127.0.0.1", 0, ssl=serving(certificates, kind)) as server:
        uri = f"wss://localhost:{server.sockets[0].getsockname()[1]}"
        async with wirespeed.connect(uri, ssl=connecting(certificates, kind)) as ws:
            check(ws.tls, certificates.server, kind)
            await ws.wait_closed()
    check(seen[0], certificates.client, kind)


@pytest.mark.parametrize("kind", NATIVE)
def test_in_threads(certificates: Certificates, kind: str) -> None:
    seen: list[TLSInfo | None] = []
    with wirespeed.sync.serve(
        lambda ws: seen.append(ws.tls), "127.0.0.1", 0, ssl=serving(certificates, kind)
    ) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            uri = f"wss://localhost:{server.socket.getsockname()[1]}"
            with wirespeed.sync.connect(uri, ssl=connecting(certificates, kind)) as ws:
                check(ws.tls, certificates.server, kind)
                with pytest.raises(wirespeed.ConnectionClosedOK):
                    ws.recv(timeout=10)
        finally:
            server.shutdown()
            thread.join()
    check(seen[0], certificates.client, kind)


def serving(certificates: Certificates, kind: str) -> Any:
    if not NATIVE[kind]:
        context = certificates.server_context(client_required=True)
        context.set_alpn_protocols(["http/1.1"])
        return context
    cert, key = certificates.server_files()
    return TLS(ca=certificates.ca_file, cert=cert, key=key, alpn=["http/1.1"])


def connecting(certificates: Certificates, kind: str) -> Any:
    if not NATIVE[kind]:
        context = mutual(certificates)
        context.set_alpn_protocols(["http/1.1"])
        return context
    return TLS(ca=certificates.ca_file, cert=certificates.client_cert, key=certificates.client_key, alpn=["http/1.1"])


def check(info: TLSInfo | None, peer: Any, kind: str) -> None:
    assert info is not None
    assert info.version == "TLSv1.3"
    assert info.cipher.startswith("TLS_")
    assert info.secret_bits in (128, 256)
    assert info.alpn == "http/1.1"
    assert info.verified is True
    leaf = ssl.PEM_cert_to_DER_cert(peer.cert_chain_pems[0].bytes().decode())
    assert info.peer_certificates[0] == leaf
    assert isinstance(info.ssl_object, ssl.SSLObject) is (kind == "ssl")
