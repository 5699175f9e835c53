"""Opening handshakes that end early, take long, or are too many at once."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
import ssl
import time
from typing import Any

import pytest

from support import serving
from support.asyncio_tools import Run, Setting, soon, spin
from support.certificates import Certificates
from support.checks import no_leaks, within
from support.connecting import Connect
from support.frames import TEXT, Frame
from support.load_scaling import load_scaled
from support.serving import LOGGER, Raw, idle, logged, masked, serve, uri
from support.subject import IS_WIRESPEED

pytestmark = pytest.mark.wirespeed_only("the server is ours")

if IS_WIRESPEED:
    from wirespeed import TLS


REQUEST = serving.request("/", "Origin: http://a")


def client_hello() -> bytes:
    """Returns the first bytes of a TLS client."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = ssl.create_default_context().wrap_bio(incoming, outgoing, server_hostname="localhost")
    with pytest.raises(ssl.SSLWantReadError):
        tls.do_handshake()
    return outgoing.read()


@pytest.fixture(params=["native", "context"])
def server_tls(request: pytest.FixtureRequest, certificates: Certificates) -> Any:
    if request.param == "context":
        return certificates.server_context()
    cert, key = certificates.server_files()
    return TLS(cert=cert, key=key)


async def works(server: Any) -> None:
    with await Raw.open(server) as raw:
        await raw.send(masked(TEXT, b"still there"))
        assert await raw.frame() == Frame(TEXT, b"still there", masked=False)


# The client goes away


@pytest.mark.parametrize(("how", "hooks"), [("eof", False), ("half", False), ("reset", False), ("reset", True)])
@pytest.mark.no_leaks
@pytest.mark.within(8)
async def test_client_leaves_at_every_byte(
    setting: Setting, caplog: pytest.LogCaptureFixture, how: str, hooks: bool
) -> None:
    """Nothing is left or reported, and the server continues."""

    async def nothing(ws: Any, request: Any) -> None:
        await asyncio.sleep(0)

    options: dict[str, Any] = {"process_request": nothing} if hooks else {}
    async with serve(setting, **options) as server:
        for offset in range(len(REQUEST) + 1):
            raw = await Raw.connect(server)
            await raw.send(REQUEST[:offset])
            if offset % 3 == 0:
                await spin(3)
            if how == "reset":
                raw.reset()
            elif how == "eof":
                raw.close()
            else:
                raw.sock.shutdown(socket.SHUT_WR)
                if offset < len(REQUEST):
                    assert await raw.rest() == b""
                raw.close()
        await soon(lambda: not server._tasks)
        assert server.connections == set()
        await works(server)
    assert logged(caplog) == []


@pytest.mark.parametrize("how", ["eof", "reset"])
@pytest.mark.no_leaks
@pytest.mark.within(8)
async def test_client_leaves_inside_tls(
    setting: Setting, caplog: pytest.LogCaptureFixture, server_tls: Any, how: str
) -> None:
    hello = client_hello()
    async with serve(setting, ssl=server_tls) as server:
        for offset in [*range(12), *range(12, len(hello), 41), len(hello)]:
            raw = await Raw.connect(server)
            await raw.send(hello[:offset])
            await spin(3)
            if how == "reset":
                raw.reset()
            else:
                raw.close()
        await soon(lambda: not server._tasks)
    assert logged(caplog) == []


@pytest.mark.no_leaks
@pytest.mark.within(5)
async def test_client_leaves_before_it_is_accepted(setting: Setting, caplog: pytest.LogCaptureFixture) -> None:
    async with serve(setting) as server:
        address = server.sockets[0].getsockname()
        for how in (Raw.close, Raw.reset) * 5:
            # Without a turn of the loop in between.
            sock = socket.create_connection(address)
            how(Raw(sock))
        await works(server)
        await soon(lambda: not server._tasks)
    assert logged(caplog) == []


# Slow clients


async def test_byte_by_byte(setting: Setting) -> None:
    async with serve(setting) as server:
        with await Raw.connect(server) as raw:
            raw.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for index in range(len(REQUEST)):
                await raw.send(REQUEST[index : index + 1])
                await spin(2)
            assert (await raw.head()).status == 101
            for byte in masked(TEXT, b"hello"):
                await raw.send(bytes([byte]))
                await spin(2)
            assert await raw.frame() == Frame(TEXT, b"hello", masked=False)


@pytest.mark.parametrize("part", ["nothing", "half", "drip"])
@pytest.mark.no_leaks
async def test_open_timeout(setting: Setting, caplog: pytest.LogCaptureFixture, part: str) -> None:
    """The timeout counts from the beginning: received bytes do not extend it."""
    caplog.set_level(logging.DEBUG, LOGGER)

    async def drip(raw: Raw) -> None:
        for index in range(len(REQUEST)):
            await raw.send(REQUEST[index : index + 1])
            await asyncio.sleep(0.05)

    async with serve(setting, open_timeout=0.2) as server:
        with await Raw.connect(server) as raw:
            start = time.monotonic()
            if part == "half":
                await raw.send(REQUEST[:50])
            dripping = asyncio.ensure_future(drip(raw) if part == "drip" else spin())
            try:
                assert b" 101 " not in await raw.rest()
            except ConnectionResetError:
                assert part == "drip"
            assert 0.15 < time.monotonic() - start < load_scaled(3)
            dripping.cancel()
            await asyncio.wait([dripping])
            if not dripping.cancelled():
                dripping.exception()
        await works(server)
    [record] = [record for record in caplog.records if "open_timeout" in record.getMessage()]
    assert record.levelname == ("DEBUG" if part == "nothing" else "INFO")
    assert logged(caplog) == []


@pytest.mark.no_leaks
async def test_open_timeout_of_tls(setting: Setting, server_tls: Any) -> None:
    """A handshake of TLS that is never finished, or never begun."""
    hello = client_hello()
    async with serve(setting, ssl=server_tls, open_timeout=0.2) as server:
        with within(3, at_least=0.2):
            raws = [await Raw.connect(server) for _ in range(4)]
            for raw, size in zip(raws, (0, 5, 100, len(hello)), strict=True):
                await raw.send(hello[:size])
            for raw in raws:
                await raw.rest()
                raw.close()


async def test_open_timeout_is_over_when_it_is_open(setting: Setting) -> None:
    async with serve(setting, open_timeout=0.1) as server:
        with await Raw.open(server) as raw:
            await asyncio.sleep(0.25)
            await raw.send(masked(TEXT, b"x"))
            assert await raw.frame() == Frame(TEXT, b"x", masked=False)


async def test_no_open_timeout(setting: Setting) -> None:
    async with serve(setting, open_timeout=None) as server:
        with await Raw.connect(server) as raw:
            await asyncio.sleep(0.05)
            await raw.send(REQUEST)
            assert (await raw.head()).status == 101


@pytest.mark.parametrize(
    ("data", "close_timeout"),
    [
        pytest.param(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", 0.2, id="refused"),
        pytest.param(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", None, id="refused-no-limit"),
        pytest.param(b"garbage\r\n\r\n", None, id="garbage"),
    ],
)
@pytest.mark.no_leaks
async def test_refused_client_stays(setting: Setting, data: bytes, close_timeout: float | None) -> None:
    """A refused client has got its response; its place, which ``max_pending`` counts, is freed in time."""
    async with serve(setting, close_timeout=close_timeout, open_timeout=0.5) as server:
        with await Raw.connect(server) as raw:
            await raw.send(data)
            assert (await raw.reply()).status in (400, 426)
            await soon(lambda: len(server._limiter) == 0, 2.5)


@pytest.mark.no_leaks
async def test_refused_client_does_not_read(setting: Setting) -> None:
    """The rest of a large response is dropped in time."""

    def process(ws: Any, request: Any) -> Any:
        return ws.respond(404, "x" * 20_000_000)

    async with serve(setting, process_request=process, close_timeout=0.2) as server:
        with await Raw.connect(server, receive_buffer=4096) as raw:
            await raw.send(REQUEST)
            assert (await raw.head()).status == 404
            with within(4):
                await soon(lambda: len(server._limiter) == 0, 4)


# Many at once


@pytest.mark.no_leaks
@pytest.mark.within(4)
async def test_max_pending(setting: Setting) -> None:
    """Of too many clients, the one that was silent longest (at least a second) is evicted; open connections do not
    count.
    """
    async with serve(setting, max_pending=3, open_timeout=5) as server:
        silent: list[Raw] = []
        for number in range(3):
            silent.append(await Raw.connect(server))
            await soon(lambda number=number: len(server._limiter) == number + 1)  # type: ignore[misc]
        silent.append(await Raw.connect(server))
        with within(3, at_least=0.8):
            assert await silent[0].rest() == b""
        for raw in silent[1:]:
            await raw.send(REQUEST)
            assert (await raw.head()).status == 101
        await works(server)
        for raw in silent:
            raw.close()
        await soon(lambda: len(server._limiter) == 0)


@pytest.mark.no_leaks
async def test_max_pending_and_silent_clients(setting: Setting, connect: Connect) -> None:
    """Silent clients cannot lock out others, for any time limit."""
    async with serve(setting, max_pending=2, open_timeout=None) as server:
        silent = [await Raw.connect(server) for _ in range(6)]
        with within(2):
            async with connect(uri(server)) as ws:
                await ws.send("x")
                assert await ws.recv() == "x"
        for raw in silent:
            raw.close()


class FailingSocket(socket.socket):
    """A listening socket whose ``accept`` fails at first, as when there are no descriptors left."""

    failures: list[int] = []  # noqa: RUF012 - one for all

    def accept(self) -> tuple[socket.socket, Any]:
        if self.failures:
            raise OSError(self.failures.pop(), "mine")
        return super().accept()


# Errors of accept(2) for a lost connection: of the connection itself, of the network, or of a firewall.
LOST = [
    "ECONNABORTED",
    "EHOSTDOWN",
    "EHOSTUNREACH",
    "ENETDOWN",
    "ENETUNREACH",
    "ENONET",
    "ENOPROTOOPT",
    "ENOSR",
    "EOPNOTSUPP",
    "EPERM",
    "EPROTO",
    "EPROTONOSUPPORT",
    "ESOCKTNOSUPPORT",
    "ETIMEDOUT",
]


@pytest.mark.parametrize("name", ["EMFILE", "ENFILE", "ENOBUFS", "ENOMEM", "EINTR", "EAGAIN", *LOST])
def test_accept_fails_for_now(
    setting: Setting, run: Run, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Accepting continues: after a pause if the system lacks resources, else immediately."""
    from wirespeed._server import accept

    number = getattr(errno, name, None)
    if number is None:
        pytest.skip("not on this system")

    exhausted = name in ("EMFILE", "ENFILE", "ENOBUFS", "ENOMEM")
    # Where there is to be no pause, it would be longer than a test.
    monkeypatch.setattr(accept, "RETRY_DELAY", 0.1 if exhausted else 100)
    listener = FailingSocket()
    listener.bind(("127.0.0.1", 0))
    listener.failures.append(number)

    async def main() -> None:
        async with serve(setting, idle, None, None, sock=listener) as server:
            # The pause begins with accepting, which may be over when the client notices.
            with within(10, at_least=0.1 if exhausted else 0), await Raw.connect(server) as raw:
                await raw.send(REQUEST)
                assert (await raw.head()).status == 101
            assert server.is_serving()

    with no_leaks():
        run(main)
    assert listener.failures == []
    assert logged(caplog) == (["cannot accept connections for now: mine"] if exhausted else [])


def test_closing_while_accepting_waits(
    setting: Setting, run: Run, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The timer that would try again is cancelled."""
    from wirespeed._server import accept

    monkeypatch.setattr(accept, "RETRY_DELAY", 0.1)
    listener = FailingSocket()
    listener.bind(("127.0.0.1", 0))
    listener.failures.append(errno.EMFILE)

    async def main() -> None:
        async with serve(setting, idle, None, None, sock=listener) as server:
            raw = await Raw.connect(server)
            await soon(lambda: not listener.failures)
        await asyncio.sleep(0.15)
        raw.close()

    with no_leaks():
        run(main)
    assert logged(caplog) == ["cannot accept connections for now: mine"]


async def test_settings_of_accepted_sockets(setting: Setting) -> None:
    """Small packets are not delayed: RFC 6455 does not mention it, but delays hurt users."""
    seen: list[int] = []

    async def handler(ws: Any) -> None:
        sock = socket.socket(fileno=os.dup(ws.fileno()))
        with sock:
            seen.append(sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))

    async with serve(setting, handler) as server:
        with await Raw.open(server) as raw:
            await raw.until_close()
    assert seen == [1]
