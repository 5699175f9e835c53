"""Failures of connecting: the exceptions of both packages and their causes."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import threading
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("websockets", minversion="17")

URI = "ws://127.0.0.1:1"
KINDS = ("asyncio", "sync")


@contextlib.contextmanager
def answering(*answers: bytes) -> Iterator[int]:
    """Listens, and answers what one client sends with these replies, one after the other."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(10)

        def serve() -> None:
            with contextlib.suppress(OSError):
                sock, _ = listener.accept()
                with sock:
                    sock.settimeout(10)
                    for answer in answers:
                        sock.recv(4096)
                        sock.sendall(answer)
                    sock.recv(4096)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            thread.join()


def failing(package: Any, kind: str, uri: str, **options: Any) -> Exception:
    """Returns the exception of connecting."""

    options = {"open_timeout": 10, **options}

    async def connect() -> None:
        async with package.asyncio.client.connect(uri, **options):
            pass

    with pytest.raises(Exception) as caught:
        if kind == "asyncio":
            asyncio.run(connect())
        else:
            with package.sync.client.connect(uri, **options):
                pass
    return caught.value


@pytest.mark.parametrize("kind", KINDS)
def test_invalid_data_from_a_server(package: Any, kind: str) -> None:
    with answering(b"220 smtp.invalid ESMTP Postfix\r\n\r\n") as port:
        exc = failing(package, kind, f"ws://127.0.0.1:{port}", proxy=None)
    assert isinstance(exc, package.exceptions.InvalidMessage)
    assert type(exc.__cause__) is ValueError
    assert "220 smtp.invalid" in str(exc.__cause__)


@pytest.mark.parametrize("kind", KINDS)
def test_silent_server(package: Any, kind: str) -> None:
    with answering() as port:
        exc = failing(package, kind, f"ws://127.0.0.1:{port}", proxy=None)
    assert isinstance(exc, package.exceptions.InvalidMessage)
    assert isinstance(exc.__cause__, EOFError)


@pytest.mark.parametrize("kind", KINDS)
def test_invalid_data_from_a_proxy(package: Any, kind: str) -> None:
    with answering(b"220 smtp.invalid ESMTP Postfix\r\n\r\n") as port:
        exc = failing(package, kind, "ws://127.0.0.1:1", proxy=f"http://127.0.0.1:{port}")
    assert isinstance(exc, package.exceptions.InvalidProxyMessage)
    assert type(exc.__cause__) is ValueError
    assert "220 smtp.invalid" in str(exc.__cause__)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("scheme", "answers"),
    [
        ("socks5", [b"\x05\xff"]),
        ("socks5", [b"\x05\x00", b"\x05\x05\x00\x01\x00\x00\x00\x00\x00\x00"]),
        ("socks5", [b"HTTP/1.1 400 Bad Request\r\n\r\n"]),
        ("socks4", [b"\x00\x5b\x00\x00\x00\x00\x00\x00"]),
    ],
)
def test_refusals_of_a_socks_proxy(package: Any, kind: str, scheme: str, answers: list[bytes]) -> None:
    python_socks = pytest.importorskip("python_socks")
    with answering(*answers) as port:
        exc = failing(package, kind, "ws://127.0.0.1:1", proxy=f"{scheme}://127.0.0.1:{port}")
    assert isinstance(exc, package.exceptions.ProxyError)
    assert isinstance(exc.__cause__, python_socks.ProxyError)


@pytest.mark.parametrize("kind", KINDS)
def test_a_socks_proxy_that_does_not_answer(package: Any, kind: str) -> None:
    python_socks = pytest.importorskip("python_socks")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        proxy = f"socks5://127.0.0.1:{silent.getsockname()[1]}"
        exc = failing(package, kind, URI, proxy=proxy, open_timeout=0.2)
    # On an event loop, open_timeout cancels python-socks, which raises nothing itself.
    assert type(exc) is (TimeoutError if kind == "asyncio" else python_socks.ProxyTimeoutError)


@pytest.mark.parametrize("how", ["direct", "unix"])
def test_a_server_hostname_without_tls(package: Any, how: str) -> None:
    client, options = package.asyncio.client, {"server_hostname": "example.com"}

    async def main() -> None:
        await (client.unix_connect("/nowhere", **options) if how == "unix" else client.connect(URI, **options))

    with pytest.raises(ValueError, match=r"^server_hostname is only meaningful with ssl$"):
        asyncio.run(main())


@pytest.mark.parametrize("kind", KINDS)
def test_a_server_hostname_without_tls_that_has_no_effect(package: Any, kind: str) -> None:
    """asyncio does not check it where a proxy opens the connection, and threads do not either."""
    with answering(b"HTTP/1.1 404 Not Found\r\n\r\n") as port:
        exc = failing(package, kind, URI, server_hostname="example.com", proxy=f"http://127.0.0.1:{port}")
    assert isinstance(exc, package.exceptions.InvalidProxyStatus)


@pytest.mark.parametrize("kind", KINDS)
def test_tls_options_for_a_plain_proxy(package: Any, kind: str) -> None:
    """Refused before any connection is made."""
    exc = failing(package, kind, "ws://127.0.0.1:1", proxy="http://127.0.0.1:1", proxy_ssl=ssl.create_default_context())
    assert isinstance(exc, ValueError)
    assert "proxy_ssl argument is incompatible with an http:// proxy" in str(exc)


def test_an_https_proxy_without_tls(package: Any) -> None:
    exc = failing(package, "asyncio", "ws://127.0.0.1:1", proxy="https://127.0.0.1:1", proxy_ssl=None)
    assert isinstance(exc, ValueError)
    assert str(exc) == "proxy_ssl=None is incompatible with an https:// proxy"
