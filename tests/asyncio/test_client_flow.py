"""Flow control both ways: an application that does not receive, and a peer that does not read."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from support.asyncio_tools import Run, Setting, cancelled, settled, soon, spin
from support.checks import within
from support.connecting import Connect
from support.frames import PING, Close, Frame, binary, frame, ping, pong, text
from support.scripted import DEADLINE, Disconnected, Scripted, ScriptedServer, Wire
from support.servers import WebSocketsServer
from support.subject import IS_WIRESPEED, exceptions

# An application that does not receive


def flood(most: int, piece: bytes) -> Callable[[ScriptedServer, Wire], int]:
    """Sends until the sockets are full for a while; returns the number of pieces sent."""

    def script(server: ScriptedServer, wire: Wire) -> int:
        wire.accept()
        sent = 0
        wire.sock.settimeout(0.3)
        try:
            while sent < most:
                wire.sock.sendall(piece)
                sent += 1
        except TimeoutError:
            pass
        server.reached.set()
        # The rest of the cut frame does not matter: the client aborts.
        wire.sock.settimeout(DEADLINE)
        wire.read_to_end()
        return sent

    return script


@pytest.mark.parametrize("size", [1 << 16, 100], ids=["large", "small"])
def test_slow_application_applies_backpressure(scripted: Scripted, run: Run, connect: Connect, size: int) -> None:
    """Memory is bounded: unreceived messages stay in the network, and the peer's send blocks."""
    block = binary(bytes(size)) * ((1 << 16) // size)
    most = 1024  # 64 MiB
    server: ScriptedServer = scripted(lambda wire: flood(most, block)(server, wire))

    async def main() -> None:
        ws = await connect(server.uri, close_timeout=0.1, compression=None)
        assert len(await ws.recv()) == size
        await soon(server.reached.is_set, 15)
        if IS_WIRESPEED:
            stats = ws.stats()
            assert stats["receive_queue_bytes"] <= 8 << 20
        with within(5):
            await ws.close()

    run(main)
    # The maximum that both sockets buffer and the client keeps.
    assert server.result < most // 2


async def test_flow_control_loses_no_message(scripted: Scripted, connect: Connect) -> None:
    count = 3000

    def script(wire: Wire) -> None:
        wire.accept()
        for number in range(count):
            wire.send(text(f"{number} " + "x" * 1000))
        server.reached.set()
        wire.read_until_close()

    server = scripted(script)
    async with connect(server.uri, max_queue=4) as ws:
        received = []
        for number in range(count):
            received.append(int((await ws.recv()).split()[0]))
            if number % 100 == 0:
                await asyncio.sleep(0.001)
        assert received == list(range(count))


async def test_pings_are_answered_while_the_application_does_not_receive(scripted: Scripted, connect: Connect) -> None:
    def script(wire: Wire) -> list[bytes]:
        wire.accept(then=text("unread"))
        answers = []
        for number in range(5):
            wire.send(ping(b"%d" % number))
            answers.append(wire.read_frame().payload)
        server.reached.set()
        wire.read_until_close()
        return answers

    server = scripted(script)
    async with connect(server.uri) as ws:
        await soon(server.reached.is_set)
        assert await ws.recv() == "unread"
    assert await server.wait_result() == [b"%d" % number for number in range(5)]


@pytest.mark.wirespeed_only("websockets closes the connection")
async def test_slow_application_does_not_fail_keepalive(scripted: Scripted, connect: Connect) -> None:
    """The pong lies behind messages that the application has not received: the ping's deadline waits too."""

    def script(wire: Wire) -> Any:
        wire.accept()
        for number in range(500):
            wire.send(text(f"{number} " + "x" * 100_000))
        # By now the client has sent its ping.
        frames: list[Frame] = []
        while not frames or frames[-1].opcode != PING:
            frames.append(wire.read_frame())
        wire.send(pong(frames[-1].payload) + text("last"))
        return wire.read_until_close()

    server = scripted(script)
    # Longer than the peer's thread may have to wait for a processor while it is being read.
    options = {"ping_interval": 0.1, "ping_timeout": 1.0, "max_queue": 4}
    async with connect(server.uri, compression=None, **options) as ws:
        # Bytes that were read and not parsed yet count as queued: the fourth may be the last parsed message.
        await soon(lambda: ws.stats()["receive_queue_messages"] >= 4)
        await asyncio.sleep(1.3)  # more than both
        for number in range(500):
            assert (await ws.recv()).split()[0] == str(number)
        assert await ws.recv() == "last"
    assert (await server.wait_result())[1] == Close(1000)


async def test_lost_connection_while_reading_is_paused(scripted: Scripted, connect: Connect) -> None:
    """Messages that arrived before are still delivered, in order, and then the lost connection is reported."""

    def script(wire: Wire) -> None:
        wire.accept()
        try:
            for number in range(200):
                wire.send(text(f"{number}"))
        except Disconnected:
            pass

    server = scripted(script)
    ws = await connect(server.uri, max_queue=2)
    server.join()
    received = []
    with pytest.raises(exceptions.ConnectionClosedError):
        async for message in ws:
            received.append(message)
            await asyncio.sleep(0)
    assert received == [str(number) for number in range(200)]
    await ws.close()


@pytest.mark.wirespeed_only("websockets closes a connection that is held back only after its timeout")
async def test_close_while_reading_is_paused(scripted: Scripted, connect: Connect) -> None:
    """The peer's close frame lies behind messages that will never be received."""

    def script(wire: Wire) -> Any:
        wire.accept()
        for _ in range(200):
            wire.send(binary(bytes(100_000)))
        received = wire.read_until_close()
        wire.send(frame(8, b"\x03\xe8"))
        return received

    server = scripted(script)
    ws = await connect(server.uri, compression=None, max_queue=2, close_timeout=10)
    await soon(lambda: ws.stats()["receive_queue_messages"] >= 2)
    with within(5):
        await ws.close()
    assert ws.close_code == 1000
    assert await server.wait_result() == ([], Close(1000))


@pytest.mark.parametrize("call", ["ping", "pong"])
async def test_control_frames_to_stalled_peer_are_bounded(scripted: Scripted, connect: Connect, call: str) -> None:
    """Endless control frames fill the queue up to its limit, and no more."""

    def script(wire: Wire) -> None:
        wire.accept()
        server.release.wait(20)

    server = scripted(script)
    ws = await connect(server.uri, compression=None, close_timeout=0.1, ping_interval=None)
    count = 0

    async def flood() -> None:
        nonlocal count
        while True:
            count += 1
            await getattr(ws, call)(count.to_bytes(125, "big"))

    flooding = asyncio.ensure_future(flood())
    last = -1
    while last != count:
        last = count
        await asyncio.sleep(0.3)
    assert count < 200_000
    flooding.cancel()
    await asyncio.wait([flooding])
    server.release.set()
    await ws.close()


@pytest.mark.wirespeed_only("websockets does not yield")
@pytest.mark.parametrize("call", ["recv", "iteration", "recv_many"])
async def test_flooded_connection_does_not_starve_other_tasks(
    scripted: Scripted, connect: Connect, setting: Setting, call: str
) -> None:
    """A message is always ready, and the loop still turns."""
    # 256 KiB are at most 12,000 such messages. The transports of libuv read up to 32 times in one turn.
    most = 20_000 if (setting.loop, setting.io_backend) != ("uvloop", "transport") else 20_000 * 16
    block = text("x" * 20) * 2000
    count = 400_000

    def script(wire: Wire) -> None:
        wire.accept()
        for _ in range(count // 2000):
            wire.send(block)
        wire.read_until_close()

    server = scripted(script)
    turns = 0

    async def tick() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    async with connect(server.uri, compression=None) as ws:
        ticking = asyncio.ensure_future(tick())
        received = 0
        if call == "iteration":
            async for _ in ws:
                received += 1
                if received == count:
                    break
        while received < count:
            if call == "recv":
                await ws.recv()
                received += 1
            else:
                received += len(await ws.recv_many())
        await cancelled(ticking)
    assert turns > count / most


@pytest.mark.wirespeed_only("websockets does not yield")
@pytest.mark.parametrize("call", ["recv", "iteration", "recv_many"])
async def test_stream_of_large_messages_does_not_starve_other_tasks(
    scripted: Scripted, connect: Connect, setting: Setting, call: str
) -> None:
    """Each message has a read of its own, and many reads follow each other: 4 MiB, plus earlier data.

    The task is slower than the server, so that there is always more to read.
    """
    size, count = 100_000, 400
    # The transports of libuv read more in one turn.
    most = 50 if (setting.loop, setting.io_backend) != ("uvloop", "transport") else 200
    block = binary(b"x" * size) * 10

    def script(wire: Wire) -> None:
        wire.accept()
        for _ in range(count // 10):
            wire.send(block)
        wire.read_until_close()

    server = scripted(script)
    received, before, longest = 0, 0, 0

    async def watch() -> None:
        nonlocal before, longest
        while True:
            longest, before = max(longest, received - before), received
            await asyncio.sleep(0)

    async with connect(server.uri, compression=None) as ws:
        watching = asyncio.ensure_future(watch())
        if call == "iteration":
            async for _ in ws:
                time.sleep(0.002)
                received += 1
                if received == count:
                    break
        while received < count:
            received += 1 if call == "recv" and await ws.recv() else len(await ws.recv_many())
            time.sleep(0.002)
        await cancelled(watching)
    # A task that had no turn until the end has seen nothing.
    assert 0 < max(longest, received - before) <= most


@pytest.mark.wirespeed_only("websockets does not yield")
async def test_continuous_sending_does_not_starve_other_tasks(server: WebSocketsServer, connect: Connect) -> None:
    turns = 0

    async def tick() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    async with connect(server.uri + "/sink", compression=None) as ws:
        ticking = asyncio.ensure_future(tick())
        for _ in range(100_000):
            await ws.send(b"x" * 20)
        assert turns > 5
        await ws.send("?")
        assert await ws.recv() == "2000000"
        await cancelled(ticking)


# A peer that does not read

# More than the sockets buffer.
MUCH = 16 << 20


@pytest.fixture
def stalled_server(scripted: Scripted) -> ScriptedServer:
    """A server that reads nothing until the test releases it; then everything."""

    def script(wire: Wire) -> Any:
        wire.accept()
        server.pause()
        return wire.read_until_close()

    server = scripted(script, receive_buffer=4096)
    return server


def test_send_waits_for_a_stalled_peer(stalled_server: ScriptedServer, run: Run, connect: Connect) -> None:
    """``send`` blocks the application instead of buffering without bound; it continues when the peer reads."""
    progress: list[int] = []

    async def main() -> None:
        async with connect(stalled_server.uri, compression=None) as ws:

            async def send() -> None:
                for number in range(32):
                    await ws.send(bytes([number]) * (1 << 20))
                    progress.append(number)

            task = asyncio.ensure_future(send())
            assert await settled(lambda: len(progress)) < 12, "it was buffered"
            assert not task.done()
            if IS_WIRESPEED:
                assert ws.stats()["send_queue_bytes"] < 4 << 20
            stalled_server.release.set()
            await task

    run(main)
    assert [frame.payload[:1] for frame in stalled_server.result[0]] == [bytes([number]) for number in range(32)]


async def test_receiving_continues_while_send_waits(scripted: Scripted, connect: Connect) -> None:
    def script(wire: Wire) -> Any:
        wire.accept()
        server.pause()
        server.reached.clear()
        server.release.clear()
        wire.send(text("meanwhile") + ping(b"meanwhile"))
        server.pause()
        return wire.read_until_close()

    server = scripted(script, receive_buffer=4096)
    async with connect(server.uri, compression=None) as ws:
        task = asyncio.ensure_future(ws.send(bytes(MUCH)))
        await soon(server.reached.is_set)
        server.release.set()
        assert await ws.recv() == "meanwhile"
        assert not task.done()
        await soon(server.reached.is_set)
        server.release.set()
        await task
    payloads = [frame.payload for frame in (await server.wait_result())[0]]
    assert sorted(map(len, payloads)) == [9, MUCH]


@pytest.mark.wirespeed_only("ours")
def test_send_nowait_raises_for_a_stalled_peer(stalled_server: ScriptedServer, run: Run, connect: Connect) -> None:
    """A refused message is not sent, an accepted one is."""

    async def main() -> int:
        async with connect(stalled_server.uri, compression=None) as ws:
            sent = 0
            with pytest.raises(BlockingIOError):
                for sent in range(100_000):  # noqa: B007 - how many went
                    ws.send_nowait(bytes(1 << 16))
            with pytest.raises(BlockingIOError):
                ws.send_nowait("small")
            assert sent < 1000
            task = asyncio.ensure_future(ws.send("patient"))
            await spin()
            assert not task.done()
            stalled_server.release.set()
            await task
            await ws.flush()
            ws.send_nowait("again")
            return sent

    sent = run(main)
    frames, on_the_wire = stalled_server.result
    assert on_the_wire == Close(1000)
    assert [len(frame.payload) for frame in frames] == [1 << 16] * sent + [7, 5]


@pytest.mark.wirespeed_only("ours")
@pytest.mark.parametrize("limit", [1, 1 << 20, (1 << 19, 1 << 10)], ids=str)
async def test_write_limit(stalled_server: ScriptedServer, connect: Connect, limit: Any) -> None:
    """Above the high mark ``send`` waits until the low one is reached."""
    high, low = limit if isinstance(limit, tuple) else (limit, limit // 4)
    async with connect(stalled_server.uri, compression=None, write_limit=limit) as ws:
        task = asyncio.ensure_future(ws.send(bytes(MUCH)))
        await settled(lambda: ws.stats()["send_queue_bytes"], 0.03)
        waiting = [asyncio.ensure_future(ws.send("x")) for _ in range(3)]
        await spin()
        assert not any(sender.done() for sender in waiting)
        stalled_server.release.set()
        await asyncio.gather(task, *waiting)
        assert ws.stats()["send_queue_bytes"] <= max(high, low)


@pytest.mark.wirespeed_only("ours")
async def test_flush_waits_for_a_stalled_peer(stalled_server: ScriptedServer, connect: Connect) -> None:
    """``flush`` waits also below the high mark, where ``send`` returns immediately."""
    async with connect(stalled_server.uri, compression=None, write_limit=64 << 20) as ws:
        for _ in range(1000):
            await ws.send(bytes(1 << 14))
        flushing = [asyncio.ensure_future(ws.flush()) for _ in range(2)]
        await spin(20)
        assert not any(task.done() for task in flushing)
        stalled_server.release.set()
        await asyncio.gather(*flushing)
        assert ws.stats()["send_queue_bytes"] == 0


@pytest.mark.wirespeed_only("ours")
async def test_flush_does_not_wait_for_later_messages(stalled_server: ScriptedServer, connect: Connect) -> None:
    """Other tasks send continuously, so that something is always left to be written."""
    async with connect(stalled_server.uri, compression=None, write_limit=1 << 20) as ws:
        sent = 0

        async def pump() -> None:
            nonlocal sent
            while sent < 512 << 20:
                await ws.send(bytes(1 << 16))
                sent += 1 << 16

        pumping = [asyncio.ensure_future(pump()) for _ in range(3)]
        await settled(lambda: ws.stats()["send_queue_bytes"], 0.03)
        flushing = asyncio.ensure_future(ws.flush())
        await spin()
        before = sent
        stalled_server.release.set()
        await flushing
        assert sent - before < 64 << 20
        for task in pumping:
            task.cancel()
        await asyncio.gather(*pumping, return_exceptions=True)


async def test_both_ends_stalled(scripted: Scripted, connect: Connect) -> None:
    """Neither end reads, both send, then both read: everything is echoed, without a deadlock."""
    # More than two sockets hold: Linux may let one receive 32 MiB ahead (tcp_rmem), and send 4 MiB.
    message, count = bytes(1 << 20), 48
    sent: list[int] = []

    def script(wire: Wire) -> Any:
        wire.accept()
        wire.sock.settimeout(DEADLINE)
        for number in range(count):
            wire.send(binary(message))
            sent.append(number)
        return wire.read_until_close()

    server = scripted(script)
    async with connect(server.uri, compression=None, max_queue=2) as ws:
        sending = asyncio.gather(*(ws.send(message) for _ in range(count)))
        await settled(lambda: len(sent))
        assert not sending.done()
        for _ in range(count):
            assert len(await ws.recv()) == len(message)
        await sending
    assert [len(frame.payload) for frame in (await server.wait_result())[0]] == [1 << 20] * count


async def test_echo_of_more_than_all_buffers(server: WebSocketsServer, connect: Connect) -> None:
    async with connect(server.uri, compression=None) as ws:

        async def send() -> None:
            for number in range(200):
                await ws.send(bytes([number]) * 100_000)

        task = asyncio.ensure_future(send())
        for number in range(200):
            assert await ws.recv() == bytes([number]) * 100_000
        await task


@pytest.mark.wirespeed_only("websockets writes each message")
@pytest.mark.parametrize("how", ["send", "nowait"])
async def test_each_send_writes_immediately(scripted: Scripted, connect: Connect, how: str) -> None:
    """Each message is written before the next iteration of the loop."""
    count = 100
    all_there = threading.Event()

    def script(wire: Wire) -> list[bytes]:
        wire.accept()
        frames = [wire.read_frame().payload for _ in range(count)]
        all_there.set()
        wire.read_until_close()
        return frames

    server = scripted(script)
    async with connect(server.uri, coalesce=False, compression=None, close_timeout=0.1) as ws:
        for number in range(count):
            if how == "nowait":
                ws.send_nowait(str(number))
            else:
                await ws.send(str(number))
        assert all_there.wait(DEADLINE)
    assert await server.wait_result() == [str(number).encode() for number in range(count)]
