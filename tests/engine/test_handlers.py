"""Handlers of an engine: coroutine functions, results that are not awaited, starts and ends."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
import inspect
import logging
import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

import wirespeed
from engine.tools import dial, running, uri
from support.brokers import wait_for
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
    # As asgiref and other libraries do.
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
def test_coroutine_function_for_broker_events(name: str) -> None:
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
            assert not next(engine.batches(timeout=0))


class Plain:
    def __init__(self, *_: object) -> None:
        pass

    def __call__(self, *_: object) -> None:
        pass

    def method(self, *_: object) -> None:
        pass


@pytest.mark.parametrize("threads", [0, 3])
def test_awaitable_result_of_a_plain_handler(threads: int, caplog: pytest.LogCaptureFixture) -> None:
    """It is not dropped silently: an error is logged once, and the session ends."""
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
def test_result_of_send_may_be_returned(threads: int, caplog: pytest.LogCaptureFixture) -> None:
    engine = Engine("127.0.0.1", workers=1)
    engine.on_message(lambda session, message: session.send(message))
    with running(engine, threads=threads), dial(engine) as client:
        for _ in range(3):
            client.send("hello")
            assert client.recv(BOUND) == "hello"
    assert not caplog.records


def test_awaitable_result_of_a_broker_handler(caplog: pytest.LogCaptureFixture) -> None:
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


def test_handlers_have_their_own_task_and_context() -> None:
    """Whether they wait or not: variables set for one session are not seen by others, and cancelling ends only this
    one.
    """
    engine = Engine("127.0.0.1", workers=1)
    of_session: contextvars.ContextVar[object] = contextvars.ContextVar("of_session")
    tasks: dict[Session, set[asyncio.Task[Any] | None]] = {}

    @engine.on_message
    async def handler(session: Session, message: str | bytes) -> None:
        task = asyncio.current_task()
        tasks.setdefault(session, set()).add(task)
        assert of_session.get(session) is session
        of_session.set(session)
        if message == "wait":
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(asyncio.Event().wait(), 0.01)
        if message == "cancel" and task is not None:
            task.cancel()
            await asyncio.sleep(0)
        await session.send(message)

    with running(engine), dial(engine) as one, dial(engine) as two:
        for message in "go", "wait", "go", "go":
            for client in one, two:
                client.send(message)
        for client in one, two:
            assert [client.recv(BOUND) for _ in range(4)] == ["go", "wait", "go", "go"]
        one.send("cancel")
        with pytest.raises(wirespeed.ConnectionClosedError) as info:
            one.recv(BOUND)
        assert info.value.rcvd == wirespeed.Close(1011, "internal error")
        two.send("go")
        assert two.recv(BOUND) == "go"
    first, second = tasks.values()
    assert None not in first | second
    assert not first & second


@pytest.mark.parametrize(("slow", "each"), [(5, 24), (1, 2000), (60, 20), (98, 2)])
async def test_blocked_handlers_do_not_block_others(slow: int, each: int) -> None:
    """Other handlers run, however few messages wait behind each; and no message is lost."""
    engine = Engine("127.0.0.1", workers=1)
    got: dict[str, list[str]] = {}
    called = 0
    go_on = asyncio.Event()

    @engine.on_message
    async def handler(session: Session, message: str) -> None:
        nonlocal called
        called += 1
        if session.path != "/":
            await go_on.wait()
        got.setdefault(session.path, []).append(message)
        await session.send(message)

    serving = asyncio.create_task(engine.serve(max_handlers=100, signals=False))
    await asyncio.sleep(0)
    async with contextlib.AsyncExitStack() as stack:

        async def dial(path: str) -> wirespeed.ClientConnection:
            return await stack.enter_async_context(wirespeed.connect(uri(engine, path), proxy=None, max_queue=None))

        clients = [await dial(f"/{number}") for number in range(slow)]
        for client in clients:
            for number in range(each):
                await client.send(str(number))
        while called < slow:
            await asyncio.sleep(0.001)
        honest = await dial("/")
        for number in range(300):
            await honest.send(str(number))
            assert await asyncio.wait_for(honest.recv(), BOUND) == str(number)
        go_on.set()
        for client in clients:
            expected = [str(number) for number in range(each)]
            assert [await asyncio.wait_for(client.recv(), BOUND) for _ in range(each)] == expected
    engine.stop()
    await asyncio.wait_for(serving, BOUND)
    assert all(messages == [str(number) for number in range(len(messages))] for messages in got.values())
    assert {path: len(messages) for path, messages in got.items()} == {
        **{f"/{number}": each for number in range(slow)},
        "/": 300,
    }


@pytest.mark.parametrize("threads", [None, 1])
def test_messages_behind_a_handler_are_decoded_later(threads: int | None) -> None:
    """A codec may expand its input: the decoded message exists only while a handler has it."""
    engine = Engine("127.0.0.1", workers=1)
    go_on = threading.Event()
    decoded: list[int] = []
    handled: list[int] = []

    def decode(data: bytes) -> int:
        decoded.append(int(data))
        if decoded[-1] == 13:
            raise ValueError("unlucky")
        return decoded[-1]

    engine.route("/", codec=decode, close_invalid=False)

    @engine.on_invalid
    def invalid(session: Session, message: str | bytes, error: str) -> None:
        assert (message, error) == ("13", "unlucky")
        handled.append(13)

    def handle(session: Session, message: int) -> None:
        handled.append(message)

    if threads is None:

        @engine.on_message
        async def wait(session: Session, message: int) -> None:
            while not go_on.is_set():
                await asyncio.sleep(0.001)
            handle(session, message)

        serving = threading.Thread(target=lambda: asyncio.run(engine.serve(signals=False)))
    else:

        @engine.on_message
        def block(session: Session, message: int) -> None:
            assert go_on.wait(BOUND)
            handle(session, message)

        serving = threading.Thread(target=lambda: engine.run(threads=threads, signals=False))
    engine.start()
    serving.start()
    try:
        with dial(engine) as client:
            for number in range(100):
                client.send(str(number))
            wait_for(lambda: engine.stats()["messages_received"] == 100 and engine.stats()["events_waiting"] == 0)
            assert decoded == [0]
            go_on.set()
            wait_for(lambda: len(handled) == 100)
        assert decoded == handled == list(range(100))
        assert engine.stats()["messages_invalid"] == 1
    finally:
        go_on.set()
        engine.stop()
        serving.join(BOUND)
    assert not serving.is_alive()


async def test_blocked_handlers_use_bounded_memory() -> None:
    """For any number of sessions: from 64 MiB on, one more message of each and no more."""
    count, size, each = 150, 200_000, 27
    engine = Engine("127.0.0.1", workers=1, max_event_bytes=2**20)
    go_on = asyncio.Event()
    got: list[int] = []

    @engine.on_message
    async def handler(session: Session, message: bytes) -> None:
        await go_on.wait()
        got.append(message[0])

    serving = asyncio.create_task(engine.serve(signals=False))
    await asyncio.sleep(0)
    async with contextlib.AsyncExitStack() as stack:

        async def send() -> None:
            client = await stack.enter_async_context(
                wirespeed.connect(uri(engine), proxy=None, compression=None, ping_interval=None)
            )
            await client.send_many([bytes([number]) * size for number in range(each)])

        sending = [asyncio.create_task(send()) for _ in range(count)]
        before, now = -1, 0
        while before != now:
            await asyncio.sleep(0.3)
            before, now = now, engine.stats()["bytes_received"]
        go_on.set()
        # 64 MiB; for each session the message in its handler, the one at which reading stopped, and the data read
        # until then: a thread reads up to a mebibyte of one before it checks.
        assert now < 2**26 + 8 * count * size < count * each * size / 2
        await asyncio.wait_for(asyncio.gather(*sending), BOUND)
        while len(got) < count * each:
            await asyncio.sleep(0.001)
    engine.stop()
    await asyncio.wait_for(serving, BOUND)


async def test_large_messages_wait_in_the_network() -> None:
    """Behind a running handler there is a mebibyte, and data in transit; no message is lost."""
    count, size = 200, 500_000
    engine = Engine("127.0.0.1", workers=1, max_event_bytes=2**20)
    got: list[int] = []
    go_on = asyncio.Event()

    @engine.on_message
    async def handler(session: Session, message: bytes) -> None:
        if session.path == "/":
            await session.send(message)
        else:
            await go_on.wait()
            got.append(message[0])

    serving = asyncio.create_task(engine.serve(signals=False))
    await asyncio.sleep(0)
    async with (
        wirespeed.connect(uri(engine, "/slow"), proxy=None, compression=None) as slow,
        wirespeed.connect(uri(engine), proxy=None) as honest,
    ):
        sending = asyncio.create_task(slow.send_many([bytes([number]) * size for number in range(count)]))
        before, now = -1, 0
        while before != now:
            # For any amount of reading meanwhile, there is time for much of it.
            for _ in range(50):
                await honest.send("x")
                assert await asyncio.wait_for(honest.recv(), BOUND) == "x"
            before, now = now, engine.stats()["bytes_received"] // size
        assert 0 < now < 20
        go_on.set()
        await asyncio.wait_for(sending, BOUND)
        while len(got) < count:
            await asyncio.sleep(0.001)
    engine.stop()
    await asyncio.wait_for(serving, BOUND)
    assert got == list(range(count))


APP = textwrap.dedent("""
    import asyncio, os, signal, sys
    from wirespeed.engine import Engine

    how, when = sys.argv[1:]

    class Early(Engine):
        def start(self):
            if when == "before":
                os.kill(os.getpid(), signal.SIGTERM)
            super().start()
            if when == "after":
                os.kill(os.getpid(), signal.SIGTERM)

        def _start_logging(self):
            if when == "within":
                os.kill(os.getpid(), signal.SIGTERM)
            super()._start_logging()

    engine = Early("127.0.0.1", workers=1, drain_timeout=5)

    if how == "plain":
        engine.on_message(print)
    else:
        @engine.on_message
        async def handler(session, message): ...

    if how == "serve":
        asyncio.run(engine.serve())
    elif how == "uvloop":
        import uvloop
        uvloop.run(engine.serve())
    else:
        engine.run()
    print("over", signal.getsignal(signal.SIGTERM) is signal.SIG_DFL)
""")


@pytest.mark.parametrize("when", ["before", "within", "after"])
@pytest.mark.parametrize("how", ["plain", "coroutine", "serve", "uvloop"])
def test_sigterm_while_it_starts(how: str, when: str) -> None:
    """The signal neither kills the process nor is lost."""
    if how == "uvloop":
        pytest.importorskip("uvloop")
    command = [sys.executable, "-X", "faulthandler", "-c", APP, how, when]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "over True\n", "")


def test_a_start_that_fails_forgets_sigterm(tmp_path: Path) -> None:
    """The signal does not end the next engine."""

    class Early(Engine):
        def start(self) -> None:
            os.kill(os.getpid(), signal.SIGTERM)
            super().start()

    engine = Early(path=tmp_path / "directory" / "socket", workers=1)
    engine.on_message(print)
    with pytest.raises(FileNotFoundError):
        engine.run()
    (tmp_path / "directory").mkdir()
    Engine.start(engine)
    try:
        assert not next(engine.batches(timeout=0.2))
    finally:
        engine.stop()


def log_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "wirespeed-log"]


def has_ended(engine: Engine) -> None:
    """Checks that all remaining events are taken, and that the engine has ended."""
    for _ in engine.batches():
        pass
    for thread in log_threads():
        thread.join(BOUND)
        assert not thread.is_alive(), "what logs was left behind"


def test_stop_from_another_thread_while_it_starts() -> None:
    """At any moment: it has ended then, or had not begun."""
    for pause in range(30):
        engine = Engine("127.0.0.1", workers=2)
        begin = threading.Barrier(2)

        def stop(engine: Engine = engine, begin: threading.Barrier = begin, pause: int = pause) -> None:
            begin.wait(BOUND)
            for _ in range(pause * 100):
                pass
            engine.stop()

        thread = threading.Thread(target=stop, daemon=True)
        thread.start()
        begin.wait(BOUND)
        engine.start()
        thread.join(BOUND)
        assert not thread.is_alive()
        engine.stop()
        has_ended(engine)


def test_stop_before_the_start_is_over() -> None:
    """It serves already, and its log is not connected yet."""

    class Stopped(Engine):
        def _start_logging(self) -> None:
            thread = threading.Thread(target=self.stop, daemon=True)
            thread.start()
            thread.join(BOUND)
            assert not thread.is_alive()
            super()._start_logging()

    engine = Stopped("127.0.0.1", workers=1)
    engine.on_message(print)
    engine.run()
    has_ended(engine)


def test_calls_during_the_start_do_not_stop_the_engine(tmp_path: Path) -> None:
    """The interpreter and the starting thread continue."""
    path = tmp_path / "handoff"
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(path))
        other.listen()
        engine = Engine("127.0.0.1", workers=1, handoff=path)
        errors: list[str] = []

        def start() -> None:
            with pytest.raises(OSError, match="unexpected") as raised:
                engine.start()
            errors.append(str(raised.value))

        thread = threading.Thread(target=start, daemon=True)
        thread.start()
        asked, _ = other.accept()
        with asked:
            assert asked.recv(100)
            for ask in (lambda: engine.addresses, engine.stats, engine.has_room, lambda: engine.sessions):
                with pytest.raises(RuntimeError, match="has not started"):
                    ask()
            # It waits for an answer for ten seconds, unless this one comes.
            asked.sendall(b"nonsense\n")
            thread.join(BOUND)
            assert errors
    # Its state is unchanged.
    engine.route("/only")
    path.unlink()
    with engine:
        dial(engine, "/only").close()
        with pytest.raises(wirespeed.InvalidStatus):
            dial(engine)


def test_start_twice() -> None:
    engine = Engine("127.0.0.1", workers=1)
    engine.stop()  # nothing
    with engine:
        with pytest.raises(RuntimeError, match="has started before"):
            engine.start()
        with dial(engine) as client:
            client.ping().wait(BOUND)
    with pytest.raises(RuntimeError, match="has started before"):
        engine.start()
    has_ended(engine)


def test_start_in_two_threads() -> None:
    """One of the starts succeeds."""
    for _ in range(10):
        engine = Engine("127.0.0.1", workers=1)
        begin = threading.Barrier(2)
        results: list[BaseException | None] = []

        def start(
            engine: Engine = engine,
            begin: threading.Barrier = begin,
            results: list[BaseException | None] = results,
        ) -> None:
            begin.wait(BOUND)
            try:
                engine.start()
            except RuntimeError as error:
                results.append(error)
            else:
                results.append(None)

        threads = [threading.Thread(target=start, daemon=True) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(BOUND)
        assert sorted(map(str, results)) == ["None", "the engine has started before"]
        engine.stop()
        has_ended(engine)


@pytest.mark.parametrize("threads", [0, 3, None])
def test_stop_in_a_handler(threads: int | None) -> None:
    engine = Engine("127.0.0.1", workers=2)
    if threads is None:

        @engine.on_message
        async def stop_on_loop(session: Session, message: str | bytes) -> None:
            await asyncio.sleep(0)
            engine.stop()
    else:

        @engine.on_message
        def stop(session: Session, message: str | bytes) -> None:
            engine.stop()

    engine.start()
    runs = threading.Thread(target=engine.run, kwargs={"threads": threads or 0}, daemon=True)
    runs.start()
    with dial(engine) as client:
        client.send("stop")
        with pytest.raises(wirespeed.ConnectionClosed):
            client.recv(BOUND)
    runs.join(BOUND)
    assert not runs.is_alive()
    has_ended(engine)


@pytest.mark.parametrize("kind", ["plain", "threads", "coroutine"])
def test_stop_in_the_handler_of_a_signal(kind: str) -> None:
    """In the main thread, in any call."""
    engine = Engine("127.0.0.1", workers=2)
    if kind == "coroutine":

        @engine.on_message
        async def answer_on_loop(session: Session, message: str | bytes) -> None:
            await session.send(message)
    else:

        @engine.on_message
        def answer(session: Session, message: str | bytes) -> None:
            session.send(message)

    engine.start()

    def client() -> None:
        with dial(engine) as client:
            client.send("are you there?")
            client.recv(BOUND)
            os.kill(os.getpid(), signal.SIGUSR1)
            with pytest.raises(wirespeed.ConnectionClosed):
                client.recv(BOUND)
            ended.append(True)

    ended: list[bool] = []
    previous = signal.signal(signal.SIGUSR1, lambda *_: engine.stop())
    try:
        thread = threading.Thread(target=client, daemon=True)
        thread.start()
        engine.run(threads=3 if kind == "threads" else 0)
        thread.join(BOUND)
    finally:
        signal.signal(signal.SIGUSR1, previous)
    assert ended == [True]
    has_ended(engine)


@pytest.mark.skipif(sys.version_info < (3, 11), reason="tasks of 3.10 don't count who has cancelled them")
def test_a_handler_that_is_cancelled_leaves_the_next_one_uncancelled() -> None:
    """Where there are no eager tasks, one task runs both: `asyncio.timeout` must see the right state of
    cancellation.
    """
    engine = Engine("127.0.0.1", workers=1)
    seen: list[int] = []
    ended = threading.Event()

    @engine.on_message
    async def handle(session: Session, message: str | bytes) -> None:
        task = asyncio.current_task()
        assert task is not None
        seen.append(task.cancelling())  # type: ignore[attr-defined]
        if message == "first":
            await asyncio.sleep(0.05)  # so that the second waits behind it
            task.cancel()
            await asyncio.sleep(0)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.01):  # type: ignore[attr-defined]
                await asyncio.sleep(BOUND)
        ended.set()

    with running(engine), dial(engine) as ws:
        ws.send("first")
        ws.send("second")
        assert ended.wait(BOUND)
    assert seen == [0, 0]
