"""Cancellation at every wait: no message is lost or split, and the connection stays usable."""

from __future__ import annotations

import asyncio
import random
import sys
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from support.asyncio_tools import Run, cancelled, soon, spin
from support.checks import within
from support.connecting import Connect
from support.faults import DEFLATE
from support.frames import CONT, PING, PONG, Close, Frame, binary, close, deflate, frame, ping, text
from support.scripted import Scripted, ScriptedServer, Wire
from support.servers import WebSocketsServer
from support.subject import exceptions

since_311 = pytest.mark.skipif(sys.version_info < (3, 11), reason="new in Python 3.11")


async def still_open(ws: Any) -> None:
    """Yields a connection to an echo server and checks that it is still open."""
    await ws.send("still open")
    assert await ws.recv() == "still open"


# recv


RECEIVING: dict[str, Callable[[Any], Any]] = {
    "recv": lambda ws: ws.recv(),
    "anext": lambda ws: ws.__aiter__().__anext__(),
    "streaming": lambda ws: ws.recv_streaming().__anext__(),
}


@pytest.mark.parametrize("call", RECEIVING.values(), ids=RECEIVING)
async def test_recv(server: WebSocketsServer, connect: Connect, call: Callable[[Any], Any]) -> None:
    async with connect(server.uri) as ws:
        for _ in range(3):
            task = asyncio.ensure_future(call(ws))
            await spin()
            assert await cancelled(task)
            await still_open(ws)


@pytest.mark.wirespeed_only("recv_many is ours")
async def test_recv_many(server: WebSocketsServer, connect: Connect) -> None:
    async with connect(server.uri) as ws:
        task = asyncio.ensure_future(ws.recv_many())
        await spin()
        assert await cancelled(task)
        await still_open(ws)


@pytest.mark.parametrize("call", RECEIVING.values(), ids=RECEIVING)
async def test_recv_cancelled_before_first_step(
    server: WebSocketsServer, connect: Connect, call: Callable[[Any], Any]
) -> None:
    async with connect(server.uri) as ws:
        await ws.send("message")

        async def receive() -> Any:
            return await call(ws)

        task = asyncio.ensure_future(receive())
        assert await cancelled(task)
        assert await ws.recv() == "message"
        await still_open(ws)


@pytest.mark.parametrize("delay", [0, 0.0001, 0.001, 0.01])
async def test_wait_for(server: WebSocketsServer, connect: Connect, delay: float) -> None:
    async with connect(server.uri) as ws:
        for _ in range(10):
            with within(2), pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(ws.recv(), delay)
        await still_open(ws)


@since_311
@pytest.mark.parametrize("delay", [0, 0.0001, 0.001, 0.01])
async def test_timeout(server: WebSocketsServer, connect: Connect, delay: float) -> None:
    async with connect(server.uri) as ws:
        for _ in range(10):
            with within(2), pytest.raises(TimeoutError):
                async with asyncio.timeout(delay):  # type: ignore[attr-defined]
                    await ws.recv()
        await still_open(ws)


@since_311
async def test_timeout_around_iteration(scripted: Scripted, connect: Connect) -> None:
    def script(wire: Wire) -> None:
        wire.accept(then=text("a") + text("b"))
        server.pause()
        wire.send(text("c"))
        wire.read_until_close()
        wire.send(close(1000))

    server = scripted(script)
    received = []
    async with connect(server.uri) as ws:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):  # type: ignore[attr-defined]
                async for message in ws:
                    received.append(message)
        server.release.set()
        async for message in ws:
            received.append(message)
            break
    assert received == ["a", "b", "c"]


@since_311
async def test_task_group(server: WebSocketsServer, connect: Connect) -> None:
    """One task fails; the receiving tasks are cancelled with it."""
    async with connect(server.uri) as ws:
        with pytest.RaisesGroup(ZeroDivisionError):
            async with asyncio.TaskGroup() as group:  # type: ignore[attr-defined]
                for _ in range(2):
                    group.create_task(ws.wait_closed())
                group.create_task(ws.recv())
                await asyncio.sleep(0.02)
                raise ZeroDivisionError
        await still_open(ws)


def in_steps(scripted: Scripted, pieces: list[bytes], *headers: str) -> ScriptedServer:
    """A server that sends the next piece each time the client sends a message."""

    def script(wire: Wire) -> Any:
        wire.accept(*headers)
        for piece in pieces:
            while wire.read_frame().opcode == PONG:
                pass
            wire.send(piece)
        return wire.read_until_close()

    return scripted(script)


MESSAGE = "é" * 300
WHOLE = text(MESSAGE)
BIG = bytes(range(256)) * 4096  # 1 MiB, of which the rest is read straight into the final object

PIECES: dict[str, tuple[Any, list[bytes]]] = {
    "in-the-header": (MESSAGE, [WHOLE[:1], WHOLE[1:3], WHOLE[3:]]),
    "in-the-payload": (MESSAGE, [WHOLE[:10], WHOLE[10:101], WHOLE[101:]]),
    "in-a-character": (MESSAGE, [WHOLE[:5], WHOLE[5:]]),
    "between-fragments": (MESSAGE, [text(MESSAGE[:100], fin=False), frame(CONT, MESSAGE[100:].encode())]),
    "between-fragments-with-pings": (
        MESSAGE,
        [text(MESSAGE[:100], fin=False) + ping(b"1"), ping(b"2"), frame(CONT, MESSAGE[100:].encode())],
    ),
    "one-byte-missing": (MESSAGE, [WHOLE[:-1], WHOLE[-1:]]),
    "big": (
        BIG,
        [binary(BIG)[:100], binary(BIG)[100:300_000], binary(BIG)[300_000:300_001], binary(BIG)[300_001:]],
    ),
}


@pytest.mark.parametrize(("message", "pieces"), PIECES.values(), ids=PIECES)
async def test_message_in_pieces(scripted: Scripted, connect: Connect, message: Any, pieces: list[bytes]) -> None:
    """The message still arrives whole when a receive is cancelled after each piece."""
    server = in_steps(scripted, pieces)
    async with connect(server.uri, compression=None) as ws:
        for _ in pieces[:-1]:
            await ws.send("more")
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(ws.recv(), 0.05)
        await ws.send("more")
        assert await ws.recv() == message


async def test_compressed_message_in_pieces(scripted: Scripted, connect: Connect) -> None:
    data = text(deflate(MESSAGE.encode()), rsv=4)
    server = in_steps(scripted, [data[:3], data[3:5], data[5:]], DEFLATE)
    async with connect(server.uri) as ws:
        for _ in range(2):
            await ws.send("more")
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(ws.recv(), 0.05)
        await ws.send("more")
        assert await ws.recv() == MESSAGE


async def test_recv_while_the_message_arrives(scripted: Scripted, connect: Connect) -> None:
    """The message is in the socket, and the task is cancelled in the same turn of the loop."""

    def script(wire: Wire) -> None:
        wire.accept()
        while True:
            received = wire.read_frame()
            if received.opcode == 8:
                wire.send(close(1000))
                return
            wire.send(text(received.payload) + ping())
            server.reached.set()
            # The pong proves that the message has arrived.
            while wire.read_frame().opcode != PONG:
                pass

    server = scripted(script)
    async with connect(server.uri) as ws:
        for number in range(50):
            task = asyncio.ensure_future(ws.recv())
            await spin(1 + number % 3)
            server.reached.clear()
            await ws.send(str(number))
            server.wait_reached()  # the loop does not turn meanwhile
            task.cancel()
            await asyncio.wait([task])
            received = await ws.recv() if task.cancelled() else task.result()
            assert received == str(number)


def counting(wire: Wire, count: int) -> None:
    """Sends the numbers in bursts of many sizes, some in fragments."""
    wire.accept()
    choose = random.Random(7)
    number = 0
    while number < count:
        burst = b""
        for _ in range(min(choose.choice([1, 1, 1, 2, 5, 50]), count - number)):
            digits = str(number)
            if number % 5 == 0 and len(digits) > 1:
                burst += text(digits[:1], fin=False) + frame(CONT, digits[1:].encode())
            else:
                burst += text(digits)
            number += 1
        if number % 7 == 0:
            wire.send_in_pieces(burst)
        else:
            wire.send(burst)
    wire.send(close(1000))
    wire.read_until_close()


@pytest.mark.parametrize("seed", range(3))
async def test_recv_cancelled_at_random(scripted: Scripted, connect: Connect, seed: int) -> None:
    """Every number arrives once and in order, however often the receiver is cancelled."""
    count = 2000
    server = scripted(lambda wire: counting(wire, count))
    choose = random.Random(seed)
    received: list[int] = []
    async with connect(server.uri) as ws:
        while len(received) < count:
            task = asyncio.ensure_future(ws.recv())
            for _ in range(choose.randrange(4)):
                await asyncio.sleep(0)
            if choose.random() < 0.5:
                task.cancel()
            try:
                received.append(int(await task))
            except asyncio.CancelledError:
                continue
    assert received == list(range(count))


@pytest.mark.wirespeed_only("websockets allows one receiver")
@pytest.mark.parametrize("seed", range(3))
async def test_receivers_cancelled_at_random(scripted: Scripted, connect: Connect, seed: int) -> None:
    """Many tasks wait at once, some are cancelled: every number reaches one of them, and each sees them in order."""
    count = 2000
    server = scripted(lambda wire: counting(wire, count))
    choose = random.Random(seed)

    async def receive(ws: Any, received: list[int]) -> None:
        try:
            while True:
                received.append(int(await ws.recv()))
                if choose.random() < 0.1:
                    await asyncio.sleep(0)
        except exceptions.ConnectionClosedOK:
            pass

    logs: list[list[int]] = []
    tasks: list[asyncio.Task[None]] = []
    async with connect(server.uri) as ws:
        while sum(map(len, logs)) < count:
            while len(tasks) < 5:
                logs.append([])
                tasks.append(asyncio.ensure_future(receive(ws, logs[-1])))
            await asyncio.sleep(0)
            if choose.random() < 0.5:
                await cancelled(tasks.pop(choose.randrange(len(tasks))))
        await asyncio.gather(*tasks)
    assert sorted(number for log in logs for number in log) == list(range(count))
    assert all(log == sorted(log) for log in logs)


# send, flush


@pytest.fixture
def stalled_server(scripted: Scripted) -> ScriptedServer:
    """A server that reads nothing until the test releases it; then everything."""

    def script(wire: Wire) -> Any:
        wire.accept()
        server.pause()
        return wire.read_until_close()

    server = scripted(script, receive_buffer=4096)
    return server


def test_send(stalled_server: ScriptedServer, run: Run, connect: Connect) -> None:
    """A cancelled message is sent whole or not at all, and the other messages arrive in order."""
    noise = random.Random(1).randbytes(3_000_000)

    async def main() -> list[int]:
        sent = []
        async with connect(stalled_server.uri, compression=None) as ws:
            for number in range(20):
                task = asyncio.ensure_future(ws.send(bytes([number]) + noise))
                await asyncio.sleep(0.01)
                if task.done() or not await cancelled(task):
                    sent.append(number)
            assert len(sent) < 20
            last = asyncio.ensure_future(ws.send(b"last"))
            stalled_server.release.set()
            await last
        return sent

    sent = run(main)
    frames, on_the_wire = stalled_server.result
    assert on_the_wire == Close(1000)
    payloads = [frame.payload for frame in frames]
    assert payloads.pop() == b"last"
    arrived = [payload[0] for payload in payloads]
    assert all(payload[1:] == noise for payload in payloads)
    assert arrived == sorted(set(arrived))
    assert set(sent) <= set(arrived)


async def test_send_cancelled_before_first_step(scripted: Scripted, connect: Connect) -> None:
    server = scripted(lambda wire: (wire.accept(), wire.read_until_close())[1])
    async with connect(server.uri, compression=None) as ws:

        async def send() -> None:
            await ws.send("never")

        assert await cancelled(asyncio.ensure_future(send()))
        await ws.send("sent")
    assert [frame.payload for frame in (await server.wait_result())[0]] == [b"sent"]


@pytest.mark.wirespeed_only("ours")
@pytest.mark.parametrize("call", ["flush", "send_many"])
def test_flush_and_send_many(stalled_server: ScriptedServer, run: Run, connect: Connect, call: str) -> None:
    """Messages that a cancelled send_many had taken are sent in order and whole."""
    messages = [bytes([number]) * 500_000 for number in range(40)]

    async def main() -> None:
        async with connect(stalled_server.uri, compression=None) as ws:
            if call == "flush":
                ws.send_nowait(messages[0])
                first = asyncio.ensure_future(ws.send_many(messages[1:]))
                await spin()
                task = asyncio.ensure_future(ws.flush())
                await asyncio.sleep(0.02)
                assert await cancelled(task)
                stalled_server.release.set()
                await first
            else:
                task = asyncio.ensure_future(ws.send_many(messages))
                await asyncio.sleep(0.02)
                assert await cancelled(task)
                stalled_server.release.set()
            await ws.flush()
            await ws.send(b"last")

    run(main)
    payloads = [frame.payload for frame in stalled_server.result[0]]
    assert payloads.pop() == b"last"
    assert payloads == messages[: len(payloads)]
    if call == "flush":
        assert len(payloads) == 40


@pytest.mark.wirespeed_only("a cancelled send of websockets may be in the buffer: its message counts as sent")
def test_senders_cancelled_at_random(scripted: Scripted, run: Run, connect: Connect) -> None:
    """Many send at once to a peer that reads slowly, some are cancelled."""
    choose = random.Random(3)

    def script(wire: Wire) -> Any:
        wire.accept()
        frames: list[Frame] = []
        for _ in range(10_000):
            received = wire.read_frame()
            if received.opcode == 8:
                return frames, Close.parse(received.payload)
            frames.append(received)
            if choose.random() < 0.1:
                server.release.wait(0.002)
        raise AssertionError("too many frames")

    server = scripted(script, receive_buffer=4096)

    async def main() -> set[bytes]:
        done: set[bytes] = set()
        async with connect(server.uri, compression=None) as ws:

            async def send(sender: int) -> None:
                for number in range(15):
                    name = b"%d:%d:" % (sender, number)
                    task = asyncio.ensure_future(ws.send(name + bytes(choose.randrange(300_000))))
                    await asyncio.sleep(choose.random() * 0.005)
                    if choose.random() < 0.3:
                        task.cancel()
                    await asyncio.wait([task])
                    if not task.cancelled():
                        task.result()
                        done.add(name)

            await asyncio.gather(*map(send, range(8)))
        return done

    done = run(main)
    frames, on_the_wire = server.result
    assert on_the_wire == Close(1000)
    names = [payload[: payload.index(b":", payload.index(b":") + 1) + 1] for payload in (f.payload for f in frames)]
    assert len(set(names)) == len(names)
    assert done <= set(names)
    for sender in range(8):
        numbers = [int(name.split(b":")[1]) for name in names if name.startswith(b"%d:" % sender)]
        assert numbers == sorted(numbers)


# ping, close, wait_closed


async def test_wait_for_pong(scripted: Scripted, connect: Connect) -> None:
    def script(wire: Wire) -> Any:
        wire.accept()
        pings = [wire.read_frame(), wire.read_frame()]
        wire.send(b"".join(frame(PONG, received.payload) for received in pings))
        return pings, *wire.read_until_close()

    server = scripted(script)
    async with connect(server.uri) as ws:

        async def wait() -> float:
            latency: float = await (await ws.ping("first"))
            return latency

        task = asyncio.ensure_future(wait())
        await spin()
        assert await cancelled(task)
        await (await ws.ping("second"))
    assert await server.wait_result() == ([Frame(PING, b"first"), Frame(PING, b"second")], [], Close(1000))


async def test_wait_closed(server: WebSocketsServer, connect: Connect) -> None:
    async with connect(server.uri) as ws:
        tasks = [asyncio.ensure_future(ws.wait_closed()) for _ in range(3)]
        await spin()
        assert await cancelled(tasks[1])
        await still_open(ws)
        assert not tasks[0].done()
    await asyncio.gather(tasks[0], tasks[2])


async def test_close_is_not_undone(scripted: Scripted, connect: Connect) -> None:
    """Nothing can be sent after a cancelled close; further messages of the server can be received."""

    def script(wire: Wire) -> Any:
        wire.accept()
        received = wire.read_until_close()
        wire.send(text("crossing"))
        server.pause()
        wire.send(close(1000))
        return received

    server = scripted(script)
    ws = await connect(server.uri)
    task = asyncio.ensure_future(ws.close())
    await soon(server.reached.is_set)
    assert await cancelled(task)
    assert ws.state.name == "CLOSING"
    sending = asyncio.ensure_future(ws.send("x"))
    await spin()
    server.release.set()
    with within(3), pytest.raises(exceptions.ConnectionClosedOK):
        await sending
    await ws.wait_closed()
    assert await server.wait_result() == ([], Close(1000))


async def test_all_operations_cancelled_at_once(server: WebSocketsServer, connect: Connect) -> None:
    """A connection closes cleanly after cancellation in the middle of all its operations."""
    choose = random.Random(11)
    async with connect(server.uri, compression=None) as ws:
        tasks: set[asyncio.Future[Any]] = set()
        receiver = None
        for number in range(500):
            call = choose.choice(["send", "ping", "wait_closed", "recv", "cancel", "turn"])
            if call == "send":
                tasks.add(asyncio.ensure_future(ws.send(bytes(number * 10))))
            elif call == "ping":
                tasks.add(asyncio.ensure_future(ws.ping()))
            elif call == "wait_closed":
                tasks.add(asyncio.ensure_future(ws.wait_closed()))
            elif call == "recv" and (receiver is None or receiver.done()):
                receiver = asyncio.ensure_future(ws.recv())
                tasks.add(receiver)
            elif call == "cancel" and tasks:
                choose.choice(sorted(tasks, key=id)).cancel()
            else:
                await asyncio.sleep(0)
            tasks = {task for task in tasks if not task.done()}
        if receiver is not None:
            receiver.cancel()
            await asyncio.wait([receiver])
        await ws.send("last")
        while await ws.recv() != "last":
            pass
    assert ws.close_code == 1000
    await asyncio.wait(tasks)
    assert not any(task.exception() for task in tasks if not task.cancelled())


@pytest.mark.wirespeed_only("send_many is ours")
async def test_send_many_of_an_asynchronous_iterable(stalled_server: ScriptedServer, connect: Connect) -> None:
    """No item is taken from the iterable before there is room for it."""
    async with connect(stalled_server.uri, compression=None, write_limit=1) as ws:
        taken: list[str] = []

        async def messages() -> AsyncIterator[str]:
            for number in range(3):
                taken.append(str(number))
                yield taken[-1]

        filling = asyncio.ensure_future(ws.send(bytes(16 << 20)))
        await spin(20)
        task = asyncio.ensure_future(ws.send_many(messages()))
        await spin(20)
        assert await cancelled(task)
        assert taken == []
        stalled_server.release.set()
        await filling


# Several tasks with assigned messages


BEFORE = ("0", "1", "2a2b", "3", "4")


@pytest.mark.wirespeed_only("websockets lets one task receive at a time")
@pytest.mark.parametrize("turns", range(7))
@pytest.mark.parametrize("first", [0, 1, 2])
@pytest.mark.parametrize("debug", [True, False])
async def test_cancelled_tasks_return_assigned_messages(
    scripted: Scripted, connect: Connect, turns: int, first: int, debug: bool
) -> None:
    """In debug mode the loop resumes tasks later, and they may be cancelled before that. Each assigned message then
    goes back to its position, and never into the middle of another. From ``first`` on, one task receives in fragments
    and is not cancelled.
    """
    sent = threading.Event()

    def script(wire: Wire) -> None:
        wire.accept()
        server.pause()
        fragments = text("2a", fin=False) + frame(CONT, b"2b")
        wire.send(text("0") + text("1") + fragments + text("3") + text("4"))
        sent.set()
        wire.read_until_close()

    server = scripted(script)

    async def whole(ws: Any) -> str:
        return "".join([piece async for piece in ws.recv_streaming()])

    asyncio.get_running_loop().set_debug(debug)
    async with connect(server.uri) as ws:
        tasks = [asyncio.ensure_future(whole(ws) if at == first else ws.recv()) for at in range(3)]
        await spin()
        server.release.set()
        assert sent.wait(5)
        await spin(turns)
        given_up = [task for at, task in enumerate(tasks) if at != first]
        for task in given_up:
            task.cancel()
        with within(5):
            await asyncio.wait(tasks)
            received = [task.result() for task in tasks if not task.cancelled()]
            rest = [await ws.recv() for _ in range(len(BEFORE) - len(received))]
        assert sorted(received + rest) == list(BEFORE)
        assert rest == sorted(rest)
