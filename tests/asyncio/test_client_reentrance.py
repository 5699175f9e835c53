"""One operation used by two callers at once: code that runs within it, and threads that share it."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from support.asyncio_tools import SETTINGS, Run, soon
from support.connecting import Connect
from support.servers import WebSocketsServer

pytestmark = pytest.mark.wirespeed_only("it looks at what is ours")


# Longer than any wait here, shorter than the time limit of a test.
PATIENCE = 5.0

# The code executed here does not know libuv.
SETTINGS = [setting for setting in SETTINGS if setting.loop != "uvloop"]


# The iterator of messages uses its own operation


class Reentrant:
    """An iterator, not a generator, that uses the operation which asks it for the first message."""

    def __init__(self, use: Callable[[Any], Any], messages: list[Any]) -> None:
        self.use, self.messages = use, messages
        self.operation: Any = None
        self.asked = 0
        self.errors: list[BaseException] = []

    def __iter__(self) -> Reentrant:
        return self

    def __next__(self) -> Any:
        self.asked += 1
        try:
            self.use(self.operation)
        except BaseException as exc:
            self.errors.append(exc)
        if self.messages:
            return self.messages.pop(0)
        raise StopIteration


USES: dict[str, Callable[[Any], Any]] = {
    "send": lambda operation: operation.send(None),
    "next": next,
    "throw": lambda operation: operation.throw(ValueError("mine")),
    "close": lambda operation: operation.close(),
    "await": lambda operation: list(operation.__await__()),
}


@pytest.mark.parametrize("size", [1, 100_000], ids=["small", "large"])
@pytest.mark.parametrize("use", USES)
async def test_iterator_uses_its_own_send_many(server: WebSocketsServer, connect: Connect, use: str, size: int) -> None:
    """The iterator gets an exception; the operation and the connection continue."""
    messages = ["a" * size, "b" * size, "c" * size]
    async with connect(server.uri) as ws:
        iterator = Reentrant(USES[use], messages.copy())
        iterator.operation = ws.send_many(iterator)
        assert await asyncio.wait_for(iterator.operation, PATIENCE) is None
        assert iterator.asked == len(messages) + 1
        assert [(type(exc), str(exc)) for exc in iterator.errors] == [
            (RuntimeError, "this is executing already")
        ] * iterator.asked
        assert [await asyncio.wait_for(ws.recv(), PATIENCE) for _ in messages] == messages
        # The connection stays usable.
        await ws.send_many(["1", "2"])
        assert [await asyncio.wait_for(ws.recv(), PATIENCE) for _ in range(2)] == ["1", "2"]
        iterator.operation = None


@pytest.mark.parametrize("use", USES)
async def test_iterator_propagates_the_refusal(server: WebSocketsServer, connect: Connect, use: str) -> None:
    """The iterator lets the refusal propagate: ``send_many`` raises it, after sending the earlier messages."""
    async with connect(server.uri) as ws:

        class Raising:
            given = 0
            operation: Any = None

            def __iter__(self) -> Iterator[str]:
                return self

            def __next__(self) -> str:
                self.given += 1
                if self.given < 3:
                    return str(self.given)
                USES[use](self.operation)
                raise AssertionError("not refused")

        raising = Raising()
        raising.operation = ws.send_many(raising)
        with pytest.raises(RuntimeError, match="executing already"):
            await asyncio.wait_for(raising.operation, PATIENCE)
        raising.operation = None
        await ws.send("last")
        received: list[Any] = []
        while not received or received[-1] != "last":
            received.append(await asyncio.wait_for(ws.recv(), PATIENCE))
        assert received in (["1", "2", "last"], ["last"])


async def test_iterator_uses_another_operation(server: WebSocketsServer, connect: Connect) -> None:
    """The iterator may use other operations of the connection."""
    async with connect(server.uri) as ws:

        class Sending:
            left = 3

            def __iter__(self) -> Iterator[str]:
                return self

            def __next__(self) -> str:
                if not self.left:
                    raise StopIteration
                self.left -= 1
                with contextlib.suppress(StopIteration):
                    ws.send(f"within {self.left}").send(None)
                return f"given {self.left}"

        await asyncio.wait_for(ws.send_many(Sending()), PATIENCE)
        received = {await asyncio.wait_for(ws.recv(), PATIENCE) for _ in range(6)}
        assert received == {f"{how} {left}" for how in ("within", "given") for left in range(3)}


# Finished operations


OPERATIONS: dict[str, Callable[[Any], Any]] = {
    "send": lambda ws: ws.send("small"),
    "send large": lambda ws: ws.send("large" * 100_000),
    "send_many": lambda ws: ws.send_many(["small", "small"]),
}


@pytest.mark.parametrize("name", OPERATIONS)
async def test_finished_operation_is_refused(server: WebSocketsServer, connect: Connect, name: str) -> None:
    """Nothing is sent twice, and a finished operation may be closed."""
    async with connect(server.uri + "/sink") as ws:
        done = OPERATIONS[name](ws)
        await done
        await ws.flush()
        sent = ws.stats()["messages_sent"]
        for _ in range(3):
            with contextlib.suppress(RuntimeError):
                await done
            done.close()
            with pytest.raises(ValueError, match="mine"):
                done.throw(ValueError("mine"))
        assert ws.stats()["messages_sent"] == sent
        await ws.send("?")
        assert int(await asyncio.wait_for(ws.recv(), PATIENCE)) > 0


@pytest.mark.parametrize("name", OPERATIONS)
def test_finished_operation_in_threads(server: WebSocketsServer, run: Run, connect: Connect, name: str) -> None:
    """Threads await a finished operation, close it and throw into it, all at once, while the loop makes others."""
    errors: list[BaseException] = []
    rounds = 10_000

    async def main() -> None:
        async with connect(server.uri + "/sink") as ws:
            done = OPERATIONS[name](ws)
            await done
            await ws.flush()
            sent = ws.stats()["messages_sent"]

            def hammer() -> None:
                try:
                    for _ in range(rounds):
                        # The operation raises that it is finished, or that another thread uses it.
                        with contextlib.suppress(StopIteration, RuntimeError):
                            done.send(None)
                        with contextlib.suppress(ValueError, RuntimeError):
                            done.throw(ValueError("mine"))
                        with contextlib.suppress(RuntimeError):
                            done.close()
                except BaseException as exc:
                    errors.append(exc)

            crowd = [threading.Thread(target=hammer) for _ in range(4)]
            for thread in crowd:
                thread.start()
            others = 0
            while others < 100 or any(thread.is_alive() for thread in crowd):
                await asyncio.wait_for(ws.send("other"), PATIENCE)
                await asyncio.sleep(0)
                others += 1
            await soon(lambda: not any(thread.is_alive() for thread in crowd))
            for thread in crowd:
                thread.join()
            assert ws.stats()["messages_sent"] == sent + others

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        run(main)
    finally:
        sys.setswitchinterval(interval)
    assert errors == []
