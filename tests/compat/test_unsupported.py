"""Features that the drop-in lacks raise a clear error."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any

import pytest

import wirespeed
from wirespeed.compat import websockets
from wirespeed.compat.websockets.asyncio.client import ClientConnection, connect
from wirespeed.compat.websockets.asyncio.server import ServerConnection, serve
from wirespeed.compat.websockets.sync import client as blocking
from wirespeed.compat.websockets.sync import server as blocking_server


async def echo(ws: Any) -> None:
    async for message in ws:
        await ws.send(message)


def run(main: Callable[[Any, str], Any], **options: Any) -> None:
    async def serving() -> None:
        async with serve(echo, "127.0.0.1", 0, **options) as server:
            await main(server, f"127.0.0.1:{server.sockets[0].getsockname()[1]}")

    asyncio.run(asyncio.wait_for(serving(), 10))


def test_methods_that_would_not_be_called() -> None:
    class Client(ClientConnection):
        def data_received(self, data: bytes) -> None:
            """Never called."""

    class Server(ServerConnection):
        async def handshake(self) -> None:
            """Never called."""

    with pytest.raises(NotImplementedError, match=r"does not call Client\.data_received"):
        connect("ws://localhost", create_connection=Client)
    with pytest.raises(NotImplementedError, match=r"does not call Server\.handshake"):
        serve(echo, create_connection=Server)


def test_internal_attributes() -> None:
    async def main(server: Any, host: str) -> None:
        async with connect(f"ws://{host}") as ws:
            for owner, name in (
                (ws.protocol, "send_text"),
                (ws.protocol, "reader"),
                (ws.transport, "write"),
                (ws.transport.get_extra_info("socket"), "recv"),
            ):
                with pytest.raises(AttributeError, match="wirespeed has no"):
                    getattr(owner, name)
            assert "fd=" in repr(ws.transport.get_extra_info("socket"))
            assert ws.transport.get_extra_info("peercert") is None
            ws.transport.close()
            await ws.wait_closed()
            assert ws.transport.get_extra_info("socket") is None

    run(main)


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"all_errors": True}, NotImplementedError, "all_errors"),
        ({"flags": socket.AI_NUMERICHOST, "proxy": "http://localhost:1"}, NotImplementedError, "with a proxy"),
        ({"ssl_handshake_timeout": 0}, ValueError, "ssl_handshake_timeout"),
        ({"sock": socket.socket(), "host": "localhost"}, ValueError, "host/port and sock"),
    ],
)
def test_arguments_of_connect(options: dict[str, Any], error: type[Exception], text: str) -> None:
    async def main() -> None:
        await connect("ws://localhost:1", **options)

    with pytest.raises(error, match=text):
        asyncio.run(main())
    if "sock" in options:
        options["sock"].close()


def test_arguments_of_serve() -> None:
    with pytest.raises(NotImplementedError, match="keep_alive"):
        serve(echo, "127.0.0.1", 0, keep_alive=True)
    with pytest.raises(NotImplementedError, match="one socket for each family"):
        blocking_server.serve(print, "127.0.0.1", 0, dualstack_ipv6=True)
    with pytest.raises(NotImplementedError, match="all addresses"):
        blocking.connect("ws://localhost:1", all_errors=True)


def test_arguments_of_the_other_serve(package: Any) -> None:
    """Arguments that ``create_server`` of the loop, or of ``socket``, does not take are refused by both packages."""

    async def main() -> None:
        await package.asyncio.server.serve(echo, "127.0.0.1", 0, dualstack_ipv6=True)

    with pytest.raises(TypeError, match="dualstack_ipv6"):
        asyncio.run(main())
    with pytest.raises(TypeError, match="keep_alive"):
        package.sync.server.serve(print, "127.0.0.1", 0, keep_alive=True)


def test_connections_are_made_by_connect() -> None:
    kind: Any
    for kind in (ClientConnection, blocking.ClientConnection):
        with pytest.raises(TypeError, match="protocol must be what"):
            kind(None, object())


def test_names() -> None:
    with pytest.raises(AttributeError, match="nothing"):
        _ = websockets.nothing
    with pytest.raises(AttributeError, match="nothing"):
        _ = websockets.asyncio.client.nothing
    with pytest.raises(ImportError):
        exec("from wirespeed.compat.websockets.exceptions import nothing")


@pytest.mark.parametrize("kind", ["http", "socks5"])
def test_proxies(proxy: Callable[..., Any], kind: str) -> None:
    """Proxies are those of wirespeed."""
    through = proxy(kind).url()

    async def main(server: Any, host: str) -> None:
        async with connect(f"ws://{host}", proxy=through) as ws:
            assert isinstance(ws, wirespeed.ClientConnection)
            await ws.send("x")
            assert await ws.recv() == "x"
        other = await asyncio.to_thread(blocking.connect, f"ws://{host}", proxy=through)
        other.send("x")
        assert await asyncio.to_thread(other.recv) == "x"
        await asyncio.to_thread(other.close)

    run(main)
