"""Iterating over connections: the results of ``iter`` and ``aiter``, on both packages."""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import AsyncGenerator, Generator
from typing import Any

import pytest

from wirespeed.compat.websockets.asyncio import client as ours
from wirespeed.compat.websockets.sync import client as ours_blocking

pytest.importorskip("websockets", minversion="17")

from compat import pairs
from compat.pairs import run


async def numbers(ws: Any) -> None:
    for number in range(4):
        await ws.send(str(number))
    await ws.close(int(ws.request.path[1:] or 1000))


def connected(package: Any, path: str = "/", **options: Any) -> Any:
    return pairs.connected(package, package, numbers, path, **options)


def connected_blocking(package: Any, **options: Any) -> Any:
    def handler(ws: Any) -> None:
        for number in range(4):
            ws.send(str(number))

    return pairs.connected_blocking(package, package, handler, **options)


async def test_closing_an_iterator_leaves_the_connection_open(package: Any) -> None:
    async with connected(package) as ws:
        async with contextlib.aclosing(aiter(ws)) as messages:
            assert isinstance(messages, AsyncGenerator)
            assert await anext(messages) == "0"
        with pytest.raises(StopAsyncIteration):
            await anext(messages)
        assert [message async for message in messages] == []
        assert await ws.recv() == "1"
        assert [message async for message in ws] == ["2", "3"]


async def test_an_iterator_as_a_generator(package: Any) -> None:
    async with connected(package) as ws:
        messages = aiter(ws)
        assert aiter(messages) is messages is not ws
        assert await messages.asend(None) == "0"
        with pytest.raises(ZeroDivisionError):
            await messages.athrow(ZeroDivisionError())
        with pytest.raises(StopAsyncIteration):
            await messages.asend(None)
        assert await ws.recv() == "1"


def test_throwing_into_an_iterator() -> None:
    """An exception, or a class with one, and a traceback: the forms that generators accept, in old programs."""
    from wirespeed.compat.websockets._views import Messages

    def thrown(*arguments: Any) -> tuple[BaseException, set[Any]]:
        with pytest.raises(ZeroDivisionError) as caught:
            Messages(iter("ab")).throw(*arguments)
        return caught.value, {entry for entry, _ in traceback.walk_tb(caught.value.__traceback__)}

    def elsewhere() -> tuple[ZeroDivisionError, Any]:
        try:
            raise ZeroDivisionError("given")
        except ZeroDivisionError as exc:
            return exc, exc.__traceback__

    given, trace = elsewhere()
    assert thrown(given.with_traceback(None))[0] is given
    assert thrown(ZeroDivisionError, given.with_traceback(None))[0] is given
    exc, frames = thrown(ZeroDivisionError)
    assert (exc.args, trace.tb_frame in frames) == ((), False)
    exc, frames = thrown(ZeroDivisionError, None, trace)
    assert (exc.args, trace.tb_frame in frames) == ((), True)


async def test_an_iterator_raises_how_the_connection_ended(package: Any) -> None:
    async with connected(package, "/4000") as ws:
        received = []
        with pytest.raises(package.exceptions.ConnectionClosedError):
            async for message in ws:
                received.append(message)
        assert received == ["0", "1", "2", "3"]


async def test_iterating_uses_an_overridden_recv(package: Any) -> None:
    class Numbers(package.asyncio.client.ClientConnection):  # type: ignore[misc]
        async def recv(self, decode: bool | None = None) -> Any:
            return int(await super().recv(decode))

    async with connected(package, create_connection=Numbers) as ws:
        assert [message async for message in ws] == [0, 1, 2, 3]


def test_blocking_iterators(package: Any) -> None:
    with connected_blocking(package) as ws:
        with contextlib.closing(iter(ws)) as messages:
            assert isinstance(messages, Generator)
            assert iter(messages) is messages is not ws
            assert next(messages) == "0"
        assert list(messages) == []
        assert ws.recv() == "1"
        messages = iter(ws)
        assert next(messages) == "2"
        with pytest.raises(ZeroDivisionError):
            messages.throw(ZeroDivisionError())
        with pytest.raises(StopIteration):
            messages.send(None)
        assert list(ws) == ["3"]


def test_blocking_iterators_use_an_overridden_recv(package: Any) -> None:
    class Numbers(package.sync.client.ClientConnection):  # type: ignore[misc]
        def recv(self, timeout: float | None = None, decode: bool | None = None) -> Any:
            return int(super().recv(timeout, decode))

    with connected_blocking(package, create_connection=Numbers) as ws:
        assert list(ws) == [0, 1, 2, 3]


def test_iterating_uses_a_recv_that_was_replaced(package: Any) -> None:
    """On the instance, or on the class later on."""

    class Derived(package.asyncio.client.ClientConnection):  # type: ignore[misc]
        pass

    async def main(kind: type | None) -> None:
        async def recv(*_: Any) -> Any:
            return int(await original())

        async with connected(package, create_connection=kind) as ws:
            original = ws.recv
            if kind is None:
                ws.recv = recv
            else:
                kind.recv = recv  # type: ignore[attr-defined]
            assert [message async for message in ws] == [0, 1, 2, 3]

    run(lambda: main(None))
    run(lambda: main(Derived))


def test_blocking_iterators_use_a_recv_that_was_replaced(package: Any) -> None:
    with connected_blocking(package) as ws:
        original = ws.recv
        ws.recv = lambda: int(original())
        assert list(ws) == [0, 1, 2, 3]


async def test_no_python_function_runs_for_each_message() -> None:
    """Iterating stays as fast as the native code."""
    for kind in (ours.ClientConnection, ours_blocking.ClientConnection):
        name = "__next__" if hasattr(kind, "__next__") else "__anext__"
        assert not hasattr(getattr(kind, name), "__code__")
    import sys

    seen: list[str] = []
    from wirespeed.compat import websockets

    class Package:
        asyncio = websockets.asyncio

    async with connected(Package) as ws:
        messages = aiter(ws)
        await anext(messages)
        sys.setprofile(lambda frame, event, _: seen.append(frame.f_code.co_name) if event == "call" else None)
        try:
            await anext(messages)
        finally:
            sys.setprofile(None)
    assert not {"recv", "__anext__", "asend"} & set(seen)
