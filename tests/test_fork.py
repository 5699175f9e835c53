"""In a child made by ``os.fork`` a connection is a closed copy that writes nothing, and that of the parent
continues.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from typing import Any

import pytest

from support.asyncio_tools import SETTINGS, Setting
from support.certificates import Certificates
from support.scripted import Disconnected, Scripted, Wire
from support.servers import WebSocketsServer

pytestmark = [
    pytest.mark.wirespeed_only("it looks at what is ours"),
    pytest.mark.skipif(sys.platform != "linux", reason="no fork, or none that is safe"),
]


# For a whole script, with many children. Each child has a few seconds before the alarm.
PATIENCE = 40.0

COMMON = """
import asyncio, gc, json, os, signal, ssl, sys, threading
import wirespeed

settings = json.loads(sys.argv[1])
options = dict(compression=settings.get("compression"), ping_interval=settings.get("ping_interval"), proxy=None)
if settings.get("tls") == "native":
    options["ssl"] = wirespeed.TLS(ca=settings["ca"])
elif settings.get("tls") == "context":
    options["ssl"] = ssl.create_default_context(cafile=settings["ca"])

def child(action):
    # Fork, run action() in the child. The result, later: how the child ended, and what it has told.
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        signal.alarm(5)
        try:
            told = action()
        except SystemExit:
            raise
        except BaseException as exc:
            told = [type(exc).__name__, type(exc.__cause__).__name__]
        os.write(writing, json.dumps(told).encode())
        os._exit(0)
    os.close(writing)

    def result():
        with open(reading) as pipe:
            told = pipe.read()
        status = os.waitpid(pid, 0)[1]
        return json.loads(told or "null") if status == 0 else f"status {status}"

    return result

def new_loop():
    kind = settings["loop"]
    if kind == "uvloop":
        import uvloop
        return uvloop.new_event_loop()
    return wirespeed.new_event_loop() if kind == "wirespeed" else asyncio.new_event_loop()
"""

BLOCKING = (
    COMMON
    + """
import wirespeed.sync

box = [wirespeed.sync.connect(settings["uri"], **options)]

def exchange():
    for text in ("1", "2", "3"):
        box[0].send(text)
        assert box[0].recv(timeout=5) == text

def leave():
    with box[0]:
        pass
    return repr(box[0].state)

def collect():
    del box[:]
    gc.collect()

actions = {
    "send": lambda: box[0].send("x"),
    "send large": lambda: box[0].send(bytes(1 << 20)),
    "ping": lambda: box[0].ping(),
    "pong": lambda: box[0].pong(),
    "flush": lambda: box[0].flush(),
    "recv": lambda: box[0].recv(timeout=3),
    "close": lambda: box[0].close(),
    "abort": lambda: box[0].abort(),
    "state": lambda: repr(box[0].state),
    "stats": lambda: box[0].stats()["messages_sent"] > 0,
    "with": leave,
    "collect": collect,
    "exit": lambda: sys.exit(0),
}
results = {}
exchange()
for name, action in actions.items():
    result = child(action)
    exchange()
    results[name] = result()
    exchange()
box[0].close()
results["code"] = box[0].close_code
print(json.dumps(results))
"""
)

ASYNCIO = (
    COMMON
    + """
def step(make):
    # One step by hand, because the loop does not turn in the child.
    def action():
        try:
            make().send(None)
        except StopIteration as exc:
            return repr(exc.value)
        return "suspended"
    return action

async def main():
    box = [await wirespeed.connect(settings["uri"], io_backend=settings["port"], **options)]

    async def exchange():
        for text in ("1", "2", "3"):
            await box[0].send(text)
            assert await asyncio.wait_for(box[0].recv(), 5) == text

    def collect():
        del box[:]
        gc.collect()

    actions = {
        "send": step(lambda: box[0].send("x")),
        "send large": step(lambda: box[0].send(bytes(1 << 20))),
        "send_many": step(lambda: box[0].send_many(["x", "y"])),
        "ping": step(lambda: box[0].ping()),
        "pong": step(lambda: box[0].pong()),
        "flush": step(lambda: box[0].flush()),
        "recv": step(lambda: box[0].recv()),
        "close": step(lambda: box[0].close()),
        "wait_closed": step(lambda: box[0].wait_closed()),
        "abort": lambda: box[0].abort(),
        "state": lambda: repr(box[0].state),
        "stats": lambda: box[0].stats()["messages_sent"] > 0,
        "collect": collect,
    }
    results = {}
    await exchange()
    for name, action in actions.items():
        result = child(action)
        await exchange()
        results[name] = result()
        await exchange()
    await box[0].close()
    results["code"] = box[0].close_code
    print(json.dumps(results))

loop = new_loop()
loop.run_until_complete(main())
loop.close()
"""
)

REFUSED = ["ConnectionClosedError", "RuntimeError"]


def script(text: str, **settings: Any) -> Any:
    """Runs a script, and returns the JSON that it prints."""
    command = [sys.executable, "-W", "ignore", "-c", text, json.dumps(settings)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(params=["plain", "native", "context"])
def peer(
    request: pytest.FixtureRequest,
    server: WebSocketsServer,
    secure_server: WebSocketsServer,
    certificates: Certificates,
) -> dict[str, Any]:
    """Returns the address for a script."""
    if request.param == "plain":
        return {"uri": server.uri}
    return {"uri": secure_server.uri, "tls": request.param, "ca": certificates.ca_file}


def test_blocking(peer: dict[str, Any]) -> None:
    """In the child calls raise, ``close`` returns, and the end of the copy has no outside effect."""
    results = script(BLOCKING, **peer)
    refused = {name for name, result in results.items() if result == REFUSED}
    assert refused == {"send", "send large", "ping", "pong", "flush", "recv"}, results
    assert {name: result for name, result in results.items() if name not in refused} == {
        "close": None,
        "abort": None,
        "state": "<State.CLOSED: 3>",
        "stats": True,
        "with": "<State.CLOSED: 3>",
        "collect": None,
        "exit": None,
        "code": 1000,
    }


def check_steps(results: dict[str, Any]) -> None:
    refused = {name for name, result in results.items() if result == REFUSED}
    assert refused == {"send", "send large", "send_many", "ping", "pong", "flush", "recv"}, results
    assert {name: result for name, result in results.items() if name not in refused} == {
        "close": "None",
        "wait_closed": "None",
        "abort": None,
        "state": "<State.CLOSED: 3>",
        "stats": True,
        "collect": None,
        "code": 1000,
    }


def test_asyncio(peer: dict[str, Any]) -> None:
    """The first step in the child raises or returns: it never waits for a loop of the parent."""
    check_steps(script(ASYNCIO, **peer, loop="asyncio", port="fd"))


@pytest.mark.parametrize("setting", [setting for setting in SETTINGS if setting.io_backend == "fd"], ids=str)
def test_asyncio_loops(server: WebSocketsServer, setting: Setting) -> None:
    check_steps(script(ASYNCIO, uri=server.uri, loop=setting.loop, port=setting.io_backend))


@pytest.mark.parametrize("setting", [setting for setting in SETTINGS if setting.io_backend == "transport"], ids=str)
def test_asyncio_transports(server: WebSocketsServer, setting: Setting) -> None:
    check_steps(script(ASYNCIO, uri=server.uri, loop=setting.loop, port=setting.io_backend))


# The loop of the child


TURNING = (
    COMMON
    + """
async def main():
    async with wirespeed.connect(settings["uri"], io_backend="fd", **options) as ws:
        reading, writing = os.pipe()
        await ws.send("1")
        assert await asyncio.wait_for(ws.recv(), 5) == "1"
        results = {}
        for name in ("send", "ping", "flush", "recv", "pong", "close", "wait_closed"):
            reading, writing = os.pipe()
            pid = os.fork()
            if pid == 0:
                signal.alarm(5)
                try:
                    await (ws.send("x") if name == "send" else getattr(ws, name)())
                    told = None
                except BaseException as exc:
                    told = [type(exc).__name__, type(exc.__cause__).__name__]
                os.write(writing, json.dumps(told).encode())
                os._exit(0)
            os.close(writing)
            for text in ("1", "2", "3"):
                await ws.send(text)
                assert await asyncio.wait_for(ws.recv(), 5) == text
            with open(reading) as pipe:
                told = pipe.read()
            status = os.waitpid(pid, 0)[1]
            results[name] = json.loads(told) if status == 0 else f"status {status}"
    print(json.dumps(results))

asyncio.run(main())
"""
)


def test_asyncio_awaited(peer: dict[str, Any]) -> None:
    results = script(TURNING, **peer)
    assert results == {
        **dict.fromkeys(["send", "ping", "flush", "recv", "pong"], REFUSED),
        "close": None,
        "wait_closed": None,
    }


# Keepalive


KEEPALIVE = (
    COMMON
    + """
import time

# The child lives for a few intervals, and looks at its copy.
def look():
    end = time.monotonic() + 0.4
    while time.monotonic() < end:
        box[0].latency, box[0].state
        time.sleep(0.01)
    del box[:]
    gc.collect()

box = []

if settings["api"] == "sync":
    import wirespeed.sync
    box.append(wirespeed.sync.connect(settings["uri"], ping_timeout=5, **options))
    result = child(look)
    end = time.monotonic() + 0.6
    while time.monotonic() < end:
        box[0].send("1")
        assert box[0].recv(timeout=5) == "1"
    latency = box[0].latency
    told = result()
    box[0].close()
else:
    async def main():
        global latency, told
        box.append(await wirespeed.connect(settings["uri"], io_backend="fd", ping_timeout=5, **options))
        result = child(look)
        end = time.monotonic() + 0.6
        while time.monotonic() < end:
            await box[0].send("1")
            assert await asyncio.wait_for(box[0].recv(), 5) == "1"
        latency = box[0].latency
        told = result()
        await box[0].close()

    asyncio.run(main())

print(json.dumps([told, latency > 0, box[0].close_code]))
"""
)


@pytest.mark.parametrize("api", ["sync", "asyncio"])
def test_keepalive(peer: dict[str, Any], api: str) -> None:
    """The parent sends the pings, before and after the child has ended."""
    assert script(KEEPALIVE, **peer, api=api, ping_interval=0.05) == [None, True, 1000]


# In the middle of a call of another thread


MIDDLE = (
    COMMON
    + """
import time
import wirespeed.sync

ready = threading.Event()
if settings["api"] == "sync":
    ws = wirespeed.sync.connect(settings["uri"], **options)
    ready.set()

    def send():
        while True:
            ws.send(bytes(8 << 20))
else:
    async def main():
        global ws
        ws = await wirespeed.connect(settings["uri"], io_backend="fd", **options)
        ready.set()
        while True:
            await ws.send(bytes(1 << 20))

    def send():
        asyncio.new_event_loop().run_until_complete(main())

def end():
    if settings["api"] == "sync":
        ws.close()
        ws.abort()
    else:
        ws.abort()
    return repr(ws.state)

thread = threading.Thread(target=send, daemon=True)
thread.start()
assert ready.wait(5)
while not ws.stats()["messages_sent"]:
    time.sleep(0.001)
results = []
for _ in range(30):
    results.append(child(end)())
    if results[-1] != "<State.CLOSED: 3>":
        break
sent = ws.stats()["messages_sent"]
deadline = time.monotonic() + 5
while ws.stats()["messages_sent"] == sent and time.monotonic() < deadline:
    time.sleep(0.001)
print(json.dumps([results, ws.stats()["messages_sent"] > sent]), flush=True)
os._exit(0)
"""
)


@pytest.mark.parametrize("compression", [None, "deflate"])
@pytest.mark.parametrize("api", ["sync", "asyncio"])
def test_in_the_middle_of_a_send(scripted: Scripted, api: str, compression: str | None) -> None:
    """A lock that another thread holds at the fork is held in the child forever: it must not be acquired."""

    def take(wire: Wire) -> None:
        wire.accept()
        with contextlib.suppress(Disconnected, OSError):
            while wire.sock.recv(1 << 20):
                pass

    sink = scripted(take)
    results, goes_on = script(MIDDLE, uri=sink.uri, api=api, compression=compression)
    assert results == ["<State.CLOSED: 3>"] * 30
    assert goes_on
