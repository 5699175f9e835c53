"""Handlers of an engine: what is a coroutine function, what becomes of what nobody awaits, starts and ends."""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tests.engine.tools import dial, running

import wirespeed
from wirespeed.engine import BrokerEvent, Engine, Session

pytestmark = pytest.mark.wirespeed_only("websockets has no engine")

BOUND = 30
"""Seconds after which something has been forgotten."""

Handler = Callable[[Session, Any], Any]


class Object:
    async def __call__(self, session: Session, message: str | bytes) -> None:
        await self.method(session, message)

    async def method(self, session: Session, message: str | bytes) -> None:
        await asyncio.sleep(0)
        await session.send(message)


async def named(session: Session, message: str | bytes, *, after: str = "") -> None:
    await asyncio.sleep(0)
    await session.send(str(message) + after)


def decorated(session: Session, message: str | bytes) -> Awaitable[None]:
    return named(session, message)


if sys.version_info >= (3, 12):
    inspect.markcoroutinefunction(decorated)
else:
    # What asgiref and others do.
    decorated._is_coroutine = asyncio.coroutines._is_coroutine  # type: ignore[attr-defined]

COROUTINE_FUNCTIONS: dict[str, Handler] = {
    "function": named,
    "object": Object(),
    "method": Object().method,
    "bound call": Object().__call__,
    "partial": functools.partial(named, after=""),
    "partial of a partial": functools.partial(functools.partial(named), after=""),
    "partial of an object": functools.partial(Object()),
    "partial of a method": functools.partial(Object().method),
    "marked": decorated,
    "partial of what is marked": functools.partial(decorated),
}


@pytest.mark.parametrize("name", COROUTINE_FUNCTIONS)
def test_coroutine_functions_of_all_kinds(name: str) -> None:
    """They run on an event loop, and only there."""
    engine = Engine("127.0.0.1", workers=1)
    engine.on_message(COROUTINE_FUNCTIONS[name])
    with pytest.raises(ValueError, match="threads"):
        engine.run(threads=2)
    with running(engine), dial(engine) as client:
        client.send("hello")
        assert client.recv(BOUND) == "hello"


@pytest.mark.parametrize("name", COROUTINE_FUNCTIONS)
def test_the_same_for_the_broker(name: str) -> None:
    engine = Engine("127.0.0.1", workers=1, broker="memory://handlers")
    handler = COROUTINE_FUNCTIONS[name]
    engine.on_broker(handler)
    with engine, pytest.raises(RuntimeError, match="async for"):
        next(engine.batches())


def test_plain_functions_are_no_coroutine_functions() -> None:
    for handler in (print, Plain, Plain(), functools.partial(print), Plain().method, lambda *_: None):
        engine = Engine("127.0.0.1", broker="memory://plain")
        engine.on_broker(handler)
        with engine:
            assert next(engine.batches(timeout=0)) == []


class Plain:
    def __init__(self, *_: object) -> None:
        pass

    def __call__(self, *_: object) -> None:
        pass

    def method(self, *_: object) -> None:
        pass


@pytest.mark.parametrize("threads", [0, 3])
def test_what_a_plain_function_returns_to_be_awaited(threads: int, caplog: pytest.LogCaptureFixture) -> None:
    """It is not lost without a word: there is an error, once, and the session ends."""
    engine = Engine("127.0.0.1", workers=1)
    made = []

    @engine.on_message
    def handler(session: Session, message: str | bytes) -> Any:
        made.append(named(session, message))
        return made[-1]

    with caplog.at_level(logging.ERROR, "wirespeed.engine"), running(engine, threads=threads):
        for _ in range(3):
            with dial(engine) as client:
                client.send("hello")
                with pytest.raises(wirespeed.ConnectionClosedError) as info:
                    client.recv(BOUND)
                assert info.value.rcvd == wirespeed.Close(1011, "internal error")
    assert [inspect.getcoroutinestate(coroutine) for coroutine in made] == [inspect.CORO_CLOSED] * 3
    (record,) = caplog.records
    assert "the handler of Message has returned <coroutine object named" in record.getMessage()
    assert "engine.serve()" in record.getMessage()


@pytest.mark.parametrize("threads", [0, 3])
def test_what_send_returns_may_be_returned(threads: int, caplog: pytest.LogCaptureFixture) -> None:
    engine = Engine("127.0.0.1", workers=1)
    engine.on_message(lambda session, message: session.send(message))
    with running(engine, threads=threads), dial(engine) as client:
        for _ in range(3):
            client.send("hello")
            assert client.recv(BOUND) == "hello"
    assert not caplog.records


def test_what_the_handler_of_a_broker_returns_to_be_awaited(caplog: pytest.LogCaptureFixture) -> None:
    made = []

    async def never() -> None:
        pytest.fail("nobody awaits it")

    engine = Engine("127.0.0.1", workers=1, broker="memory://returned")

    @engine.on_broker
    def handler(event: BrokerEvent) -> Any:
        made.append(never())
        return made[-1]

    with engine:
        for _ in engine.batches(timeout=0.01):
            if made:
                break
    assert inspect.getcoroutinestate(made[0]) == inspect.CORO_CLOSED
    assert "has returned <coroutine object" in caplog.records[0].getMessage()
