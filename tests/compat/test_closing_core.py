"""Closing as in websockets, in cases that the native core handles."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest

pytest.importorskip("websockets", minversion="17")

from compat.pairs import connected, connected_blocking, silent_server

INCOMPLETE = "close during fragmented message"


async def test_closing_in_the_middle_of_a_message(client: Any, server: Any) -> None:
    ended = asyncio.get_running_loop().create_future()
    begun = asyncio.Event()

    async def handler(ws: Any) -> None:
        with pytest.raises(server.exceptions.ConnectionClosedError) as caught:
            await ws.recv()
        ended.set_result(caught.value.rcvd)

    async def fragments() -> Any:
        yield "one"
        begun.set()
        await ended
        yield "two"

    async with connected(client, server, handler) as ws:
        sending = asyncio.ensure_future(ws.send(fragments()))
        await begun.wait()
        await ws.close()
        with pytest.raises(client.exceptions.ConnectionClosedError) as caught:
            await sending
        assert (caught.value.sent.code, caught.value.sent.reason) == (1011, INCOMPLETE)
        frame = await ended
        assert (frame.code, frame.reason) == (1011, INCOMPLETE)


def test_closing_in_the_middle_of_a_message_of_a_thread(client: Any, server: Any) -> None:
    begun, ended = threading.Event(), threading.Event()
    frames: list[Any] = []

    def handler(ws: Any) -> None:
        with pytest.raises(server.exceptions.ConnectionClosedError) as caught:
            ws.recv()
        frames.append(caught.value.rcvd)
        ended.set()

    def fragments() -> Any:
        yield b"one"
        begun.set()
        assert ended.wait(10)
        yield b"two"

    def send(ws: Any) -> None:
        with pytest.raises(client.exceptions.ConnectionClosedError) as caught:
            ws.send(fragments())
        frames.append(caught.value.sent)

    with connected_blocking(client, server, handler) as ws:
        thread = threading.Thread(target=send, args=(ws,))
        thread.start()
        assert begun.wait(10)
        ws.close()
        thread.join()
    assert [(frame.code, frame.reason) for frame in frames] == [(1011, INCOMPLETE)] * 2


async def test_the_cause_after_a_close_timeout(package: Any) -> None:
    with silent_server() as uri:
        ws = await package.asyncio.client.connect(uri, close_timeout=0.1)
        await ws.close()
        with pytest.raises(package.exceptions.ConnectionClosedError) as caught:
            await ws.recv()
        assert isinstance(caught.value.__cause__, TimeoutError)


def test_the_cause_after_a_close_timeout_of_a_thread(package: Any) -> None:
    with silent_server() as uri, package.sync.client.connect(uri, close_timeout=0.1) as ws:
        ws.close()
        with pytest.raises(package.exceptions.ConnectionClosedError) as caught:
            ws.recv()
        assert isinstance(caught.value.__cause__, TimeoutError)


def test_sending_while_another_thread_closes(client: Any) -> None:
    """Sending waits for the end, and raises how the connection ended."""
    from wirespeed.compat import websockets as ours

    closing = threading.Event()

    class OURS:
        sync = ours.sync

    def handler(ws: Any) -> None:
        # It answers the close only when it receives: ours has no thread for that.
        assert closing.wait(10)
        time.sleep(0.2)
        with pytest.raises(ours.ConnectionClosedOK):
            ws.recv()

    with connected_blocking(client, OURS, handler) as ws:
        thread = threading.Thread(target=ws.close)
        thread.start()
        while ws.state is client.State.OPEN:
            time.sleep(0.001)
        closing.set()
        with pytest.raises(client.exceptions.ConnectionClosedOK):
            ws.send("x")
        thread.join()
