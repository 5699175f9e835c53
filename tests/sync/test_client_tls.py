"""TLS: trust, identity, client certificates, and peers that break TLS."""

from __future__ import annotations

import contextlib
import re
import socket
import ssl
from collections.abc import Callable
from typing import Any

import pytest

from support.certificates import Certificates
from support.checks import describe, no_leaks, within
from support.frames import Close, close, text
from support.openssl import forget_errors, leave_error
from support.scripted import Scripted, ScriptedServer, Wire
from support.servers import Serving, WebSocketsServer
from support.subject import IS_WIRESPEED, connect, exceptions, unix_connect
from support.tls_settings import Settings

# Exceptions of a handshake with a wrong certificate, for every TLS implementation.
TLS_ERRORS = (ssl.SSLError, exceptions.InvalidHandshake)
# Exceptions for a peer that does not speak TLS, or stops in the middle.
BROKEN = (*TLS_ERRORS, ConnectionError, EOFError)


@pytest.fixture(
    params=[
        pytest.param("native", marks=pytest.mark.wirespeed_only("wirespeed.TLS is ours")),
        "context",
    ]
)
def tls(request: pytest.FixtureRequest, certificates: Certificates) -> Settings:
    return Settings(request.param, certificates)


# Successful handshakes


def test_echo(secure_server: WebSocketsServer, tls: Settings) -> None:
    with connect(secure_server.uri, ssl=tls.trusting()) as ws:
        ws.send("hello")
        assert ws.recv(timeout=5) == "hello"
        ws.send(b"\x00\xff")
        assert ws.recv(timeout=5) == b"\x00\xff"
        assert ws.remote_address == ("127.0.0.1", secure_server.port)
    assert ws.close_code == 1000


def test_by_address(secure_server: WebSocketsServer, tls: Settings) -> None:
    """The certificate names 127.0.0.1 as well."""
    with connect(f"wss://127.0.0.1:{secure_server.port}/", ssl=tls.trusting()) as ws:
        ws.send("hello")
        assert ws.recv(timeout=5) == "hello"


def test_settings_are_reusable(secure_server: WebSocketsServer, tls: Settings) -> None:
    settings = tls.trusting()
    for _ in range(3):
        with connect(secure_server.uri, ssl=settings) as ws:
            ws.send("hello")
            assert ws.recv(timeout=5) == "hello"


@pytest.mark.parametrize("size", [0, 1, 16_383, 16_384, 16_385, 1 << 20])
def test_sizes_around_a_record(secure_server: WebSocketsServer, tls: Settings, size: int) -> None:
    message = bytes(index * 7 % 256 for index in range(min(size, 4096))).ljust(size, b"\x5a")
    with connect(secure_server.uri, ssl=tls.trusting(), compression=None) as ws:
        ws.send(message)
        assert ws.recv(timeout=10) == message


def test_big_message_both_ways(secure_server: WebSocketsServer, tls: Settings) -> None:
    message = bytes(range(256)) * 4096 * 8  # 8 MiB
    with connect(secure_server.uri, ssl=tls.trusting(), compression=None, max_size=None) as ws:
        ws.send(message)
        assert ws.recv(timeout=20) == message


@pytest.mark.wirespeed_only("websockets deadlocks")
def test_echo_without_reading_does_not_deadlock(secure_server: WebSocketsServer, tls: Settings) -> None:
    with connect(secure_server.uri, ssl=tls.trusting(), compression=None) as ws, within(30):
        for _ in range(12):
            ws.send(bytes(1 << 20))
        for _ in range(12):
            assert len(ws.recv(timeout=10)) == 1 << 20


def test_timeout_loses_nothing(certificates: Certificates, scripted: Scripted, tls: Settings) -> None:
    message = text("x" * 1000)

    def script(wire: Wire) -> None:
        wire.accept(then=message[:500])
        server.pause()
        wire.send(message[500:] + text("next"))
        wire.read_until_close()

    server = scripted(script, ssl_context=certificates.server_context())
    with connect(server.secure_uri, ssl=tls.trusting()) as ws:
        with within(1, at_least=0.2), pytest.raises(TimeoutError):
            ws.recv(timeout=0.2)
        server.release.set()
        assert ws.recv(timeout=5) == "x" * 1000
        # Decrypted together with the first message: no byte is left on the socket that could wake a poll.
        assert ws.recv(timeout=5) == "next"


def test_error_of_another_connection(
    certificates: Certificates, secure_server: WebSocketsServer, tls: Settings, request: pytest.FixtureRequest
) -> None:
    """An error that OpenSSL keeps for this thread does not fail a read that only needs more data."""
    request.addfinalizer(forget_errors)
    with connect(secure_server.uri, ssl=tls.trusting()) as ws:
        leave_error(certificates)
        with pytest.raises(TimeoutError):
            ws.recv(timeout=0.1)
        ws.send("hello")
        assert ws.recv(timeout=5) == "hello"
    assert ws.close_code == 1000


def test_many_messages_in_one_record(certificates: Certificates, scripted: Scripted, tls: Settings) -> None:
    def script(wire: Wire) -> None:
        wire.accept(then=b"".join(text(str(number)) for number in range(1000)))
        wire.read_until_close()

    server = scripted(script, ssl_context=certificates.server_context())
    with connect(server.secure_uri, ssl=tls.trusting()) as ws:
        assert [ws.recv(timeout=5) for _ in range(1000)] == [str(number) for number in range(1000)]


def test_byte_by_byte(certificates: Certificates, scripted: Scripted, tls: Settings) -> None:
    """Each byte in a record of its own."""

    def script(wire: Wire) -> Any:
        wire.read_request()
        wire.send_in_pieces(wire.accept_bytes() + text("hello") + close(1000))
        return wire.read_until_close()

    server = scripted(script, ssl_context=certificates.server_context())
    with connect(server.secure_uri, ssl=tls.trusting()) as ws:
        assert list(ws) == ["hello"]
    assert server.result == ([], Close(1000))


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3], ids=lambda version: version.name)
def test_versions(certificates: Certificates, serving: Serving, tls: Settings, version: ssl.TLSVersion) -> None:
    server = serving(ssl_context=certificates.server_context(version=version))
    with connect(server.uri, ssl=tls.trusting()) as ws:
        ws.send("hello")
        assert ws.recv(timeout=5) == "hello"


def test_system_roots(
    secure_server: WebSocketsServer, certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without ``ssl`` the system's roots count, which SSL_CERT_FILE replaces."""
    monkeypatch.setenv("SSL_CERT_FILE", certificates.ca_file)
    with connect(secure_server.uri) as ws:
        ws.send("hello")
        assert ws.recv(timeout=5) == "hello"


@pytest.mark.wirespeed_only("websockets takes contexts only")
def test_ssl_true(secure_server: WebSocketsServer, certificates: Certificates, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", certificates.ca_file)
    with connect(secure_server.uri, ssl=True) as ws:
        ws.send("hello")
        assert ws.recv(timeout=5) == "hello"


def test_server_hostname(certificates: Certificates, scripted: Scripted, tls: Settings) -> None:
    """The given name is checked in the certificate instead of that in the address, and is sent as SNI."""
    names = []
    context = certificates.server_context()
    context.sni_callback = lambda sock, name, context: names.append(name)

    def script(wire: Wire) -> Any:
        wire.accept()
        return wire.read_until_close(), wire.header("Host")

    server = scripted(script, ssl_context=context)
    with connect(f"wss://127.0.0.1:{server.port}/", ssl=tls.trusting(), server_hostname="localhost"):
        pass
    assert names == ["localhost"]
    assert server.result[1] == f"127.0.0.1:{server.port}"


def test_existing_socket(secure_server: WebSocketsServer, tls: Settings) -> None:
    sock = socket.create_connection(("127.0.0.1", secure_server.port))
    with connect("wss://localhost/", sock=sock, ssl=tls.trusting()) as ws:
        ws.send("hello")
        assert ws.recv(timeout=5) == "hello"


def test_unix(certificates: Certificates, serving: Serving, tls: Settings, tmp_path: Any) -> None:
    path = str(tmp_path / "socket")
    serving(ssl_context=certificates.server_context(), unix_path=path)
    with unix_connect(path, "wss://localhost/", ssl=tls.trusting()) as ws:
        ws.send("hello")
        assert ws.recv(timeout=5) == "hello"


# Client certificates


def test_client_certificate(client_certificate_server: WebSocketsServer, tls: Settings) -> None:
    with connect(client_certificate_server.uri, ssl=tls.with_certificate()) as ws:
        ws.send("hello")
        assert ws.recv(timeout=5) == "hello"


@pytest.mark.wirespeed_only("websockets may raise ConnectionClosedError from connect")
@pytest.mark.parametrize("which", ["trusting", "with_strange_certificate"])
def test_client_certificate_refused(client_certificate_server: WebSocketsServer, tls: Settings, which: str) -> None:
    """No certificate, or one of another authority. TLS 1.3 notifies the client only after its own handshake is done."""
    with within(8), pytest.raises((*BROKEN, OSError)) as raised:
        connect(client_certificate_server.uri, ssl=getattr(tls, which)(), open_timeout=5)
    assert not isinstance(raised.value, TimeoutError)


# Certificates that must not be accepted


BAD = {
    "expired": ("expired_context", r"expired"),
    "not-yet-valid": ("future_context", r"not yet valid|NotValidYet"),
    "wrong-host": ("wrong_host_context", r"(?i)hostname|not valid for|name"),
    "unknown-authority": ("unknown_authority_context", r"(?i)issuer|authority|unknown ?ca|self-signed"),
    "self-signed": ("self_signed_context", r"(?i)self-signed|issuer|authority|certificate"),
}


@pytest.mark.parametrize("case", BAD.values(), ids=BAD)
def test_bad_certificate(certificates: Certificates, tls: Settings, case: tuple[str, str]) -> None:
    factory, says = case
    settings = tls.trusting()
    with no_leaks():
        with ScriptedServer(
            lambda wire: pytest.fail("accepted"), ssl_context=getattr(certificates, factory)()
        ) as server:
            with within(8), pytest.raises(TLS_ERRORS) as raised:
                connect(server.secure_uri, ssl=settings, open_timeout=5)
            assert re.search(says, describe(raised.value)), describe(raised.value)
        assert len(server.results) == 1
        assert isinstance(server.results[0], OSError)
        del raised


@pytest.mark.parametrize(
    ("name", "expired", "code"),
    [("localhost", False, None), ("elsewhere.example", False, 62), ("localhost", True, 10)],
    ids=["good", "wrong-host", "expired"],
)
@pytest.mark.parametrize("how", ["ca", "system"])
def test_own_certificate(
    certificates: Certificates,
    tls: Settings,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    expired: bool,
    code: int | None,
    how: str,
) -> None:
    """A certificate that is trusted directly needs no authority, but the right name and dates."""
    cert, key = certificates.own_certificate(name, expired=expired)
    if how == "system":
        monkeypatch.setenv("SSL_CERT_FILE", cert)
        settings = tls.trusting_system_only()
    elif tls.kind == "context":
        settings = ssl.create_default_context(cafile=cert)
    else:
        settings = tls._native(ca=cert)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)

    def script(wire: Wire) -> None:
        wire.accept()
        wire.read_until_close()
        wire.send(close(1000))

    with ScriptedServer(script, ssl_context=context) as server:
        if code is None:
            connect(server.secure_uri, ssl=settings, open_timeout=5).close()
            return
        with pytest.raises(ssl.SSLCertVerificationError) as raised:
            connect(server.secure_uri, ssl=settings, open_timeout=5)
    assert raised.value.verify_code == code
    assert raised.value.verify_message


def test_authority_not_trusted_by_the_system(secure_server: WebSocketsServer, tls: Settings) -> None:
    with pytest.raises(TLS_ERRORS):
        connect(secure_server.uri, ssl=tls.trusting_system_only())


def test_without_ssl_argument_verifies(secure_server: WebSocketsServer) -> None:
    with pytest.raises(TLS_ERRORS):
        connect(secure_server.uri)


def test_wrong_server_hostname(secure_server: WebSocketsServer, tls: Settings) -> None:
    with pytest.raises(TLS_ERRORS):
        connect(secure_server.uri, ssl=tls.trusting(), server_hostname="elsewhere.example")


@pytest.mark.parametrize("check", [True, False], ids=["checking", "not-checking"])
def test_context_is_fully_honoured(certificates: Certificates, scripted: Scripted, check: bool) -> None:
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
            connect(server.secure_uri, ssl=context)
    else:
        with connect(server.secure_uri, ssl=context):
            pass
        assert server.result == "TLSv1.2"


# Peers that do not speak TLS, or stop


def test_plain_server(server: WebSocketsServer, tls: Settings) -> None:
    with within(8), pytest.raises(BROKEN) as raised:
        connect(f"wss://localhost:{server.port}/", ssl=tls.trusting(), open_timeout=5)
    assert not isinstance(raised.value, TimeoutError)


def test_tls_server_without_tls(secure_server: WebSocketsServer) -> None:
    with within(8), pytest.raises((exceptions.InvalidMessage, ConnectionError, EOFError)):
        connect(f"ws://localhost:{secure_server.port}/", open_timeout=5)


FIRST_BYTES = {
    "closes": lambda sock: sock.recv(1),
    "closes-after-hello": lambda sock: sock.recv(65536),
    "garbage": lambda sock: (sock.recv(65536), sock.sendall(b"\x00" * 100)),
    "alert": lambda sock: (sock.recv(65536), sock.sendall(b"\x15\x03\x03\x00\x02\x02\x28")),
    "cut-server-hello": lambda sock: (sock.recv(65536), sock.sendall(b"\x16\x03\x03\x00\x7a\x02")),
}


@pytest.mark.parametrize("behave", FIRST_BYTES.values(), ids=FIRST_BYTES)
def test_broken_tls_handshake(tls: Settings, behave: Callable[[socket.socket], Any]) -> None:
    settings = tls.trusting()
    with no_leaks():
        server = ScriptedServer(lambda wire: behave(wire.sock))
        with server, within(8), pytest.raises(BROKEN) as raised:
            connect(server.secure_uri, ssl=settings, open_timeout=5)
        assert not isinstance(raised.value, TimeoutError)
        del raised


def test_silent_tls_server(scripted: Scripted, tls: Settings) -> None:
    server = scripted(lambda wire: wire.read_to_end())
    with within(3, at_least=0.3), pytest.raises(TimeoutError):
        connect(server.secure_uri, ssl=tls.trusting(), open_timeout=0.3)


def truncate(wire: Wire) -> None:
    """Ends the TCP connection without close_notify, which an attacker could do as well."""
    sock = wire.sock.detach()
    socket.close(sock)


def test_truncated(certificates: Certificates, scripted: Scripted, tls: Settings) -> None:
    def script(wire: Wire) -> None:
        wire.accept(then=text("last"))
        truncate(wire)

    server = scripted(script, ssl_context=certificates.server_context())
    ws = connect(server.secure_uri, ssl=tls.trusting())
    assert ws.recv(timeout=5) == "last"
    with pytest.raises(exceptions.ConnectionClosedError) as raised:
        ws.recv(timeout=5)
    assert raised.value.rcvd is None
    assert ws.close_code == 1006
    ws.close()


def test_truncated_after_the_closing_handshake(certificates: Certificates, scripted: Scripted, tls: Settings) -> None:
    """The close frames were exchanged: nothing can be missing, and many servers end so."""

    def script(wire: Wire) -> Any:
        wire.accept(then=text("last") + close(1000))
        received = wire.read_until_close()
        truncate(wire)
        return received

    server = scripted(script, ssl_context=certificates.server_context())
    with connect(server.secure_uri, ssl=tls.trusting()) as ws:
        assert list(ws) == ["last"]
    assert server.result == ([], Close(1000))
    assert ws.close_code == 1000


def test_close_notify_without_close_frame(certificates: Certificates, scripted: Scripted, tls: Settings) -> None:
    def script(wire: Wire) -> None:
        assert isinstance(wire.sock, ssl.SSLSocket)
        wire.accept(then=text("last"))
        wire.sock.settimeout(2)
        with contextlib.suppress(OSError, ValueError):
            wire.sock = wire.sock.unwrap()

    server = scripted(script, ssl_context=certificates.server_context())
    ws = connect(server.secure_uri, ssl=tls.trusting())
    assert ws.recv(timeout=5) == "last"
    with within(5), pytest.raises(exceptions.ConnectionClosedError):
        ws.recv(timeout=4)
    ws.close()


def test_garbage_after_the_handshake(certificates: Certificates, scripted: Scripted, tls: Settings) -> None:
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
    ws = connect(server.secure_uri, ssl=tls.trusting(), close_timeout=1)
    assert ws.recv(timeout=5) == "last"
    with pytest.raises(exceptions.ConnectionClosedError) as raised:
        ws.recv(timeout=5)
    assert raised.value.rcvd is None
    ws.close()


# Arguments


def test_ssl_with_a_plain_uri(server: WebSocketsServer, tls: Settings) -> None:
    with pytest.raises(ValueError, match="ssl"):
        connect(server.uri, ssl=tls.trusting())


@pytest.mark.wirespeed_only("wirespeed.TLS is ours")
@pytest.mark.parametrize("option", ["ca", "cert"])
def test_native_file_that_is_missing(
    certificates: Certificates, secure_server: WebSocketsServer, option: str, tmp_path: Any
) -> None:
    files = {"ca": certificates.ca_file, "cert": certificates.client_cert, "key": certificates.client_key}
    files[option] = str(tmp_path / "missing.pem")
    with pytest.raises((OSError, ValueError), match=r"missing\.pem"):
        connect(secure_server.uri, ssl=Settings._native(**files))


@pytest.mark.wirespeed_only("wirespeed.TLS is ours")
@pytest.mark.parametrize("option", ["ca", "cert", "key"])
def test_native_file_that_is_garbage(
    certificates: Certificates, secure_server: WebSocketsServer, option: str, tmp_path: Any
) -> None:
    files = {"ca": certificates.ca_file, "cert": certificates.client_cert, "key": certificates.client_key}
    garbage = tmp_path / "garbage.pem"
    garbage.write_text("this is no certificate")
    files[option] = str(garbage)
    with pytest.raises((OSError, ValueError), match=rf"{option}|garbage\.pem"):
        connect(secure_server.uri, ssl=Settings._native(**files))


@pytest.mark.wirespeed_only("wirespeed.TLS is ours")
def test_native_key_of_another_certificate(certificates: Certificates, secure_server: WebSocketsServer) -> None:
    with pytest.raises((OSError, ValueError)):
        connect(
            secure_server.uri,
            ssl=Settings._native(ca=certificates.ca_file, cert=certificates.client_cert, key=certificates.stranger_key),
        )


def test_both_tls_kinds_are_run() -> None:
    """Guards the parameters above: with wirespeed under test, its own TLS is tested."""
    if IS_WIRESPEED:
        import wirespeed

        assert callable(wirespeed.TLS)
