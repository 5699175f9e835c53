"""Random orders of all operations, against a peer that does likewise."""

from __future__ import annotations

import asyncio
import contextlib
import random
import select
from typing import Any

import pytest

from support.asyncio_tools import Run, Setting
from support.checks import no_leaks
from support.connecting import Connect
from support.frames import CLOSE, CONT, PING, TEXT, close, frame, ping, pong, text
from support.scripted import Disconnected, ScriptedServer, Wire
from support.subject import IS_WIRESPEED, exceptions


class Peer:
    """Sends numbered messages, pings, fragments and floods, reads or does not, and ends in a random way."""

    def __init__(self, seed: str) -> None:
        self.choose = random.Random(seed)
        self.sent = 0
        self.received: list[bytes] = []
        self.failed: str | None = None

    def __call__(self, wire: Wire) -> None:
        with contextlib.suppress(Disconnected):
            wire.accept(then=self.some() if self.choose.random() < 0.5 else b"")
            end = self.choose.choice(["close", "close", "echo-close", "echo-close", "reset", "leave", "fault"])
            for _ in range(self.choose.randrange(5, 60)):
                if self.turn(wire):
                    return
            if end == "echo-close":
                while not self.read(wire):
                    pass
            elif end == "close":
                wire.send(close(self.choose.choice([1000, 1001, 1011, 4000])))
                while not self.read(wire, reply=False):
                    pass
            elif end == "fault":
                wire.send(frame(3))
                wire.read_to_end()
            elif end == "reset":
                wire.reset()

    def turn(self, wire: Wire) -> bool:
        """Performs one action; returns whether the connection is over."""
        if self.choose.random() < 0.7:
            data = self.some()
            if self.choose.random() < 0.1:
                wire.send_in_pieces(data[:300])
                data = data[300:]
            while data:
                # A client that does not read must not keep this from reading.
                readable, writable, _ = select.select([wire.sock], [wire.sock], [], 0.2)
                if readable and self.read(wire):
                    return True
                if writable:
                    try:
                        data = data[wire.sock.send(data[:50_000]) :]
                    except ConnectionError:
                        return True
        while wire.buffer or select.select([wire.sock], [], [], self.choose.choice([0, 0, 0.001]))[0]:
            if self.read(wire):
                return True
        return False

    def some(self) -> bytes:
        data = b""
        for _ in range(self.choose.choice([1, 1, 2, 10, 100])):
            kind = self.choose.random()
            body = f"{self.sent} ".encode() + b"x" * self.choose.choice([0, 0, 10, 200, 5000, 100_000])
            if kind < 0.1:
                data += ping(b"%d" % self.sent)
            elif kind < 0.15:
                data += pong(b"unsolicited")
            elif kind < 0.3:
                cut = self.choose.randrange(len(body))
                data += text(body[:cut], fin=False) + ping(b"inside") + frame(CONT, body[cut:])
                self.sent += 1
            else:
                data += text(body)
                self.sent += 1
            if len(data) > 1_000_000:
                break
        return data

    def read(self, wire: Wire, *, reply: bool = True) -> bool:
        """Reads and answers a frame; returns whether it was a close frame."""
        received = wire.read_frame()
        if received.opcode == CLOSE:
            if reply:
                wire.send(frame(CLOSE, received.payload))
            return True
        if received.opcode == PING and self.choose.random() < 0.9:
            wire.send(pong(received.payload))
        if received.opcode in (TEXT, CONT):
            self.received.append(received.payload if received.opcode == TEXT else b"+" + received.payload)
        return False


class Application:
    """Tasks that use one connection in every way, are cancelled, and notice its end."""

    def __init__(self, ws: Any, seed: str) -> None:
        self.ws = ws
        self.choose = random.Random(seed)
        self.received: list[int] = []
        self.sent = 0
        self.certain: set[int] = set()
        self.receiving = asyncio.Lock()

    async def receive(self) -> None:
        # With many receivers the order in which tasks continue varies; the order for one receiver can be checked.
        async with self.receiving:
            way = self.choose.randrange(3 if IS_WIRESPEED else 2)
            if way == 0:
                self.take(await self.ws.recv())
            elif way == 1:
                async for message in self.ws:
                    self.take(message)
                    if self.choose.random() < 0.3:
                        return
            else:
                for message in await self.ws.recv_many(self.choose.choice([1, 5, 1000])):
                    self.take(message)

    def take(self, message: str) -> None:
        self.received.append(int(message.split(" ", 1)[0]))

    async def send(self) -> None:
        number, self.sent = self.sent, self.sent + 1
        message = f"{number} " + "y" * self.choose.choice([0, 10, 1000, 100_000])
        if IS_WIRESPEED and self.choose.random() < 0.3:
            self.ws.send_nowait(message)
        else:
            await self.ws.send(message)
        self.certain.add(number)

    async def fragments(self) -> None:
        number, self.sent = self.sent, self.sent + 1
        await self.ws.send([f"{number} ", "z" * self.choose.choice([0, 1000, 100_000])])
        self.certain.add(number)

    async def ping(self) -> None:
        await (await self.ws.ping())

    async def wait_closed(self) -> None:
        await self.ws.wait_closed()

    async def flush(self) -> None:
        if IS_WIRESPEED:
            await self.ws.flush()

    async def close(self) -> None:
        await self.ws.close(self.choose.choice([1000, 1001, 4000]))

    async def run(self) -> None:
        calls = [self.receive, self.receive, self.receive, self.send, self.send, self.fragments, self.ping]
        calls += [self.wait_closed, self.flush]
        fragile = {self.fragments}
        tasks: dict[asyncio.Future[Any], Any] = {}
        for _ in range(self.choose.randrange(20, 200)):
            if len(tasks) < 20:
                call = self.choose.choice(calls)
                tasks[asyncio.ensure_future(call())] = call
            if tasks and self.choose.random() < 0.2:
                victim = self.choose.choice(list(tasks))
                # Cancelling half of a message would fail the connection.
                if tasks[victim] not in fragile:
                    victim.cancel()
            await asyncio.sleep(self.choose.choice([0, 0, 0, 0, 0.0005]))
            for task in [task for task in tasks if task.done()]:
                del tasks[task]
                self.check(task)
            if self.ws.state.name == "CLOSED":
                break
        ends = [self.ws.close() for _ in range(self.choose.choice([1, 1, 2]))]
        if IS_WIRESPEED and self.choose.random() < 0.3:
            asyncio.get_running_loop().call_later(0.002, self.ws.abort)
        await asyncio.gather(*ends)
        assert self.ws.state.name == "CLOSED"
        done, pending = await asyncio.wait(tasks, timeout=5) if tasks else ((), ())
        assert not pending, pending
        for task in done:
            self.check(task)
        # Messages that had arrived are delivered after the end.
        with contextlib.suppress(exceptions.ConnectionClosed):
            while True:
                self.take(await self.ws.recv())

    @staticmethod
    def check(task: asyncio.Future[Any]) -> None:
        if not task.cancelled() and (exc := task.exception()) is not None:
            assert isinstance(exc, (exceptions.ConnectionClosed, BlockingIOError, exceptions.ConcurrencyError)), repr(
                exc
            )


def whole_messages(frames: list[bytes]) -> list[bytes]:
    """Joins the fragments that the peer has received."""
    messages: list[bytes] = []
    for payload in frames:
        if payload.startswith(b"+"):
            messages[-1] += payload[1:]
        else:
            messages.append(payload)
    return messages


@pytest.mark.wirespeed_only("cancelled calls of websockets may leave messages and fragments behind")
@pytest.mark.parametrize("seed", range(12))
def test_random_operations(run: Run, connect: Connect, setting: Setting, seed: int) -> None:
    peer = Peer(f"peer {seed} {setting}")
    choose = random.Random(f"options {seed} {setting}")
    options = {
        "max_queue": choose.choice([1, 16, None]),
        "write_limit": choose.choice([1, 1 << 15, 1 << 20]),
        "ping_interval": choose.choice([0.01, 20, None]),
        "close_timeout": 2,
        "max_size": 1 << 21,
    }

    async def main(uri: str) -> Application:
        ws = await connect(uri, compression=None, **options)
        application = Application(ws, f"application {seed} {setting}")
        await application.run()
        return application

    with no_leaks():
        with ScriptedServer(peer) as server:
            application = run(lambda: main(server.uri))
        # Every message arrives once and in order, up to the end.
        assert application.received == list(range(len(application.received)))
        assert len(application.received) <= peer.sent
        numbers = [int(message.split(b" ", 1)[0]) for message in whole_messages(peer.received)]
        assert len(numbers) == len(set(numbers))
        del application
