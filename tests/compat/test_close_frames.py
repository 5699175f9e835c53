"""Close frames in exceptions: those of both packages at once."""

from __future__ import annotations

import dataclasses
import pickle
from typing import Any

import pytest

pytest.importorskip("websockets", minversion="17")

import wirespeed
from wirespeed.close_codes import Close


async def test_close_frames_of_exceptions(client: Any, server: Any) -> None:
    async def handler(ws: Any) -> None:
        await ws.close(4000, "bye")

    async with server.asyncio.server.serve(handler, "127.0.0.1", 0) as running:
        uri = f"ws://127.0.0.1:{running.sockets[0].getsockname()[1]}"
        async with client.asyncio.client.connect(uri) as ws:
            with pytest.raises(client.exceptions.ConnectionClosedError) as caught:
                await ws.recv()
    import websockets.frames

    for frame in (caught.value.rcvd, caught.value.sent):
        assert isinstance(frame, websockets.frames.Close)
        assert isinstance(frame, client.frames.Close)
        assert frame == websockets.frames.Close(4000, "bye")
        assert websockets.frames.Close(4000, "bye") == frame
        assert frame != websockets.frames.Close(4001, "bye")
        assert str(frame) == "4000 (private use) bye"
        assert frame.serialize() == b"\x0f\xa0bye"


def test_own_close_frames_are_unchanged() -> None:
    frame = Close(1000, "x")
    assert hash(frame) == hash(Close(1000, "x"))
    assert pickle.loads(pickle.dumps(frame)) == frame
    assert [field.name for field in dataclasses.fields(frame)] == ["code", "reason"]
    assert repr(frame) == "Close(code=1000, reason='x')"
    with pytest.raises(dataclasses.FrozenInstanceError):
        frame.code = 1001  # type: ignore[misc]
    assert isinstance(wirespeed.ConnectionClosedOK(frame, None).rcvd, Close)
