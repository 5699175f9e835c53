"""Proxies: choosing, parsing, requests."""

from __future__ import annotations

import base64
import builtins
import contextlib
import socket
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from support.checks import no_leaks, within
from support.proxies import Proxy as RunningProxy
from wirespeed._net.proxy import Proxy, basic_authorization, connect_socks, get_proxy, parse_proxy, tunnel_request
from wirespeed._net.uri import parse_uri
from wirespeed.exceptions import InvalidProxy, ProxyError

RunProxy = Callable[..., RunningProxy]


# Parsing

VALID = [
    ("http://proxy:8080", Proxy("http", "proxy", 8080)),
    ("https://proxy:8080/", Proxy("https", "proxy", 8080)),
    ("http://proxy", Proxy("http", "proxy", 80)),
    ("https://proxy", Proxy("https", "proxy", 443)),
    ("socks4://proxy", Proxy("socks4", "proxy", 1080)),
    ("socks4a://proxy:8080", Proxy("socks4a", "proxy", 8080)),
    ("socks5://proxy:8080", Proxy("socks5", "proxy", 8080)),
    ("SOCKS5H://Proxy", Proxy("socks5h", "proxy", 1080)),
    ("http://us%40er:p%2Fss@proxy:8080", Proxy("http", "proxy", 8080, "us@er", "p/ss")),
    ("socks5://us%3Aer:@proxy", Proxy("socks5", "proxy", 1080, "us:er", "")),
    ("socks4://user@proxy", Proxy("socks4", "proxy", 1080, "user", None)),
    ("http://[::1]:3128", Proxy("http", "::1", 3128)),
    ("http://pr\u00f6xy:3128", Proxy("http", "xn--prxy-6qa", 3128)),
]


@pytest.mark.parametrize(("url", "parsed"), VALID, ids=[ascii(url) for url, _ in VALID])
def test_parse(url: str, parsed: Proxy) -> None:
    assert parse_proxy(url) == parsed


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("", "begin it with http://"),
        ("127.0.0.1:3128", "begin it with http://"),
        ("//proxy", "scheme isn't supported"),
        ("ftp://proxy", "scheme isn't supported"),
        ("socks://proxy", "scheme isn't supported"),
        ("http://", "hostname isn't provided"),
        ("http://:80", "hostname isn't provided"),
        ("http://proxy:99999", "port"),
        ("http://proxy/path", "path is meaningless"),
        ("http://proxy?query", "query is meaningless"),
        ("http://proxy#fragment", "fragment is meaningless"),
        ("http://user@proxy", "username provided without password"),
        ("socks5://user@proxy", "username provided without password"),
        ("http://a%3Ab:c@proxy", "colon"),
        ("socks5://user:%C3%A9@proxy", "ASCII"),
        ("socks5://user:" + "x" * 256 + "@proxy", "255"),
        ("http://proxy\r\n:80", "control character"),
    ],
)
def test_parse_invalid(url: str, message: str) -> None:
    with pytest.raises(InvalidProxy, match=message) as raised:
        parse_proxy(url)
    assert raised.value.proxy == url


@pytest.mark.parametrize("password", ["s3cret", "s3/cret", "s3#cret", "s3?cret", "s3@cret", "s3:cret"])
def test_password_is_never_shown(password: str) -> None:
    with pytest.raises(InvalidProxy) as raised:
        parse_proxy(f"nonsense://user:{password}@proxy")
    assert "s3" not in str(raised.value) + repr(raised.value)
    assert "cret" not in str(raised.value) + repr(raised.value)
    assert "secret" not in repr(parse_proxy("http://user:secret@proxy"))


def test_properties() -> None:
    assert parse_proxy("http://proxy").user_info is None
    assert parse_proxy("socks4://user@proxy").user_info == ("user", "")
    assert [parse_proxy(f"{scheme}://proxy").is_socks for scheme in ("http", "https", "socks4", "socks5h")] == [
        False,
        False,
        True,
        True,
    ]
    assert [parse_proxy(f"socks{kind}://proxy").remote_dns for kind in ("4", "4a", "5", "5h")] == [
        False,
        True,
        False,
        True,
    ]


# Choosing

ENVIRONMENTS: list[dict[str, str]] = [
    {},
    {"http_proxy": "http://h:1"},
    {"https_proxy": "http://s:2"},
    {"HTTPS_PROXY": "http://s:2", "http_proxy": "http://h:1"},
    {"socks_proxy": "socks5://x:3", "https_proxy": "http://s:2"},
    {"socks_proxy": "http://x:3"},
    {"wss_proxy": "http://w:4", "socks_proxy": "socks5://x:3", "https_proxy": "http://s:2"},
    {"ws_proxy": "http://w:4", "http_proxy": "http://h:1"},
    {"all_proxy": "http://a:5"},
    {"https_proxy": "", "http_proxy": ""},
    {"https_proxy": "http://s:2", "no_proxy": "example.com"},
    {"https_proxy": "http://s:2", "no_proxy": ".example.com"},
    {"https_proxy": "http://s:2", "no_proxy": "other.com, example.com:8000"},
    {"https_proxy": "http://s:2", "no_proxy": "example.com:8001"},
    {"https_proxy": "http://s:2", "no_proxy": "*"},
    {"https_proxy": "http://s:2", "no_proxy": "127.0.0.1"},
]


@pytest.mark.parametrize("environment", ENVIRONMENTS, ids=str)
@pytest.mark.parametrize("uri", ["ws://example.com:8000/", "wss://sub.example.com/", "wss://127.0.0.1/", "ws://[::1]/"])
def test_choice_is_that_of_websockets(monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], uri: str) -> None:
    theirs: Any = pytest.importorskip("websockets.proxy")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    parsed = parse_uri(uri)
    url = theirs.get_proxy(parsed)
    assert get_proxy(parsed) == (None if url is None else parse_proxy(url))


@pytest.mark.parametrize(
    ("uri", "host"),
    [("wss://example.com/", "s"), ("ws://example.com/", "s"), ("wss://direct.example/", None)],
)
def test_environment(monkeypatch: pytest.MonkeyPatch, uri: str, host: str | None) -> None:
    monkeypatch.setenv("https_proxy", "http://s:2")
    monkeypatch.setenv("http_proxy", "http://h:1")
    monkeypatch.setenv("no_proxy", "direct.example")
    chosen = get_proxy(parse_uri(uri), True)
    assert (None if chosen is None else chosen.host) == host


def test_http_proxy_is_for_ws_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://h:1")
    assert get_proxy(parse_uri("wss://example.com/")) is None
    assert get_proxy(parse_uri("ws://example.com/")) == Proxy("http", "h", 1)


def test_socks_proxy_of_the_system(monkeypatch: pytest.MonkeyPatch) -> None:
    """macOS and Windows give it an http URL."""
    monkeypatch.setattr(urllib.request, "getproxies", lambda: {"socks": "http://x:3"})
    assert get_proxy(parse_uri("ws://example.com/")) == Proxy("socks5h", "x", 3)


def test_explicit_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("https_proxy", "http://s:2")
    monkeypatch.setenv("no_proxy", "example.com")
    uri = parse_uri("wss://example.com/")
    assert get_proxy(uri, None) is None
    assert get_proxy(uri, "socks5://mine:1") == Proxy("socks5", "mine", 1)
    with pytest.raises(InvalidProxy):
        get_proxy(uri, "")
    with pytest.raises(TypeError, match="proxy must be"):
        get_proxy(uri, False)  # type: ignore[arg-type]


def test_invalid_proxy_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("https_proxy", "proxy:3128")
    with pytest.raises(InvalidProxy, match="begin it with http://"):
        get_proxy(parse_uri("wss://example.com/"))


# HTTP


def test_basic_authorization() -> None:
    # RFC 7617, sections 2 and 2.1.
    assert basic_authorization("Aladdin", "open sesame") == "Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ=="
    assert basic_authorization("test", "123\u00a3") == "Basic dGVzdDoxMjPCow=="
    assert basic_authorization("", "a:b") == "Basic " + base64.b64encode(b":a:b").decode()
    assert basic_authorization("a", "\udcff") == "Basic " + base64.b64encode(b"a:\xff").decode()
    with pytest.raises(ValueError, match="colon"):
        basic_authorization("a:b", "c")


def test_tunnel_request() -> None:
    assert tunnel_request(parse_proxy("http://a:b@proxy"), "::1", 443, "Me") == (
        "[::1]:443",
        [("User-Agent", "Me")],
        "Basic YTpi",
    )
    plain = parse_proxy("http://proxy")
    assert tunnel_request(plain, "example.com", 81, None) == ("example.com:81", [], None)
    assert tunnel_request(plain, "fe80::1%eth0", 80, None)[0] == "[fe80::1]:80"
    assert tunnel_request(plain, "b\xfccher.example", 80, None)[0] == "xn--bcher-kva.example:80"


# SOCKS


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        yield sock


def socks(url: str, host: str, port: int, *, timeout: float = 10) -> socket.socket:
    proxy = parse_proxy(url)
    sock = socket.create_connection((proxy.host, proxy.port), timeout)
    return connect_socks(sock, proxy, host, port, deadline=time.monotonic() + timeout)


@pytest.mark.parametrize("login", [False, True])
@pytest.mark.parametrize("scheme", ["socks4", "socks4a", "socks5", "socks5h"])
def test_socks(proxy: RunProxy, listener: socket.socket, scheme: str, login: bool) -> None:
    running = proxy(scheme[:6], login=login)
    port = listener.getsockname()[1]
    with socks(running.url(scheme), "localhost", port) as sock:
        assert sock.gettimeout() is None
        with listener.accept()[0] as accepted:
            accepted.sendall(b"hello")
            assert sock.recv(5) == b"hello"
            sock.sendall(b"there")
            assert accepted.recv(5) == b"there"
    # SOCKS 4a names are reported apart from addresses.
    if scheme == "socks4a":
        assert running.read_resolution() == "localhost"
    # The proxy serves other tests too, some of which ignore its log.
    host, to = running.read_connection()
    while to != port:
        host, to = running.read_connection()
    if scheme != "socks4a":
        assert (host == "localhost") == (scheme == "socks5h")


@pytest.mark.parametrize("kind", ["socks4", "socks5"])
def test_socks_wrong_credentials(proxy: RunProxy, listener: socket.socket, kind: str) -> None:
    running = proxy(kind, login=True)
    with no_leaks(), pytest.raises(ProxyError, match=r"SOCKS proxy 127\.0\.0\.1:") as raised:
        socks(running.url(user_info="someone-else:s3cret@"), "127.0.0.1", listener.getsockname()[1])
    assert "s3cret" not in str(raised.value)
    del raised


def test_socks_missing_credentials(proxy: RunProxy, listener: socket.socket) -> None:
    with pytest.raises(ProxyError):
        socks(proxy("socks5", login=True).url(user_info=""), "127.0.0.1", listener.getsockname()[1])


class Scripted:
    """A proxy that reads and answers by a script."""

    def __init__(self, *steps: tuple[int, bytes], pause: float = 0) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.steps = steps
        self.pause = pause
        self.received = b""
        self.done = threading.Event()
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def run(self) -> None:
        # The client closes the connection as soon as an answer is wrong.
        with self.listener, self.listener.accept()[0] as sock, contextlib.suppress(OSError):
            for size, answer in self.steps:
                for _ in range(size):
                    self.received += sock.recv(1)
                for byte in answer:
                    if self.done.wait(self.pause):
                        return
                    sock.sendall(bytes([byte]))
            if not self.steps:
                self.done.wait(10)

    def url(self, scheme: str) -> str:
        return f"{scheme}://127.0.0.1:{self.listener.getsockname()[1]}"

    def close(self) -> None:
        self.done.set()
        self.thread.join(10)


@contextlib.contextmanager
def scripted(*steps: tuple[int, bytes], pause: float = 0) -> Iterator[Scripted]:
    proxy = Scripted(*steps, pause=pause)
    try:
        yield proxy
    finally:
        proxy.close()


METHOD = (3, b"\x05\x00")
GRANTED = b"\x05\x00\x00\x01\x7f\x00\x00\x01\x00\x50"


def test_socks5h_sends_the_name() -> None:
    with scripted(METHOD, (4 + 1 + 12 + 2, GRANTED)) as proxy:
        socks(proxy.url("socks5h"), "host.invalid", 81).close()
    assert proxy.received == b"\x05\x01\x00" + b"\x05\x01\x00\x03\x0chost.invalid\x00\x51"


def test_socks5_sends_the_address() -> None:
    with scripted(METHOD, (4 + 4 + 2, GRANTED)) as proxy:
        socks(proxy.url("socks5"), "localhost", 81).close()
    assert proxy.received == b"\x05\x01\x00" + b"\x05\x01\x00\x01\x7f\x00\x00\x01\x00\x51"


def test_socks4_sends_the_user() -> None:
    with scripted((9 + 4, b"\x00\x5a" + bytes(6))) as proxy:
        url = proxy.url("socks4").replace("//", "//user@")
        socks(url, "127.0.0.1", 81).close()
    assert proxy.received == b"\x04\x01\x00\x51\x7f\x00\x00\x01user\x00"


@pytest.mark.parametrize(
    ("scheme", "steps", "message"),
    [
        ("socks5", [METHOD, (10, b"\x05\x05\x00")], "Connection refused by destination host"),
        ("socks5", [METHOD, (10, b"\x05\x02\x00")], "not allowed"),
        ("socks5", [(3, b"\x05\xff")], "method"),
        ("socks5", [(3, b"\x05\x07")], "method"),
        ("socks5", [(3, b"\x05\x02")], "method"),
        ("socks5", [(3, b"HTTP/1.1 400 Bad Request\r\n\r\n")], "version"),
        ("socks5", [METHOD, (10, b"\x05\x00\x00\x09" + bytes(6))], "address type"),
        ("socks5", [(3, b"\x05")], "closed"),
        ("socks5", [(3, b"")], "closed"),
        ("socks4", [(9, b"\x00\x5b" + bytes(6))], "rejected or failed"),
        ("socks4", [(9, b"\x01\x5a" + bytes(6))], ""),
        ("socks4", [(9, b"\x00\x5a")], "closed"),
    ],
)
def test_socks_faults(scheme: str, steps: list[tuple[int, bytes]], message: str) -> None:
    with no_leaks(), scripted(*steps) as proxy, pytest.raises(ProxyError) as raised:
        socks(proxy.url(scheme), "127.0.0.1", 81)
    assert message.lower() in str(raised.value).lower()
    assert "did not connect to 127.0.0.1:81: " in str(raised.value)
    assert raised.value.__cause__ is not None
    del raised


def test_socks_deadline() -> None:
    with no_leaks(), scripted() as proxy, within(3, at_least=0.1), pytest.raises(TimeoutError, match="SOCKS proxy"):
        socks(proxy.url("socks5"), "127.0.0.1", 81, timeout=0.1)


def test_socks_deadline_is_for_all_bytes_together() -> None:
    slow = scripted(METHOD, (10, b"\x05\x00\x00\x03\xff" + bytes(257)), pause=0.05)
    with slow as proxy, within(3, at_least=0.3), pytest.raises(TimeoutError):
        socks(proxy.url("socks5"), "127.0.0.1", 81, timeout=0.3)


def test_socks_deadline_that_has_passed(listener: socket.socket) -> None:
    sock = socket.create_connection(listener.getsockname())
    with pytest.raises(TimeoutError):
        connect_socks(sock, Proxy("socks5", "127.0.0.1", 1), "127.0.0.1", 81, deadline=time.monotonic())
    assert sock.fileno() == -1


def test_socks_unknown_host(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object, **kwargs: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    with scripted(METHOD) as proxy:
        parsed = parse_proxy(proxy.url("socks5"))
        sock = socket.create_connection((parsed.host, parsed.port))
        monkeypatch.setattr(socket, "getaddrinfo", fail)
        with pytest.raises(socket.gaierror):
            connect_socks(sock, parsed, "host.invalid", 81, deadline=None)
    assert sock.fileno() == -1


def test_socks_without_python_socks(monkeypatch: pytest.MonkeyPatch, listener: socket.socket) -> None:
    real = builtins.__import__

    def missing(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.startswith("python_socks"):
            raise ModuleNotFoundError(f"No module named {name!r}")
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", missing)
    sock = socket.create_connection(listener.getsockname())
    with pytest.raises(ImportError, match=r'pip install "wirespeed\[socks\]"'):
        connect_socks(sock, Proxy("socks5", "127.0.0.1", 1), "127.0.0.1", 81, deadline=None)
    assert sock.fileno() == -1
