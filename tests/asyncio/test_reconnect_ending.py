"""Reconnecting after a connection has ended, and leaving the iteration."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import socket
import time
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from support.asyncio_tools import Run, soon
from support.checks import no_leaks, within
from support.connecting import Connect, echo
from support.frames import Close, close, text
from support.reconnecting import at_once, close_with, echo_close, in_turn, refuse
from support.scripted import Scripted, Wire
from support.servers import WebSocketsServer
from support.subject import IS_WIRESPEED, exceptions


def answer_with(code: int | None) -> Callable[[Wire], None]:
    """A server that answers a close frame with one of another code, or ends TCP without one."""

    def script(wire: Wire) -> None:
        wire.accept()
        wire.read_until_close()
        if code is not None:
            wire.send(close(code))

    return script


async def rounds(connecting: Any, most: int) -> list[str]:
    """Iterates; each round receives all messages. Returns the cause of the end of each."""
    ends = []
    async for ws in connecting:
        try:
            async for _ in ws:
                pass
            ends.append("ok")
        except exceptions.ConnectionClosedError as exc:
            ends.append(str(1006 if exc.rcvd is None else int(exc.rcvd.code)))
        if len(ends) == most:
            break
    return ends


# Connections that end


@pytest.mark.parametrize("code", [1001, 1011, 1012, 3000])
@pytest.mark.no_leaks
async def test_closed_by_the_server(scripted: Scripted, connect: Connect, code: int) -> None:
    """Also with 1001: a restarted server returns."""
    server = scripted(in_turn(close_with(code), close_with(code), close_with(1000)))
    assert await rounds(connect(server.uri, reconnect_delays=at_once), 3) == (
        ["ok"] * 3 if code == 1001 else [str(code), str(code), "ok"]
    )


@pytest.mark.no_leaks
async def test_lost(scripted: Scripted, connect: Connect) -> None:
    server = scripted(lambda wire: wire.accept())
    assert await rounds(connect(server.uri, reconnect_delays=at_once), 3) == ["1006"] * 3


@pytest.mark.wirespeed_only("websockets goes on forever")
@pytest.mark.parametrize("code", [1000, None])
def test_clean_close_ends_the_iteration(scripted: Scripted, run: Run, connect: Connect, code: int | None) -> None:
    server = scripted(close_with(code))

    async def main() -> list[str]:
        return await rounds(connect(server.uri, reconnect_delays=at_once), 3)

    with no_leaks():
        assert run(main) == ["ok"]
    server.join()
    assert len(server.results) == 1


@pytest.mark.wirespeed_only("websockets has no such option")
async def test_reconnect_after_close(scripted: Scripted, connect: Connect) -> None:
    server = scripted(close_with(1000))
    assert await rounds(connect(server.uri, reconnect_delays=at_once, reconnect_after_close=True), 3) == ["ok"] * 3


@pytest.mark.wirespeed_only("websockets goes on forever")
@pytest.mark.no_leaks
async def test_closed_by_the_application(server: WebSocketsServer, connect: Connect) -> None:
    count = 0
    async for ws in connect(server.uri, reconnect_delays=lambda: itertools.repeat(60.0)):
        count += 1
        await echo(ws)
        await ws.close()
    assert count == 1


@pytest.mark.wirespeed_only("websockets goes on forever")
@pytest.mark.parametrize("answer", [None, 1011])
@pytest.mark.no_leaks
async def test_closed_by_the_application_against_the_server(
    scripted: Scripted, connect: Connect, answer: int | None
) -> None:
    """The application's own close frame says that it is finished with the connection, independently of the server's
    answer.
    """
    server = scripted(answer_with(answer))
    codes = []
    async for ws in connect(server.uri, reconnect_delays=at_once):
        await ws.close()
        codes.append(ws.close_code)
        if len(codes) == 2:
            break
    assert codes == [answer or 1006]


@pytest.mark.parametrize("code", [1001, 3000])
@pytest.mark.no_leaks
async def test_closed_by_the_application_for_another_reason(scripted: Scripted, connect: Connect, code: int) -> None:
    server = scripted(answer_with(None))
    codes = []
    async for ws in connect(server.uri, reconnect_delays=at_once):
        await ws.close(code)
        codes.append(ws.close_code)
        if len(codes) == 2:
            break
    assert codes == [1006, 1006]


def test_left_open(scripted: Scripted, run: Run, connect: Connect) -> None:
    """A round that ends early closes its connection, another one opens without delay, and the delays start again."""
    # Three delays are used up before the second round: a fourth would be longer than the test.
    delays = [0.0, 0.01, 0.02, 60.0]
    server = scripted(in_turn(refuse, refuse, refuse, echo_close, refuse, refuse, refuse, echo_close, echo_close))

    async def main() -> None:
        count = 0
        async for ws in connect(server.uri, reconnect_delays=lambda: iter(delays)):
            assert await ws.recv() == "hello"
            count += 1
            if count < 3:
                continue
            await ws.close()
            break

    with within(15), no_leaks():
        run(main)
    server.join()
    assert [result for result in server.results if result is not None] == [Close(1000)] * 3


@pytest.mark.wirespeed_only("websockets connects again at once, forever")
@pytest.mark.within(5, at_least=0.59)
async def test_server_that_accepts_and_closes(scripted: Scripted, connect: Connect) -> None:
    """Such a server is retried with growing delays, like a server that refuses."""
    server = scripted(close_with(1011))
    assert await rounds(connect(server.uri, reconnect_delays=lambda: iter([0.2, 0.4, 60])), 3) == ["1011"] * 3


@pytest.mark.wirespeed_only("ours")
@pytest.mark.within(5, at_least=0.6)
async def test_connection_that_lasted_longer_than_the_delay(scripted: Scripted, connect: Connect) -> None:
    """The connection is replaced immediately, and the delays start again."""

    def script(wire: Wire) -> None:
        wire.accept()
        time.sleep(0.15)
        wire.reset()

    server = scripted(script)
    began = []

    def delays() -> Iterable[float]:
        began.append(time.monotonic())
        yield from (0.1, 60)

    assert await rounds(connect(server.uri, reconnect_delays=delays), 4) == ["1006"] * 4
    assert len(began) == 3


@pytest.mark.wirespeed_only("ours")
def test_delays_that_end_after_a_connection(scripted: Scripted, run: Run, connect: Connect) -> None:
    """The iteration ends: the application knows why the connection ended."""
    server = scripted(close_with(1011))

    async def main() -> list[str]:
        return await rounds(connect(server.uri, reconnect_delays=lambda: [60]), 1)

    async def give_up() -> list[str]:
        return await rounds(connect(server.uri, reconnect_delays=list), 9)

    assert run(main) == run(give_up) == ["1011"]


# Leaving the loop


@pytest.mark.no_leaks
async def test_break(scripted: Scripted, connect: Connect) -> None:
    """The connection is closed in the background."""
    server = scripted(echo_close)
    ws: Any = None
    async for ws in connect(server.uri):
        await ws.recv()
        break
    await soon(lambda: ws.state.name == "CLOSED")
    await asyncio.sleep(0.01)
    assert await server.wait_result() == Close(1000 if IS_WIRESPEED else 1011)


@pytest.mark.no_leaks
async def test_exception_in_the_loop(scripted: Scripted, connect: Connect) -> None:
    server = scripted(echo_close)
    connection = None
    with pytest.raises(ZeroDivisionError):
        async for ws in connect(server.uri):
            connection = ws
            raise ZeroDivisionError
    assert connection is not None
    await soon(lambda: connection.state.name == "CLOSED")
    await asyncio.sleep(0.01)
    assert await server.wait_result() is not None


@pytest.mark.wirespeed_only("websockets leaves the connection open, and a warning")
def test_break_at_the_end_of_the_program(scripted: Scripted, setting: Any, connect: Connect) -> None:
    """The loop ends before the server has answered: the server has got the close frame, and nothing is left."""
    from support.asyncio_tools import new_loop

    def script(wire: Wire) -> Close | None:
        wire.accept(then=text("hello"))
        return wire.read_until_close()[1]

    server = scripted(script)

    async def main() -> None:
        async for ws in connect(server.uri):
            assert await ws.recv() == "hello"
            break

    loop = new_loop(setting.loop)
    loop.run_until_complete(asyncio.sleep(0))
    with no_leaks():
        try:
            loop.run_until_complete(main())
            # The steps of asyncio.run at its end.
            if left := asyncio.all_tasks(loop):
                for task in left:
                    task.cancel()
                loop.run_until_complete(asyncio.wait(left))
            loop.run_until_complete(loop.shutdown_asyncgens())
        finally:
            loop.close()
    assert server.result == Close(1000)


@pytest.mark.wirespeed_only("ours")
@pytest.mark.no_leaks
async def test_aclose(scripted: Scripted, connect: Connect) -> None:
    server = scripted(echo_close)
    async with contextlib.aclosing(aiter(connect(server.uri))) as iterator:
        ws = await anext(iterator)
    assert ws.state.name == "CLOSED"
    with pytest.raises(StopAsyncIteration):
        await anext(iterator)
    assert await server.wait_result() == Close(1000)


@pytest.mark.no_leaks
async def test_cancelled_in_the_loop(scripted: Scripted, connect: Connect) -> None:
    server = scripted(echo_close)

    async def use() -> None:
        async for ws in connect(server.uri):
            connections.append(ws)
            await asyncio.sleep(60)

    connections: list[Any] = []
    task = asyncio.ensure_future(use())
    await soon(lambda: connections)
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    await soon(lambda: connections[0].state.name == "CLOSED")
    await asyncio.sleep(0.01)
    assert await server.wait_result() is not None


@pytest.mark.no_leaks
async def test_cancelled_while_waiting(scripted: Scripted, connect: Connect) -> None:
    server = scripted(refuse)

    async def use() -> None:
        async for _ in connect(server.uri, reconnect_delays=lambda: itertools.repeat(60.0)):
            pytest.fail("it connected")

    task = asyncio.ensure_future(use())
    await soon(lambda: server.results)
    await asyncio.sleep(0.05)
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()


@pytest.mark.wirespeed_only("ours")
def test_cancelled_while_closing(scripted: Scripted, run: Run, connect: Connect) -> None:
    """The server does not answer the close frame: the connection ends after the close timeout."""

    def script(wire: Wire) -> None:
        wire.accept()
        wire.read_until_close()
        server.pause()

    server = scripted(script)

    async def main() -> None:
        iterator = aiter(connect(server.uri, close_timeout=0.3))
        ws = await anext(iterator)
        task = asyncio.ensure_future(anext(iterator))
        await soon(lambda: ws.state.name == "CLOSING")
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        await soon(lambda: ws.state.name == "CLOSED")

    with no_leaks():
        run(main)
        server.release.set()


@pytest.mark.wirespeed_only("websockets has one at a time")
@pytest.mark.no_leaks
async def test_two_iterations_at_once(server: WebSocketsServer, connect: Connect) -> None:
    async def use(connecting: Any) -> None:
        async for ws in connecting:
            await echo(ws)
            await ws.close()

    connecting = connect(server.uri)
    await asyncio.gather(use(connecting), use(connecting))


@pytest.mark.wirespeed_only("websockets tries again forever")
@pytest.mark.no_leaks
async def test_with_a_socket(server: WebSocketsServer, connect: Connect) -> None:
    sock = socket.create_connection(("127.0.0.1", server.port))
    with sock, pytest.raises(ValueError, match="sock"):
        async for _ in connect(server.uri, sock=sock):
            pytest.fail("it connected")
