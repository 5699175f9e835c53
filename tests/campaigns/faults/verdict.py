"""Runs a cell of any fault; what was wrong is an exception."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from support.certificates import Certificates

from . import network_cell
from .lifetimes import LIFETIMES, run_lifetime
from .network import Network, run_over
from .table import Cell


def run_cell(
    cell: Cell, certificates: Certificates, folder: Path, clock: Callable[[], str], network: Network | None = None
) -> None:
    """Runs a cell.

    Args:
        cell: The cell.
        certificates: For TLS.
        folder: For files.
        clock: Makes the library that moves the clock.
        network: The emulated network, for lost packets.
    """
    if cell.fault in LIFETIMES:
        run_lifetime(cell, certificates, folder, clock)
    elif cell.fault == "loss":
        assert network is not None
        run_over(network, cell, certificates)
    else:
        network_cell.run_cell(cell, certificates)
