"""The blocking server over TLS: native and with a context of the standard library, client certificates, reloading."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.certificates import Certificates
from support.checks import within
from support.frames import TEXT
from support.serving import LOGGER, logged, masked, request
from support.subject import IS_WIRESPEED, connect, unix_connect
from support.threads import PATIENCE, Raw, dial, echo, serving, uri, wait_until

pytestmark = pytest.mark.wirespeed_only("the server is ours")

if IS_WIRESPEED:
    from wirespeed import TLS
    from wirespeed.sync import serve
else:
    TLS = Any

Client = Callable[..., Any]


class Ends:
    """The values for ``ssl=`` of the server: native or a context."""

    def __init__(self, kind: str, certificates: Certificates) -> None:
        self.kind = kind
        self.certificates = certificates

    def server(self, *, client_required: bool = False) -> Any:
        if self.kind == "context":
            return self.certificates.server_context(client_required=client_required)
        cert, key = self.certificates.server_files()
        return TLS(cert=cert, key=key, ca=self.certificates.ca_file if client_required else None)

    def client(self, *, certificate: bool = False) -> ssl.SSLContext:
        return self.certificates.client_context(certificate=certificate)


@pytest.fixture(params=["native", "context"])
def ends(request: pytest.FixtureRequest, certificates: Certificates) -> Ends:
    return Ends(request.param, certificates)


@pytest.fixture(params=["wirespeed", "websockets"])
def client(request: pytest.FixtureRequest) -> Client:
    return connect if request.param == "wirespeed" else dial_without_tickets


def dial_without_tickets(uri: str, **options: Any) -> Any:
    """Connects with websockets, whose blocking client reads and writes one TLS connection from two threads.

    Session tickets of TLS 1.3, which arrive beside messages, make one of some thousand of its connections wait forever,
    with any server: its reading thread, woken by a ticket, holds a lock that the writing one needs.
    """
    options["ssl"].maximum_version = ssl.TLSVersion.TLSv1_2
    return dial(uri, **options)


def secure_uri(server: Any, path: str = "/") -> str:
    return uri(server, path, scheme="wss", host="localhost")


@contextlib.contextmanager
def plain_tls(server: Any, context: ssl.SSLContext) -> Any:
    with (
        socket.create_connection(server.socket.getsockname(), timeout=PATIENCE) as sock,
        context.wrap_socket(sock, server_hostname="localhost") as secured,
    ):
        yield secured


@pytest.mark.parametrize("message", ["hé", b"\x00\xff", os.urandom(1000) * 5000], ids=["text", "binary", "5MB"])
def test_echo(ends: Ends, client: Client, message: Any) -> None:
    with serving(max_size=None, ssl=ends.server()) as server:
        with client(secure_uri(server), ssl=ends.client(), max_size=None) as ws:
            for _ in range(3):
                ws.send(message)
                assert ws.recv(timeout=10) == message
        assert ws.close_code == 1000


def test_native_client(ends: Ends) -> None:
    with serving(ssl=ends.server()) as server, connect(secure_uri(server), ssl=TLS(ca=ends.certificates.ca_file)) as ws:
        ws.send("x")
        assert ws.recv(timeout=5) == "x"


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3], ids=["1.2", "1.3"])
def test_versions(ends: Ends, version: ssl.TLSVersion) -> None:
    context = ends.client()
    context.minimum_version = context.maximum_version = version
    with serving(ssl=ends.server()) as server, connect(secure_uri(server), ssl=context) as ws:
        ws.send("x")
        assert ws.recv(timeout=5) == "x"


def test_message_behind_the_request(ends: Ends) -> None:
    """In the record of the request."""
    with serving(close_timeout=0.1, ssl=ends.server()) as server, plain_tls(server, ends.client()) as raw:
        raw.sendall(request() + masked(TEXT, b"early"))
        data = b""
        while not data.endswith(b"early"):
            more = raw.recv(4096)
            assert more
            data += more
        assert data.startswith(b"HTTP/1.1 101 ")


def test_refusal(ends: Ends, client: Client) -> None:
    with (
        serving(ssl=ends.server(), process_request=lambda ws, _: ws.respond(404, "no")) as server,
        pytest.raises(Exception, match="404"),
        within(5),
    ):
        client(secure_uri(server), ssl=ends.client())


def test_plain_http_gets_a_hint(ends: Ends) -> None:
    with serving(ssl=ends.server()) as server, plain_tls(server, ends.client()) as raw:
        raw.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert raw.recv(4096).startswith(b"HTTP/1.1 426 ")


def test_unix(ends: Ends, tmp_path: Path) -> None:
    path = str(tmp_path / "socket")
    with (
        serving(echo, path, unix=True, ssl=ends.server()),
        unix_connect(path, ssl=ends.client(), server_hostname="localhost") as ws,
    ):
        ws.send("x")
        assert ws.recv(timeout=5) == "x"


def test_plain_http_to_a_secure_port(ends: Ends, caplog: pytest.LogCaptureFixture) -> None:
    with serving(ssl=ends.server()) as server, Raw(server) as raw:
        raw.send(request())
        raw.sock.settimeout(5)
        with contextlib.suppress(ConnectionError):
            raw.rest()
        raw.close()
        wait_until(lambda: logged(caplog))
    [text] = logged(caplog)
    assert text.startswith("a client speaks plain HTTP to a port with TLS (127.0.0.1:")


def test_client_that_does_not_trust(ends: Ends, client: Client, caplog: pytest.LogCaptureFixture) -> None:
    """Its handshake fails; the next client is served."""
    with caplog.at_level(logging.INFO, LOGGER), serving(ssl=ends.server()) as server:
        with pytest.raises(ssl.SSLCertVerificationError):
            client(secure_uri(server), ssl=ssl.create_default_context())
        wait_until(lambda: any("opening handshake failed" in text for text in logged(caplog, logging.INFO)))
        assert logged(caplog) == []
        with client(secure_uri(server), ssl=ends.client()) as ws:
            ws.send("x")
            assert ws.recv(timeout=5) == "x"


@pytest.mark.parametrize("sent", [b"", b"\x16\x03\x01"], ids=["silent", "begun"])
def test_open_timeout(ends: Ends, sent: bytes) -> None:
    with serving(open_timeout=0.2, ssl=ends.server()) as server, Raw(server) as raw:
        raw.send(sent)
        with within(3, at_least=0.15), contextlib.suppress(ConnectionError):
            raw.rest()


def test_client_leaves_in_the_middle(ends: Ends, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, LOGGER), serving(ssl=ends.server()) as server:
        with Raw(server) as raw:
            raw.send(b"\x16\x03\x01")
        wait_until(lambda: any("opening handshake failed" in text for text in logged(caplog, logging.INFO)))
        assert logged(caplog) == []


# Client certificates


def test_client_certificate(ends: Ends, client: Client) -> None:
    with (
        serving(ssl=ends.server(client_required=True)) as server,
        client(secure_uri(server), ssl=ends.client(certificate=True)) as ws,
    ):
        ws.send("x")
        assert ws.recv(timeout=5) == "x"


@pytest.mark.parametrize("stranger", [False, True], ids=["none", "stranger"])
def test_client_without_a_good_certificate(ends: Ends, stranger: bool) -> None:
    context = ends.client()
    if stranger:
        context.load_cert_chain(ends.certificates.stranger_cert, ends.certificates.stranger_key)
    handled: list[Any] = []
    # With TLS 1.3 the client notices it when it reads.
    with (
        serving(handled.append, ssl=ends.server(client_required=True)) as server,
        pytest.raises((ssl.SSLError, ConnectionError)),
        plain_tls(server, context) as raw,
    ):
        raw.sendall(request())
        if raw.recv(4096) == b"":
            raise ConnectionError
    assert handled == []


# Reloading


def serial(server: Any) -> bytes:
    """Returns the serial number of the certificate that a new client gets."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    with plain_tls(server, context) as raw:
        certificate = raw.getpeercert(binary_form=True)
    assert isinstance(certificate, bytes)
    return certificate


def write(certificates: Certificates, folder: Path) -> tuple[str, str]:
    """Writes a new certificate to the files."""
    leaf = certificates.ca.issue_cert("localhost", "127.0.0.1")
    cert, key = folder / "reload.pem", folder / "reload.key"
    cert.write_bytes(b"".join(blob.bytes() for blob in leaf.cert_chain_pems))
    leaf.private_key_pem.write_to_path(str(key))
    return str(cert), str(key)


def test_reload_files(certificates: Certificates, tmp_path: Path) -> None:
    cert, key = write(certificates, tmp_path)
    with serving(ssl=TLS(cert=cert, key=key)) as server:
        before = serial(server)
        with connect(secure_uri(server), ssl=certificates.client_context()) as ws:
            write(certificates, tmp_path)
            assert serial(server) == before
            server.reload_ssl()
            assert serial(server) != before
            ws.send("x")  # open connections are unaffected
            assert ws.recv(timeout=5) == "x"


def test_reload_other_settings(ends: Ends, certificates: Certificates, tmp_path: Path) -> None:
    cert, key = write(certificates, tmp_path)
    with serving(ssl=ends.server()) as server:
        before = serial(server)
        server.reload_ssl(TLS(cert=cert, key=key))
        assert serial(server) != before
        server.reload_ssl(ends.server())
        assert serial(server) == before


def test_reload_keeps_the_old_after_an_error(certificates: Certificates, tmp_path: Path) -> None:
    cert, key = write(certificates, tmp_path)
    with serving(ssl=TLS(cert=cert, key=key)) as server:
        before = serial(server)
        Path(cert).write_text("nothing")
        with pytest.raises(ValueError, match="cert"):
            server.reload_ssl()
        Path(cert).unlink()
        with pytest.raises(FileNotFoundError):
            server.reload_ssl()
        assert serial(server) == before


def test_reload_wrong(certificates: Certificates) -> None:
    with serving() as server, pytest.raises(TypeError, match="no TLS"):
        server.reload_ssl()
    with serving(ssl=certificates.server_context()) as server:
        with pytest.raises(TypeError, match="load_cert_chain"):
            server.reload_ssl()
        with pytest.raises(TypeError, match="ssl must be"):
            server.reload_ssl("cert.pem")


def test_key_of_another_certificate(certificates: Certificates) -> None:
    cert, _ = certificates.server_files()
    with pytest.raises((ValueError, ssl.SSLError)):
        serve(echo, "127.0.0.1", 0, ssl=TLS(cert=cert, key=certificates.client_key))
