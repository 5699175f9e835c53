"""Tests against the project's own echo server, the peer of the demo and of the benchmarks."""

from __future__ import annotations

import asyncio
import ssl
from typing import Any

import pytest

from support.checks import as_close, within
from support.connecting import Connect
from support.frames import Close
from support.native import NativeEcho
from support.subject import IS_WIRESPEED, exceptions


@pytest.fixture(params=["ws", "wss"])
def target(request: pytest.FixtureRequest, native_echo: NativeEcho) -> tuple[str, dict[str, Any]]:
    """The address, without a path, and the options to connect with."""
    if request.param == "ws":
        return native_echo.uri, {}
    if IS_WIRESPEED:
        import wirespeed

        return native_echo.secure_uri, {"ssl": wirespeed.TLS(ca=native_echo.ca_file)}
    return native_echo.secure_uri, {"ssl": ssl.create_default_context(cafile=native_echo.ca_file)}


@pytest.mark.parametrize("compression", ["deflate", None])
async def test_echo(target: tuple[str, dict[str, Any]], connect: Connect, compression: str | None) -> None:
    uri, options = target
    async with connect(uri + "/", compression=compression, max_size=None, **options) as ws:
        for size in (0, 1, 125, 126, 65_535, 65_536, 1 << 20, 5 << 20):
            message = (bytes(range(256)) * (size // 256 + 1))[:size]
            await ws.send(message)
            assert await ws.recv() == message
        await ws.send("é€😀")
        assert await ws.recv() == "é€😀"
        await ws.send(["frag", "ments"])
        assert await ws.recv() == "fragments"
    assert ws.close_code == 1000


@pytest.mark.wirespeed_only("websockets stops reading when its queue is full, so close waits for its timeout")
@pytest.mark.parametrize("size", [64, 100_000])
@pytest.mark.parametrize("call", ["recv", "iteration", "recv_many"])
async def test_blast(target: tuple[str, dict[str, Any]], connect: Connect, size: int, call: str) -> None:
    uri, options = target
    async with connect(f"{uri}/blast?size={size}", compression=None, close_timeout=2, **options) as ws:
        messages: list[bytes] = []
        while len(messages) < 2000:
            if call == "recv":
                messages.append(await ws.recv())
            elif call == "recv_many":
                messages += await ws.recv_many()
            else:
                async for message in ws:
                    messages.append(message)
                    if len(messages) == 2000:
                        break
        for number, message in enumerate(messages):
            assert len(message) == size
            assert int.from_bytes(message[:8], "little") == number
        with within(1.5):
            await ws.close()
    assert ws.close_code == 1000


@pytest.mark.wirespeed_only("callbacks are ours")
@pytest.mark.parametrize("zero_copy", [False, True], ids=["bytes", "views"])
@pytest.mark.parametrize("size", [64, 100_000])
async def test_blast_to_a_listener(
    target: tuple[str, dict[str, Any]], connect: Connect, size: int, zero_copy: bool
) -> None:
    import wirespeed

    uri, options = target

    class Counting(wirespeed.Listener):
        count = 0

        def on_message(self, ws: Any, message: Any) -> None:
            assert len(message) == size
            assert int.from_bytes(message[:8], "little") == self.count
            self.count += 1
            if self.count == 2000:
                ws.abort()

    counting = Counting()
    ws = await connect(f"{uri}/blast?size={size}", compression=None, listener=counting, zero_copy=zero_copy, **options)
    await ws.wait_closed()
    assert counting.count == 2000


async def test_sink(target: tuple[str, dict[str, Any]], connect: Connect) -> None:
    uri, options = target
    async with connect(f"{uri}/sink", compression=None, **options) as ws:
        for _ in range(3000):
            await ws.send(bytes(1000))
        with within(5):
            await ws.close()
    assert ws.close_code == 1000


@pytest.mark.parametrize("size", [512, 65_536])
async def test_pipelined(target: tuple[str, dict[str, Any]], connect: Connect, size: int) -> None:
    uri, options = target
    async with connect(uri + "/", compression=None, **options) as ws:
        window = asyncio.Semaphore(100)

        async def send() -> None:
            for number in range(1000):
                await window.acquire()
                await ws.send(number.to_bytes(8, "little") + bytes(size - 8))

        task = asyncio.ensure_future(send())
        for number in range(1000):
            message = await ws.recv()
            assert len(message) == size
            assert int.from_bytes(message[:8], "little") == number
            window.release()
        await task


@pytest.mark.parametrize("code", [1000, 1001, 1011, 4000])
async def test_close(target: tuple[str, dict[str, Any]], connect: Connect, code: int) -> None:
    uri, options = target
    ws = await connect(f"{uri}/close?code={code}", **options)
    with pytest.raises(exceptions.ConnectionClosed) as raised:
        await ws.recv()
    assert raised.value.rcvd is not None
    assert as_close(raised.value.rcvd) == Close(code, raised.value.rcvd.reason)
    assert raised.value.rcvd_then_sent is True
    await ws.close()
