"""The server on Unix sockets, and the life of the socket files."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import socket
import stat
import sys
from pathlib import Path
from typing import Any

import pytest

from support.asyncio_tools import Setting, one_loop
from support.certificates import Certificates
from support.connecting import Connect
from support.frames import TEXT, Close, Frame
from support.serving import LOGGER, Raw, echo, logged, masked, request
from support.subject import IS_WIRESPEED

pytestmark = [
    pytest.mark.wirespeed_only("the server is ours"),
    pytest.mark.skipif(not hasattr(socket, "AF_UNIX"), reason="needs Unix sockets"),
]

if IS_WIRESPEED:
    import wirespeed
    from wirespeed import TLS

SETTINGS = one_loop()


async def works(server: Any) -> None:
    with await Raw.open(server) as raw:
        await raw.send(masked(TEXT, b"x"))
        assert await raw.frame() == Frame(TEXT, b"x", masked=False)


def unix(setting: Setting, path: Any = None, handler: Any = echo, **options: Any) -> Any:
    options["io_backend"] = setting.io_backend
    return wirespeed.unix_serve(handler, path, **options)


@pytest.mark.parametrize("kind", [str, Path, os.fsencode])
@pytest.mark.no_leaks
async def test_unix(setting: Setting, unix_connect: Connect, tmp_path: Path, kind: Any) -> None:
    """The file exists as long as the server."""
    path = tmp_path / "socket"
    seen: list[Any] = []

    async def handler(ws: Any) -> None:
        seen.append((os.fsdecode(ws.local_address), ws.remote_address))
        await echo(ws)

    async with unix(setting, kind(path), handler) as server:
        assert stat.S_ISSOCK(path.stat().st_mode)
        assert server.sockets[0].family == socket.AF_UNIX
        async with unix_connect(str(path)) as ws:
            await ws.send("x")
            assert await ws.recv() == "x"
    assert not path.exists()
    assert seen == [(str(path), "")]


@pytest.mark.parametrize(
    "is_abstract", [False, pytest.param(True, marks=pytest.mark.skipif("sys.platform != 'linux'"))]
)
async def test_unix_client_path_cannot_forge_log_lines(
    setting: Setting, tmp_path: Path, caplog: pytest.LogCaptureFixture, is_abstract: bool
) -> None:
    """A client may bind its socket to any path: the path stays on one log line."""
    caplog.set_level(logging.DEBUG, LOGGER)
    name = f"{'' if is_abstract else tmp_path}/x\nERROR forged"
    address = b"\0" + name.encode() if is_abstract else name

    async def fails(ws: Any) -> None:
        raise ValueError("of the handler")

    async with unix(setting, tmp_path / "socket", fails) as server:
        for sent, status in ((request(), 101), (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", 426), (b"?\r\n\r\n", 400)):
            with Raw(socket.socket(socket.AF_UNIX)) as raw:
                raw.sock.bind(address)
                raw.sock.setblocking(False)
                await raw.loop.sock_connect(raw.sock, server.sockets[0].getsockname())
                await raw.send(sent)
                assert (await raw.head()).status == status
            if not is_abstract:
                os.unlink(address)
    lines = logged(caplog, logging.DEBUG)
    assert not [line for line in lines if "\n" in line]
    assert len([line for line in lines if r"x\nERROR forged" in line]) >= 3


async def test_unix_options(setting: Setting, tmp_path: Path) -> None:
    async with unix(setting, tmp_path / "socket", subprotocols=["a"], server_header="mine") as server:
        with await Raw.connect(server) as raw:
            await raw.send(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            reply = await raw.reply()
            assert (reply.status, reply["Server"]) == (426, "mine")


async def test_unix_tls(setting: Setting, unix_connect: Connect, tmp_path: Path, certificates: Certificates) -> None:
    cert, key = certificates.server_files()
    path = str(tmp_path / "socket")
    async with unix(setting, path, ssl=TLS(cert=cert, key=key)):
        client = TLS(ca=certificates.ca_file)
        async with unix_connect(path, "wss://localhost/", ssl=client) as ws:
            await ws.send("x")
            assert await ws.recv() == "x"


@pytest.mark.no_leaks
async def test_unix_path_left_by_the_last_run(setting: Setting, tmp_path: Path) -> None:
    path = tmp_path / "socket"
    with socket.socket(socket.AF_UNIX) as old:
        old.bind(str(path))
    async with unix(setting, path) as server:
        await works(server)
    assert not path.exists()


@pytest.mark.no_leaks
async def test_unix_path_is_a_regular_file(setting: Setting, tmp_path: Path) -> None:
    """The file is not a socket: it stays."""
    path = tmp_path / "precious"
    path.write_text("data")
    with pytest.raises(OSError, match=re.escape(str(path))):
        await unix(setting, path)
    assert path.read_text() == "data"


@pytest.mark.no_leaks
async def test_unix_path_was_taken_over(setting: Setting, tmp_path: Path) -> None:
    """A file that another server has created meanwhile stays."""
    path = tmp_path / "socket"
    async with unix(setting, path):
        async with unix(setting, path) as second:
            pass
        assert not path.exists()
    first = await unix(setting, path)
    second = await unix(setting, path)
    first.close()
    await first.wait_closed()
    assert path.exists()
    await works(second)
    second.close()
    await second.wait_closed()
    assert not path.exists()


@pytest.mark.no_leaks
async def test_unix_path_was_removed(setting: Setting, tmp_path: Path) -> None:
    async with unix(setting, tmp_path / "socket"):
        (tmp_path / "socket").unlink()


@pytest.mark.parametrize("length", [20, 300])
@pytest.mark.no_leaks
async def test_unix_path_is_invalid(setting: Setting, tmp_path: Path, length: int) -> None:
    path = str(tmp_path / "missing" / ("x" * length))
    with pytest.raises(OSError):
        await unix(setting, path)


async def test_unix_sock(setting: Setting, tmp_path: Path) -> None:
    path = tmp_path / "socket"
    sock = socket.socket(socket.AF_UNIX)
    sock.bind(str(path))
    async with unix(setting, None, sock=sock) as server:
        await works(server)
    assert sock.fileno() == -1


@pytest.mark.skipif(sys.platform != "linux", reason="the abstract namespace is Linux's")
@pytest.mark.parametrize("kind", [str, os.fsencode])
@pytest.mark.no_leaks
async def test_unix_abstract(setting: Setting, kind: Any) -> None:
    name = f"\0wirespeed-{os.getpid()}-{setting}"
    async with unix(setting, kind(name)) as server:
        assert not server.sockets[0].getsockname().decode().strip("\0").startswith("/")
        await works(server)
        with await Raw.open(server) as raw:
            server.close()
            assert (await raw.until_close())[1] == Close(1001)


@pytest.mark.parametrize("close", [True, False], ids=["close", "abort"])
def test_unix_file_is_removed_after_the_loop(tmp_path: Path, close: bool) -> None:
    """A server that is closed where nothing can be awaited leaves neither its file nor its sockets."""
    path = tmp_path / "socket"

    async def start() -> Any:
        server = await wirespeed.unix_serve(echo, path)
        return server, server.sockets

    loop = asyncio.new_event_loop()
    server, socks = loop.run_until_complete(start())
    assert path.exists()
    loop.close()
    server.close(close_connections=close)
    assert not path.exists()
    assert [sock.fileno() for sock in socks] == [-1]
    server.close()
    assert not server.is_serving()
