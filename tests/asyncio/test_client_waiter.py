"""The object that ``recv`` waits on, as seen by other implementations of tasks and by debuggers."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from typing import Any

import pytest

from support.asyncio_tools import Run, soon
from support.checks import no_leaks
from support.connecting import Connect
from support.servers import WebSocketsServer

pytestmark = pytest.mark.wirespeed_only("it is ours")


def other(name: str) -> str:
    """An equal string that is another object: attribute names need not be interned."""
    return "".join(list(name))


@pytest.fixture(params=["interned", "other"])
def spelled(request: pytest.FixtureRequest) -> Callable[[str], str]:
    return other if request.param == "other" else lambda name: name


@pytest.mark.no_leaks
async def test_attributes(server: WebSocketsServer, connect: Connect, spelled: Callable[[str], str]) -> None:
    async with connect(server.uri) as ws:
        receiving = ws.recv()
        waiter = receiving.send(None)
        assert asyncio.isfuture(waiter)
        assert getattr(waiter, spelled("get_loop"))() is asyncio.get_running_loop()
        assert getattr(waiter, spelled("_asyncio_future_blocking")) is True
        setattr(waiter, spelled("_asyncio_future_blocking"), False)
        assert getattr(waiter, spelled("_asyncio_future_blocking")) is False
        setattr(waiter, spelled("_asyncio_future_blocking"), True)
        assert getattr(waiter, spelled("_asyncio_future_blocking")) is True
        assert not getattr(waiter, spelled("done"))()
        assert not waiter.cancelled()
        with pytest.raises(AttributeError):
            getattr(waiter, spelled("set_result"))
        with pytest.raises(AttributeError):
            setattr(waiter, spelled("anything"), False)
        receiving.close()


def test_callback(server: WebSocketsServer, run: Run, connect: Connect, spelled: Callable[[str], str]) -> None:
    """The callback runs once, in its context, with the object that it was added to; the message is then available."""
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="outside")
    context = contextvars.copy_context()
    context.run(variable.set, "inside")
    called: list[Any] = []

    async def main() -> None:
        async with connect(server.uri) as ws:
            receiving = ws.recv()
            waiter = receiving.send(None)
            add = getattr(waiter, spelled("add_done_callback"))
            assert callable(add)
            add(lambda future: called.append((future, variable.get())), **{spelled("context"): context})
            for wrong in ((), (print, print)):
                with pytest.raises((RuntimeError, TypeError)):
                    add(*wrong, context=context)
            with pytest.raises(RuntimeError, match="one task waits on this"):
                add(print)
            with pytest.raises((RuntimeError, TypeError)):
                add(print, unknown=1)
            await ws.send("x")
            await soon(lambda: called)
            assert called == [(waiter, "inside")]
            assert waiter.done()
            assert waiter.result() is None
            with pytest.raises(StopIteration) as stop:
                receiving.send(None)
            assert stop.value.value == "x"

    with no_leaks():
        run(main)
    called.clear()


@pytest.mark.no_leaks
async def test_callback_that_is_a_c_function(server: WebSocketsServer, connect: Connect) -> None:
    """Like the wakeup of asyncio's own tasks: the callback gets a future that is done, with the result None."""
    called: list[Any] = []
    async with connect(server.uri) as ws:
        receiving = ws.recv()
        receiving.send(None).add_done_callback(called.append)
        await ws.send("x")
        await soon(lambda: called)
        [future] = called
        assert asyncio.isfuture(future)
        assert future.done()
        assert future.result() is None
        with pytest.raises(StopIteration):
            receiving.send(None)


@pytest.mark.no_leaks
async def test_callback_that_is_removed(server: WebSocketsServer, connect: Connect) -> None:
    called: list[Any] = []
    async with connect(server.uri) as ws:
        receiving = ws.recv()
        waiter = receiving.send(None)
        waiter.add_done_callback(called.append)
        assert waiter.remove_done_callback(print) == 0
        assert waiter.remove_done_callback(called.append) == 1
        assert waiter.remove_done_callback(called.append) == 0
        await ws.send("x")
        await soon(waiter.done)
        assert called == []
        receiving.close()
        assert await ws.recv() == "x"
