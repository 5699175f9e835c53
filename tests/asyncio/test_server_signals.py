"""A server in a process of its own, ended by signals."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from websockets.sync.client import connect

from support.asyncio_tools import SETTINGS as ALL
from support.asyncio_tools import Setting, new_loop
from support.checks import within
from support.children import Child
from support.frames import Close
from support.serving import Raw
from support.subject import IS_WIRESPEED

pytestmark = [
    pytest.mark.wirespeed_only("the server is ours"),
    pytest.mark.skipif(os.name != "posix", reason="needs the signals of POSIX"),
]

if IS_WIRESPEED:
    import wirespeed

SETTINGS = list({setting.loop: setting for setting in ALL}.values())


PROGRAM = """
import asyncio, signal, sys
sys.path.insert(0, sys.argv[1])
import wirespeed
from support.asyncio_tools import new_loop

async def handler(ws):
    try:
        async for message in ws:
            await ws.send(message)
        if ws.request.path == "/stubborn":
            await asyncio.sleep(60)
    except asyncio.CancelledError:
        print("cancelled", flush=True)
        raise

async def main():
    async with wirespeed.serve(handler, "127.0.0.1", 0) as server:
        server.close_on_signals(**eval(sys.argv[3]))
        print("port", server.sockets[0].getsockname()[1], flush=True)
        await server.wait_closed()
    print("default", signal.getsignal(signal.SIGTERM) is signal.SIG_DFL, flush=True)

loop = new_loop(sys.argv[2])
loop.run_until_complete(main())
loop.close()
print("end", flush=True)
"""


@pytest.fixture
def start(setting: Setting) -> Iterator[Callable[..., tuple[Child, str]]]:
    children: list[Child] = []

    def begin(**options: Any) -> tuple[Child, str]:
        folder = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
        child = Child([sys.executable, "-c", PROGRAM, folder, setting.loop, repr(options)])
        children.append(child)
        return child, f"ws://127.0.0.1:{int(child.read_until('port '))}"

    yield begin
    for child in children:
        child.stop()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal(start: Callable[..., tuple[Child, str]], number: int) -> None:
    """Connections are closed, handlers end, and the process ends by itself."""
    child, where = start()
    with connect(where, proxy=None) as ws:
        ws.send("x")
        assert ws.recv() == "x"
        with within(5):
            child.process.send_signal(number)
            assert child.read_line() == "default True"
            assert child.read_line() == "end"
            assert child.process.wait(5) == 0
    assert ws.close_code == 1001


def test_code_and_reason(start: Callable[..., tuple[Child, str]]) -> None:
    child, where = start(code=1012, reason="restarting")
    with connect(where, proxy=None) as ws:
        child.process.send_signal(signal.SIGTERM)
        child.read_until("end")
    assert (ws.close_code, ws.close_reason) == (1012, "restarting")


def test_second_signal(start: Callable[..., tuple[Child, str]]) -> None:
    """The second signal cancels handlers that do not end."""
    child, where = start()
    with connect(where + "/stubborn", proxy=None) as ws, within(5):
        child.process.send_signal(signal.SIGTERM)
        with pytest.raises(Exception, match="1001"):
            ws.recv(timeout=5)
        child.process.send_signal(signal.SIGTERM)
        assert child.read_line() == "cancelled"
        child.read_until("end")
        assert child.process.wait(5) == 0


@pytest.mark.parametrize("kind", ["listener", "handler"])
@pytest.mark.no_leaks
async def test_no_connection_is_left(kind: str) -> None:
    """The client does not answer: with a listener the second signal ends the connection, else the next signal while it
    is closing.
    """

    async def handler(ws: Any) -> None:
        await ws.wait_closed()

    served: dict[str, Any] = {"listener": wirespeed.Listener} if kind == "listener" else {}
    async with wirespeed.serve(None if served else handler, "127.0.0.1", 0, close_timeout=None, **served) as server:
        server.close_on_signals(signal.SIGUSR1)
        with await Raw.open(server) as raw, within(5):
            [ws] = server.connections
            waiting = asyncio.ensure_future(server.wait_closed())
            os.kill(os.getpid(), signal.SIGUSR1)
            assert (await raw.until_close())[1] == Close(1001)
            while not waiting.done():
                os.kill(os.getpid(), signal.SIGUSR1)
                await asyncio.sleep(0.01)
            assert ws.state.name == "CLOSED"
            assert await raw.rest() == b""


async def test_chosen_signals() -> None:
    """Only the named signals are handled; their handlers are restored when the server is closed."""

    async def handler(ws: Any) -> None:
        await ws.wait_closed()

    before = signal.getsignal(signal.SIGTERM)
    async with wirespeed.serve(handler, "127.0.0.1", 0) as server:
        server.close_on_signals(signal.SIGUSR1, signal.SIGUSR2, code=4000)
        assert signal.getsignal(signal.SIGTERM) is before
        ws = await wirespeed.connect(f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        os.kill(os.getpid(), signal.SIGUSR2)
        with within(3):
            await server.wait_closed()
        await ws.wait_closed()
        assert ws.close_code == 4000
    assert signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL


def test_other_thread(setting: Setting) -> None:
    """Signal handlers need the main thread."""
    outcome: list[BaseException] = []

    async def main() -> None:
        async with wirespeed.serve(lambda ws: ws.wait_closed(), "127.0.0.1", 0) as server:
            try:
                server.close_on_signals()
            except Exception as exc:
                outcome.append(exc)

    def work() -> None:
        loop = new_loop(setting.loop)
        loop.run_until_complete(main())
        loop.close()

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(10)
    assert len(outcome) == 1
    assert isinstance(outcome[0], (RuntimeError, ValueError))
