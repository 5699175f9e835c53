"""Runs a cell in a process of its own, which ends in the middle of it, or whose clock is moved."""

from __future__ import annotations

import functools
import os
import struct
import sys
import threading
import time
from pathlib import Path

from support.certificates import Certificates

from . import network_cell
from .table import APIS, Cell

DAY = 24 * 3600.0


def _move_clock(seconds: float) -> None:
    """Moves the wall clock of this process, and checks that it has moved."""
    before = time.time()
    with open(os.environ["FAULTS_CLOCK"], "r+b") as file:
        file.write(struct.pack("@q", int(seconds)))
    assert abs(time.time() - before - seconds) < 60, "the clock does not move"


def _run_until_the_end(cell: Cell, certificates: Certificates) -> None:
    """Returns while the conversation is at its stage, in daemon threads."""
    reached = threading.Event()

    def strike() -> None:
        reached.set()
        threading.Event().wait()

    run = network_cell.run_server_cell if cell.api.is_server else network_cell.run_client_cell
    threading.Thread(target=run, args=[cell, certificates, strike], daemon=True).start()
    assert reached.wait(30), "the stage is not reached"
    # The waiting thread is to be in its call by now.
    time.sleep(0.05)


def main(fault: str, stage: str, api: str, folder: str) -> None:
    """Runs a cell; prints ``done`` on success."""
    cell = Cell(fault, stage, next(found for found in APIS if str(found) == api))
    certificates = Certificates(Path(folder))
    if fault == "exit":
        _run_until_the_end(cell, certificates)
    else:
        move = functools.partial(_move_clock, -DAY if fault == "clock-back" else DAY)
        run = network_cell.run_server_cell if cell.api.is_server else network_cell.run_client_cell
        network_cell.check_log(cell, *run(cell, certificates, move))
    print("done")
    sys.stdout.flush()
