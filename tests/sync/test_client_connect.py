"""The opening handshake: addresses, headers, subprotocols, credentials, redirects, rejections, Unix sockets."""

from __future__ import annotations

import base64
import socket
import ssl
import threading
import uuid
from typing import Any, cast

import pytest

from support.certificates import Certificates
from support.checks import describe, no_leaks, within
from support.frames import text
from support.replacing import REPLACEMENTS, replace
from support.scripted import Scripted, Wire
from support.servers import SUBPROTOCOLS, Serving, WebSocketsServer
from support.subject import SUBJECT, connect, exceptions, unix_connect

BASIC = "Basic " + base64.b64encode(b"hello:iloveyou:)").decode()


# Basics


def test_echo(server: WebSocketsServer) -> None:
    with connect(server.uri) as ws:
        ws.send("hello")
        assert ws.recv(timeout=5) == "hello"
        ws.send(b"\x00\xff")
        assert ws.recv(timeout=5) == b"\x00\xff"


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
@pytest.mark.parametrize("what", REPLACEMENTS)
def test_replaced_sockets_are_used(
    server: WebSocketsServer, monkeypatch: pytest.MonkeyPatch, what: str, host: str
) -> None:
    """A program that replaces sockets to use a proxy has no connection that bypasses it."""
    addresses = replace(monkeypatch, what)
    with connect(f"ws://{host}:{server.port}", proxy=None) as ws:
        ws.send("hello")
        assert ws.recv(timeout=5) == "hello"
    assert ("127.0.0.1", server.port) in addresses


def test_without_context_manager(server: WebSocketsServer) -> None:
    ws = connect(server.uri)
    try:
        ws.send("hello")
        assert ws.recv(timeout=5) == "hello"
    finally:
        ws.close()


def test_properties(server: WebSocketsServer) -> None:
    with connect(server.uri + "/peer") as ws:
        host, port = ws.recv(timeout=5).split()
        assert ws.local_address == (host, int(port))
        assert ws.remote_address == ("127.0.0.1", server.port)
        assert isinstance(ws.id, uuid.UUID)
        assert ws.subprotocol is None
        assert ws.close_code is None
        assert ws.close_reason is None
        assert ws.latency == 0
        assert ws.state.name == "OPEN"
    assert ws.state.name == "CLOSED"


def test_ids_differ(server: WebSocketsServer) -> None:
    with connect(server.uri) as one, connect(server.uri) as other:
        assert one.id != other.id


def test_request_and_response(server: WebSocketsServer) -> None:
    with connect(server.uri + "/path?query=1") as ws:
        assert ws.request.path == "/path?query=1"
        assert ws.request.headers["Upgrade"].lower() == "websocket"
        assert ws.request.headers["host"] == f"127.0.0.1:{server.port}"
        assert ws.response.status_code == 101
        assert ws.response.reason_phrase == "Switching Protocols"
        assert "websockets" in ws.response.headers["Server"]
        assert "Sec-WebSocket-Accept" in ws.response.headers


def test_keys_are_random_16_bytes(server: WebSocketsServer) -> None:
    keys = set()
    for _ in range(5):
        with connect(server.uri) as ws:
            keys.add(ws.request.headers["Sec-WebSocket-Key"])
    assert len(keys) == 5
    assert {len(base64.b64decode(key, validate=True)) for key in keys} == {16}


def test_iteration_ends_when_the_server_closes(server: WebSocketsServer) -> None:
    with connect(server.uri + "/count?n=3") as ws:
        assert list(ws) == ["0", "1", "2"]


def sent_headers(uri: str, **options: Any) -> list[tuple[str, ...]]:
    """Returns the headers of the request as the server of /headers saw them."""
    with connect(uri + "/headers", **options) as ws:
        return [tuple(cast(str, line).split(": ", 1)) for line in ws]


def values(headers: list[tuple[str, ...]], name: str) -> list[str]:
    return [value for header, value in headers if header.lower() == name.lower()]


def test_handshake_headers(server: WebSocketsServer) -> None:
    """RFC 6455 section 4.1, each exactly once."""
    headers = sent_headers(server.uri)
    assert values(headers, "Host") == [f"127.0.0.1:{server.port}"]
    assert values(headers, "Upgrade") == ["websocket"]
    assert values(headers, "Connection") == ["Upgrade"]
    assert values(headers, "Sec-WebSocket-Version") == ["13"]
    assert len(values(headers, "Sec-WebSocket-Key")) == 1
    assert values(headers, "Origin") == []
    assert values(headers, "Sec-WebSocket-Protocol") == []
    assert values(headers, "Authorization") == []


def test_user_agent(server: WebSocketsServer) -> None:
    (default,) = values(sent_headers(server.uri), "User-Agent")
    assert SUBJECT in default
    assert values(sent_headers(server.uri, user_agent_header="Eggs/1.0"), "User-Agent") == ["Eggs/1.0"]
    assert values(sent_headers(server.uri, user_agent_header=None), "User-Agent") == []


def test_origin(server: WebSocketsServer) -> None:
    assert values(sent_headers(server.uri, origin="https://example.com"), "Origin") == ["https://example.com"]


@pytest.mark.parametrize(
    "headers",
    [{"X-Spam": "eggs"}, [("X-Spam", "eggs")], {"x-spam": "eggs"}],
    ids=["dict", "pairs", "lower-case"],
)
def test_additional_headers(server: WebSocketsServer, headers: object) -> None:
    assert values(sent_headers(server.uri, additional_headers=headers), "X-Spam") == ["eggs"]


def test_additional_headers_repeated(server: WebSocketsServer) -> None:
    headers = sent_headers(server.uri, additional_headers=[("X-Spam", "1"), ("X-Spam", "2")])
    assert values(headers, "X-Spam") == ["1", "2"]


def test_additional_user_agent_wins(server: WebSocketsServer) -> None:
    headers = sent_headers(server.uri, additional_headers={"User-Agent": "Mine"})
    assert values(headers, "User-Agent") == ["Mine"]


# Addresses


@pytest.mark.parametrize(
    "uri",
    [
        "http://localhost/",
        "ws:/localhost",
        "ws://",
        "localhost:8000",
        "",
        "ws://localhost/#fragment",
        "ws://localhost:99999/",
        "ws://localhost:port/",
        "ws://user@localhost/",
        "ws://[::1/",
    ],
)
def test_bad_uri(uri: str) -> None:
    with pytest.raises((exceptions.InvalidURI, ValueError)):
        connect(uri)


@pytest.mark.wirespeed_only("websockets lets ValueError and TypeError of the standard library through")
@pytest.mark.parametrize(
    "uri",
    ["ws://localhost:99999/", "ws://localhost:port/", "ws://[::1/", "ws://loc alhost/", "ws://localhost/\r\nX: y"],
)
def test_bad_uri_is_always_invalid_uri(uri: str) -> None:
    with pytest.raises(exceptions.InvalidURI) as raised:
        connect(uri)
    assert raised.value.uri == uri


def test_connection_refused() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, not listening
        port = taken.getsockname()[1]
        with no_leaks(), pytest.raises(ConnectionRefusedError):
            connect(f"ws://127.0.0.1:{port}/")


def test_unknown_host() -> None:
    with no_leaks(), pytest.raises(OSError):
        connect("ws://host.invalid/", open_timeout=5)


def test_localhost_finds_an_ipv4_only_server(server: WebSocketsServer) -> None:
    """Both ::1 and 127.0.0.1 are tried where the name has both."""
    with connect(f"ws://localhost:{server.port}/") as ws:
        assert ws.remote_address[:2] == ("127.0.0.1", server.port)
        assert ws.request.headers["Host"] == f"localhost:{server.port}"


def test_ipv6(scripted: Scripted) -> None:
    if not socket.has_ipv6:
        pytest.skip("this Python has no IPv6")
    listener = socket.socket(socket.AF_INET6)
    try:
        listener.bind(("::1", 0))
    except OSError as exc:
        listener.close()
        pytest.skip(f"this machine has no IPv6 loopback: {exc}")
    listener.listen()
    hosts = []

    def serve() -> None:
        wire = Wire(listener.accept()[0])
        wire.accept(then=text("six"))
        hosts.append(wire.header("Host"))
        wire.read_until_close()
        wire.close()

    thread = threading.Thread(target=serve)
    thread.start()
    port = listener.getsockname()[1]
    with listener, connect(f"ws://[::1]:{port}/") as ws:
        assert ws.recv(timeout=5) == "six"
        assert ws.remote_address[:2] == ("::1", port)
    thread.join(10)
    assert hosts == [f"[::1]:{port}"]


def test_default_path_and_query(scripted: Scripted) -> None:
    def script(wire: Wire) -> bytes:
        wire.accept()
        wire.read_until_close()
        return wire.request.split(b"\r\n")[0]

    server = scripted(script)
    for suffix in ["", "/", "?a=b", "/caf%C3%A9?x=%20", "/café"]:
        with connect(f"ws://127.0.0.1:{server.port}{suffix}"):
            pass
    server.join()
    targets = [line.split()[1] for line in server.results]
    assert targets == [b"/", b"/", b"/?a=b", b"/caf%C3%A9?x=%20", b"/caf%C3%A9"]


def test_local_addr(server: WebSocketsServer) -> None:
    with connect(server.uri + "/peer", local_addr=("127.0.0.1", 0)) as ws:
        assert str(ws.recv(timeout=5)).startswith("127.0.0.1 ")


@pytest.mark.skipif(not hasattr(socket, "AF_PACKET"), reason="only Linux routes all of 127/8")
def test_local_addr_is_used(server: WebSocketsServer) -> None:
    with connect(server.uri + "/peer", local_addr=("127.0.0.5", 0)) as ws:
        assert str(ws.recv(timeout=5)).startswith("127.0.0.5 ")


def test_existing_socket(server: WebSocketsServer) -> None:
    sock = socket.create_connection(("127.0.0.1", server.port))
    with connect("ws://example.com/headers", sock=sock) as ws:
        assert "Host: example.com" in list(ws)


@pytest.mark.parametrize("timeout", [None, 0.0, 3.0], ids=["blocking", "non-blocking", "timeout"])
@pytest.mark.wirespeed_only("websockets expects a blocking socket")
def test_existing_socket_in_any_mode(server: WebSocketsServer, timeout: float | None) -> None:
    sock = socket.create_connection(("127.0.0.1", server.port))
    sock.settimeout(timeout)
    with connect("ws://example.com/", sock=sock) as ws:
        ws.send("hello")
        assert ws.recv(timeout=5) == "hello"


# Subprotocols


@pytest.mark.parametrize(
    ("supported", "offered", "chosen"),
    [
        (SUBPROTOCOLS, ["chat"], "chat"),
        (SUBPROTOCOLS, ["chat", "superchat"], "superchat"),  # this server chooses by its own preference
        (None, ["chat"], None),
        (None, None, None),
    ],
)
def test_subprotocol(
    serving: Serving, supported: list[str] | None, offered: list[str] | None, chosen: str | None
) -> None:
    with connect(serving(subprotocols=supported).uri, subprotocols=offered) as ws:
        assert ws.subprotocol == chosen
        assert ws.request.headers.get("Sec-WebSocket-Protocol") == (", ".join(offered) if offered else None)


def test_subprotocol_refused_by_the_server(serving: Serving) -> None:
    with pytest.raises(exceptions.InvalidStatus):
        connect(serving(subprotocols=SUBPROTOCOLS).uri, subprotocols=["other"])


# Credentials


def test_user_info(server: WebSocketsServer) -> None:
    with connect(f"ws://hello:iloveyou%3A%29@127.0.0.1:{server.port}/auth") as ws:
        assert ws.request.headers["Authorization"] == BASIC
        ws.send("in")
        assert ws.recv(timeout=5) == "in"


def test_user_info_is_not_in_the_request(scripted: Scripted) -> None:
    def script(wire: Wire) -> bytes:
        wire.accept()
        wire.read_until_close()
        return wire.request

    server = scripted(script)
    with connect(f"ws://hello:secret@127.0.0.1:{server.port}/x"):
        pass
    assert server.result.startswith(b"GET /x HTTP/1.1\r\n")
    assert b"secret" not in server.result


@pytest.mark.parametrize("user_info", ["", "hello:wrong@"])
def test_unauthorized(server: WebSocketsServer, user_info: str) -> None:
    with pytest.raises(exceptions.InvalidStatus) as raised:
        connect(f"ws://{user_info}127.0.0.1:{server.port}/auth")
    response = raised.value.response
    assert response.status_code == 401
    assert response.headers["WWW-Authenticate"].startswith("Basic")
    assert b"credentials" in response.body


# Rejections


@pytest.mark.parametrize("status", [400, 403, 404, 429, 500, 503])
def test_rejection(server: WebSocketsServer, status: int) -> None:
    with pytest.raises(exceptions.InvalidStatus) as raised:
        connect(server.uri + f"/status/{status}?retry=7")
    assert str(raised.value).startswith(f"server rejected WebSocket connection: HTTP {status}")
    response = raised.value.response
    assert response.status_code == status
    assert response.headers["Retry-After"] == "7"
    assert response.body.endswith(b"ask again\n")


def test_rejection_with_chunked_body(scripted: Scripted) -> None:
    def script(wire: Wire) -> None:
        wire.read_request()
        wire.send_in_pieces(
            b"HTTP/1.1 500 Oops\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nspam\r\n4\r\neggs\r\n0\r\n\r\n"
        )

    with pytest.raises(exceptions.InvalidStatus) as raised:
        connect(scripted(script).uri)
    assert raised.value.response.body == b"spameggs"


# Redirects


def test_redirect_relative(server: WebSocketsServer) -> None:
    with connect(server.uri + "/redirect?to=/headers") as ws:
        assert ws.request.path == "/headers"
        assert f"Host: 127.0.0.1:{server.port}" in list(ws)


@pytest.mark.parametrize("status", [300, 301, 302, 303, 307, 308])
def test_redirect_status(server: WebSocketsServer, status: int) -> None:
    with connect(server.uri + f"/redirect?to=/final&status={status}") as ws:
        assert ws.request.path == "/final"


def test_redirect_status_that_is_none(server: WebSocketsServer) -> None:
    with pytest.raises(exceptions.InvalidStatus) as raised:
        connect(server.uri + "/redirect?to=/final&status=304")
    assert raised.value.response.status_code == 304


def test_redirect_chain(server: WebSocketsServer) -> None:
    with connect(server.uri + "/hop/9") as ws:
        assert ws.request.path == "/"


def test_redirect_loop(server: WebSocketsServer) -> None:
    before = len(server.requests)
    with no_leaks(), pytest.raises(exceptions.SecurityError, match="10 redirects"):
        connect(server.uri + "/loop")
    assert 10 <= len(server.requests) - before <= 11


def test_redirect_to_bad_uri(server: WebSocketsServer) -> None:
    with pytest.raises(exceptions.InvalidURI):
        connect(server.uri + "/redirect?to=ftp://127.0.0.1/")


def endless(wire: Wire, location: str) -> None:
    """Redirects with an endless body."""
    wire.read_request()
    wire.send(f"HTTP/1.1 302 Found\r\nLocation: {location}\r\n".encode())
    wire.send(b"Transfer-Encoding: chunked\r\n\r\n4\r\nspam\r\n")
    wire.read_to_end()


@pytest.mark.wirespeed_only("websockets waits forever")
def test_redirect_whose_body_does_not_end(server: WebSocketsServer, scripted: Scripted) -> None:
    """The redirect is followed when the time limit of the body, which is 10 s, is over."""
    redirecting = scripted(lambda wire: endless(wire, server.uri))
    with within(14, at_least=10), connect(redirecting.uri, open_timeout=None) as ws:
        ws.send("x")
        assert ws.recv() == "x"


@pytest.mark.wirespeed_only("websockets raises TimeoutError")
def test_redirect_whose_body_does_not_end_in_time(server: WebSocketsServer, scripted: Scripted) -> None:
    """The status is raised, with the received part of the body."""
    redirecting = scripted(lambda wire: endless(wire, server.uri))
    with no_leaks(), within(3, at_least=0.2), pytest.raises(exceptions.InvalidStatus) as raised:
        connect(redirecting.uri, open_timeout=0.2)
    assert raised.value.response.status_code == 302
    assert raised.value.response.body == b"spam"


def test_redirect_same_origin_keeps_credentials(server: WebSocketsServer) -> None:
    headers = {"Authorization": BASIC, "Cookie": "a=b"}
    with connect(server.uri + "/redirect?to=/headers", additional_headers=headers) as ws:
        seen = list(ws)
    assert f"Authorization: {BASIC}" in seen
    assert "Cookie: a=b" in seen


def test_redirect_cross_origin_strips_credentials(server: WebSocketsServer, serving: Serving) -> None:
    other = serving()
    headers = {"authorization": BASIC, "Cookie": "a=b", "Proxy-Authorization": BASIC, "X-Spam": "eggs"}
    options: dict[str, Any] = {"subprotocols": ["chat"], "origin": "https://example.com"}
    with connect(server.uri + f"/redirect?to={other.uri}/headers", additional_headers=headers, **options) as ws:
        seen = {cast(str, line).split(": ")[0].lower() for line in ws}
    assert not {"authorization", "cookie", "proxy-authorization"} & seen
    # Headers without credentials are sent to the new origin, with any value.
    assert {"x-spam", "sec-websocket-protocol", "origin"} <= seen


def test_redirect_cross_origin_forgets_user_info(server: WebSocketsServer, serving: Serving) -> None:
    other = serving()
    with connect(f"ws://a:b@127.0.0.1:{server.port}/redirect?to={other.uri}/headers") as ws:
        seen = [cast(str, line).split(": ")[0].lower() for line in ws]
    assert "authorization" not in seen


@pytest.mark.wirespeed_only("websockets sends two")
def test_redirect_and_host_header(server: WebSocketsServer, serving: Serving) -> None:
    """The host name of one origin is not sent to another."""
    for target, host in ((server, "virtual.example"), (other := serving(), f"127.0.0.1:{other.port}")):
        uri = server.uri + f"/redirect?to={target.uri}/headers"
        with connect(uri, additional_headers={"Host": "virtual.example"}) as ws:
            assert f"Host: {host}" in list(ws)


@pytest.mark.wirespeed_only("websockets has the name for all hosts")
def test_redirect_and_server_hostname(
    secure_server: WebSocketsServer, serving: Serving, certificates: Certificates
) -> None:
    """The certificate of one host does not have the name of another; another port keeps the name."""
    elsewhere, other = (serving(ssl_context=certificates.wrong_host_context()) for _ in range(2))
    settings: dict[str, Any] = {"ssl": certificates.client_context(), "server_hostname": "elsewhere.example"}
    for port in (secure_server.port, other.port):
        host = "localhost" if port == secure_server.port else "127.0.0.1"
        with connect(f"wss://127.0.0.1:{elsewhere.port}/redirect?to=wss://{host}:{port}/x", **settings) as ws:
            ws.send("hello")
            assert ws.recv(timeout=5) == "hello"
    with pytest.raises(ssl.SSLCertVerificationError, match="localhost"):
        connect(f"wss://127.0.0.1:{elsewhere.port}/redirect?to=wss://localhost:{other.port}/x", **settings)


def test_redirect_downgrade(
    secure_server: WebSocketsServer, server: WebSocketsServer, monkeypatch: pytest.MonkeyPatch, certificates: object
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", certificates.ca_file)  # type: ignore[attr-defined]
    with pytest.raises(exceptions.SecurityError, match="non-secure"):
        connect(secure_server.uri + f"/redirect?to={server.uri}/")


def test_redirect_to_tls(
    secure_server: WebSocketsServer, server: WebSocketsServer, monkeypatch: pytest.MonkeyPatch, certificates: object
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", certificates.ca_file)  # type: ignore[attr-defined]
    with connect(server.uri + f"/redirect?to={secure_server.uri}/x") as ws:
        ws.send("hello")
        assert ws.recv(timeout=5) == "hello"


def test_redirect_with_existing_socket(server: WebSocketsServer) -> None:
    sock = socket.create_connection(("127.0.0.1", server.port))
    with no_leaks(), pytest.raises(ValueError, match="redirect"):
        connect(server.uri + "/redirect?to=/", sock=sock)
    assert sock.fileno() == -1


# Deadlines


def test_open_timeout(server: WebSocketsServer) -> None:
    with no_leaks(), within(3, at_least=0.2), pytest.raises(TimeoutError):
        connect(server.uri + "/slow?seconds=10", open_timeout=0.2)


def test_open_timeout_covers_slow_bytes(scripted: Scripted) -> None:
    """A server that sends a byte now and then does not extend the deadline."""

    def script(wire: Wire) -> None:
        wire.read_request()
        for byte in wire.accept_bytes("X-Slow: " + "x" * 1000):
            wire.send(bytes([byte]))
            if server.release.wait(0.02):
                return

    server = scripted(script)
    with within(3, at_least=0.3), pytest.raises(TimeoutError):
        connect(server.uri, open_timeout=0.3)


def test_open_timeout_covers_tcp() -> None:
    """A listener whose backlog is full answers no SYN."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        address = listener.getsockname()
        fillers = []
        try:
            for _ in range(8):
                filler = socket.socket()
                filler.setblocking(False)
                filler.connect_ex(address)
                fillers.append(filler)
            with no_leaks(), within(5, at_least=0.3), pytest.raises(TimeoutError):
                connect(f"ws://127.0.0.1:{address[1]}/", open_timeout=0.3)
        finally:
            for filler in fillers:
                filler.close()


def test_slow_server_within_the_deadline(server: WebSocketsServer) -> None:
    with connect(server.uri + "/slow?seconds=0.2", open_timeout=10) as ws:
        ws.send("hello")
        assert ws.recv(timeout=5) == "hello"


def test_open_timeout_does_not_outlive_the_handshake(server: WebSocketsServer) -> None:
    with connect(server.uri, open_timeout=0.3) as ws:
        with pytest.raises(TimeoutError):
            ws.recv(timeout=0.5)
        ws.send("still here")
        assert ws.recv(timeout=5) == "still here"


def test_no_open_timeout(server: WebSocketsServer) -> None:
    with connect(server.uri + "/slow?seconds=0.1", open_timeout=None) as ws:
        ws.send("hello")
        assert ws.recv(timeout=5) == "hello"


# Unix sockets


def test_unix(unix_server: WebSocketsServer) -> None:
    with unix_connect(unix_server.unix_path) as ws:
        ws.send("hello")
        assert ws.recv(timeout=5) == "hello"
        assert ws.request.headers["Host"] == "localhost"
        assert ws.request.path == "/"


def test_unix_with_uri(unix_server: WebSocketsServer) -> None:
    with unix_connect(unix_server.unix_path, "ws://example.com/headers") as ws:
        assert "Host: example.com" in list(ws)


def test_unix_redirect(unix_server: WebSocketsServer) -> None:
    with unix_connect(unix_server.unix_path, "ws://localhost/redirect?to=/final") as ws:
        assert ws.request.path == "/final"
    with pytest.raises(ValueError, match="Unix socket"):
        unix_connect(unix_server.unix_path, "ws://localhost/redirect?to=ws://example.com/")


def test_unix_missing(tmp_path: object) -> None:
    with no_leaks(), pytest.raises(FileNotFoundError):
        unix_connect(f"{tmp_path}/nothing")


def test_unix_without_path() -> None:
    with pytest.raises(ValueError, match="path"):
        unix_connect()


# Texts of exceptions


def test_rejection_is_described(server: WebSocketsServer) -> None:
    with pytest.raises(exceptions.InvalidHandshake) as raised:
        connect(server.uri + "/status/503")
    assert isinstance(raised.value, exceptions.WebSocketException)
    assert "503" in describe(raised.value)
