"""Destinations of connections: redirects, sockets of the caller, Unix sockets; and time limits of opening them."""

from __future__ import annotations

import asyncio
import base64
import socket
from collections.abc import Callable
from typing import Any

import pytest

from support.asyncio_tools import Run
from support.checks import no_leaks, within
from support.connecting import Connect, echo, fails
from support.scripted import Scripted, Wire
from support.servers import Serving, WebSocketsServer
from support.subject import exceptions

BASIC = "Basic " + base64.b64encode(b"hello:iloveyou:)").decode()


# Redirects


@pytest.mark.parametrize("status", [300, 301, 302, 303, 307, 308])
@pytest.mark.no_leaks
async def test_redirect(server: WebSocketsServer, connect: Connect, status: int) -> None:
    async with connect(server.uri + f"/redirect?to=/final&status={status}") as ws:
        assert ws.request.path == "/final"
        await echo(ws)


def test_redirect_chain_and_loop(server: WebSocketsServer, run: Run, connect: Connect) -> None:
    async def main() -> None:
        async with connect(server.uri + "/hop/9") as ws:
            assert ws.request.path == "/"

    run(main)
    fails(run, exceptions.SecurityError, lambda: connect(server.uri + "/loop"), "10 redirects")


def test_redirect_to_bad_uri(server: WebSocketsServer, run: Run, connect: Connect) -> None:
    fails(run, exceptions.InvalidURI, lambda: connect(server.uri + "/redirect?to=ftp://127.0.0.1/"))


async def test_redirect_and_credentials(server: WebSocketsServer, serving: Serving, connect: Connect) -> None:
    """Headers without credentials are sent to the new origin, with any value."""
    options: dict[str, Any] = {
        "additional_headers": {"Authorization": BASIC, "Cookie": "a=b", "X-Spam": "eggs"},
        "subprotocols": ["chat"],
        "origin": "https://example.com",
    }

    async def seen(target: str) -> set[str]:
        async with connect(server.uri + f"/redirect?to={target}/headers", **options) as ws:
            return {line.split(": ")[0].lower() async for line in ws}

    assert {"authorization", "cookie", "x-spam"} <= await seen(server.uri)
    elsewhere = await seen(serving().uri)
    assert {"x-spam", "sec-websocket-protocol", "origin"} <= elsewhere
    assert not {"authorization", "cookie"} & elsewhere


@pytest.mark.wirespeed_only("websockets sends two")
async def test_redirect_and_host_header(server: WebSocketsServer, serving: Serving, connect: Connect) -> None:
    """The host name of one origin is not sent to another."""
    for target, host in ((server, "virtual.example"), (other := serving(), f"127.0.0.1:{other.port}")):
        to = server.uri + f"/redirect?to={target.uri}/headers"
        async with connect(to, additional_headers={"Host": "virtual.example"}) as ws:
            assert f"Host: {host}" in [line async for line in ws]


@pytest.mark.wirespeed_only("websockets goes on from where it was led, without the credentials")
async def test_redirect_is_followed_anew_each_time(
    server: WebSocketsServer, serving: Serving, connect: Connect
) -> None:
    other = serving()
    connecting = connect(server.uri + f"/redirect?to={other.uri}/", additional_headers={"Cookie": "a=b"})
    for _ in range(2):
        before = len(server.requests)
        async with connecting:
            assert len(server.requests) == before + 1
            assert server.requests[-1].headers["Cookie"] == "a=b"


def test_redirect_with_existing_socket(server: WebSocketsServer, run: Run, connect: Connect) -> None:
    def connecting() -> Any:
        sock = socket.create_connection(("127.0.0.1", server.port))
        return connect(server.uri + "/redirect?to=/", sock=sock)

    fails(run, ValueError, connecting, "redirect")


# Sockets of the caller


@pytest.mark.parametrize("timeout", [None, 0.0, 3.0], ids=["blocking", "non-blocking", "timeout"])
@pytest.mark.no_leaks
async def test_existing_socket(server: WebSocketsServer, connect: Connect, timeout: float | None) -> None:
    sock = socket.create_connection(("127.0.0.1", server.port))
    sock.settimeout(timeout)
    async with connect("ws://example.com/", sock=sock) as ws:
        await echo(ws)
        assert ws.request.headers["Host"] == "example.com"
    assert sock.fileno() == -1


def test_existing_socket_is_closed_when_it_fails(server: WebSocketsServer, run: Run, connect: Connect) -> None:
    sock = socket.create_connection(("127.0.0.1", server.port))
    with pytest.raises(exceptions.InvalidStatus):
        run(lambda: awaiting(connect(server.uri + "/status/403", sock=sock)))
    assert sock.fileno() == -1


async def awaiting(connecting: Any) -> Any:
    return await connecting


@pytest.mark.wirespeed_only("websockets fails later")
@pytest.mark.no_leaks
async def test_existing_socket_that_was_used(server: WebSocketsServer, connect: Connect) -> None:
    connecting = connect(server.uri, sock=socket.create_connection(("127.0.0.1", server.port)))
    async with connecting as ws:
        await echo(ws)
    with pytest.raises(ValueError, match="sock is closed"):
        await connecting


# Unix sockets


@pytest.mark.no_leaks
async def test_unix(unix_server: WebSocketsServer, unix_connect: Connect) -> None:
    async with unix_connect(unix_server.unix_path) as ws:
        await echo(ws)
        assert ws.request.headers["Host"] == "localhost"
    async with unix_connect(unix_server.unix_path, "ws://example.com/headers") as ws:
        assert "Host: example.com" in [message async for message in ws]


def test_unix_redirect(unix_server: WebSocketsServer, run: Run, unix_connect: Connect) -> None:
    path = unix_server.unix_path

    async def main() -> None:
        async with unix_connect(path, "ws://localhost/redirect?to=/final") as ws:
            assert ws.request.path == "/final"

    run(main)
    elsewhere = "ws://localhost/redirect?to=ws://example.com/"
    fails(run, ValueError, lambda: unix_connect(path, elsewhere), "Unix socket")


def test_unix_missing(tmp_path: object, run: Run, unix_connect: Connect) -> None:
    fails(run, FileNotFoundError, lambda: unix_connect(f"{tmp_path}/nothing"))


@pytest.mark.wirespeed_only("a proxy of the environment is for TCP")
async def test_unix_without_proxy(
    unix_server: WebSocketsServer, unix_connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    async with unix_connect(unix_server.unix_path) as ws:
        await echo(ws)


# Deadlines


def times_out(run: Run, connecting: Callable[[], Any], match: str) -> None:
    with within(3, at_least=0.2):
        fails(run, TimeoutError, connecting, match)


def test_open_timeout(server: WebSocketsServer, run: Run, connect: Connect) -> None:
    times_out(
        run, lambda: connect(server.uri + "/slow?seconds=10", open_timeout=0.2), "timed out during .*opening handshake"
    )


def test_open_timeout_covers_slow_bytes(scripted: Scripted, run: Run, connect: Connect) -> None:
    """A server that sends a byte now and then does not extend the deadline."""

    def script(wire: Wire) -> None:
        wire.read_request()
        for byte in wire.accept_bytes("X-Slow: " + "x" * 1000):
            wire.send(bytes([byte]))
            if server.release.wait(0.02):
                return

    server = scripted(script)
    times_out(run, lambda: connect(server.uri, open_timeout=0.3), "timed out during")


def test_open_timeout_covers_redirects(server: WebSocketsServer, run: Run, connect: Connect) -> None:
    uri = server.uri + "/redirect?to=/slow?seconds=10"
    times_out(run, lambda: connect(uri, open_timeout=0.2), "timed out")


@pytest.mark.wirespeed_only("websockets does not say where")
def test_open_timeout_covers_tcp(run: Run, connect: Connect, silent_port: int) -> None:
    uri = f"ws://127.0.0.1:{silent_port}/"
    times_out(run, lambda: connect(uri, open_timeout=0.2), f"timed out while connecting to 127.0.0.1:{silent_port}")


@pytest.mark.wirespeed_only("websockets does not say where")
def test_open_timeout_covers_tls(scripted: Scripted, run: Run, connect: Connect) -> None:
    server = scripted(lambda wire: wire.read_to_end())
    times_out(run, lambda: connect(server.secure_uri, open_timeout=0.2), "TLS handshake")


def endless(wire: Wire, head: bytes) -> None:
    """Refuses with an endless body."""
    wire.read_request()
    wire.send(head + b"\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nspam\r\n")
    wire.read_to_end()


@pytest.mark.wirespeed_only("websockets raises TimeoutError, and tries again forever")
@pytest.mark.parametrize(
    "head",
    [
        b"HTTP/1.1 401 Unauthorized",
        b"HTTP/1.1 404 Not Found",
        b"HTTP/1.1 200 OK",
        b"HTTP/1.1 302 Found\r\nLocation: /elsewhere",
    ],
    ids=["401", "404", "200", "302"],
)
@pytest.mark.parametrize("iterate", [False, True], ids=["connect", "iterate"])
def test_refusal_whose_body_does_not_end(
    scripted: Scripted, run: Run, connect: Connect, head: bytes, iterate: bool
) -> None:
    """The status is raised when the time is over, with the received part of the body."""

    async def main() -> None:
        connecting = connect(server.uri, open_timeout=0.2)
        with pytest.raises(exceptions.InvalidStatus) as raised:
            if iterate:
                async for _ in connecting:
                    raise AssertionError("it is refused")
            else:
                await connecting
        assert raised.value.response.status_code == int(head[9:12])
        assert raised.value.response.body == b"spam"
        # It is not a cancellation of the task.
        await asyncio.sleep(0)

    server = scripted(lambda wire: endless(wire, head))
    with within(3, at_least=0.2), no_leaks():
        run(main)


@pytest.mark.wirespeed_only("websockets raises TimeoutError")
def test_refusal_of_a_proxy_whose_body_does_not_end(scripted: Scripted, run: Run, connect: Connect) -> None:
    proxy = scripted(lambda wire: endless(wire, b"HTTP/1.1 407 Authenticate"))
    with within(3, at_least=0.2):
        exc = fails(
            run,
            exceptions.InvalidProxyStatus,
            lambda: connect("ws://127.0.0.1:1/", proxy=f"http://127.0.0.1:{proxy.port}", open_timeout=0.2),
        )
    assert (exc.response.status_code, exc.response.body) == (407, b"spam")  # type: ignore[attr-defined]


@pytest.mark.wirespeed_only("websockets waits forever")
def test_body_of_a_refusal_without_open_timeout(
    scripted: Scripted, run: Run, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    from wirespeed.asyncio import _opening

    monkeypatch.setattr(_opening, "BODY_TIMEOUT", 0.2)
    server = scripted(lambda wire: endless(wire, b"HTTP/1.1 403 Forbidden"))
    with within(3, at_least=0.2):
        fails(run, exceptions.InvalidStatus, lambda: connect(server.uri, open_timeout=None), "403")


@pytest.mark.wirespeed_only("websockets waits forever")
@pytest.mark.parametrize("timeout", [None, 5], ids=["none", "some"])
def test_redirect_whose_body_does_not_end(
    server: WebSocketsServer,
    run: Run,
    connect: Connect,
    monkeypatch: pytest.MonkeyPatch,
    scripted: Scripted,
    timeout: Any,
) -> None:
    """The redirect is followed when the time limit of the body is over, if there is time left."""
    from wirespeed.asyncio import _opening

    monkeypatch.setattr(_opening, "BODY_TIMEOUT", 0.2)
    redirecting = scripted(
        lambda wire: endless(wire, f"HTTP/1.1 302 Found\r\nLocation: {server.uri}/slow?seconds=0.3".encode())
    )

    async def main() -> None:
        async with connect(redirecting.uri, open_timeout=timeout) as ws:
            await echo(ws)
        # No cancellation of the task is left.
        await asyncio.sleep(0)

    with within(4, at_least=0.5), no_leaks():
        run(main)


@pytest.mark.wirespeed_only("the limit is ours")
@pytest.mark.parametrize("timeout", [None, 5], ids=["none", "some"])
def test_body_time_limit_does_not_outlive_the_body(
    server: WebSocketsServer,
    run: Run,
    connect: Connect,
    monkeypatch: pytest.MonkeyPatch,
    scripted: Scripted,
    timeout: Any,
) -> None:
    """The time limit of a redirect's body does not apply to the new destination."""
    from wirespeed.asyncio import _opening

    def script(wire: Wire) -> None:
        wire.read_request()
        wire.send(
            f"HTTP/1.1 302 Found\r\nContent-Length: 4\r\nLocation: {server.uri}/slow?seconds=0.7\r\n\r\n".encode()
        )
        scripting.release.wait(0.1)
        wire.send(b"spam")

    async def main() -> None:
        async with connect(scripting.uri, open_timeout=timeout) as ws:
            await echo(ws)

    monkeypatch.setattr(_opening, "BODY_TIMEOUT", 0.4)
    scripting = scripted(script)
    run(main)


def test_open_timeout_of_zero(server: WebSocketsServer, run: Run, connect: Connect) -> None:
    fails(run, TimeoutError, lambda: connect(server.uri + "/slow?seconds=1", open_timeout=0))


async def test_open_timeout_does_not_outlive_the_handshake(server: WebSocketsServer, connect: Connect) -> None:
    async with connect(server.uri, open_timeout=0.2) as ws:
        await asyncio.sleep(0.4)
        await echo(ws)


async def test_no_open_timeout(server: WebSocketsServer, connect: Connect) -> None:
    async with connect(server.uri + "/slow?seconds=0.1", open_timeout=None) as ws:
        await echo(ws)
