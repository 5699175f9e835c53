"""TLS of either implementation: what it takes, and what its failures say."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from typing import Any

import pytest

from interop.certificates import Certificates
from interop.checks import describe, no_leaks, within
from interop.connecting import echo, fails
from interop.scripted import ScriptedServer
from interop.servers import WebSocketsServer
from interop.subject import IS_WIRESPEED, exceptions

Scripted = Callable[..., ScriptedServer]
Run = Callable[..., Any]
Connect = Callable[..., Any]
Settings = Callable[..., Any]

FAILURES = (ssl.SSLError, ConnectionError, exceptions.InvalidHandshake)


@pytest.fixture(params=["native", "context"])
def settings(request: pytest.FixtureRequest, certificates: Certificates) -> Settings:
    """What a user passes as ``ssl=``."""
    if request.param == "context":
        return certificates.client_context
    if not IS_WIRESPEED:
        pytest.skip("websockets takes contexts only")

    def native(*, trusted: bool = True, certificate: bool = False) -> Any:
        import wirespeed

        return wirespeed.TLS(
            ca=certificates.ca_file if trusted else certificates.other_ca_file,
            cert=certificates.client_cert if certificate else None,
            key=certificates.client_key if certificate else None,
        )

    return native


def test_tls(secure_server: WebSocketsServer, run: Run, connect: Connect, settings: Settings) -> None:
    async def main() -> None:
        async with connect(secure_server.uri, ssl=settings()) as ws:
            await echo(ws)
            await echo(ws, "x" * 200_000)

    with no_leaks():
        run(main)


def test_system_authorities(
    secure_server: WebSocketsServer,
    run: Run,
    connect: Connect,
    certificates: Certificates,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", certificates.ca_file)

    async def main() -> None:
        for options in ({}, {"ssl": True}):
            async with connect(secure_server.uri, **options) as ws:
                await echo(ws)

    run(main)


def test_client_certificate(
    client_certificate_server: WebSocketsServer, run: Run, connect: Connect, settings: Settings
) -> None:
    async def main() -> None:
        async with connect(client_certificate_server.uri, ssl=settings(certificate=True)) as ws:
            await echo(ws)

    run(main)


def test_client_certificate_missing(
    client_certificate_server: WebSocketsServer, run: Run, connect: Connect, settings: Settings
) -> None:
    uri = client_certificate_server.uri
    with within(8):
        exc = fails(run, (*FAILURES, OSError), lambda: connect(uri, ssl=settings(), open_timeout=5))
    assert not isinstance(exc, TimeoutError)


@pytest.mark.wirespeed_only("websockets may raise ConnectionClosedError from connect")
def test_client_certificate_missing_and_said_so(
    scripted: Scripted, certificates: Certificates, run: Run, connect: Connect, settings: Settings
) -> None:
    """In TLS 1.3, the server tells when the client has sent its request already."""
    server = scripted(lambda wire: None, ssl_context=certificates.server_context(client_required=True))
    uri = server.secure_uri
    exc = fails(run, FAILURES, lambda: connect(uri, ssl=settings()))
    assert "certificate" in describe(exc).lower()


def test_server_hostname(secure_server: WebSocketsServer, run: Run, connect: Connect, settings: Settings) -> None:
    async def main() -> None:
        uri = f"wss://127.0.0.1:{secure_server.port}/"
        async with connect(uri, ssl=settings(), server_hostname="localhost") as ws:
            await echo(ws)

    run(main)
    wrong = {"ssl": settings(), "server_hostname": "elsewhere.example"}
    fails(run, ssl.SSLCertVerificationError, lambda: connect(secure_server.uri, **wrong))


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        ("expired", "expired"),
        ("future", "not (yet )?valid"),
        ("wrong_host", "localhost|elsewhere"),
        ("unknown_authority", "issuer|authority|trust"),
        ("self_signed", "self.signed|issuer|authority|trust|CA"),
    ],
)
def test_bad_certificate(
    scripted: Scripted,
    certificates: Certificates,
    run: Run,
    connect: Connect,
    settings: Settings,
    kind: str,
    says: str,
) -> None:
    context = getattr(certificates, f"{kind}_context")()
    server = scripted(lambda wire: wire.read_to_end(), ssl_context=context)
    uri = server.secure_uri
    fails(run, ssl.SSLCertVerificationError, lambda: connect(uri, ssl=settings()), f"(?i){says}")


def test_authority_that_is_not_trusted(
    secure_server: WebSocketsServer, run: Run, connect: Connect, settings: Settings
) -> None:
    untrusting = settings(trusted=False)
    fails(run, ssl.SSLCertVerificationError, lambda: connect(secure_server.uri, ssl=untrusting))


@pytest.mark.wirespeed_only("ours")
def test_server_is_told_why(scripted: Scripted, certificates: Certificates, run: Run, connect: Connect) -> None:
    """An alert leaves before the socket is closed."""
    import wirespeed

    server = scripted(lambda wire: None, ssl_context=certificates.unknown_authority_context())
    uri, tls = server.secure_uri, wirespeed.TLS(ca=certificates.ca_file)
    fails(run, ssl.SSLCertVerificationError, lambda: connect(uri, ssl=tls))
    assert "ALERT" in str(server.result).upper()


def test_server_without_tls(server: WebSocketsServer, run: Run, connect: Connect, settings: Settings) -> None:
    uri = f"wss://localhost:{server.port}/"
    with within(5):
        fails(run, FAILURES, lambda: connect(uri, ssl=settings()))


def test_client_without_tls(secure_server: WebSocketsServer, run: Run, connect: Connect) -> None:
    with within(5):
        fails(
            run,
            (exceptions.InvalidHandshake, ConnectionError),
            lambda: connect(f"ws://localhost:{secure_server.port}/"),
        )


@pytest.mark.parametrize("size", [0, 1, 5, 100])
def test_server_that_goes_during_the_handshake(
    scripted: Scripted, run: Run, connect: Connect, settings: Settings, size: int
) -> None:
    def script(wire: Any) -> None:
        wire.read_exactly(50)
        wire.send((b"\x16\x03\x03\x02\x00" + bytes(200))[:size])

    uri = scripted(script).secure_uri
    with within(5):
        fails(run, (*FAILURES, EOFError), lambda: connect(uri, ssl=settings()))


def test_redirect_to_tls(
    secure_server: WebSocketsServer,
    server: WebSocketsServer,
    run: Run,
    connect: Connect,
    certificates: Certificates,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", certificates.ca_file)

    async def main() -> None:
        async with connect(server.uri + f"/redirect?to={secure_server.uri}/x") as ws:
            await echo(ws)

    with no_leaks():
        run(main)
    uri = secure_server.uri + f"/redirect?to={server.uri}/"
    fails(run, exceptions.SecurityError, lambda: connect(uri), "non-secure")
