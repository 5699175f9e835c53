"""The end of the stream behind a full queue, and a socket error while the application does not read."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import time
from typing import Any

import pytest

from support.asyncio_tools import soon
from support.connecting import Connect
from support.frames import text
from support.scripted import Scripted, Wire
from support.subject import exceptions
from support.tls_settings import Settings

pytestmark = pytest.mark.wirespeed_only("max_queue of messages is ours")


OPTIONS = {"compression": None, "ping_interval": None, "close_timeout": None}
FULL = {"max_queue": 4, "max_queue_bytes": None}
COUNT = 40


@pytest.mark.parametrize("secure", [True, False], ids=["tls", "plain"])
@pytest.mark.parametrize("method", ["recv", "iterate", "recv_many", "recv_nowait"])
@pytest.mark.within(10)
async def test_end_of_stream_behind_full_queue(
    scripted: Scripted, certificates: Any, tls: Settings, connect: Connect, method: str, secure: bool
) -> None:
    """Without a close frame and a time limit, the end is reported after all messages were received."""

    def script(wire: Wire) -> None:
        wire.accept()
        wire.read_frame()
        wire.send(b"".join(text(str(number)) for number in range(COUNT)))
        if secure:
            assert isinstance(wire.sock, ssl.SSLSocket)
            with contextlib.suppress(OSError):
                wire.sock.unwrap()  # close_notify; the answer may not come
        else:
            wire.half_close()

    server = scripted(script, **({"ssl_context": certificates.server_context()} if secure else {}))
    uri, more = (server.secure_uri, {"ssl": tls.trusting()}) if secure else (server.uri, {})
    found: list[Any] = []

    async def take(ws: Any) -> None:
        if method == "iterate":
            async for message in ws:
                found.append(message)
        while True:
            if method == "recv":
                found.append(await ws.recv())
            elif method == "recv_many":
                found.extend(await ws.recv_many())
            else:
                try:
                    found.append(ws.recv_nowait())
                except BlockingIOError:
                    await asyncio.sleep(0)

    ws = await connect(uri, **more, **FULL, **OPTIONS)
    await ws.send("go")
    await asyncio.sleep(0.2)
    with pytest.raises(exceptions.ConnectionClosedError):
        await asyncio.wait_for(take(ws), 5)
    ws.abort()
    assert found == [str(number) for number in range(COUNT)]


@pytest.mark.within(8)
async def test_unread_reset_does_not_spin_the_loop(scripted: Scripted, connect: Connect) -> None:
    """The loop sleeps while the application is slow, even after a reset."""

    def script(wire: Wire) -> None:
        wire.accept()
        wire.read_frame()
        wire.send(b"".join(text(str(number)) for number in range(COUNT)))
        server.pause()
        wire.reset()

    server = scripted(script)
    ws = await connect(server.uri, **FULL, **OPTIONS)
    await ws.send("go")
    await soon(lambda: ws.stats()["receive_queue_messages"] >= 4)
    server.release.set()
    await asyncio.sleep(0.1)
    since = time.process_time()
    await asyncio.sleep(0.4)
    assert time.process_time() - since < 0.2
    ws.abort()
