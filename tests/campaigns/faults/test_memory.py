"""Lack of memory is a MemoryError or a failed connection, and never the end of the process.

Python's allocations fail one after the other. Memory that a peer can make grow by sending is bounded by the address
space of a process: there the message that does not fit ends its own connection.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from pathlib import Path

import pytest

import wirespeed
from support.load_scaling import load_scaled
from support.samples import sample
from support.servers import WebSocketsServer

pytestmark = [
    pytest.mark.wirespeed_only("it looks at what is ours"),
    pytest.mark.skipif(sys.platform != "linux", reason="it is measured in /proc"),
]

# By the kind of waiting, and whether it is the accepting end.
ENDS = [f"{way}{end}" for way in ("sync", "fd", "transport") for end in ("", "-server")]

# A message of one frame, or of fragments.
HOW = ("frame", "fragments")

PATH = [str(Path(__file__).parents[2]), str(Path(wirespeed.__file__).parents[1])]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    # A third of the ends for the calls; for growing messages two of twelve, one of each kind.
    tables: dict[str, tuple[tuple[str, ...], list[tuple[str, ...]], int]] = {
        "test_allocations_of_python_fail_one_by_one": (("api",), [(end,) for end in ENDS], 3),
        "test_message_larger_than_memory": (("api", "how"), list(itertools.product(ENDS, HOW)), 7),
        "test_message_larger_than_memory_of_an_engine": (("how",), [(how,) for how in HOW], 2),
    }
    names, cases, share = tables[metafunc.function.__name__]
    if not metafunc.config.getoption("--campaign"):
        cases = sample(cases, share, metafunc.config.getoption("--rotation"))
    metafunc.parametrize(names, cases, ids=["-".join(case) for case in cases])


def run(program: str, *arguments: str) -> list[str]:
    """Returns the lines that a program prints, which must succeed."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", f"import sys\nsys.path[:0] = {PATH!r}\n{program}", *arguments],
        capture_output=True,
        text=True,
        timeout=load_scaled(80),
        check=False,
        env={**os.environ, "RUST_BACKTRACE": "0"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()


ONE_BY_ONE = '''
import _testcapi
import asyncio, atexit, queue, subprocess, threading
import wirespeed, wirespeed.sync

uri, api = sys.argv[1:]
options = dict(proxy=None, compression=None, ping_interval=None)
large = b"y" * 300_000

# Lack of memory raises a MemoryError. Known exceptions: CPython's "can't allocate lock", and, for small objects whose
# creation PyO3 considers infallible, a panic, which is an exception.
KNOWN = ("can't allocate lock", "PyObject pointer is null", "internal error: a panic, see standard error")

def is_documented(exc):
    return isinstance(exc, (MemoryError, wirespeed.ConnectionClosed, OSError)) or str(exc) in KNOWN

def of_blocking(ws):
    def probe():
        ws[0].send("probe")
        while ws[0].recv(10) != "probe":
            pass
    def echo(message):
        def call():
            ws[0].send(message)
            return ws[0].recv(10)
        return call
    calls = dict(
        send=lambda: ws[0].send("x" * 1000), large=lambda: ws[0].send(large), echo=echo("x" * 1000),
        echo_large=echo(large), ping=lambda: ws[0].ping(), send_many=lambda: ws[0].send_many(["a", "b"]),
    )
    return calls, lambda: ws[0].state, probe

def blocking():
    ws = [wirespeed.sync.connect(uri, **options)]
    def again():
        ws[0] = wirespeed.sync.connect(uri, **options)
    calls, state, probe = of_blocking(ws)
    calls["connect"] = lambda: wirespeed.sync.connect(uri, **options).close()
    return calls, state, probe, again, lambda: ws[0].close()

loop = asyncio.new_event_loop()
loop.set_exception_handler(lambda *_: None)

def run(make):
    return loop.run_until_complete(asyncio.wait_for(make(), 20))

def of_awaiting(ws):
    async def probing():
        await ws[0].send("probe")
        while await ws[0].recv() != "probe":
            pass
    async def pinging():
        await ws[0].ping()
    # Of a loop's own allocations nothing is promised: only the calls are made without memory, by hand.
    def step(make):
        def call():
            coroutine = make()
            try:
                coroutine.send(None)
            except StopIteration:
                return
            coroutine.close()
        return call
    calls = dict(
        send=step(lambda: ws[0].send("x" * 1000)), large=step(lambda: ws[0].send(large)),
        recv=step(lambda: ws[0].recv()), ping=step(pinging), nowait=lambda: ws[0].send_nowait("x"),
    )
    return calls, lambda: ws[0].state, lambda: run(probing)

def awaiting():
    async def connect():
        return await wirespeed.connect(uri, io_backend=api, **options)
    ws = [run(connect)]
    def again():
        ws[0] = run(connect)
    return *of_awaiting(ws), again, lambda: run(ws[0].close)

PEER = """
import sys
import wirespeed.sync
# Each time that the server has closed, a new one.
while True:
    try:
        with wirespeed.sync.connect(sys.argv[1], proxy=None, compression=None, ping_interval=None) as ws:
            for message in ws:
                ws.send(message)
    except wirespeed.ConnectionClosed:
        pass
    except OSError:
        break
"""

def start_peer(port):
    # Another process, whose allocations do not fail.
    command = [sys.executable, "-c", f"import sys\\nsys.path[:0] = {sys.path!r}\\n{PEER}", f"ws://127.0.0.1:{port}/"]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    atexit.register(process.kill)

def blocking_server():
    connections = queue.SimpleQueue()
    def handler(ws):
        over = threading.Event()
        connections.put((ws, over))
        over.wait()
    server = wirespeed.sync.serve(handler, "127.0.0.1", 0, compression=None, ping_interval=None)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    start_peer(server.sockets[0].getsockname()[1])
    first, over = connections.get(timeout=20)
    ws, events = [first], [over]
    def again():
        ws[0].close()
        events[0].set()
        ws[0], events[0] = connections.get(timeout=20)
    def close():
        events[0].set()
        server.shutdown()
    return *of_blocking(ws), again, close

def awaiting_server():
    connections = asyncio.Queue()
    async def handler(ws):
        connections.put_nowait(ws)
        await ws.wait_closed()
    async def start():
        return await wirespeed.serve(
            handler, "127.0.0.1", 0, compression=None, ping_interval=None, io_backend=api.removesuffix("-server")
        )
    server = run(start)
    start_peer(server.sockets[0].getsockname()[1])
    ws = [run(connections.get)]
    async def another():
        await ws[0].close()
        ws[0] = await connections.get()
    async def stop():
        server.close()
        await server.wait_closed()
    calls, state, probe = of_awaiting(ws)
    calls["broadcast"] = lambda: wirespeed.broadcast([ws[0]], "x" * 1000)
    return calls, state, probe, lambda: run(another), lambda: run(stop)

make = {"sync": blocking, "sync-server": blocking_server}.get(api, awaiting_server if "server" in api else awaiting)
calls, state, probe, again, close = make()
failures = 0
for name, call in calls.items():
    call()
    number = successes = 0
    # It may succeed without one that failed.
    while successes < 3:
        number += 1
        assert number < 5000, name
        _testcapi.set_nomemory(number, number + 1)
        try:
            call()
            _testcapi.remove_mem_hooks()
            successes += 1
        except BaseException as exc:
            _testcapi.remove_mem_hooks()
            assert is_documented(exc), (name, number, repr(exc))
            successes = 0
            failures += 1
        # The connection goes on, or it is closed.
        if state() == wirespeed.State.OPEN:
            try:
                probe()
            except wirespeed.ConnectionClosed:
                again()
        else:
            again()
close()
print("failures", failures)
'''


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="the interpreter itself is not ready for it in all places")
def test_allocations_of_python_fail_one_by_one(server: WebSocketsServer, api: str) -> None:
    pytest.importorskip("_testcapi")
    (line,) = run(ONE_BY_ONE, server.uri, api)
    # A blocking connection makes few Python objects in a call; a client therefore also opens another connection.
    assert int(line.removeprefix("failures ")) >= (3 if api == "sync-server" else 6)


GROWING = """
import asyncio, queue, resource, socket, struct, threading
import wirespeed, wirespeed.sync
from campaigns.faults.peer import Gone, Peer
from wirespeed.engine import Disconnected, Engine, Message

api, how = sys.argv[1:]
BLOCK = bytes(2**20)
# More than there is room for, though another thread was given much when the limit was set, and has given it back.
BLOCKS = 800
ROOM = 2**27

def limit():
    with open("/proc/self/status") as status:
        (size,) = [int(line.split()[1]) for line in status if line.startswith("VmSize")]
    most = size * 1024 + ROOM
    resource.setrlimit(resource.RLIMIT_AS, (most, most))

def flood(peer):
    try:
        peer.open()
        ready.wait(20)
        mask = b"" if peer.is_server else bytes(4)
        if how == "frame":
            peer.write(struct.pack("!BBQ", 0x82, (0 if peer.is_server else 0x80) | 127, BLOCKS << 20) + mask)
        for number in range(BLOCKS):
            peer.write(BLOCK if how == "frame" else peer.encode(0 if number else 2, BLOCK, fin=False))
        while True:
            peer.receive()
    except Gone as exc:
        print("peer", exc.code)

ready = threading.Event()
options = dict(max_size=None, max_fragments=None, compression=None, close_timeout=5)
if api.startswith("engine"):
    with Engine("127.0.0.1", workers=1, max_size=None, max_fragments=None, close_timeout=5) as engine:
        first = Peer(socket.create_connection(engine.addresses[0]), is_server=False)
        thread = threading.Thread(target=flood, args=[first])
        limit()
        ready.set()
        thread.start()
        for batch in engine.batches(timeout=40):
            assert batch, "nothing has happened"
            over = [event for event in batch if isinstance(event, Disconnected)]
            if over:
                break
        thread.join(20)
        assert engine.stats()["panics"] == 0
        # Others are served.
        other = Peer(socket.create_connection(engine.addresses[0]), is_server=False)
        other.open()
        other.send(b"other")
        for batch in engine.batches(timeout=20):
            assert batch, "no client is served"
            for event in batch:
                if isinstance(event, Message):
                    event.session.send(event.data)
                    other.receive()
                    assert other.received == [b"other"]
                    other.close()
            if other.received:
                break
    print("subject", over[0].code)
elif api.endswith("server"):
    ended = queue.SimpleQueue()
    def report(exc):
        ended.put(f"subject {exc.sent.code} {type(exc.__cause__).__name__}")
    def attack(port):
        first = Peer(socket.create_connection(("127.0.0.1", port)), is_server=False)
        thread = threading.Thread(target=flood, args=[first])
        limit()
        ready.set()
        thread.start()
        print(ended.get(timeout=60))
        thread.join(20)
        # Others are served.
        other = Peer(socket.create_connection(("127.0.0.1", port)), is_server=False)
        other.open()
        other.send(b"other")
        other.receive()
        assert other.received == [b"other"]
        other.close()
    if api == "sync-server":
        def handler(ws):
            try:
                for message in ws:
                    ws.send(message)
            except wirespeed.ConnectionClosedError as exc:
                report(exc)
        with wirespeed.sync.serve(handler, "127.0.0.1", 0, **options) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            attack(server.sockets[0].getsockname()[1])
    else:
        async def handler(ws):
            try:
                async for message in ws:
                    await ws.send(message)
            except wirespeed.ConnectionClosedError as exc:
                report(exc)
        async def main():
            port = api.removesuffix("-server")
            async with wirespeed.serve(handler, "127.0.0.1", 0, io_backend=port, **options) as server:
                await asyncio.to_thread(attack, server.sockets[0].getsockname()[1])
        asyncio.run(main())
else:
    listener = socket.create_server(("127.0.0.1", 0))
    def serve():
        flood(Peer(listener.accept()[0], is_server=True))
    thread = threading.Thread(target=serve)
    thread.start()
    uri = f"ws://127.0.0.1:{listener.getsockname()[1]}/"
    def report(exc):
        print("subject", exc.sent.code, type(exc.__cause__).__name__)
    if api == "sync":
        ws = wirespeed.sync.connect(uri, proxy=None, **options)
        limit()
        ready.set()
        try:
            ws.recv(60)
        except wirespeed.ConnectionClosedError as exc:
            report(exc)
        ws.close()
    else:
        async def main():
            ws = await wirespeed.connect(uri, proxy=None, io_backend=api, **options)
            limit()
            ready.set()
            try:
                await asyncio.wait_for(ws.recv(), 60)
            except wirespeed.ConnectionClosedError as exc:
                report(exc)
            await ws.close()
        asyncio.run(main())
    thread.join(20)
"""


def test_message_larger_than_memory(api: str, how: str) -> None:
    """Without limits, a peer may send a message that does not fit: the connection fails with code 1011 and a clear
    reason.
    """
    assert "subject 1011 MemoryError" in run(GROWING, api, how)


def test_message_larger_than_memory_of_an_engine(how: str) -> None:
    """Its session ends, the engine does not."""
    assert "subject 1006" in run(GROWING, "engine", how)
