"""The main function: parses the command line, runs a subcommand and returns its exit status."""

from __future__ import annotations

import argparse
import contextlib
import os
from collections.abc import Sequence

from .._version import __version__
from . import _connect as connect
from . import _engine as engine
from . import _serve as serve
from ._status import CommandError, Status
from ._writing import write_all

__all__ = ["main"]

COMMANDS = (connect, serve, engine)
"""Modules with ``add_parser(subparsers)``, which sets ``run`` to a function of the arguments that returns a status."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status.

    Args:
        arguments: The arguments without the program name; by default those of this process.
    """
    try:
        try:
            parsed = _make_parser().parse_args(arguments)
        except SystemExit as exc:
            return int(exc.code or 0)
        _fill_standard_streams()
        return int(parsed.run(parsed))
    except CommandError as exc:
        with contextlib.suppress(OSError):
            write_all(2, f"wirespeed: {exc}\n".encode())
        return exc.status
    except KeyboardInterrupt:
        return Status.INTERRUPTED


def _fill_standard_streams() -> None:
    """Open /dev/null for standard streams that are closed, so that no socket gets their descriptor."""
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)


def _make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="wirespeed", description="WebSockets on the command line.", allow_abbrev=False
    )
    parser.add_argument("--version", action="version", version=f"wirespeed {__version__}")
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in COMMANDS:
        command.add_parser(subparsers)
    return parser
