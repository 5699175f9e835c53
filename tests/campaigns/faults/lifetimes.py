"""Connections without an explicit end: dropped ones, cycles, a closed loop, a process that ends."""

from __future__ import annotations

import contextlib
import functools
import gc
import logging
import os
import socket
import subprocess
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

from campaigns.common.program import command
from support.asyncio_tools import new_loop
from support.certificates import Certificates
from support.checks import no_leaks
from support.load_scaling import load_scaled
from support.threads import no_threads_left

from .clients import DOCUMENTED, Plan, make_client, run_client
from .conversation import Log, converse
from .network_cell import Far, client_tls
from .peer import Peer
from .table import Cell

LIFETIMES = ("forgotten", "cycle", "loop-closed", "exit", "clock-back", "clock-on")
PATIENCE = 30.0


@contextlib.contextmanager
def _peer(cell: Cell, certificates: Certificates, strike: Callable[[], None]) -> Iterator[tuple[Plan, list[Peer]]]:
    """Yields a dialled peer; when the block is left, the peer must have seen the end of the connection."""
    scheme, tls, context = client_tls(cell, certificates)
    peers: list[Peer] = []

    def accept() -> Peer:
        peers.append(Peer(listener.accept()[0], is_server=True, context=context))
        return peers[0]

    # A small buffer, so that a sender of much data blocks before the peer begins to read.
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 32768)
        listener.settimeout(PATIENCE)
        far = Far(cell, accept, strike, stuck=lambda: time.sleep(0.1))
        options = {"open_timeout": 20.0, "ping_interval": None, "close_timeout": 5.0}
        host = "localhost" if cell.is_secure else "127.0.0.1"
        yield Plan(f"{scheme}://{host}:{listener.getsockname()[1]}/", options, tls), peers
        far.join()


def _forgotten(cell: Cell, certificates: Certificates) -> None:
    """The connection warns, and the peer gets a close frame, as documented."""
    log = Log()
    time_to_forget = threading.Event()
    with _peer(cell, certificates, time_to_forget.set) as (plan, peers):
        plan.forget = time_to_forget
        plan.in_a_cycle = cell.fault == "cycle"
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            conversation = functools.partial(converse, stage="forget", documented=DOCUMENTED)
            run_client(cell.api.name, cell.api.setting, plan, log, conversation)
        texts = [str(warning.message) for warning in caught if warning.category is ResourceWarning]
        # Log records keep the objects that they refer to.
        caught.clear()
    assert log.wrong is None, log.wrong
    assert log.error is None, log.error
    assert [reference() for reference in log.watched] == [None]
    assert [text for text in texts if text.startswith("unclosed connection")], texts
    assert peers[0].code == 1001


def _loop_closed(cell: Cell, certificates: Certificates) -> None:
    """At any stage, the socket is closed when the connection, or the loop, is no longer referenced."""
    assert cell.api.setting is not None
    loop = new_loop(cell.api.setting.loop)
    loops = [loop]
    log = Log()
    logger = logging.getLogger("asyncio")
    level = logger.level

    struck, stopped = threading.Event(), threading.Event()

    def strike() -> None:
        loops[0].call_soon_threadsafe(loops[0].stop)
        struck.set()
        # Nothing more is to arrive while it runs.
        assert stopped.wait(PATIENCE)

    with _peer(cell, certificates, strike) as (plan, _):
        app = make_client(cell.api.name, cell.api.setting, plan, log)
        task = loop.create_task(converse(app, cell.stage, DOCUMENTED))
        # While another thread's collection runs, that of this one would do nothing.
        gc.disable()
        try:
            # asyncio rightly reports that a pending task was destroyed.
            logger.setLevel(logging.CRITICAL)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                loop.set_exception_handler(lambda *_: None)
                loop.run_forever()
                loop.close()
                # Until then the other thread holds the loop.
                assert struck.wait(PATIENCE)
                stopped.set()
                loops.clear()
                del loop, task, app
                gc.collect()
        finally:
            gc.enable()
            logger.setLevel(level)
    assert log.wrong is None, log.wrong
    assert [reference() for reference in log.watched] == [None] * len(log.watched)


def _child(cell: Cell, folder: Path, **environment: str) -> None:
    """Runs the cell in a process of its own, which must succeed silently."""
    done = subprocess.run(
        ["env", "PYTHONWARNINGS=ignore", *command("faults.child", cell.fault, cell.stage, str(cell.api), str(folder))],
        capture_output=True,
        text=True,
        timeout=load_scaled(60),
        check=False,
        env={**os.environ, **environment},
    )
    assert (done.returncode, done.stderr, done.stdout) == (0, "", "done\n"), done.stdout + done.stderr


def make_clock(folder: Path) -> str:
    """Compiles the library that moves the clock of a process that preloads it."""
    made, source = folder / "clock.so", Path(__file__).with_name("clock.c")
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", str(made), str(source)], check=True, timeout=60)
    return str(made)


def run_lifetime(cell: Cell, certificates: Certificates, folder: Path, clock: Callable[[], str]) -> None:
    """Runs a cell of one of ``LIFETIMES``.

    Args:
        cell: The cell.
        certificates: For TLS.
        folder: For files.
        clock: Makes the library that moves the clock.
    """
    if cell.fault == "exit":
        _child(cell, folder)
    elif cell.fault.startswith("clock"):
        offsets = folder / "offset"
        offsets.write_bytes(bytes(8))
        _child(cell, folder, LD_PRELOAD=clock(), FAULTS_CLOCK=str(offsets))
    else:
        with no_leaks(), no_threads_left():
            (_loop_closed if cell.fault == "loop-closed" else _forgotten)(cell, certificates)
