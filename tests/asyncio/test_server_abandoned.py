"""Servers and connections that are collected as garbage after their loop was closed, in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from support.asyncio_tools import Setting

pytestmark = pytest.mark.wirespeed_only("the server is ours")

PROGRAM = """
import asyncio, gc, os, sys
sys.path.insert(0, sys.argv[1])
import wirespeed
from support.asyncio_tools import new_loop

port, how = sys.argv[3:]
kept = []

async def listen(ws):
    async for message in ws:
        await ws.send(message)

async def relay(ws):
    async with wirespeed.connect(kept[0], io_backend=port) as other:
        async for message in ws:
            await other.send(message)

class Listener(wirespeed.Listener):
    def on_message(self, ws, message):
        pass

def where(server):
    return f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}/"

async def left():
    for handler in (listen, relay, None):
        options = {} if handler else {"listener": Listener}
        server = await wirespeed.serve(handler, "127.0.0.1", 0, io_backend=port, **options)
        kept.append(where(server))
        kept.append(server)
        kept.append(await wirespeed.connect(where(server), io_backend=port))

async def inside():
    async with wirespeed.serve(listen, "127.0.0.1", 0, io_backend=port) as server:
        async with wirespeed.connect(where(server), io_backend=port) as ws:
            await ws.send("x")
            await ws.recv()
            kept.append(server)
            await asyncio.sleep(600)

def sockets():
    found = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            found += "socket:" in os.readlink(f"/proc/self/fd/{name}")
        except OSError:  # the one that listdir itself used
            pass
    return found

before = sockets()
loop = new_loop(sys.argv[2])
loop.run_until_complete(asyncio.sleep(0))
if how == "inside":
    task = loop.create_task(inside())
    while len(kept) < 1:
        loop.run_until_complete(asyncio.sleep(0.01))
    del task
else:
    loop.run_until_complete(left())
    loop.run_until_complete(asyncio.sleep(0.1))
loop.close()
if how == "close":
    # As in the `finally` of a program.
    for server in kept[1::3]:
        server.close()
        server.close()
    del server
kept.clear()
del loop
for _ in range(3):
    gc.collect()
print("left", sockets() - before)
"""


@pytest.mark.parametrize("how", ["left", "close", "inside"])
def test_collected_after_their_loop_was_closed(setting: Setting, how: str) -> None:
    """asyncio reports the pending tasks; only open resources are reported besides, and they are closed."""
    folder = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, folder, setting.loop, setting.io_backend, how],
        capture_output=True,
        text=True,
        timeout=50,
    )
    assert done.returncode == 0, done.stderr
    for words in ("Event loop is closed", "never awaited", "ignored", "Traceback", "failed"):
        assert words not in done.stderr, done.stderr
    assert done.stdout == "left 0\n"
