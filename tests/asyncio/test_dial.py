"""Connecting on a loop: all addresses in their order, cancellation at any moment, and no leaked socket."""

from __future__ import annotations

import asyncio
import errno
import functools
import os
import select
import socket
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from support import asyncio_tools
from support.addresses import Resolve, full_listener
from support.asyncio_tools import LOOPS, Run, cancelled, soon, spin
from support.checks import no_leaks, open_descriptors, within
from wirespeed._net.addresses import Failures
from wirespeed.asyncio._opening import dial, dial_address, dial_unix
from wirespeed.asyncio._sockets import ready

pytestmark = pytest.mark.wirespeed_only("the modules are ours")


@pytest.fixture(params=LOOPS)
def run(request: pytest.FixtureRequest) -> Run:
    run = functools.partial(asyncio_tools.run, loop=request.param)
    # The first loop of libuv opens a pipe for the whole process.
    run(spin)
    return run


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        yield sock


@pytest.fixture
def port(listener: socket.socket) -> int:
    return int(listener.getsockname()[1])


def peer_port(run: Run, *args: Any, **options: Any) -> int:
    """Dials, and returns the port of the peer."""

    async def main() -> int:
        with await dial(*args, **options) as sock:
            assert sock.gettimeout() == 0
            return int(sock.getpeername()[1])

    with no_leaks():
        return run(main)  # type: ignore[no-any-return]


def fails(run: Run, expected: type[BaseException], *args: Any, **options: Any) -> BaseException:
    """Dials unsuccessfully, and returns the exception."""

    async def main() -> None:
        with await dial(*args, **options):
            pass

    with no_leaks():
        with pytest.raises(expected) as raised:
            run(main)
        raised.value.__traceback__ = None
        return raised.value


@pytest.mark.no_leaks
async def test_connect(listener: socket.socket, port: int) -> None:
    with await dial("127.0.0.1", port) as sock:
        with listener.accept()[0] as accepted:
            assert accepted.getpeername() == sock.getsockname()
            accepted.sendall(b"hello")
            assert await asyncio.get_running_loop().sock_recv(sock, 5) == b"hello"
        assert sock.gettimeout() == 0
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


@pytest.mark.loop(debug=True)
async def test_debug_mode(listener: socket.socket, port: int) -> None:
    with await dial("localhost", port) as sock:
        assert sock.getpeername()[1] == port


def test_connect_by_name(run: Run, port: int) -> None:
    assert peer_port(run, "localhost", port) == port


def test_address_needs_no_resolver(run: Run, port: int) -> None:
    """No resolver thread is needed."""

    async def main() -> None:
        executor = ThreadPoolExecutor()
        executor.shutdown()
        asyncio.get_running_loop().set_default_executor(executor)
        with await dial("127.0.0.1", port, local_addr=("127.0.0.1", 0)) as sock:
            assert sock.getpeername()[1] == port

    if run.keywords["loop"] == "uvloop":  # type: ignore[attr-defined]
        pytest.skip("its resolver has other threads")
    run(main)


def test_connect_by_ipv6(run: Run) -> None:
    try:
        listener = socket.create_server(("::1", 0), family=socket.AF_INET6)
    except OSError as exc:
        pytest.skip(f"this machine has no IPv6 loopback: {exc}")
    with listener:
        assert peer_port(run, "::1", listener.getsockname()[1]) == listener.getsockname()[1]


def test_family(run: Run, port: int) -> None:
    assert peer_port(run, "localhost", port, family=socket.AF_INET) == port
    fails(run, socket.gaierror, "127.0.0.1", port, family=socket.AF_INET6)


# Failures


def test_refused(run: Run, closed_port: int) -> None:
    exc = fails(run, ConnectionRefusedError, "127.0.0.1", closed_port)
    assert isinstance(exc, OSError)
    assert exc.errno == errno.ECONNREFUSED
    assert f"cannot connect to 127.0.0.1:{closed_port}" in str(exc)
    assert "Connection refused" in str(exc)


def test_unknown_host(run: Run) -> None:
    exc = fails(run, socket.gaierror, "host.invalid", 80)
    assert "cannot resolve host 'host.invalid': " in str(exc)
    assert isinstance(exc, OSError)
    assert exc.errno in {socket.EAI_NONAME, socket.EAI_AGAIN}


def test_no_address(run: Run, resolve: Resolve) -> None:
    resolve()
    assert "there is no address" in str(fails(run, OSError, "host.invalid", 80))


def test_all_refused(run: Run, resolve: Resolve, closed_port: int) -> None:
    resolve(("127.0.0.1", closed_port), ("127.0.0.2", closed_port))
    exc = fails(run, ConnectionRefusedError, "example.com", 80)
    for address in ("example.com:80", f"127.0.0.1:{closed_port}: ", f"127.0.0.2:{closed_port}: "):
        assert address in str(exc)


def test_different_causes(run: Run, resolve: Resolve, closed_port: int) -> None:
    # The kernel refuses a broadcast address by itself: nothing leaves the machine.
    resolve(("127.0.0.1", closed_port), ("255.255.255.255", 80))
    exc = fails(run, OSError, "example.com", 80)
    assert type(exc) is OSError
    assert "Connection refused" in str(exc)
    assert "255.255.255.255:80: " in str(exc)


# Several addresses


def test_next_address_at_once_when_one_fails(run: Run, resolve: Resolve, closed_port: int, port: int) -> None:
    resolve(("127.0.0.1", closed_port), ("255.255.255.255", 80), ("127.0.0.1", port))
    with within(5):
        assert peer_port(run, "example.com", 80, happy_eyeballs_delay=60) == port


@pytest.mark.parametrize("host", ["127.0.0.1", "255.255.255.255"], ids=["later", "in the call"])
def test_next_address_at_once_when_one_fails_beside_another(
    run: Run,
    monkeypatch: pytest.MonkeyPatch,
    resolve: Resolve,
    silent_port: int,
    closed_port: int,
    port: int,
    host: str,
) -> None:
    """The failure of the second attempt starts the third one, independently of the first."""
    real = socket.socket.connect
    started = []

    def connect(sock: socket.socket, address: Any) -> None:
        started.append(time.monotonic())
        # The kernel may report a refusal immediately or not: delay it.
        try:
            real(sock, address)
        except ConnectionRefusedError:
            raise BlockingIOError from None

    monkeypatch.setattr(socket.socket, "connect", connect)
    resolve(("127.0.0.1", silent_port), (host, closed_port), ("127.0.0.1", port))
    # Checks when attempts start, not when one succeeds: a busy kernel may drop a SYN, and the next comes a second
    # later.
    assert peer_port(run, "example.com", 80, happy_eyeballs_delay=1) == port
    first, second, third = started
    assert second - first >= 0.998
    assert third - second <= 0.9


def test_next_address_after_the_delay(run: Run, resolve: Resolve, silent_port: int, port: int) -> None:
    resolve(("127.0.0.1", silent_port), ("127.0.0.1", port))
    # A busy kernel may drop a SYN, and the next comes a second later.
    with within(8, at_least=0.1):
        assert peer_port(run, "example.com", 80, happy_eyeballs_delay=0.1) == port


def test_slow_address_can_still_win(run: Run, resolve: Resolve, closed_port: int) -> None:
    """The first attempt is in progress while the second one fails."""
    with full_listener() as (port, make_room):
        resolve(("127.0.0.1", port), ("127.0.0.1", closed_port))

        async def main() -> None:
            asyncio.get_running_loop().call_later(0.1, make_room)
            with await dial("example.com", 80, happy_eyeballs_delay=0.01) as sock:
                assert sock.getpeername()[1] == port

        with no_leaks():
            run(main)


def test_two_that_succeed_together(run: Run, resolve: Resolve, port: int) -> None:
    """One attempt wins, the other is closed."""
    with full_listener() as (first, make_room), full_listener() as (second, make_more):
        resolve(("127.0.0.1", first), ("127.0.0.1", second))

        async def main() -> None:
            loop = asyncio.get_running_loop()

            def both() -> None:
                make_room()
                make_more()

            # The kernel sends the lost SYN of both again after a second.
            loop.call_later(0.1, both)
            with await dial("example.com", 80, happy_eyeballs_delay=0) as sock:
                assert sock.getpeername()[1] in {first, second}

        with no_leaks():
            run(main)


@pytest.mark.no_leaks
async def test_no_second_attempt_without_a_delay(resolve: Resolve, silent_port: int, port: int) -> None:
    resolve(("127.0.0.1", silent_port), ("127.0.0.1", port))
    with pytest.raises(asyncio.TimeoutError):
        await asyncio.wait_for(dial("example.com", 80, happy_eyeballs_delay=None), 0.3)


def refuse(sock: socket.socket, address: Any) -> None:
    raise ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")


@pytest.mark.parametrize("interleave", [0, 1])
def test_order(run: Run, monkeypatch: pytest.MonkeyPatch, resolve: Resolve, closed_port: int, interleave: int) -> None:
    resolve(*((host, closed_port) for host in ("::1", "::2", "127.0.0.1")))
    # Only the order matters; IPv6 may be missing here.
    monkeypatch.setattr(socket.socket, "connect", refuse)
    text = str(fails(run, OSError, "example.com", 80, interleave=interleave))
    order = ["[::1]", "127.0.0.1", "[::2]"] if interleave else ["[::1]", "[::2]", "127.0.0.1"]
    assert sorted(order, key=lambda host: text.index(f"{host}:")) == order


# Loops that cannot watch descriptors


class Proactor(asyncio.SelectorEventLoop):
    """An event loop like the default one of Windows."""

    add_reader = asyncio.AbstractEventLoop.add_reader
    remove_reader = asyncio.AbstractEventLoop.remove_reader
    add_writer = asyncio.AbstractEventLoop.add_writer
    remove_writer = asyncio.AbstractEventLoop.remove_writer

    async def sock_connect(self, sock: socket.socket, address: Any) -> None:
        error = sock.connect_ex(address)
        if error == errno.EINPROGRESS:
            while not select.select([], [sock], [], 0)[1]:
                await asyncio.sleep(0.002)
            error = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if error:
            raise OSError(error, os.strerror(error))


def on_proactor(main: Callable[[], Any]) -> None:
    loop = Proactor()
    try:
        with no_leaks():
            loop.run_until_complete(asyncio.wait_for(main(), 10))
    finally:
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()


def test_loop_without_writers(resolve: Resolve, closed_port: int, port: int) -> None:
    async def main() -> None:
        resolve(("127.0.0.1", closed_port), ("127.0.0.1", port))
        with await dial("example.com", 80) as sock:
            assert sock.getpeername()[1] == port
        resolve(("127.0.0.1", closed_port))
        with pytest.raises(ConnectionRefusedError):
            await dial("example.com", 80)

    on_proactor(main)


def test_loop_without_writers_cancelled(silent_port: int) -> None:
    async def main() -> None:
        task = asyncio.ensure_future(dial("127.0.0.1", silent_port))
        await asyncio.sleep(0.02)
        assert await cancelled(task)

    on_proactor(main)


# A numeric address, without a resolver and without a race


@pytest.mark.no_leaks
async def test_numeric_address(listener: socket.socket, port: int) -> None:
    connected = await dial_address("127.0.0.1", port)
    assert connected is not None
    with socket.socket(fileno=connected.detach()) as sock, listener.accept()[0] as accepted:
        assert sock.getsockname() == accepted.getpeername()
        assert not os.get_blocking(sock.fileno())
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    assert await dial_address("localhost", port) is None
    assert await dial_address("127.0.0.1", port, family=socket.AF_INET6) is None


@pytest.mark.no_leaks
async def test_numeric_address_refuses(closed_port: int) -> None:
    with pytest.raises(ConnectionRefusedError) as refused:
        await dial_address("127.0.0.1", closed_port)
    text = f"cannot connect to 127.0.0.1:{closed_port} (127.0.0.1:{closed_port}: Connection refused)"
    assert refused.value.args == (errno.ECONNREFUSED, text)


@pytest.mark.parametrize("debug", [False, True])
@pytest.mark.no_leaks
async def test_numeric_address_that_is_silent(silent_port: int, debug: bool) -> None:
    """When cancelled, the socket is closed immediately, and its number is free for another."""
    asyncio.get_running_loop().set_debug(debug)
    before = sockets()
    for _ in range(3):
        task = asyncio.ensure_future(dial_address("127.0.0.1", silent_port))
        await soon(lambda: sockets() == before + 1)
        await asyncio.sleep(0.02)
        assert not task.done()
        assert await cancelled(task)
        assert sockets() == before
    one, other = socket.socketpair()
    with one, other:
        one.setblocking(False)
        other.send(b"x")
        await ready(one)
        assert one.recv(1) == b"x"
        waiting = asyncio.ensure_future(ready(one))
        await asyncio.sleep(0.02)
        assert not waiting.done()
        other.send(b"y")
        await waiting
        await ready(one, to_read=False, to_write=True)
        waiting = asyncio.ensure_future(ready(one))
        await asyncio.sleep(0)
        assert await cancelled(waiting) or one.recv(1) == b"y"


# Cancellation


def sockets() -> int:
    return sum(target.startswith("socket:") for target in open_descriptors().values())


@pytest.mark.no_leaks
async def test_cancelled_while_connecting(resolve: Resolve, silent_port: int) -> None:
    """Every socket is closed when the task has ended."""
    resolve(("127.0.0.1", silent_port), ("127.0.0.1", silent_port), ("127.0.0.2", silent_port))
    before = sockets()
    failures = Failures("example.com:80")
    task = asyncio.ensure_future(dial("example.com", 80, failures=failures, happy_eyeballs_delay=0))
    await soon(lambda: sockets() >= before + 1)
    await asyncio.sleep(0.05)
    assert await cancelled(task)
    assert sockets() == before


@pytest.mark.no_leaks
async def test_cancelled_while_resolving(monkeypatch: pytest.MonkeyPatch) -> None:
    started = []

    async def getaddrinfo(*args: object, **kwargs: object) -> None:
        started.append(args)
        await asyncio.sleep(60)

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", getaddrinfo, raising=False)
    task = asyncio.ensure_future(dial("host.invalid", 80))
    await soon(lambda: started)
    assert await cancelled(task)
    monkeypatch.undo()


@pytest.mark.no_leaks
async def test_cancelled_after_any_number_of_turns(resolve: Resolve, closed_port: int, port: int) -> None:
    """Also when the connection is already established: the result is a socket or an exception, never both or
    neither.
    """
    resolve(("127.0.0.1", closed_port), ("127.0.0.1", port))
    for turns in range(12):
        task = asyncio.ensure_future(dial("example.com", 80, happy_eyeballs_delay=0.001))
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        if not task.cancelled():
            task.result().close()


async def test_failure_includes_earlier_failures(resolve: Resolve, silent_port: int, closed_port: int) -> None:
    resolve(("127.0.0.1", closed_port), ("127.0.0.1", silent_port))
    failures = Failures("example.com:80")
    task = asyncio.ensure_future(dial("example.com", 80, failures=failures))
    await asyncio.sleep(0.05)
    assert await cancelled(task)
    text = failures.timeout_text()
    assert text == f"timed out while connecting to example.com:80 (127.0.0.1:{closed_port}: Connection refused)"


# Local address


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has all of 127/8")
async def test_local_addr(listener: socket.socket, port: int) -> None:
    with await dial("127.0.0.1", port, local_addr=("127.0.0.5", 0)) as sock, listener.accept()[0] as accepted:
        assert sock.getsockname()[0] == accepted.getpeername()[0] == "127.0.0.5"


def test_local_addr_taken(run: Run, port: int) -> None:
    exc = fails(run, OSError, "127.0.0.1", port, local_addr=("127.0.0.1", port))
    assert f"cannot bind to local_addr 127.0.0.1:{port}" in str(exc)
    assert isinstance(exc, OSError)
    assert exc.errno == errno.EADDRINUSE


def test_local_addr_of_another_family(run: Run, port: int) -> None:
    exc = fails(run, OSError, "127.0.0.1", port, local_addr=("::1", 0))
    assert "local_addr has no address of this family" in str(exc)


# Unix sockets


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "s")


@pytest.fixture
def unix_listener(path: str) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(path)
        sock.listen(0)
        yield sock


@pytest.mark.parametrize("kind", [str, Path, os.fsencode], ids=["str", "Path", "bytes"])
@pytest.mark.no_leaks
async def test_unix(unix_listener: socket.socket, path: str, kind: Any) -> None:
    with await dial_unix(kind(path)) as sock, unix_listener.accept()[0] as accepted:
        assert sock.gettimeout() == 0
        accepted.sendall(b"hello")
        assert await asyncio.get_running_loop().sock_recv(sock, 5) == b"hello"


def test_unix_missing(run: Run, path: str) -> None:
    with no_leaks(), pytest.raises(FileNotFoundError) as raised:
        run(lambda: dial_unix(path))
    assert raised.value.filename == path


def test_unix_refused(run: Run, path: str) -> None:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(path)
    with no_leaks(), pytest.raises(ConnectionRefusedError):
        run(lambda: dial_unix(path))


@pytest.mark.no_leaks
async def test_unix_waits_for_room(unix_listener: socket.socket, path: str) -> None:
    """The socket is connected then, not just writable."""
    loop = asyncio.get_running_loop()
    with await dial_unix(path):
        loop.call_later(0.05, lambda: unix_listener.accept()[0].close())
        with await dial_unix(path) as sock, unix_listener.accept()[0] as accepted:
            await loop.sock_sendall(sock, b"hello")
            assert accepted.recv(5) == b"hello"


@pytest.mark.no_leaks
async def test_unix_cancelled(unix_listener: socket.socket, path: str) -> None:
    with await dial_unix(path):
        task = asyncio.ensure_future(dial_unix(path))
        await asyncio.sleep(0.02)
        assert await cancelled(task)
