"""Static types of the drop-in for ``websockets``: read by mypy and pyright, never run."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator

from typing_extensions import assert_type

import wirespeed
from wirespeed.compat.websockets.asyncio import client as asyncio_client
from wirespeed.compat.websockets.asyncio import server as asyncio_server
from wirespeed.compat.websockets.sync import client as sync_client
from wirespeed.compat.websockets.sync import server as sync_server


async def asyncio_connecting(either: bool) -> None:
    assert_type(await asyncio_client.connect("ws://localhost"), asyncio_client.ClientConnection)
    async for ws in asyncio_client.connect("ws://localhost"):
        assert_type(ws, asyncio_client.ClientConnection)
    async with asyncio_client.connect("ws://localhost", open_timeout=None) as ws:
        assert_type(ws, asyncio_client.ClientConnection)
        assert_type(await ws.recv(), str | bytes)
        assert_type(await ws.recv(True), str)
        assert_type(await ws.recv(decode=False), bytes)
        assert_type(await ws.recv(either), str | bytes)
        assert_type(ws.recv_streaming(decode=True), AsyncGenerator[str, None])
        async for message in ws:
            assert_type(message, str | bytes)
        await ws.send("text")
        await ws.send([b"a", b"b"])
        await ws.send(5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


async def asyncio_handler(ws: asyncio_server.ServerConnection) -> None:
    assert_type(await ws.recv(decode=True), str)


async def asyncio_serving() -> None:
    async with asyncio_server.serve(asyncio_handler, "localhost", 8765) as server:
        await server.serve_forever()


def sync_connecting(either: bool) -> None:
    assert_type(sync_client.connect("ws://localhost"), sync_client.ClientConnection)
    assert_type(sync_client.connect("ws://localhost", legacy=True), sync_client.ClientConnection)
    assert_type(sync_client.connect("ws://localhost", legacy=False), sync_client.reconnect)
    assert_type(sync_client.unix_connect("/run/feed.sock", open_timeout=5), sync_client.ClientConnection)
    assert_type(sync_client.unix_connect("/run/feed.sock", legacy=False), sync_client.reconnect)
    for ws in sync_client.connect("ws://localhost", legacy=False):
        assert_type(ws, sync_client.ClientConnection)
    with sync_client.connect("ws://localhost") as ws:
        assert_type(ws, sync_client.ClientConnection)
        assert_type(ws.recv(), str | bytes)
        assert_type(ws.recv(timeout=5), str | bytes)
        assert_type(ws.recv(5, True), str)
        assert_type(ws.recv(decode=False), bytes)
        assert_type(ws.recv(decode=either), str | bytes)
        assert_type(ws.recv_streaming(decode=False), Generator[bytes, None, None])
        for message in ws:
            assert_type(message, str | bytes)
        ws.send(["a", "b"])
        ws.send(5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def sync_handler(ws: sync_server.ServerConnection) -> None:
    assert_type(ws.recv(decode=False), bytes)


def sync_serving() -> None:
    with sync_server.serve(sync_handler, "localhost", 8765) as server:
        server.serve_forever()


def patching() -> None:
    wirespeed.patch()
    wirespeed.unpatch()
