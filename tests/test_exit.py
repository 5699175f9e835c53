"""The process ends while a loop in a daemon thread is at work: quietly, whatever that thread is doing."""

from __future__ import annotations

import subprocess
import sys

import pytest

from interop.asyncio_tools import LOOPS

pytestmark = pytest.mark.wirespeed_only("it looks at what is ours")

# For the few processes of a test.
PATIENCE = 20.0

PROGRAM = """
import asyncio, sys, threading, time
import wirespeed

kind, port, mode, delay = sys.argv[1], sys.argv[2], sys.argv[3], float(sys.argv[4])
# The threads take turns as often as they can.
sys.setswitchinterval(1e-5)
busy = threading.Event()

class Echo(wirespeed.Listener):
    def __init__(self):
        self.count = 0

    def on_message(self, ws, message):
        self.count += 1
        if self.count == 20:
            busy.set()
        ws.send_nowait(message)

async def echo(ws):
    async for message in ws:
        await ws.send(message)

async def talk(uri):
    listener = {"listener": Echo()} if mode == "listener" else {}
    async with wirespeed.connect(uri, io_port=port, proxy=None, **listener) as ws:
        await ws.send("x")
        if listener:
            await asyncio.sleep(3600)
        for count in range(1_000_000_000):
            await ws.recv()
            await ws.send("x")
            if count == 20:
                busy.set()

async def main():
    handling = {"handler": None, "listener": Echo} if mode == "listener" else {"handler": echo}
    async with wirespeed.serve(host="127.0.0.1", port=0, io_port=port, **handling) as server:
        uri = "ws://127.0.0.1:%d/" % server.sockets[0].getsockname()[1]
        await asyncio.gather(talk(uri), talk(uri))

def run():
    if kind == "uvloop":
        import uvloop
        loop = uvloop.new_event_loop()
    else:
        loop = wirespeed.new_event_loop() if kind == "wirespeed" else asyncio.new_event_loop()
    loop.run_until_complete(main())

threading.Thread(target=run, daemon=True).start()
assert busy.wait(10)
time.sleep(delay)
"""

# Of the main thread, after the others are busy: in seconds.
DELAYS = [0.02, 0.05, 0.08]

CASES = [
    (loop, port, mode)
    for loop in LOOPS
    for port in ("fd", "transport")
    for mode in ("await", "listener")
    if not (loop == "wirespeed" and port == "transport")
]


@pytest.mark.parametrize(("loop", "port", "mode"), CASES, ids=["-".join(case) for case in CASES])
def test_exit(loop: str, port: str, mode: str) -> None:
    """No status but 0, and nothing is told: neither by the interpreter nor by a thread that was cut off."""
    for delay in DELAYS:
        command = [sys.executable, "-W", "ignore", "-c", PROGRAM, loop, port, mode, str(delay)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
        assert done.returncode == 0, done.stderr
        assert "Fatal" not in done.stderr
        assert "panicked" not in done.stderr
