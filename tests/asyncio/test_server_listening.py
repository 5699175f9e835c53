"""Listening: addresses, ports, existing sockets, Unix sockets."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest

from support.addresses import Resolve
from support.asyncio_tools import Setting, one_loop, soon
from support.connecting import Connect
from support.frames import TEXT, Frame
from support.serving import Raw, echo, idle, masked, serve, uri
from support.subject import IS_WIRESPEED

pytestmark = pytest.mark.wirespeed_only("the server is ours")

if IS_WIRESPEED:
    pass

SETTINGS = one_loop()


async def works(server: Any) -> None:
    with await Raw.open(server) as raw:
        await raw.send(masked(TEXT, b"x"))
        assert await raw.frame() == Frame(TEXT, b"x", masked=False)


async def works_at(connect: Connect, where: str, **options: Any) -> None:
    async with connect(where, **options) as ws:
        await ws.send("x")
        assert await ws.recv() == "x"


def can_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as sock:
            sock.bind(("::1", 0))
    except OSError:
        return False
    return True


needs_ipv6 = pytest.mark.skipif(not can_ipv6(), reason="IPv6 is switched off here")


# TCP


@pytest.mark.parametrize("port", [0, None])
@pytest.mark.no_leaks
async def test_port_chosen_by_the_system(setting: Setting, port: int | None) -> None:
    async with serve(setting, port=port) as server:
        assert len(server.sockets) == 1
        assert server.sockets[0].getsockname()[1] > 0
        await works(server)
    assert server.sockets == ()


@pytest.mark.parametrize("host", [None, "", "0.0.0.0", ["127.0.0.1"], ("127.0.0.1", "127.0.0.1")], ids=str)
@pytest.mark.no_leaks
async def test_hosts(setting: Setting, connect: Connect, host: Any) -> None:
    async with serve(setting, host=host) as server:
        ports = {sock.getsockname()[1] for sock in server.sockets}
        assert len(ports) == 1, "clients know one port"
        await works_at(connect, f"ws://127.0.0.1:{ports.pop()}")
        if isinstance(host, tuple):
            assert len(server.sockets) == 1


@pytest.mark.no_leaks
async def test_several_hosts(setting: Setting, connect: Connect) -> None:
    async with serve(setting, host=iter(["127.0.0.1", "127.0.0.2"])) as server:
        names = [sock.getsockname() for sock in server.sockets]
        assert [name[0] for name in names] == ["127.0.0.1", "127.0.0.2"]
        assert names[0][1] == names[1][1]
        for host, port in names:
            await works_at(connect, f"ws://{host}:{port}")
    with pytest.raises(OSError):
        await connect(f"ws://{names[1][0]}:{names[1][1]}")


@needs_ipv6
@pytest.mark.no_leaks
async def test_both_families(setting: Setting, connect: Connect, resolve: Resolve) -> None:
    resolve(("127.0.0.1", 0), ("::1", 0))
    async with serve(setting, host="somewhere") as server:
        assert {sock.family for sock in server.sockets} == {socket.AF_INET, socket.AF_INET6}
        [port] = {sock.getsockname()[1] for sock in server.sockets}
        for sock in server.sockets:
            with socket.socket(sock.family) as client:
                client.setblocking(False)
                await asyncio.get_running_loop().sock_connect(client, sock.getsockname())
        assert port


@needs_ipv6
@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
async def test_family(setting: Setting, family: int) -> None:
    async with serve(setting, host=None, family=family) as server:
        assert {sock.family for sock in server.sockets} == {family}


@needs_ipv6
async def test_ipv6(setting: Setting, connect: Connect) -> None:
    addresses: list[Any] = []

    async def handler(ws: Any) -> None:
        addresses.extend([ws.local_address, ws.remote_address])
        await echo(ws)

    async with serve(setting, handler, host="::1") as server:
        name = server.sockets[0].getsockname()
        await works_at(connect, f"ws://[::1]:{name[1]}")
        assert addresses[0] == name
        assert addresses[1][0] == "::1"


@pytest.mark.no_leaks
async def test_address_in_use(setting: Setting) -> None:
    """The error names the address; sockets that were bound before are closed."""
    async with serve(setting) as server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(OSError, match=rf"127\.0\.0\.1:{port}"):
            await serve(setting, host=["127.0.0.2", "127.0.0.1"], port=port)
        await works(server)


async def test_closing_a_server_that_did_not_start(setting: Setting) -> None:
    """There is nothing to wait for."""
    async with serve(setting) as server:
        other = serve(setting, port=server.sockets[0].getsockname()[1])
        with pytest.raises(OSError, match="cannot listen"):
            await other
        other.close()
        await asyncio.wait_for(other.wait_closed(), 0.2)


@pytest.mark.parametrize("host", ["192.0.2.1", "name.invalid"])
@pytest.mark.no_leaks
async def test_foreign_address(setting: Setting, host: str) -> None:
    with pytest.raises(OSError) as raised:
        await serve(setting, host=host)
    if host == "192.0.2.1":
        assert host in str(raised.value)


@pytest.mark.no_leaks
async def test_unavailable_address_beside_others(setting: Setting, resolve: Resolve) -> None:
    """Like ::1 of localhost, where IPv6 is switched off."""
    resolve(("192.0.2.1", 0), ("127.0.0.1", 0))
    async with serve(setting, host="localhost") as server:
        assert [sock.getsockname()[0] for sock in server.sockets] == ["127.0.0.1"]


async def test_same_port_again_at_once(setting: Setting) -> None:
    """The port is reusable although the system remembers connections of the first server."""
    port = 0
    for _ in range(2):
        async with serve(setting, idle, port=port) as server:
            port = server.sockets[0].getsockname()[1]
            raw = await Raw.open(server)
            assert server.sockets[0].getsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR)
            server.close()
            await raw.until_close()
            raw.close()


async def test_reuse_address_off(setting: Setting) -> None:
    async with serve(setting, reuse_address=False) as server:
        assert not server.sockets[0].getsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR)


@pytest.mark.skipif(not hasattr(socket, "SO_REUSEPORT"), reason="needs SO_REUSEPORT")
@pytest.mark.no_leaks
async def test_reuse_port(setting: Setting, connect: Connect) -> None:
    async with serve(setting, reuse_port=True) as first:
        port = first.sockets[0].getsockname()[1]
        async with serve(setting, port=port, reuse_port=True):
            for _ in range(8):
                await works_at(connect, f"ws://127.0.0.1:{port}")
        with pytest.raises(OSError, match="cannot listen"):
            await serve(setting, port=port)


class Listening(socket.socket):
    """A socket that records the arguments of ``listen``, and may fail."""

    calls: tuple[Any, ...] = ()
    error: OSError | None = None

    def listen(self, *arguments: Any) -> None:
        self.calls += arguments
        if self.error is not None:
            raise self.error
        super().listen(*arguments)


@pytest.mark.parametrize("backlog", [None, 7, 0])
async def test_backlog(setting: Setting, backlog: int | None) -> None:
    with Listening() as sock:
        sock.bind(("127.0.0.1", 0))
        options = {} if backlog is None else {"backlog": backlog}
        async with serve(setting, echo, None, None, sock=sock, **options) as server:
            assert sock.calls == (4096 if backlog is None else backlog,)
            await works(server)


@pytest.mark.parametrize("blocking", [True, False])
async def test_sock(setting: Setting, blocking: bool) -> None:
    sock = socket.socket()
    sock.bind(("127.0.0.1", 0))
    sock.setblocking(blocking)
    async with serve(setting, echo, None, None, sock=sock) as server:
        assert server.sockets == (sock,)
        await works(server)
    assert sock.fileno() == -1


async def test_sock_is_closed(setting: Setting) -> None:
    sock = socket.socket()
    sock.close()
    with pytest.raises(ValueError, match="sock"):
        await serve(setting, echo, None, None, sock=sock)


# Starting


@pytest.mark.no_leaks
async def test_start_serving_later(setting: Setting) -> None:
    async with serve(setting, start_serving=False) as server:
        assert not server.is_serving()
        assert len(server.sockets) == 1
        with pytest.raises(ConnectionRefusedError):
            await Raw.connect(server)
        for _ in range(2):
            await server.start_serving()
            assert server.is_serving()
        await works(server)


@pytest.mark.no_leaks
async def test_never_started_serving(setting: Setting) -> None:
    async with serve(setting, start_serving=False):
        pass


@pytest.mark.no_leaks
async def test_listening_fails(setting: Setting) -> None:
    """The port was free at bind, and is not at listen."""
    with Listening() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.error = OSError("mine")
        with pytest.raises(OSError, match="mine"):
            await serve(setting, echo, None, None, sock=sock)
        assert sock.fileno() == -1


@pytest.mark.no_leaks
async def test_listening_fails_later(setting: Setting) -> None:
    with Listening() as sock:
        sock.bind(("127.0.0.1", 0))
        async with serve(setting, echo, None, None, sock=sock, start_serving=False) as server:
            sock.error = OSError("mine")
            with pytest.raises(OSError, match="mine"):
                await server.start_serving()
            assert not server.is_serving()
            sock.error = None
            await server.start_serving()
            await works(server)


@pytest.mark.no_leaks
async def test_await_twice(setting: Setting) -> None:
    opening = serve(setting)
    server = await opening
    assert await server is server
    async with server as again:
        assert again is server
        assert len(server.sockets) == 1
        await works(server)
    assert not server.is_serving()


@pytest.mark.no_leaks
async def test_starting_is_cancelled(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cancelled while names are resolved: nothing is left."""
    release = asyncio.Event()
    loop = asyncio.get_running_loop()
    real = loop.getaddrinfo

    async def slow(*arguments: Any, **options: Any) -> Any:
        await release.wait()
        return await real(*arguments, **options)

    monkeypatch.setattr(type(loop), "getaddrinfo", lambda self, *a, **k: slow(*a, **k))
    task = asyncio.ensure_future(_start(serve(setting)))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()


async def _start(server: Any) -> Any:
    return await server


@pytest.mark.no_leaks
async def test_closing_while_it_starts(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server does not begin to listen afterwards."""
    loop = asyncio.get_running_loop()
    real = loop.getaddrinfo

    async def slow(*arguments: Any, **options: Any) -> Any:
        await asyncio.sleep(0.02)
        return await real(*arguments, **options)

    monkeypatch.setattr(type(loop), "getaddrinfo", lambda self, *a, **k: slow(*a, **k))
    server = serve(setting)
    task = asyncio.ensure_future(_start(server))
    await asyncio.sleep(0)
    server.close()
    await asyncio.wait([task])
    await asyncio.wait_for(server.wait_closed(), 2)
    left = server.sockets
    for sock in left:
        sock.close()
    assert left == ()
    assert not server.is_serving()


@pytest.mark.no_leaks
async def test_uri_of_helpers(setting: Setting, connect: Connect) -> None:
    """By host name, as users write it."""
    async with serve(setting, host="localhost") as server:
        await works_at(connect, uri(server, host="localhost"))
        await soon(lambda: not server.connections)
