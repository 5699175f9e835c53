"""Proxies of each kind, by argument and by environment, and misbehaving proxies."""

from __future__ import annotations

import base64
import ssl
import sys
from collections.abc import Callable
from typing import Any

import pytest

from support.asyncio_tools import Run
from support.certificates import Certificates
from support.checks import no_leaks, within
from support.connecting import ONE_PORT, Connect, echo, fails
from support.proxies import PASSWORD, USER, Proxy, relay
from support.scripted import Scripted, ScriptedServer, Wire
from support.servers import WebSocketsServer
from support.subject import exceptions

SETTINGS = ONE_PORT

Proxies = Callable[..., Proxy]

# The scheme of the address, and the kind of server behind it.
SCHEMES = {
    "http": "http",
    "https": "https",
    "socks4": "socks4",
    "socks4a": "socks4",
    "socks5": "socks5",
    "socks5h": "socks5",
}


def options(
    proxy: Proxy, certificates: Certificates, scheme: str | None = None, user_info: str | None = None
) -> dict[str, Any]:
    found: dict[str, Any] = {"proxy": proxy.url(scheme, user_info)}
    if proxy.kind == "https":
        found["proxy_ssl"] = certificates.client_context()
    return found


def echoes(run: Run, connect: Connect, uri: str, **options: Any) -> None:
    async def main() -> None:
        async with connect(uri, **options) as ws:
            await echo(ws)

    run(main)


@pytest.mark.parametrize("login", [False, True], ids=["open", "login"])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_proxy(
    server: WebSocketsServer,
    proxy: Proxies,
    certificates: Certificates,
    run: Run,
    connect: Connect,
    scheme: str,
    login: bool,
) -> None:
    through = proxy(SCHEMES[scheme], login=login)
    with no_leaks():
        echoes(run, connect, server.uri, **options(through, certificates, scheme))
    assert through.read_connection(server.port) == ("127.0.0.1", server.port)


@pytest.mark.parametrize("scheme", ["http", "https", "socks4a", "socks5h"])
def test_proxy_to_tls(
    secure_server: WebSocketsServer,
    proxy: Proxies,
    certificates: Certificates,
    run: Run,
    connect: Connect,
    scheme: str,
) -> None:
    through = proxy(SCHEMES[scheme])
    settings = options(through, certificates, scheme)
    with no_leaks():
        echoes(run, connect, secure_server.uri, ssl=certificates.client_context(), **settings)
    through.read_connection(secure_server.port)


@pytest.mark.wirespeed_only("websockets takes contexts only")
@pytest.mark.parametrize("scheme", ["http", "https", "socks5h"])
def test_proxy_to_native_tls(
    secure_server: WebSocketsServer,
    proxy: Proxies,
    certificates: Certificates,
    run: Run,
    connect: Connect,
    scheme: str,
) -> None:
    """With an https proxy: TLS inside TLS."""
    import wirespeed

    tls = wirespeed.TLS(ca=certificates.ca_file)
    through = proxy(SCHEMES[scheme])
    settings = {"proxy_ssl": tls} if scheme == "https" else {}
    with no_leaks():
        echoes(run, connect, secure_server.uri, ssl=tls, proxy=through.url(scheme), **settings)
    through.read_connection(secure_server.port)


@pytest.mark.parametrize(("scheme", "by_proxy"), [("socks5", False), ("socks5h", True), ("http", True)])
def test_name_resolution_by_client_or_proxy(
    server: WebSocketsServer, proxy: Proxies, run: Run, connect: Connect, scheme: str, by_proxy: bool
) -> None:
    through = proxy(SCHEMES[scheme])
    echoes(run, connect, f"ws://localhost:{server.port}/", proxy=through.url(scheme))
    assert through.read_connection(server.port) == ("localhost" if by_proxy else "127.0.0.1", server.port)


def test_socks4a_leaves_the_name_to_the_proxy(
    server: WebSocketsServer, proxy: Proxies, run: Run, connect: Connect
) -> None:
    through = proxy("socks4")
    echoes(run, connect, f"ws://localhost:{server.port}/", proxy=through.url("socks4a"))
    assert through.read_resolution() == "localhost"


@pytest.mark.wirespeed_only("websockets uses these with an http proxy, too")
def test_host_and_port_through_a_socks_proxy(server: WebSocketsServer, proxy: Proxies, run: Run) -> None:
    from support.asyncio_subject import connect

    through = proxy("socks5")
    options = {"host": "127.0.0.1", "port": server.port, "proxy": through.url("socks5h")}
    echoes(run, connect, "ws://example.com/", **options)
    assert through.read_connection(server.port) == ("127.0.0.1", server.port)


# Refusals


@pytest.mark.parametrize("user_info", ["", "someone:wrong@"], ids=["none", "wrong"])
@pytest.mark.parametrize("scheme", ["http", "https"])
def test_http_proxy_refuses_login(
    server: WebSocketsServer,
    proxy: Proxies,
    certificates: Certificates,
    run: Run,
    connect: Connect,
    scheme: str,
    user_info: str,
) -> None:
    settings = options(proxy(scheme, login=True), certificates, scheme, user_info)
    exc = fails(run, exceptions.InvalidProxyStatus, lambda: connect(server.uri, **settings), "407")
    response = exc.response  # type: ignore[attr-defined]
    assert response.status_code == 407
    assert response.headers["Proxy-Authenticate"].startswith("Basic")


@pytest.mark.parametrize("user_info", ["", "nobody:wrong@"], ids=["none", "wrong"])
@pytest.mark.parametrize("scheme", ["socks4", "socks5h"])
def test_socks_proxy_refuses_login(
    server: WebSocketsServer, proxy: Proxies, run: Run, connect: Connect, scheme: str, user_info: str
) -> None:
    through = proxy(SCHEMES[scheme], login=True)
    with within(8):
        exc = fails(
            run,
            (exceptions.ProxyError, OSError),
            lambda: connect(server.uri, open_timeout=5, proxy=through.url(scheme, user_info)),
        )
    assert not isinstance(exc, TimeoutError)


@pytest.mark.parametrize("scheme", ["http", "socks5h"])
def test_proxy_is_unreachable(
    server: WebSocketsServer, run: Run, connect: Connect, closed_port: int, scheme: str
) -> None:
    proxy = f"{scheme}://127.0.0.1:{closed_port}"
    fails(run, (ConnectionRefusedError, exceptions.ProxyError, OSError), lambda: connect(server.uri, proxy=proxy))


def test_https_proxy_that_is_not_trusted(server: WebSocketsServer, proxy: Proxies, run: Run, connect: Connect) -> None:
    through = proxy("https")
    fails(run, (ssl.SSLError, exceptions.InvalidHandshake), lambda: connect(server.uri, proxy=through.url()))


def test_proxy_server_hostname(
    server: WebSocketsServer, proxy: Proxies, certificates: Certificates, run: Run, connect: Connect
) -> None:
    through = proxy("https")
    settings = options(through, certificates)
    wrong = {**settings, "proxy_server_hostname": "elsewhere.example"}
    fails(run, (ssl.SSLError, exceptions.InvalidHandshake), lambda: connect(server.uri, **wrong))
    echoes(run, connect, server.uri, **{**settings, "proxy_server_hostname": "127.0.0.1"})
    through.read_connection()


@pytest.mark.wirespeed_only("ours")
def test_without_python_socks(
    server: WebSocketsServer, run: Run, connect: Connect, monkeypatch: pytest.MonkeyPatch, closed_port: int
) -> None:

    monkeypatch.setitem(sys.modules, "python_socks", None)
    fails(
        run, ImportError, lambda: connect(server.uri, proxy=f"socks5://127.0.0.1:{closed_port}"), r"wirespeed\[socks\]"
    )


# Environment


def test_environment(
    server: WebSocketsServer, proxy: Proxies, monkeypatch: pytest.MonkeyPatch, run: Run, connect: Connect
) -> None:
    """The environment counts when the connection is opened."""
    through = proxy("http")

    async def main() -> None:
        connecting = connect(server.uri)
        monkeypatch.setenv("http_proxy", through.url())
        async with connecting as ws:
            await echo(ws)

    run(main)
    assert through.read_connection(server.port) == ("127.0.0.1", server.port)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    echoes(run, connect, server.uri)


def test_environment_with_socks(
    server: WebSocketsServer, proxy: Proxies, monkeypatch: pytest.MonkeyPatch, run: Run, connect: Connect
) -> None:
    through = proxy("socks5")
    monkeypatch.setenv("socks_proxy", through.url("socks5h"))
    echoes(run, connect, server.uri)
    assert through.read_connection(server.port) == ("127.0.0.1", server.port)


def test_argument_wins_over_environment(
    server: WebSocketsServer, proxy: Proxies, monkeypatch: pytest.MonkeyPatch, run: Run, connect: Connect
) -> None:
    through = proxy("http")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    echoes(run, connect, server.uri, proxy=None)
    echoes(run, connect, server.uri, proxy=through.url())
    assert through.read_connection(server.port) == ("127.0.0.1", server.port)


@pytest.mark.wirespeed_only("websockets raises it as it is")
def test_bad_environment(server: WebSocketsServer, monkeypatch: pytest.MonkeyPatch, run: Run, connect: Connect) -> None:
    monkeypatch.setenv("http_proxy", "ftp://127.0.0.1:1")
    fails(run, exceptions.InvalidProxy, lambda: connect(server.uri))


# The CONNECT request


def test_connect_request(server: WebSocketsServer, scripted: Scripted, run: Run, connect: Connect) -> None:
    def script(wire: Wire) -> bytes:
        request = wire.read_request()
        wire.send(b"HTTP/1.1 200 Connection established\r\n\r\n")
        relay(wire, server.port)
        return request

    fake = scripted(script)
    user_info = f"{USER}:{PASSWORD.replace(' ', '%20')}@"
    proxy = f"http://{user_info}127.0.0.1:{fake.port}"
    echoes(run, connect, server.uri, proxy=proxy, user_agent_header="Eggs/1.0")
    lines = fake.result.decode().split("\r\n")
    assert lines[0] == f"CONNECT 127.0.0.1:{server.port} HTTP/1.1"
    headers = {line.split(": ", 1)[0].lower(): line.split(": ", 1)[1] for line in lines[1:]}
    assert headers["proxy-authorization"] == "Basic " + base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
    assert headers["user-agent"] == "Eggs/1.0"
    assert "sec-websocket-key" not in headers


@pytest.mark.wirespeed_only("websockets raises TypeError")
@pytest.mark.parametrize("scheme", ["http", "https", "socks5h"])
def test_explicit_address(
    server: WebSocketsServer, proxy: Proxies, certificates: Certificates, run: Run, connect: Connect, scheme: str
) -> None:
    """The proxy gets the address; the request keeps that of the URI."""
    through = proxy(SCHEMES[scheme])

    async def main() -> None:
        settings = {"host": "localhost", "port": server.port, **options(through, certificates, scheme)}
        async with connect("ws://example.com/", **settings) as ws:
            assert ws.request.headers["Host"] == "example.com"
            await echo(ws)

    run(main)
    assert through.read_connection(server.port) == ("localhost", server.port)


@pytest.mark.wirespeed_only("websockets raises TypeError")
def test_explicit_address_and_certificate(
    secure_server: WebSocketsServer, proxy: Proxies, certificates: Certificates, run: Run, connect: Connect
) -> None:
    """The certificate must have the name of the URI."""
    through = proxy("http")
    settings = {"host": "127.0.0.1", "port": secure_server.port, "ssl": certificates.client_context()}
    settings |= options(through, certificates)
    echoes(run, connect, "wss://localhost/", **settings)
    assert through.read_connection(secure_server.port) == ("127.0.0.1", secure_server.port)
    fails(run, ssl.SSLError, lambda: connect("wss://example.com/", **settings))


@pytest.mark.parametrize("pieces", [1, 7])
def test_answer_in_pieces(
    server: WebSocketsServer, scripted: Scripted, run: Run, connect: Connect, pieces: int
) -> None:
    def script(wire: Wire) -> None:
        wire.read_request()
        wire.send_in_pieces(b"HTTP/1.1 200 OK\r\nServer: x\r\n\r\n", pieces)
        relay(wire, server.port)

    echoes(run, connect, server.uri, proxy=f"http://127.0.0.1:{scripted(script).port}")


# Misbehaving proxies

LIES = {
    "closes": b"",
    "garbage": b"\x00\x01\x02\x03" * 10 + b"\r\n\r\n",
    "half-an-answer": b"HTTP/1.1 200 Conn",
    "bad-header": b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
    "head-too-big": b"HTTP/1.1 200 OK\r\nX: " + b"x" * 100_000 + b"\r\n\r\n",
}


@pytest.mark.parametrize("answer", LIES.values(), ids=LIES)
def test_http_proxy_sends_invalid_response(run: Run, connect: Connect, answer: bytes) -> None:
    def script(wire: Wire) -> None:
        wire.read_request()
        wire.send(answer)

    with no_leaks(), ScriptedServer(script) as liar, within(8):
        proxy = f"http://127.0.0.1:{liar.port}"
        with pytest.raises((exceptions.InvalidProxyMessage, ConnectionError)) as raised:
            run(lambda: awaiting(connect("ws://127.0.0.1:1/", proxy=proxy, open_timeout=5)))
        del raised


async def awaiting(connecting: Any) -> Any:
    return await connecting


@pytest.mark.parametrize("status", [301, 403, 502])
def test_http_proxy_refuses(scripted: Scripted, run: Run, connect: Connect, status: int) -> None:
    def script(wire: Wire) -> None:
        wire.read_request()
        wire.send(f"HTTP/1.1 {status} No\r\nX-Why: because\r\nContent-Length: 3\r\n\r\nno!".encode())

    proxy = f"http://127.0.0.1:{scripted(script).port}"
    with pytest.raises(exceptions.InvalidProxyStatus) as raised:
        run(lambda: awaiting(connect("ws://127.0.0.1:1/", proxy=proxy)))
    assert raised.value.response.status_code == status
    assert raised.value.response.headers["X-Why"] == "because"


SOCKS_LIES = {
    "closes": b"",
    "garbage": b"\xff" * 50,
    "http": b"HTTP/1.1 400 Bad Request\r\n\r\n",
    "no-method": b"\x05\xff",
    "connection-refused": b"\x05\x00\x05\x05\x00\x01\x00\x00\x00\x00\x00\x00",
    "half-a-reply": b"\x05\x00\x05\x00",
}


@pytest.mark.parametrize("answer", SOCKS_LIES.values(), ids=SOCKS_LIES)
def test_socks_proxy_sends_invalid_response(scripted: Scripted, run: Run, connect: Connect, answer: bytes) -> None:
    def script(wire: Wire) -> None:
        wire.read_exactly(3)
        wire.send(answer)

    proxy = f"socks5h://127.0.0.1:{scripted(script).port}"
    with within(8), pytest.raises((exceptions.ProxyError, OSError)) as raised:
        run(lambda: awaiting(connect("ws://127.0.0.1:1/", proxy=proxy, open_timeout=5)))
    assert not isinstance(raised.value, TimeoutError)


@pytest.mark.parametrize("scheme", ["http", "https", "socks4", "socks5"])
def test_proxy_hangs(scripted: Scripted, certificates: Certificates, run: Run, connect: Connect, scheme: str) -> None:
    hanging = scripted(lambda wire: wire.read_to_end())
    settings: dict[str, Any] = {"proxy": f"{scheme}://127.0.0.1:{hanging.port}", "open_timeout": 0.3}
    if scheme == "https":
        settings["proxy_ssl"] = certificates.client_context()
    with within(4, at_least=0.3):
        exc = fails(run, TimeoutError, lambda: connect("ws://127.0.0.1:1/", **settings), "timed out")
    assert "SOCKS" in str(exc) or not scheme.startswith("socks") or not exceptions.__name__.startswith("wirespeed")


def test_proxy_hangs_after_its_answer(scripted: Scripted, run: Run, connect: Connect) -> None:
    """The open timeout covers all steps."""

    def script(wire: Wire) -> None:
        wire.read_request()
        wire.send(b"HTTP/1.1 200 OK\r\n\r\n")
        wire.read_to_end()

    proxy = f"http://127.0.0.1:{scripted(script).port}"
    with within(4, at_least=0.3):
        fails(run, TimeoutError, lambda: connect("ws://127.0.0.1:1/", proxy=proxy, open_timeout=0.3))


@pytest.mark.wirespeed_only("websockets loses them")
def test_bytes_after_the_answer_are_not_lost(scripted: Scripted, run: Run, connect: Connect) -> None:
    """Bytes of a server that sends before the client fail the handshake, which does not hang."""

    def script(wire: Wire) -> None:
        wire.read_request()
        wire.send(b"HTTP/1.1 200 OK\r\n\r\n" + b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n")
        wire.read_to_end()

    proxy = f"http://127.0.0.1:{scripted(script).port}"
    with within(4):
        fails(run, exceptions.InvalidStatus, lambda: connect("ws://127.0.0.1:1/", proxy=proxy), "403")
