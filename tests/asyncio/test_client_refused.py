"""A call that raises affects only itself: earlier messages and other waiting tasks are unaffected."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
import warnings
from collections.abc import Callable
from typing import Any

import pytest

from support.asyncio_tools import Run, Setting, new_loop, soon, spin
from support.checks import within
from support.connecting import Connect
from support.frames import PONG, binary, frame, text
from support.scripted import Scripted, Wire
from support.servers import WebSocketsServer
from support.subject import IS_WIRESPEED

if IS_WIRESPEED:
    from wirespeed import State
    from wirespeed.asyncio import Listener

pytestmark = pytest.mark.wirespeed_only("decode, send_many and listeners are ours")


OPTIONS = {"compression": None, "ping_interval": None}
# Bytes that are not valid as text.
GARBAGE = b"\xff"


def sending(data: bytes) -> Callable[[Wire], Any]:
    def script(wire: Wire) -> Any:
        wire.accept(then=data)
        return wire.read_until_close()

    return script


async def all_of(ws: Any, count: int) -> list[Any]:
    """Receives a number of messages; one that cannot be decoded is replaced by its exception."""
    found: list[Any] = []
    while len(found) < count:
        try:
            found += await ws.recv_many(decode=True)
        except UnicodeDecodeError:
            found.append(UnicodeDecodeError)
    return found


@pytest.mark.parametrize("waits", [True, False], ids=["waiting", "there"])
@pytest.mark.within(8)
async def test_recv_many_loses_no_message(scripted: Scripted, connect: Connect, waits: bool) -> None:
    """A decoding error is raised by a call of its own, even if the message was not queued before."""
    data = text("a") + binary(GARBAGE) + text("b") + binary(GARBAGE)

    def script(wire: Wire) -> None:
        wire.accept(then=b"" if waits else data)
        server.pause()
        if waits:
            wire.send(data)
        wire.read_until_close()

    server = scripted(script)
    async with connect(server.uri, **OPTIONS) as ws:
        task = asyncio.ensure_future(all_of(ws, 4))
        await asyncio.sleep(0.05)
        server.release.set()
        assert await task == ["a", UnicodeDecodeError, "b", UnicodeDecodeError]


@pytest.mark.parametrize("bad", ["\ud800", None, GARBAGE, ZeroDivisionError], ids=repr)
@pytest.mark.within(8)
async def test_messages_before_a_refused_one_are_sent(scripted: Scripted, connect: Connect, bad: Any) -> None:
    """Messages are sent although another task receives, so that nothing else wakes the connection."""

    def script(wire: Wire) -> list[bytes]:
        wire.accept()
        frames = [wire.read_frame().payload for _ in range(2)]
        wire.send(text("got them"))
        wire.read_until_close()
        return frames

    server = scripted(script)

    def messages() -> Any:
        yield from ("a", "b")
        if bad is ZeroDivisionError:
            raise ZeroDivisionError
        yield bad

    async with connect(server.uri, **OPTIONS) as ws:
        receiver = asyncio.ensure_future(ws.recv())
        await spin()
        with pytest.raises((UnicodeError, TypeError, ZeroDivisionError)):
            await ws.send_many(messages(), text=True)
        assert await receiver == "got them"
    assert await server.wait_result() == [b"a", b"b"]


@pytest.mark.parametrize("method", ["recv", "recv_nowait", "recv_many"])
@pytest.mark.within(8)
async def test_pong_before_a_message_that_cannot_be_decoded(scripted: Scripted, connect: Connect, method: str) -> None:
    def script(wire: Wire) -> None:
        wire.accept()
        payload = wire.read_frame().payload
        wire.send(text("before") + frame(PONG, payload) + binary(GARBAGE))
        wire.read_until_close()

    server = scripted(script)
    async with connect(server.uri, **OPTIONS) as ws:

        async def receive() -> None:
            assert await ws.recv(decode=True) == "before"
            with pytest.raises(UnicodeDecodeError):
                while True:
                    # The first of these calls finds the pong, because the task was resumed with its message.
                    try:
                        if method == "recv_nowait":
                            ws.recv_nowait(decode=True)
                        else:
                            await getattr(ws, method)(decode=True)
                    except BlockingIOError:
                        await asyncio.sleep(0)

        receiver = asyncio.ensure_future(receive())
        await spin()
        pong = await ws.ping()
        assert await asyncio.wait_for(pong, 5) >= 0
        await receiver


@pytest.mark.parametrize("method", ["recv_nowait", "recv_many"])
@pytest.mark.within(8)
async def test_messages_of_a_call_that_is_interrupted(
    scripted: Scripted, connect: Connect, setting: Setting, method: str
) -> None:
    """A listener of pings ends the program, which continues: no message is lost."""
    raised = 0

    class Controls(Listener if IS_WIRESPEED else object):  # type: ignore[misc]
        def on_pong(self, ws: Any, data: bytes) -> None:
            nonlocal raised
            raised += 1
            raise KeyboardInterrupt

    server = scripted(sending(text("a") + frame(PONG, b"x") + text("b") + frame(PONG, b"y") + text("c")))
    found: list[Any] = []
    async with connect(server.uri, listener=Controls(), **OPTIONS) as ws:
        # The calls themselves read messages from the socket; no callback of the loop does.
        while len(found) < 3:
            try:
                found += await ws.recv_many() if method == "recv_many" else [ws.recv_nowait()]
            except BlockingIOError:
                await asyncio.sleep(0)
            except KeyboardInterrupt:
                pass
    assert found == ["a", "b", "c"]
    assert raised


@pytest.mark.within(8)
async def test_listener_raises_base_exception(scripted: Scripted, connect: Connect) -> None:
    """A CancelledError from elsewhere ends the connection like any other exception; tasks that wait for the end are not
    cancelled.
    """
    told: list[Any] = []

    class Cancelled(Listener if IS_WIRESPEED else object):  # type: ignore[misc]
        def on_message(self, ws: Any, message: Any) -> None:
            told.append(message)
            raise asyncio.CancelledError

    server = scripted(sending(text("a") + text("b")))
    ws = await connect(server.uri, listener=Cancelled(), **OPTIONS)
    with pytest.raises(RuntimeError, match="a method of the listener has raised CancelledError") as info:
        await asyncio.wait_for(ws.wait_closed(), 5)
    assert isinstance(info.value.__cause__, asyncio.CancelledError)
    assert told == ["a"]
    assert (await server.wait_result())[1] is not None
    assert (await server.wait_result())[1].code == 1011


@pytest.mark.parametrize("exception", [KeyboardInterrupt, SystemExit])
def test_messages_after_a_listener_raised_system_exit(
    scripted: Scripted, run: Run, connect: Connect, setting: Setting, exception: type[BaseException]
) -> None:
    """A loop that continues, as after `run_until_complete`, delivers the remaining messages."""
    if setting.loop == "uvloop":
        pytest.skip("uvloop gives what a callback raises to the exception handler, or ends with it")
    told: list[Any] = []

    class Ends(Listener if IS_WIRESPEED else object):  # type: ignore[misc]
        def on_message(self, ws: Any, message: Any) -> None:
            told.append(message)
            if message == "a":
                raise exception

    def script(wire: Wire) -> None:
        wire.accept()
        wire.read_frame()
        wire.send(text("a") + text("b") + text("c"))
        wire.read_until_close()

    server = scripted(script)

    async def main() -> None:
        ws = await connect(server.uri, listener=Ends(), **OPTIONS)
        ws.send_nowait("it is open")
        await soon(lambda: told == ["a", "b", "c"])
        await ws.close()

    loop = new_loop(setting.loop)
    try:
        task = loop.create_task(main())
        with within(8):
            try:
                loop.run_until_complete(task)
            except exception:
                loop.run_until_complete(task)
    finally:
        loop.close()
    assert told == ["a", "b", "c"]


@pytest.mark.parametrize("what", ["wait_closed", "ping"])
@pytest.mark.within(8)
async def test_connection_dropped_after_a_cancelled_wait(scripted: Scripted, connect: Connect, what: str) -> None:
    """A connection without any waiter warns and is freed."""

    def script(wire: Wire) -> None:
        wire.accept()
        server.pause()

    server = scripted(script)
    ws = await connect(server.uri, **OPTIONS)
    waited = await ws.ping() if what == "ping" else ws.wait_closed()
    with pytest.raises(asyncio.TimeoutError):
        await asyncio.wait_for(waited, 0.05)
    del waited
    await spin()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        del ws
        await spin()
        gc.collect()
    assert any("unclosed connection" in str(warning.message) for warning in caught)


@pytest.mark.within(8)
async def test_refused_sender_is_not_notified_while_fragments_are_sent(scripted: Scripted, connect: Connect) -> None:
    """A task that is refused in the middle of a fragmented message is not notified of room in each turn."""

    def script(wire: Wire) -> Any:
        wire.accept()
        return wire.read_until_close()

    server = scripted(script)

    class Writable(Listener if IS_WIRESPEED else object):  # type: ignore[misc]
        called = 0

        def on_writable(self, ws: Any) -> None:
            self.called += 1
            ws.send_nowait("now")

    listener = Writable()
    async with connect(server.uri, listener=listener, **OPTIONS) as ws:
        go_on = asyncio.Event()

        async def slowly() -> Any:
            yield "a"
            await go_on.wait()
            yield "b"

        sender = asyncio.ensure_future(ws.send(slowly()))
        await spin()
        with pytest.raises(BlockingIOError):
            ws.send_nowait("too early")
        await spin()
        assert listener.called == 0
        assert ws.state.name == "OPEN"
        go_on.set()
        await sender
        await soon(lambda: listener.called == 1)
    assert [frame.payload for frame in (await server.wait_result())[0]][-1] == b"now"


@pytest.mark.within(8)
async def test_refused_call_of_another_thread_has_no_effect(scripted: Scripted, connect: Connect) -> None:
    """An end of the connection that has been received by then is reported in the loop's thread."""
    threads: list[Any] = []

    class Closes(Listener if IS_WIRESPEED else object):  # type: ignore[misc]
        def on_close(self, ws: Any, code: int, reason: str) -> None:
            threads.append(threading.current_thread())

    def script(wire: Wire) -> None:
        wire.accept()
        server.pause()

    server = scripted(script)
    ws = await connect(server.uri, listener=Closes(), close_timeout=0.05, **OPTIONS)
    closing = asyncio.ensure_future(ws.close())
    await spin()
    refused: list[BaseException] = []

    def call() -> None:
        time.sleep(0.1)
        try:
            ws.send_nowait("x")
        except RuntimeError as exc:
            refused.append(exc)

    other = threading.Thread(target=call)
    other.start()
    other.join()  # the loop does not run meanwhile
    assert len(refused) == 1
    assert threads == []
    await closing
    assert threads == [threading.current_thread()]


@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")  # a transport, which its loop left open
def test_abort_after_the_loop_with_a_ping_that_was_not_answered(
    scripted: Scripted, connect: Connect, setting: Setting
) -> None:
    def script(wire: Wire) -> None:
        wire.accept()
        server.pause()

    if setting == Setting("uvloop", "transport"):
        pytest.skip("uvloop's transports cannot be aborted after their loop")
    server = scripted(script)
    loop = new_loop(setting.loop)

    async def main() -> Any:
        ws = await connect(server.uri, **OPTIONS)
        return ws, await ws.ping(), ws._closed_future()

    with within(8):
        ws, *futures = loop.run_until_complete(main())
        loop.close()
        ws.abort()
    assert all(future.done() for future in futures)
    assert futures[0].exception() is not None
    del ws, futures
    gc.collect()


@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")  # a transport, which its loop left open
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # a task, which its loop left waiting
def test_abort_after_the_loop_with_others_and_a_receiver(
    server: WebSocketsServer, connect: Connect, setting: Setting
) -> None:
    """Actions that a stopped loop cannot perform are dropped: the timer of other connections, a waiting task."""

    if setting == Setting("uvloop", "transport"):
        pytest.skip("uvloop's transports cannot be aborted after their loop")
    loop = new_loop(setting.loop)

    async def main() -> Any:
        ws, other = await connect(server.uri), await connect(server.uri)
        receiving = asyncio.ensure_future(ws.recv())
        await spin()
        return ws, other, receiving

    with within(8):
        ws, other, receiving = loop.run_until_complete(main())
        loop.close()
        ws.abort()
        other.abort()
    assert ws.state == other.state == State.CLOSED
    receiving._log_destroy_pending = False
    del ws, other, receiving
    gc.collect()
