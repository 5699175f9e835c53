"""``extensions=``: settings of permessage-deflate; other extensions raise an error."""

from __future__ import annotations

from typing import Any

import pytest

import wirespeed
from wirespeed.compat.websockets.extensions.permessage_deflate import deflate_of

pytest.importorskip("websockets", minversion="17")


def factories(package: Any) -> Any:
    return package.extensions.permessage_deflate


async def echo(ws: Any) -> None:
    async for message in ws:
        await ws.send(message)


@pytest.mark.parametrize(
    ("ours", "theirs", "header"),
    [
        ({}, {}, "permessage-deflate"),
        ({"server_no_context_takeover": True}, {}, "permessage-deflate; server_no_context_takeover"),
        ({"client_no_context_takeover": True}, {}, "permessage-deflate; client_no_context_takeover"),
        ({"server_max_window_bits": 10}, {}, "permessage-deflate; server_max_window_bits=10"),
        ({}, {"server_max_window_bits": 10}, "permessage-deflate; server_max_window_bits=10"),
        ({"client_max_window_bits": 11}, {}, "permessage-deflate; client_max_window_bits=11"),
        ({}, {"server_no_context_takeover": True}, "permessage-deflate; server_no_context_takeover"),
    ],
)
async def test_negotiation(client: Any, server: Any, ours: dict[str, Any], theirs: dict[str, Any], header: str) -> None:
    offer = factories(client).ClientPerMessageDeflateFactory(compress_settings={"memLevel": 4, "level": 9}, **ours)
    accept = factories(server).ServerPerMessageDeflateFactory(compress_settings={"memLevel": 4}, **theirs)
    async with (
        server.asyncio.server.serve(echo, "127.0.0.1", 0, extensions=[accept]) as running,
        client.asyncio.client.connect(
            f"ws://127.0.0.1:{running.sockets[0].getsockname()[1]}", extensions=[offer], compression=None
        ) as ws,
    ):
        found = ws.response.headers["Sec-WebSocket-Extensions"]
        assert set(found.split("; ")) == set(header.split("; "))
        (extension,) = ws.protocol.extensions
        assert extension.remote_no_context_takeover == ("server_no_context_takeover" in header)
        assert extension.local_no_context_takeover == ("client_no_context_takeover" in header)
        assert extension.remote_max_window_bits == (10 if "server_max" in header else 15)
        await ws.send("x" * 5000)
        assert await ws.recv() == "x" * 5000


async def test_no_compression(client: Any, server: Any) -> None:
    async with (
        server.asyncio.server.serve(echo, "127.0.0.1", 0) as running,
        client.asyncio.client.connect(f"ws://127.0.0.1:{running.sockets[0].getsockname()[1]}", compression=None) as ws,
    ):
        assert "Sec-WebSocket-Extensions" not in ws.response.headers
        assert ws.protocol.extensions == []


def test_other_extensions_are_refused() -> None:
    class Mine:
        name = "x-mine"

    with pytest.raises(NotImplementedError, match="no extension 'x-mine'"):
        deflate_of([Mine()], "deflate")
    with pytest.raises(TypeError, match="list of extension factories"):
        deflate_of([5], None)


@pytest.mark.parametrize("settings", [{"strategy": 2}, {"zdict": b"x"}])
def test_other_settings_are_refused(settings: dict[str, Any]) -> None:
    from wirespeed.compat.websockets.extensions.permessage_deflate import ClientPerMessageDeflateFactory

    with pytest.raises(NotImplementedError, match="level and memLevel"):
        deflate_of([ClientPerMessageDeflateFactory(compress_settings=settings)], None)


def test_own_extension_settings_are_accepted() -> None:
    deflate = wirespeed.Deflate(level=1)
    assert deflate_of(None, deflate) is deflate
    assert deflate_of([], "deflate") == "deflate"
    assert deflate_of(None, None) is None
