"""Accepted sockets that have sent nothing yet, and their first bytes."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any

import pytest

from support.asyncio_tools import Run, Setting
from support.checks import no_leaks, within
from support.frames import TEXT, Close
from support.load_scaling import load_scaled
from support.serving import LOGGER, Raw, echo, logged, masked, request, serve, unnamed
from support.subject import IS_WIRESPEED

pytestmark = pytest.mark.wirespeed_only("the server is ours")

if IS_WIRESPEED:
    import wirespeed


async def converse(raw: Raw) -> None:
    """Has a message echoed by an open connection, and closes it."""
    await raw.send(masked(TEXT, b"x") + masked(8, b"\x03\xe8"))
    assert (await raw.frame()).payload == b"x"
    assert await raw.until_close() == ([], Close(1000))


@pytest.mark.parametrize("pause", [0, 0.01], ids=["at once", "later"])
@pytest.mark.no_leaks
@pytest.mark.within(5)
async def test_first_bytes(setting: Setting, pause: float) -> None:
    """All of the request, a part of it, or a message too; as soon as the socket is accepted, or later."""
    whole = request()
    message = masked(TEXT, b"early")
    async with serve(setting) as server:
        for cut in (1, len(whole) - 1, len(whole) - 2, len(whole)):
            with await Raw.connect(server) as raw:
                await asyncio.sleep(pause)
                await raw.send(whole[:cut])
                await asyncio.sleep(pause)
                await raw.send(whole[cut:] + message)
                assert (await raw.head()).status == 101
                assert (await raw.frame()).payload == b"early"
                await converse(raw)


@pytest.mark.no_leaks
async def test_message_that_looks_like_the_end_of_a_head(setting: Setting) -> None:
    """Bytes after the request belong to the connection, for any last bytes."""
    async with serve(setting) as server:
        with await Raw.connect(server) as raw:
            # The mask is zero, so that the payload is unchanged.
            await raw.send(request() + b"\x81\x84\0\0\0\0\r\n\r\n")
            assert (await raw.head()).status == 101
            assert (await raw.frame()).payload == b"\r\n\r\n"
            await converse(raw)


@pytest.mark.no_leaks
@pytest.mark.within(5)
async def test_silent_clients_time_out_one_by_one(setting: Setting, caplog: pytest.LogCaptureFixture) -> None:
    """Each silent client is closed when its own time is over."""
    caplog.set_level(logging.DEBUG, LOGGER)
    ends: list[float] = []

    async def watch(server: Any) -> None:
        with await Raw.connect(server) as raw:
            since = time.monotonic()
            assert await raw.rest() == b""
            ends.append(time.monotonic() - since)

    async with serve(setting, open_timeout=0.2) as server:
        watching = []
        for _ in range(4):
            watching.append(asyncio.ensure_future(watch(server)))
            await asyncio.sleep(0.06)
        with await Raw.open(server) as raw:
            await asyncio.gather(*watching)
            await converse(raw)
    assert all(0.15 < end < load_scaled(2) for end in ends), ends
    timeouts = [text for text in logged(caplog, logging.DEBUG) if "open_timeout" in text]
    assert len(timeouts) == 4
    assert all(text.startswith("a client has sent nothing (127.0.0.1:") for text in timeouts)
    assert logged(caplog, logging.INFO)[1:-2] == []


@pytest.mark.no_leaks
async def test_no_time_limit(setting: Setting) -> None:
    async with serve(setting, open_timeout=None) as server:
        with await Raw.connect(server) as raw:
            await asyncio.sleep(0.1)
            await raw.send(request())
            assert (await raw.head()).status == 101
            await converse(raw)


@pytest.mark.parametrize("sent", ["", "GET / HTTP/1.1\r\nHost: x\r\n"], ids=["silent", "slow"])
def test_server_closes_over_clients_without_limit(
    setting: Setting, run: Run, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, sent: str
) -> None:
    """Without ``open_timeout`` closing still does not wait for requests forever."""
    from wirespeed._server.accept import HandshakeLimiterBase

    monkeypatch.setattr(HandshakeLimiterBase, "closing_timeout", 0.4)

    async def main() -> None:
        async with serve(setting, open_timeout=None) as server:
            with await Raw.connect(server) as silent, await Raw.connect(server) as late:
                await silent.send(sent.encode())
                await asyncio.sleep(0.05)
                server.close()
                await asyncio.sleep(0.05)
                await late.send(request())
                assert (await late.reply()).status == 503
                await server.wait_closed()
                assert await silent.rest() == b""

    with no_leaks(), within(3):
        run(main)
    told = [text for text in logged(caplog, logging.WARNING) if "when the server closed" in text]
    assert told == ["closed a client that had not sent its request when the server closed: 127.0.0.1"]


@pytest.mark.no_leaks
@pytest.mark.within(3)
async def test_server_closes_over_silent_clients(setting: Setting) -> None:
    """A client that then sends is refused, a silent one is dropped when its time is over."""
    async with serve(setting, open_timeout=0.5) as server:
        with await Raw.connect(server) as silent, await Raw.connect(server) as late:
            await asyncio.sleep(0.05)
            server.close()
            await asyncio.sleep(0.05)
            await late.send(request())
            assert (await late.reply()).status == 503
            assert await silent.rest() == b""
            await server.wait_closed()


@pytest.mark.parametrize("how", ["close", "reset"])
@pytest.mark.no_leaks
@pytest.mark.within(3)
async def test_client_leaves_in_silence(setting: Setting, caplog: pytest.LogCaptureFixture, how: str) -> None:
    """Like port scans: one log record at level DEBUG."""
    caplog.set_level(logging.DEBUG, LOGGER)
    async with serve(setting) as server:
        raw = await Raw.connect(server)
        await asyncio.sleep(0.02)
        getattr(raw, how)()
        while not any("has sent nothing" in text for text in logged(caplog, logging.DEBUG)):
            await asyncio.sleep(0.005)
        assert len(server.connections) == 0
        with await Raw.open(server) as other:
            await converse(other)
    assert len([text for text in logged(caplog, logging.DEBUG) if "has sent nothing" in text]) == 1
    assert not any("handshake failed" in text for text in logged(caplog, logging.DEBUG))


@pytest.mark.no_leaks
@pytest.mark.within(5)
async def test_connection_constructor_that_raises(setting: Setting, caplog: pytest.LogCaptureFixture) -> None:
    """The loop no longer watches the descriptor: the next socket with its number is served."""
    broken = True

    def make(*arguments: Any, **options: Any) -> Any:
        if broken:
            raise ValueError("not now")
        return wirespeed.ServerConnection(*arguments, **options)

    async with serve(setting, create_connection=make) as server:
        for _ in range(3):
            with await Raw.connect(server) as raw:
                await asyncio.sleep(0.01)
                await raw.send(request())
                assert (await raw.reply()).status == 500
        broken = False
        for _ in range(3):
            with await Raw.connect(server) as raw:
                await asyncio.sleep(0.01)
                await raw.send(request())
                assert (await raw.head()).status == 101
                await converse(raw)
    failed = "opening handshake failed: not now"
    assert unnamed([text for text in logged(caplog) if "not now" in text]) == [failed, f"{failed}; 2 more like it"]


def test_many_at_once_with_few_pending(setting: Setting, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last client is served; silent ones were evicted."""
    from wirespeed._server import accept

    monkeypatch.setattr(accept, "IDLE_TIME", 0.02)

    async def main() -> None:
        async with serve(setting, echo, max_pending=2) as server:
            raws = []
            for _ in range(8):
                raws.append(await Raw.connect(server))
                await asyncio.sleep(0.03)
            for raw in raws[-2:]:
                await raw.send(request())
                assert (await raw.head()).status == 101
                await converse(raw)
            for raw in raws[:-2]:
                assert await raw.rest() == b""
            for raw in raws:
                raw.close()

    with no_leaks(), within(5):
        run(main)


@pytest.mark.no_leaks
@pytest.mark.within(3)
async def test_handler_cancelled_before_its_first_step(setting: Setting) -> None:
    """As after a second signal: the server and the connection end nevertheless."""
    loop = asyncio.get_running_loop()
    cancelled: list[asyncio.Task[Any]] = []

    def look() -> None:
        if not server.connections:
            loop.call_soon(look)
            return
        server.close()
        names = {task: getattr(task.get_coro(), "__qualname__", "") for task in asyncio.all_tasks()}
        cancelled.extend(task for task, name in names.items() if "Server._" in name and not name.endswith("_close"))
        for task in cancelled:
            task.cancel()

    async with serve(setting, close_timeout=0.2) as server:
        with await Raw.connect(server) as raw:
            await asyncio.sleep(0.01)
            loop.call_soon(look)
            await raw.send(request())
            assert (await raw.head()).status == 101
            await raw.rest()
            await server.wait_closed()
        assert len(cancelled) == 1
