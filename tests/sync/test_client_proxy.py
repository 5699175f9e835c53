"""Proxies of each kind, by argument and by environment, and misbehaving proxies."""

from __future__ import annotations

import base64
import ssl
from collections.abc import Callable
from typing import Any, cast

import pytest

from support.certificates import Certificates
from support.checks import no_leaks, within
from support.proxies import PASSWORD, USER, Proxy, relay
from support.scripted import Scripted, ScriptedServer, Wire
from support.servers import WebSocketsServer
from support.subject import connect, exceptions

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


def echo(uri: str, **options: Any) -> Any:
    with connect(uri, **options) as ws:
        ws.send("hello")
        assert ws.recv(timeout=5) == "hello"
    return ws


@pytest.mark.parametrize("login", [False, True], ids=["open", "login"])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_proxy(server: WebSocketsServer, proxy: Proxies, certificates: Certificates, scheme: str, login: bool) -> None:
    through = proxy(SCHEMES[scheme], login=login)
    echo(server.uri, **options(through, certificates, scheme))
    assert through.read_connection(server.port) == ("127.0.0.1", server.port)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_proxy_to_tls(secure_server: WebSocketsServer, proxy: Proxies, certificates: Certificates, scheme: str) -> None:
    through = proxy(SCHEMES[scheme])
    echo(secure_server.uri, ssl=certificates.client_context(), **options(through, certificates, scheme))
    through.read_connection(secure_server.port)


@pytest.mark.parametrize(("scheme", "by_proxy"), [("socks5", False), ("socks5h", True), ("http", True)])
def test_name_resolution_by_client_or_proxy(
    server: WebSocketsServer, proxy: Proxies, certificates: Certificates, scheme: str, by_proxy: bool
) -> None:
    through = proxy(SCHEMES[scheme])
    echo(f"ws://localhost:{server.port}/", **options(through, certificates, scheme))
    assert through.read_connection(server.port) == ("localhost" if by_proxy else "127.0.0.1", server.port)


def test_socks4a_leaves_the_name_to_the_proxy(
    server: WebSocketsServer, proxy: Proxies, certificates: Certificates
) -> None:
    through = proxy("socks4")
    echo(f"ws://localhost:{server.port}/", **options(through, certificates, "socks4a"))
    assert through.read_resolution() == "localhost"


@pytest.mark.wirespeed_only("websockets takes contexts only")
def test_https_proxy_with_native_tls(
    secure_server: WebSocketsServer, proxy: Proxies, certificates: Certificates
) -> None:
    """TLS inside TLS."""
    import wirespeed

    settings = wirespeed.TLS(ca=certificates.ca_file)
    through = proxy("https")
    echo(secure_server.uri, ssl=settings, proxy=through.url(), proxy_ssl=settings)
    through.read_connection(secure_server.port)


@pytest.mark.wirespeed_only("websockets waits for the socket while decrypted bytes are left")
def test_big_messages_through_tls_in_tls(
    secure_server: WebSocketsServer, proxy: Proxies, certificates: Certificates
) -> None:
    message = bytes(range(256)) * 4096
    through = proxy("https")
    with connect(
        secure_server.uri, ssl=certificates.client_context(), compression=None, **options(through, certificates)
    ) as ws:
        ws.send(message)
        assert ws.recv(timeout=10) == message
    through.read_connection()


# Refusals


@pytest.mark.parametrize("user_info", ["", "someone:wrong@"], ids=["none", "wrong"])
@pytest.mark.parametrize("scheme", ["http", "https"])
def test_http_proxy_refuses_login(
    server: WebSocketsServer, proxy: Proxies, certificates: Certificates, scheme: str, user_info: str
) -> None:
    through = proxy(scheme, login=True)
    with no_leaks(), pytest.raises(exceptions.InvalidProxyStatus) as raised:
        connect(server.uri, **options(through, certificates, scheme, user_info))
    assert raised.value.response.status_code == 407
    assert raised.value.response.headers["Proxy-Authenticate"].startswith("Basic")
    assert "407" in str(raised.value)


@pytest.mark.parametrize("user_info", ["", "nobody:wrong@"], ids=["none", "wrong"])
@pytest.mark.parametrize("scheme", ["socks4", "socks4a", "socks5", "socks5h"])
def test_socks_proxy_refuses_login(
    server: WebSocketsServer, proxy: Proxies, certificates: Certificates, scheme: str, user_info: str
) -> None:
    through = proxy(SCHEMES[scheme], login=True)
    with within(8), pytest.raises((exceptions.ProxyError, OSError)) as raised:
        connect(server.uri, open_timeout=5, **options(through, certificates, scheme, user_info))
    assert not isinstance(raised.value, TimeoutError)


def test_proxy_is_unreachable(server: WebSocketsServer) -> None:
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        for scheme in ("http", "socks5h"):
            with no_leaks(), pytest.raises((ConnectionRefusedError, exceptions.ProxyError, OSError)):
                connect(server.uri, proxy=f"{scheme}://127.0.0.1:{port}")


@pytest.mark.parametrize(
    "address",
    [
        "ftp://127.0.0.1:1",
        "http://",
        "127.0.0.1:8080",
        "http://127.0.0.1/path",
        "http://127.0.0.1/?query",
        "http://user@127.0.0.1",
        "http://127.0.0.1/#fragment",
    ],
)
def test_bad_proxy_address(server: WebSocketsServer, address: str) -> None:
    with pytest.raises(exceptions.InvalidProxy) as raised:
        connect(server.uri, proxy=address)
    assert raised.value.proxy == address


def test_proxy_ssl_with_a_plain_proxy(server: WebSocketsServer, proxy: Proxies, certificates: Certificates) -> None:
    with pytest.raises(ValueError, match="proxy_ssl"):
        connect(server.uri, proxy=proxy("http").url(), proxy_ssl=certificates.client_context())


def test_https_proxy_that_is_not_trusted(server: WebSocketsServer, proxy: Proxies) -> None:
    with pytest.raises((ssl.SSLError, exceptions.InvalidHandshake)):
        connect(server.uri, proxy=proxy("https").url())


def test_proxy_server_hostname(server: WebSocketsServer, proxy: Proxies, certificates: Certificates) -> None:
    through = proxy("https")
    settings = options(through, certificates)
    with pytest.raises((ssl.SSLError, exceptions.InvalidHandshake)):
        connect(server.uri, proxy_server_hostname="elsewhere.example", **settings)
    echo(server.uri, proxy_server_hostname="127.0.0.1", **settings)
    through.read_connection()


# Environment


@pytest.mark.parametrize("variable", ["ws_proxy", "http_proxy", "https_proxy", "socks_proxy"])
def test_environment(server: WebSocketsServer, proxy: Proxies, monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    through = proxy("socks5" if variable == "socks_proxy" else "http")
    monkeypatch.setenv(variable, through.url("socks5h" if variable == "socks_proxy" else None))
    echo(server.uri)
    assert through.read_connection(server.port) == ("127.0.0.1", server.port)


@pytest.mark.parametrize("variable", ["wss_proxy", "https_proxy"])
def test_environment_for_tls(
    secure_server: WebSocketsServer,
    proxy: Proxies,
    certificates: Certificates,
    monkeypatch: pytest.MonkeyPatch,
    variable: str,
) -> None:
    through = proxy("http")
    monkeypatch.setenv(variable, through.url())
    echo(secure_server.uri, ssl=certificates.client_context())
    through.read_connection(secure_server.port)


def refuse_everything(scripted: Scripted) -> ScriptedServer:
    """A proxy that must not be used."""
    return scripted(lambda wire: wire.send(b"HTTP/1.1 403 Forbidden\r\n\r\n"))


@pytest.mark.parametrize("value", ["127.0.0.1", "*", "example.com,127.0.0.1"])
def test_no_proxy(server: WebSocketsServer, scripted: Scripted, monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    wrong = refuse_everything(scripted)
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{wrong.port}")
    with pytest.raises(exceptions.InvalidProxyStatus):
        connect(server.uri)
    monkeypatch.setenv("no_proxy", value)
    echo(server.uri)


def test_no_proxy_for_one_port(server: WebSocketsServer, scripted: Scripted, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = refuse_everything(scripted)
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{wrong.port}")
    monkeypatch.setenv("no_proxy", f"127.0.0.1:{server.port}")
    echo(server.uri)


def test_argument_wins_over_environment(
    server: WebSocketsServer, proxy: Proxies, scripted: Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong, through = refuse_everything(scripted), proxy("http")
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{wrong.port}")
    echo(server.uri, proxy=None)
    echo(server.uri, proxy=through.url())
    assert through.read_connection(server.port) == ("127.0.0.1", server.port)


def test_tls_does_not_use_http_proxy(
    secure_server: WebSocketsServer, scripted: Scripted, certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = refuse_everything(scripted)
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{wrong.port}")
    echo(secure_server.uri, ssl=certificates.client_context())


# The CONNECT request


def test_connect_request(server: WebSocketsServer, scripted: Scripted) -> None:
    def script(wire: Wire) -> bytes:
        request = wire.read_request()
        wire.send(b"HTTP/1.1 200 Connection established\r\n\r\n")
        relay(wire, server.port)
        return request

    fake = scripted(script)
    user_info = f"{USER}:{PASSWORD.replace(' ', '%20')}@"
    echo(server.uri, proxy=f"http://{user_info}127.0.0.1:{fake.port}", user_agent_header="Eggs/1.0")
    lines = fake.result.decode().split("\r\n")
    assert lines[0] == f"CONNECT 127.0.0.1:{server.port} HTTP/1.1"
    headers = {line.split(": ", 1)[0].lower(): line.split(": ", 1)[1] for line in lines[1:]}
    assert headers["host"].startswith("127.0.0.1")
    assert headers["proxy-authorization"] == "Basic " + base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
    assert headers["user-agent"] == "Eggs/1.0"
    assert "sec-websocket-key" not in headers


@pytest.mark.wirespeed_only("websockets raises TypeError")
@pytest.mark.parametrize(
    ("address", "target"),
    [
        ({"host": "10.0.0.5", "port": 8443}, "10.0.0.5:8443"),
        ({"host": "::1"}, "[::1]:443"),
        ({"port": 8443}, "example.com:8443"),
        ({}, "example.com:443"),
    ],
)
def test_explicit_address(
    secure_server: WebSocketsServer,
    scripted: Scripted,
    certificates: Certificates,
    address: dict[str, Any],
    target: str,
) -> None:
    """The proxy gets the address; the certificate and the request keep that of the URI."""

    def script(wire: Wire) -> bytes:
        request = wire.read_request()
        wire.send(b"HTTP/1.1 200 Connection established\r\n\r\n")
        relay(wire, secure_server.port)
        return request

    fake = scripted(script)
    settings = {"proxy": f"http://127.0.0.1:{fake.port}", "ssl": certificates.client_context(), **address}
    with pytest.raises(ssl.SSLError, match=r"example\.com"):
        connect("wss://example.com/", **settings)
    lines = fake.result.decode().split("\r\n")
    assert lines[0] == f"CONNECT {target} HTTP/1.1"
    assert f"Host: {target}" in lines


@pytest.mark.wirespeed_only("websockets raises TypeError")
@pytest.mark.parametrize("scheme", ["http", "https", "socks5h"])
def test_explicit_address_of_the_server(
    server: WebSocketsServer, proxy: Proxies, certificates: Certificates, scheme: str
) -> None:
    through = proxy(SCHEMES[scheme])
    settings = {"host": "localhost", "port": server.port, **options(through, certificates, scheme)}
    assert echo("ws://example.com/", **settings).request.headers["Host"] == "example.com"
    assert through.read_connection(server.port) == ("localhost", server.port)


@pytest.mark.wirespeed_only("ours")
@pytest.mark.parametrize("host", ["a b", "a\r\nb", "a/b"])
def test_invalid_explicit_address(proxy: Proxies, host: str) -> None:
    with pytest.raises(ValueError, match="host:port"):
        connect("ws://example.com/", host=host, proxy=proxy("http").url())


def test_proxy_credentials_stay_at_the_proxy(
    server: WebSocketsServer, proxy: Proxies, certificates: Certificates
) -> None:
    through = proxy("http", login=True)
    with connect(server.uri + "/headers", **options(through, certificates)) as ws:
        assert not [line for line in ws if cast(str, line).lower().startswith("proxy-")]
    through.read_connection()


@pytest.mark.parametrize("pieces", [1, 7, 1000])
def test_answer_in_pieces(server: WebSocketsServer, scripted: Scripted, pieces: int) -> None:
    def script(wire: Wire) -> None:
        wire.read_request()
        wire.send_in_pieces(b"HTTP/1.1 200 OK\r\nServer: x\r\nContent-Length: 0\r\n\r\n", pieces)
        relay(wire, server.port)

    echo(server.uri, proxy=f"http://127.0.0.1:{scripted(script).port}")


# Misbehaving proxies

LIES = {
    "closes": b"",
    "garbage": b"\x00\x01\x02\x03" * 10 + b"\r\n\r\n",
    "half-an-answer": b"HTTP/1.1 200 Conn",
    "bad-header": b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
    "http-2": b"HTTP/2 200 OK\r\n\r\n",
    "head-too-big": b"HTTP/1.1 200 OK\r\nX: " + b"x" * 100_000 + b"\r\n\r\n",
}


@pytest.mark.parametrize("answer", LIES.values(), ids=LIES)
def test_http_proxy_sends_invalid_response(answer: bytes) -> None:
    def script(wire: Wire) -> None:
        wire.read_request()
        wire.send(answer)

    with no_leaks(), ScriptedServer(script) as liar:
        with within(8), pytest.raises((exceptions.ProxyError, ConnectionError)) as raised:
            connect("ws://127.0.0.1:1/", proxy=f"http://127.0.0.1:{liar.port}", open_timeout=5)
        assert isinstance(raised.value, (exceptions.InvalidProxyMessage, ConnectionError))
        del raised


@pytest.mark.parametrize("status", [301, 400, 403, 404, 500, 502, 503])
def test_http_proxy_refuses(scripted: Scripted, status: int) -> None:
    def script(wire: Wire) -> None:
        wire.read_request()
        wire.send(f"HTTP/1.1 {status} No\r\nX-Why: because\r\nContent-Length: 3\r\n\r\nno!".encode())

    with pytest.raises(exceptions.InvalidProxyStatus) as raised:
        connect("ws://127.0.0.1:1/", proxy=f"http://127.0.0.1:{scripted(script).port}")
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
def test_socks5_proxy_sends_invalid_response(scripted: Scripted, answer: bytes) -> None:
    def script(wire: Wire) -> None:
        wire.read_exactly(3)
        wire.send(answer)

    liar = scripted(script)
    with within(8), pytest.raises((exceptions.ProxyError, OSError)) as raised:
        connect("ws://127.0.0.1:1/", proxy=f"socks5h://127.0.0.1:{liar.port}", open_timeout=5)
    assert not isinstance(raised.value, TimeoutError)


@pytest.mark.parametrize("scheme", ["http", "https", "socks4", "socks5"])
def test_proxy_hangs(scripted: Scripted, certificates: Certificates, scheme: str) -> None:
    hanging = scripted(lambda wire: wire.read_to_end())
    settings: dict[str, Any] = {"proxy": f"{scheme}://127.0.0.1:{hanging.port}"}
    if scheme == "https":
        settings["proxy_ssl"] = certificates.client_context()
    with within(4, at_least=0.3), pytest.raises((TimeoutError, exceptions.ProxyError)) as raised:
        connect("ws://127.0.0.1:1/", open_timeout=0.3, **settings)
    assert "time" in str(raised.value).lower() or isinstance(raised.value, TimeoutError)


def test_proxy_hangs_after_its_answer(scripted: Scripted) -> None:
    """The open timeout covers all steps."""

    def script(wire: Wire) -> None:
        wire.read_request()
        wire.send(b"HTTP/1.1 200 OK\r\n\r\n")
        wire.read_to_end()

    with within(4, at_least=0.3), pytest.raises(TimeoutError):
        connect("ws://127.0.0.1:1/", proxy=f"http://127.0.0.1:{scripted(script).port}", open_timeout=0.3)


@pytest.mark.wirespeed_only("websockets loses them")
def test_bytes_after_the_answer_are_not_lost(scripted: Scripted) -> None:
    """Bytes of a server that sends before the client fail the handshake, which does not hang."""

    def script(wire: Wire) -> None:
        wire.read_request()
        wire.send(b"HTTP/1.1 200 OK\r\n\r\n" + b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n")
        wire.read_to_end()

    with within(8), pytest.raises((exceptions.InvalidHandshake, ConnectionError)):
        connect("ws://127.0.0.1:1/", proxy=f"http://127.0.0.1:{scripted(script).port}", open_timeout=5)
