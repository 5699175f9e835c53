"""More clients in the opening handshake than ``max_pending``: honest clients are still served."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import resource
import select
import socket
import statistics
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from support.asyncio_tools import Setting, soon
from support.certificates import Certificates
from support.checks import alive, no_leaks, within, without_collecting
from support.flood import Flood, flood, raise_descriptors
from support.frames import TEXT, Close
from support.serving import LOGGER, Raw, echo, idle, logged, masked, request, serve
from support.subject import IS_WIRESPEED

pytestmark = pytest.mark.wirespeed_only("the server is ours")

if IS_WIRESPEED:
    from wirespeed import TLS

Run = Callable[..., Any]

# Much longer than any client waits on an idle machine; shorter than half-open clients live.
SOON = 3.0

# No handshake reaches this limit during a test: seconds.
NEVER = 3600.0


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that evicts silent clients soon when there are too many."""
    from wirespeed._server import accept

    monkeypatch.setattr(accept, "IDLE_TIME", 0.02)


async def connect_from(server: Any, host: str) -> Raw:
    sock = socket.socket()
    sock.setblocking(False)
    sock.bind((host, 0))
    await asyncio.get_running_loop().sock_connect(sock, server.sockets[0].getsockname())
    return Raw(sock)


async def converse(raw: Raw) -> None:
    await raw.send(masked(TEXT, b"x") + masked(8, b"\x03\xe8"))
    assert (await raw.frame()).payload == b"x"
    assert await raw.until_close() == ([], Close(1000))


async def be_served(server: Any, host: str) -> float:
    """Returns the time from the connection to the echo."""
    since = time.monotonic()
    with await connect_from(server, host) as raw:
        await raw.send(request())
        assert (await raw.head()).status == 101
        await raw.send(masked(TEXT, b"x"))
        assert (await raw.frame()).payload == b"x"
        took = time.monotonic() - since
        await raw.send(masked(8, b"\x03\xe8"))
        await raw.until_close()
    return took


async def is_closed(raw: Raw) -> bool:
    """Returns whether the server has closed a connection without sending anything."""
    await asyncio.sleep(0.01)
    try:
        return not raw.sock.recv(1)
    except BlockingIOError:
        return False
    except ConnectionResetError:
        return True


@contextlib.asynccontextmanager
async def flooded(server: Any, *arguments: Any, **options: Any) -> AsyncIterator[Flood]:
    with flood(server.sockets[0].getsockname()[1], *arguments, **options) as clients:
        await asyncio.to_thread(clients.there)
        yield clients


async def honest_clients(server: Any) -> None:
    """Clients from an address of their own, and from that of the flood, are served.

    The server must have ``open_timeout=NEVER``: then only evictions make room for them. Their time is no criterion,
    because a server on a busy machine needs seconds to accept the thousands of clients before them.
    """
    for host in ("127.0.0.2", "127.0.0.1"):
        times = [await be_served(server, host) for _ in range(5)]
        print(f"from {host}: median {statistics.median(times) * 1e3:.1f} ms, at most {max(times) * 1e3:.1f} ms")


# Floods


@pytest.mark.parametrize("addresses", ["one", "many"])
def test_half_open_clients(setting: Setting, run: Run, caplog: pytest.LogCaptureFixture, addresses: str) -> None:
    """There are twice as many clients as may be pending, and one log record about them."""
    if not raise_descriptors(4096):
        pytest.skip("the hard limit of descriptors is below 4,096")

    async def main() -> None:
        async with serve(setting, open_timeout=NEVER) as server, flooded(server, 2200, addresses):
            await honest_clients(server)
            await soon(lambda: len(server._limiter) <= 1024)
            await honest_clients(server)
            await soon(lambda: logged(caplog))
            server.close()

    with no_leaks():
        run(main)
    told = [text for text in logged(caplog) if "max_pending=1024" in text]
    # One record after the first second, and perhaps none later, because a minute does not pass.
    assert len(told) == 1
    assert "times)" in told[0]
    assert ("127.0.0.1" if addresses == "one" else "127.77.") in told[0]


@pytest.mark.parametrize("addresses", ["one", "many"])
def test_fifteen_thousand_half_open_clients(setting: Setting, run: Run, addresses: str) -> None:
    if resource.getrlimit(resource.RLIMIT_NOFILE)[1] < 16_384 or not raise_descriptors(4096):
        pytest.skip("the hard limit of descriptors is below 16,384: a process cannot have as many clients")

    async def main() -> None:
        async with serve(setting, open_timeout=NEVER) as server, flooded(server, 15_000, addresses):
            await honest_clients(server)
            server.close()

    with no_leaks():
        run(main, timeout=60)


def test_half_open_tls(setting: Setting, run: Run, certificates: Certificates) -> None:
    if not raise_descriptors(4096):
        pytest.skip("the hard limit of descriptors is below 4,096")
    cert, key = certificates.server_files()

    async def main() -> None:
        options: dict[str, Any] = {"ssl": TLS(cert=cert, key=key), "open_timeout": NEVER}
        async with serve(setting, **options) as server, flooded(server, 1500, half="tls"):
            await soon(lambda: len(server._limiter) <= 1024)
            reader, writer = await asyncio.open_connection(
                "localhost", server.sockets[0].getsockname()[1], ssl=certificates.client_context()
            )
            writer.write(request())
            assert (await reader.readline()).startswith(b"HTTP/1.1 101 ")
            writer.transport.abort()
            server.close()

    with no_leaks():
        run(main)


# Evictions


@pytest.mark.usefixtures("impatient")
def test_silent_client_of_the_busiest_address_is_evicted(setting: Setting, run: Run) -> None:
    """A client alone at its address stays, and so does a client that sends, even a byte now and then."""

    async def main() -> None:
        async with serve(setting, max_pending=5) as server, contextlib.AsyncExitStack() as stack:

            async def come(host: str) -> Raw:
                raw = stack.enter_context(await connect_from(server, host))
                await asyncio.sleep(0.03)
                return raw

            alone = await come("127.0.0.2")
            slow = await come("127.0.0.1")
            others = [await come("127.0.0.1") for _ in range(3)]
            await soon(lambda: len(server._limiter) == 5)
            whole = request()
            for at in range(3):
                await slow.send(whole[at : at + 1])
                await asyncio.sleep(0.03)
                others.append(await come("127.0.0.1"))
                assert [await is_closed(raw) for raw in others] == [True] * (at + 1) + [False] * 3
            assert not await is_closed(alone)
            for raw, rest in ((alone, whole), (slow, whole[3:])):
                await raw.send(rest)
                assert (await raw.head()).status == 101
                await converse(raw)
            server.close()
            for raw in others:
                raw.close()

    with no_leaks(), within(10):
        run(main)


@pytest.mark.usefixtures("impatient")
def test_client_in_a_hook_is_not_evicted(setting: Setting, run: Run) -> None:
    """A client that has sent its complete request takes no place."""
    leave: list[asyncio.Event] = []

    async def process(ws: Any, request: Any) -> None:
        if request.path == "/slow":
            leave.append(asyncio.Event())
            await leave[-1].wait()

    async def main() -> None:
        async with (
            serve(setting, max_pending=2, process_request=process) as server,
            contextlib.AsyncExitStack() as all_,
        ):
            working = []
            for number in range(4):
                working.append(all_.enter_context(await connect_from(server, "127.0.0.1")))
                await working[-1].send(request("/slow"))
                await soon(lambda number=number: len(leave) == number + 1)  # type: ignore[misc]
            assert len(server._limiter) == 0
            for _ in range(5):
                all_.enter_context(await connect_from(server, "127.0.0.1"))
                await asyncio.sleep(0.03)
            await be_served(server, "127.0.0.1")
            for event in leave:
                event.set()
            for raw in working:
                assert (await raw.head()).status == 101
                await converse(raw)
            server.close()

    with no_leaks(), within(10):
        run(main)


@pytest.mark.usefixtures("impatient")
def test_refused_clients_are_evicted(setting: Setting, run: Run) -> None:
    """Refused clients take places too, and are evicted for others."""

    async def main() -> None:
        async with serve(setting, max_pending=3) as server, contextlib.AsyncExitStack() as stack:
            for _ in range(8):
                raw = stack.enter_context(await connect_from(server, "127.0.0.1"))
                await raw.send(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
                assert (await raw.head()).status in (400, 426)
                await asyncio.sleep(0.03)
            await soon(lambda: len(server._limiter) <= 3)
            with within(SOON):
                await be_served(server, "127.0.0.1")
            await stack.aclose()
            await soon(lambda: len(server._limiter) == 0)

    with no_leaks(), within(8):
        run(main)


def test_burst_of_sending_clients_is_not_evicted(setting: Setting, run: Run, caplog: pytest.LogCaptureFixture) -> None:
    """No client is evicted before it had time to send, although there are more clients than may be pending."""

    async def main() -> None:
        async with serve(setting, max_pending=2) as server:
            raws = [await connect_from(server, "127.0.0.1") for _ in range(30)]
            for size in (0, 50, 100):
                for raw in raws:
                    await raw.send(request()[size : size + 50])
                await asyncio.sleep(0.2)
            for raw in raws:
                await raw.send(request()[150:])
            for raw in raws:
                assert (await raw.head()).status == 101
                await converse(raw)
                raw.close()

    with no_leaks(), within(10):
        run(main)
    assert logged(caplog) == []


def test_far_more_clients_than_max_pending(setting: Setting, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """There are more clients than the limit of the wait, at a server that is busy longer: their sent data is read."""
    from wirespeed._server import accept

    # Longer than a busy machine takes between the two halves of the requests.
    monkeypatch.setattr(accept, "IDLE_TIME", 1.5)
    monkeypatch.setattr(accept, "GRACE", 1.5)

    async def main() -> None:
        async with serve(setting, max_pending=1) as server:
            raws = [Raw(socket.create_connection(server.sockets[0].getsockname())) for _ in range(60)]
            try:
                for raw in raws:
                    raw.sock.setblocking(False)
                    await raw.send(request()[:-2])
                for raw in raws:
                    raw.sock.sendall(request()[-2:])
                time.sleep(1.6)
                for raw in raws:
                    assert (await raw.head()).status == 101
                    await converse(raw)
            finally:
                for raw in raws:
                    raw.close()

    with no_leaks(), within(15):
        run(main)


def test_free_place_is_taken_immediately(setting: Setting, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """While there are far too many clients, none is accepted until one of them leaves."""
    from wirespeed._server import accept

    monkeypatch.setattr(accept, "IDLE_TIME", 600.0)
    monkeypatch.setattr(accept, "GRACE", 600.0)

    async def main() -> None:
        async with serve(setting, max_pending=1) as server, contextlib.AsyncExitStack() as stack:
            raws = [stack.enter_context(await connect_from(server, "127.0.0.1")) for _ in range(accept.BURST)]
            await soon(lambda: server._limiter.delay() > 0)
            last = stack.enter_context(await connect_from(server, "127.0.0.1"))
            await last.send(request())
            await soon(lambda: server._acceptor._pause is not None)
            await raws[0].send(request())
            assert (await raws[0].head()).status == 101
            assert (await last.head()).status == 101
            for raw in (raws[0], last):
                await converse(raw)
            # The server no longer waits for any client.
            server.close()
            for raw in raws:
                raw.close()

    with no_leaks(), within(20):
        run(main)


def test_accepts_no_more_than_leave(setting: Setting, run: Run) -> None:
    """Of many clients that send a request and invalid bytes behind it, most wait in the system's backlog."""

    async def main() -> None:
        async with serve(setting) as server:
            for _ in range(400):
                sock = socket.create_connection(server.sockets[0].getsockname())
                sock.sendall(request() + b"no frame" * 2_000)
                sock.close()
            # Each accepted client has a task until its connection is over.
            counts = [0]
            while counts[-1] or max(counts) == 0:
                await asyncio.sleep(0)
                counts.append(len(asyncio.all_tasks()) - 1)
            assert max(counts) <= 200

    with no_leaks(), within(20):
        run(main)


@pytest.mark.usefixtures("impatient")
def test_closing_during_a_flood(setting: Setting, run: Run) -> None:
    async def main() -> None:
        async with serve(setting, max_pending=20, open_timeout=0.5) as server:
            with flood(server.sockets[0].getsockname()[1], 60, again=True):
                await soon(lambda: len(server._limiter) >= 20)
                await asyncio.sleep(0.3)
                server.close()
                with within(4):
                    await server.wait_closed()
            assert not server._tasks

    with no_leaks():
        run(main)


@pytest.mark.usefixtures("impatient")
def test_closed_clients_leave_no_garbage(setting: Setting, run: Run) -> None:
    """Clients leave no garbage for the collector: a flood is faster than that."""
    from wirespeed._server.accept import AcceptedSocket

    async def main() -> None:
        async with serve(setting, max_pending=2) as server:
            with contextlib.ExitStack() as stack:
                raws = [stack.enter_context(await connect_from(server, "127.0.0.1")) for _ in range(60)]
                for count, raw in enumerate(raws):
                    with contextlib.suppress(OSError):  # it may have gone already
                        await raw.send(request()[: count % 3 * 20])
                await soon(lambda: len(select.select([raw.sock for raw in raws], [], [], 0)[0]) == 58)
            await soon(lambda: len(server._limiter) == 0)
            await soon(lambda: not alive(AcceptedSocket))

    with no_leaks(), within(20), without_collecting():
        run(main)


# Failures of accepting


class Failing(socket.socket):
    """A listening socket whose ``accept`` fails at first."""

    def __init__(self, *failures: int) -> None:
        super().__init__()
        self.failures = list(failures)
        self.bind(("127.0.0.1", 0))

    def accept(self) -> tuple[socket.socket, Any]:
        if self.failures:
            number = self.failures.pop()
            raise OSError(number, errno.errorcode[number])
        return super().accept()


LOST = ["ECONNABORTED", "EPROTO", "EHOSTUNREACH", "EHOSTDOWN", "ENETUNREACH", "ENETDOWN", "ENOPROTOOPT", "EOPNOTSUPP"]


@pytest.mark.parametrize("name", [*LOST, "ENONET", "EPERM"])
def test_lost_connections_are_skipped(setting: Setting, run: Run, caplog: pytest.LogCaptureFixture, name: str) -> None:
    """Errors of one connection do not delay others."""
    caplog.set_level(logging.INFO, LOGGER)
    if not hasattr(errno, name):
        pytest.skip(f"there is no {name} here")
    listener = Failing(*[getattr(errno, name)] * 100)

    async def main() -> None:
        async with serve(setting, echo, None, None, sock=listener) as server:
            with within(SOON):
                await be_served(server, "127.0.0.1")
            assert server.is_serving()

    with no_leaks():
        run(main)
    shown = errno.errorcode[getattr(errno, name)]
    assert [text for text in logged(caplog, logging.INFO) if "lost" in text] == [
        f"a connection was lost before it was accepted: {shown} (100 times)"
    ]


@pytest.mark.parametrize("failures", [[errno.ENOTDIR], [errno.EPROTO] * 3000], ids=["unknown", "endless"])
def test_permanent_accept_errors(
    setting: Setting, run: Run, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, failures: list[int]
) -> None:
    """Any error is retried after a pause."""
    from wirespeed._server import accept

    monkeypatch.setattr(accept, "RETRY_DELAY", 0.1)
    listener = Failing(*failures)

    async def main() -> None:
        async with serve(setting, echo, None, None, sock=listener) as server:
            with within(3, at_least=0.09):
                await be_served(server, "127.0.0.1")
            assert server.is_serving()

    with no_leaks():
        run(main)
    times = " (2 times)" if len(failures) > 1 else ""
    assert logged(caplog) == [f"cannot accept connections for now: {errno.errorcode[failures[0]]}{times}"]


def test_listening_socket_that_is_closed(setting: Setting, run: Run, caplog: pytest.LogCaptureFixture) -> None:
    """Accepting stops, and the server logs it."""

    async def main() -> None:
        async with serve(setting, idle, None, None, sock=Failing(errno.EBADF)) as server:
            assert server.is_serving()
            raw = await connect_from(server, "127.0.0.1")
            await soon(lambda: not server.is_serving())
            raw.close()

    with no_leaks():
        run(main)
    assert logged(caplog) == ["a listening socket accepts no more connections"]


def test_listening_socket_closed_during_a_pause(
    setting: Setting, run: Run, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Closed while accepting is paused."""
    from wirespeed._server import accept

    monkeypatch.setattr(accept, "RETRY_DELAY", 0.01)
    listener = Failing(errno.ENOTDIR)

    async def main() -> None:
        async with serve(setting, idle, None, None, sock=listener) as server:
            raw = await connect_from(server, "127.0.0.1")
            await soon(lambda: not listener.failures)
            listener.close()
            await soon(lambda: not server.is_serving())
            raw.close()

    with no_leaks():
        run(main)
    assert "a listening socket accepts no more connections" in logged(caplog)
    assert "it was closed" in caplog.text


@pytest.mark.parametrize("failures", [[], [errno.EPROTO], [errno.ENOTDIR]], ids=["none", "lost", "unknown"])
def test_loop_that_watches_no_descriptors(monkeypatch: pytest.MonkeyPatch, failures: list[int]) -> None:
    """Like the loop of Windows, which accepts by itself."""
    from wirespeed._server import accept

    monkeypatch.setattr(accept, "RETRY_DELAY", 0.01)

    refused: set[int] = set()

    class Proactor(asyncio.SelectorEventLoop):
        def add_reader(self, fd: Any, callback: Any, *args: Any) -> None:  # type: ignore[override]
            refused.add(fd)
            raise NotImplementedError

        def remove_reader(self, fd: Any) -> bool:
            if fd in refused:
                raise NotImplementedError
            return super().remove_reader(fd)

        async def sock_accept(self, sock: Any) -> Any:
            while True:
                if failures:
                    number = failures.pop()
                    raise OSError(number, errno.errorcode[number])
                with contextlib.suppress(BlockingIOError):
                    accepted, address = sock.accept()
                    accepted.setblocking(False)
                    return accepted, address
                await asyncio.sleep(0.001)

    async def main() -> None:
        import wirespeed

        async with wirespeed.serve(echo, "127.0.0.1", 0, io_backend="transport") as server:
            for _ in range(2):
                await be_served(server, "127.0.0.1")
        assert not [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]

    loop = Proactor()
    try:
        with no_leaks(), within(10):
            loop.run_until_complete(main())
    finally:
        loop.close()


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE])
def test_half_open_client_is_evicted_without_descriptors(
    setting: Setting, run: Run, caplog: pytest.LogCaptureFixture, number: int
) -> None:
    """A half-open client is evicted although there are fewer than ``max_pending``."""

    async def main() -> None:
        listener = Failing()
        async with serve(setting, echo, None, None, sock=listener) as server:
            silent = [await connect_from(server, "127.0.0.1") for _ in range(3)]
            await soon(lambda: len(server._limiter) == 3)
            await asyncio.sleep(0.03)
            listener.failures = [number, number]
            with within(SOON / 2):
                await be_served(server, "127.0.0.1")
            assert [await is_closed(raw) for raw in silent] == [True, True, False]
            for raw in silent:
                raw.close()

    with no_leaks():
        run(main)
    first, *rest = logged(caplog)
    assert first == f"cannot accept connections for now: {errno.errorcode[number]} (2 times)"
    assert len(rest) == 1
    assert rest[0].startswith("closed a client whose opening handshake did not go on")
