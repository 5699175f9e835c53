"""Cancelling ``connect`` at any moment: no socket, no task and no warning is left."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import random
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from support.asyncio_tools import Run, eager, soon
from support.certificates import Certificates
from support.checks import no_leaks, open_descriptors, within
from support.connecting import Connect, echo
from support.proxies import Proxy
from support.scripted import Scripted, Wire
from support.servers import WebSocketsServer
from support.subject import IS_WIRESPEED, exceptions

PROXIES = {"http": "http", "https": "https", "socks5": "socks5", "tls-in-tls": "https"}
ROUTES = ["plain", "name", "context", "native", "redirect", "unix", *PROXIES]

# Messages of pproxy for some connections on Python 3.13: it drops the writers of connections that it serves, which ends
# them.
LOST = (OSError, exceptions.InvalidHandshake, exceptions.ConnectionClosed)


@pytest.fixture(scope="module")
def own_proxy(certificates: Certificates, proxy: object) -> Iterator[Callable[[str], Proxy]]:
    """Other tests read the log of their proxy for each connection. ``proxy`` skips where there can be none."""
    with contextlib.ExitStack() as stack:

        @functools.cache
        def start(kind: str) -> Proxy:
            running = Proxy(kind, certificate=certificates.server_files() if kind == "https" else None)
            stack.callback(running.stop)
            return running

        yield start


@pytest.fixture(params=ROUTES)
def connecting(request: pytest.FixtureRequest, connect: Connect, unix_connect: Connect) -> Callable[[], Any]:
    """Calls ``connect`` for a server that is reached in one of many ways."""
    kind = request.param
    server: WebSocketsServer = request.getfixturevalue("server")
    secure: WebSocketsServer = request.getfixturevalue("secure_server")
    certificates: Certificates = request.getfixturevalue("certificates")
    if kind == "plain":
        return lambda: connect(server.uri)
    if kind == "name":
        return lambda: connect(f"ws://localhost:{server.port}/")
    if kind == "context":
        context = certificates.client_context()
        return lambda: connect(secure.uri, ssl=context)
    if kind == "native":
        if not IS_WIRESPEED:
            pytest.skip("websockets takes contexts only")
        import wirespeed

        native = wirespeed.TLS(ca=certificates.ca_file)
        return lambda: connect(secure.uri, ssl=native)
    if kind == "redirect":
        return lambda: connect(server.uri + "/hop/3")
    if kind == "unix":
        unix_server: WebSocketsServer = request.getfixturevalue("unix_server")
        return lambda: unix_connect(unix_server.unix_path)
    start: Callable[[str], Proxy] = request.getfixturevalue("own_proxy")
    through = start(PROXIES[kind])
    context = certificates.client_context()
    options = {"proxy_ssl": context} if through.kind == "https" else {}
    if kind == "tls-in-tls":
        return lambda: connect(secure.uri, ssl=context, proxy=through.url(), **options)
    return lambda: connect(server.uri, proxy=through.url(), **options)


@pytest.fixture
def lost(request: pytest.FixtureRequest, connecting: object) -> tuple[type[BaseException], ...]:
    """Exceptions of a connection that was not cancelled."""
    return LOST if request.node.callspec.params["connecting"] in PROXIES else ()


def sockets() -> int:
    return sum(target.startswith("socket:") for target in open_descriptors().values())


async def end(task: asyncio.Future[Any], lost: tuple[type[BaseException], ...]) -> bool:
    """Waits for a cancelled task; returns whether it opened a connection nevertheless."""
    await asyncio.wait([task])
    if task.cancelled():
        return False
    with contextlib.suppress(*lost):
        async with task.result() as ws:
            await echo(ws)
        return True
    return False


@pytest.mark.wirespeed_only("websockets breaks on some of them")
@pytest.mark.no_leaks
async def test_after_any_number_of_turns(connecting: Callable[[], Any], lost: Any) -> None:
    """Every turn of the loop up to the open connection is a moment to cancel."""
    opened = 0
    turns = 0
    while opened < 3 and turns < 400:
        task = asyncio.ensure_future(connecting())
        for _ in range(turns):
            if task.done():
                break
            # Without a pause, the server has no time to answer, and many turns pass in vain.
            await asyncio.sleep(0 if turns < 12 else 0.001)
        task.cancel()
        opened += await end(task, lost)
        turns += 1
    assert opened == 3


@pytest.mark.wirespeed_only("websockets breaks on some of them")
@pytest.mark.no_leaks
async def test_at_random_times(connecting: Callable[[], Any], lost: Any) -> None:
    """Many at once."""
    times = random.Random(1)
    loop = asyncio.get_running_loop()
    tasks = [asyncio.ensure_future(connecting()) for _ in range(20)]
    for task in tasks:
        loop.call_later(times.uniform(0, 0.05), task.cancel)
    await asyncio.gather(*(end(task, lost) for task in tasks))


def test_sockets_are_closed_at_once(scripted: Scripted, run: Run, connect: Connect) -> None:
    """Sockets are closed when the task has ended, not by the collector."""
    server = scripted(lambda wire: wire.read_to_end())

    async def main() -> None:
        before = sockets()
        task = asyncio.ensure_future(connect(server.uri))
        await soon(lambda: sockets() > before)
        await asyncio.sleep(0.05)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()

    with no_leaks():
        run(main)
    server.join()
    assert b"Upgrade: websocket" in server.results[0]


@pytest.mark.no_leaks
async def test_twice(server: WebSocketsServer, connect: Connect) -> None:
    task = asyncio.ensure_future(connect(server.uri + "/slow?seconds=1"))
    await asyncio.sleep(0.05)
    task.cancel()
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()


@pytest.mark.no_leaks
async def test_while_the_listener_is_slow(server: WebSocketsServer, connect: Connect, silent_port: int) -> None:
    """The TCP connection is not established."""
    task = asyncio.ensure_future(connect(f"ws://127.0.0.1:{silent_port}/"))
    await asyncio.sleep(0.05)
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()


@pytest.mark.no_leaks
async def test_while_writing(scripted: Scripted, connect: Connect) -> None:
    """The request is larger than what the socket takes."""

    def script(wire: Wire) -> None:
        server.pause()
        wire.read_to_end()

    server = scripted(script, receive_buffer=4096)
    headers = [("X-Spam", "x" * 60_000)] * 100
    task = asyncio.ensure_future(connect(server.uri, additional_headers=headers))
    await soon(server.reached.is_set)
    await asyncio.sleep(0.05)
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    server.release.set()


# Deadlines of the caller


@pytest.mark.no_leaks
async def test_wait_for(server: WebSocketsServer, connect: Connect) -> None:
    with within(3, at_least=0.2), pytest.raises(asyncio.TimeoutError):
        await asyncio.wait_for(connect(server.uri + "/slow?seconds=5"), 0.2)


@pytest.mark.skipif(sys.version_info < (3, 11), reason="asyncio.timeout came with Python 3.11")
@pytest.mark.no_leaks
async def test_timeout_around(server: WebSocketsServer, connect: Connect) -> None:
    with pytest.raises(TimeoutError) as raised:
        async with asyncio.timeout(0.2):  # type: ignore[attr-defined]
            await connect(server.uri + "/slow?seconds=5", open_timeout=5)
    assert "opening handshake" not in str(raised.value)
    # Our own timeout inside another one is just an exception.
    with pytest.raises(TimeoutError, match="opening handshake"):
        async with asyncio.timeout(5):  # type: ignore[attr-defined]
            await connect(server.uri + "/slow?seconds=5", open_timeout=0.2)
    assert asyncio.current_task().cancelling() == 0  # type: ignore[union-attr]


@pytest.mark.skipif(sys.version_info < (3, 11), reason="task groups came with Python 3.11")
@pytest.mark.no_leaks
async def test_task_group(server: WebSocketsServer, connect: Connect) -> None:
    async def use() -> None:
        async with connect(server.uri + "/slow?seconds=5"):
            pass

    async def fail() -> None:
        await asyncio.sleep(0.1)
        raise ZeroDivisionError

    with pytest.raises(BaseException) as raised:
        async with asyncio.TaskGroup() as group:  # type: ignore[attr-defined]
            for _ in range(5):
                group.create_task(use())
            group.create_task(fail())
    assert [type(exc) for exc in raised.value.exceptions] == [ZeroDivisionError]  # type: ignore[attr-defined]


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python 3.10 does not count who cancelled a task")
@pytest.mark.parametrize("first", ["deadline", "caller"])
@pytest.mark.no_leaks
async def test_deadline_and_cancellation_together(server: WebSocketsServer, connect: Connect, first: str) -> None:
    """A cancellation takes effect in combination with any other event."""
    loop = asyncio.get_running_loop()
    task = asyncio.ensure_future(connect(server.uri + "/slow?seconds=5", open_timeout=0.1))
    await asyncio.sleep(0)
    # Both timers fire in one turn of the loop.
    loop.call_later(0.1 if first == "deadline" else 0.0999, task.cancel)
    loop.call_later(0.05, time.sleep, 0.08)
    await asyncio.wait([task])
    assert task.cancelled()


@pytest.mark.no_leaks
async def test_open_timeout_leaves_the_task_usable(server: WebSocketsServer, connect: Connect) -> None:
    for _ in range(3):
        with pytest.raises(TimeoutError):
            await connect(server.uri + "/slow?seconds=5", open_timeout=0.05)
        await asyncio.sleep(0.01)
    async with connect(server.uri) as ws:
        await echo(ws)


@pytest.mark.skipif(sys.version_info < (3, 12), reason="eager tasks came with Python 3.12")
@pytest.mark.no_leaks
async def test_eager_task(server: WebSocketsServer, connect: Connect) -> None:
    async def use(*, slow: bool = False) -> None:
        async with connect(server.uri + ("/slow?seconds=5" if slow else "")) as ws:
            await echo(ws)

    asyncio.get_running_loop().set_task_factory(eager)
    await asyncio.create_task(use())
    task = asyncio.create_task(use(slow=True))
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
