"""TLS while a connection is opened: alerts of both ends, and redirects. Other tests are in ``test_client_tls*``."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from typing import Any

import pytest

from support.asyncio_tools import Run
from support.certificates import Certificates
from support.checks import describe, no_leaks
from support.connecting import Connect, echo, fails
from support.scripted import Scripted
from support.servers import WebSocketsServer
from support.subject import IS_WIRESPEED, exceptions

FAILURES = (ssl.SSLError, ConnectionError, exceptions.InvalidHandshake)


@pytest.fixture(params=["native", "context"])
def ssl_option(request: pytest.FixtureRequest, certificates: Certificates) -> Any:
    if request.param == "context":
        return certificates.client_context()
    if not IS_WIRESPEED:
        pytest.skip("websockets takes contexts only")
    import wirespeed

    return wirespeed.TLS(ca=certificates.ca_file)


@pytest.mark.wirespeed_only("websockets may raise ConnectionClosedError from connect")
def test_missing_client_certificate_is_reported(
    scripted: Scripted, certificates: Certificates, run: Run, connect: Connect, ssl_option: Any
) -> None:
    """In TLS 1.3, the server reports it after the client has sent its request."""
    server = scripted(lambda wire: None, ssl_context=certificates.server_context(client_required=True))
    uri = server.secure_uri
    exc = fails(run, FAILURES, lambda: connect(uri, ssl=ssl_option))
    assert "certificate" in describe(exc).lower()


@pytest.mark.wirespeed_only("ours")
def test_server_receives_an_alert(scripted: Scripted, certificates: Certificates, run: Run, connect: Connect) -> None:
    """An alert is sent before the socket is closed."""
    import wirespeed

    server = scripted(lambda wire: None, ssl_context=certificates.unknown_authority_context())
    uri, tls = server.secure_uri, wirespeed.TLS(ca=certificates.ca_file)
    fails(run, ssl.SSLCertVerificationError, lambda: connect(uri, ssl=tls))
    assert "ALERT" in str(server.result).upper()


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


@pytest.mark.wirespeed_only("websockets has the name for all hosts")
def test_redirect_and_server_hostname(
    serving: Callable[..., WebSocketsServer],
    secure_server: WebSocketsServer,
    run: Run,
    connect: Connect,
    certificates: Certificates,
    ssl_option: Any,
) -> None:
    """The certificate of one host does not have the name of another."""
    elsewhere = serving(ssl_context=certificates.wrong_host_context())
    settings = {"ssl": ssl_option, "server_hostname": "elsewhere.example"}
    start = f"wss://127.0.0.1:{elsewhere.port}/redirect?to=wss://localhost"

    async def main() -> None:
        async with connect(f"{start}:{secure_server.port}/x", **settings) as ws:
            await echo(ws)

    run(main)
    fails(run, ssl.SSLCertVerificationError, lambda: connect(f"{start}:{elsewhere.port}/x", **settings))
