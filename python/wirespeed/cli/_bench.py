"""``wirespeed bench``: the benchmarks, which are part of the source and not of the installed package."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ._status import CommandError, Status

if TYPE_CHECKING:
    from pathlib import Path

    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]

__all__ = ["add_parser", "run"]

DESCRIPTION = "compare wirespeed with its rivals on this machine: list, run, report, compare"
SOURCE = "https://github.com/wirespeed/wirespeed"


def add_parser(subparsers: Subparsers) -> None:
    """Add this command to the help; its own arguments are for the benchmarks to parse.

    Args:
        subparsers: What ``add_subparsers`` returned.
    """
    parser = subparsers.add_parser("bench", help=DESCRIPTION, add_help=False)
    parser.set_defaults(run=lambda parsed: run([]))


def run(arguments: Sequence[str]) -> int:
    """Run the benchmarks and return their exit status.

    Args:
        arguments: What follows ``bench`` on the command line.

    Raises:
        CommandError: They are not here, or something that they need is not.
    """
    if sys.version_info < (3, 11):
        raise CommandError(Status.FAILED, "the benchmarks need Python 3.11 or newer")
    folder = _find()
    if folder is None:
        raise CommandError(
            Status.FAILED,
            "the benchmarks are part of the source, not of the package: "
            f"git clone {SOURCE}, and run this inside the clone (make bench-quick there installs the rivals, too)",
        )
    sys.path.insert(0, str(folder))
    try:
        command = importlib.import_module("harness.command")
    except ModuleNotFoundError as exc:
        text = f'the benchmarks need {exc.name}: pip install "wirespeed[bench]"'
        raise CommandError(Status.FAILED, text) from None
    try:
        return int(command.main(arguments, "wirespeed bench"))
    except SystemExit as exc:  # of argparse, or after SIGTERM
        return int(exc.code or 0)


def _find() -> Path | None:
    """Return the folder of the benchmarks: in the clone around the current folder, or in that of the package."""
    from pathlib import Path

    here = Path.cwd()
    for clone in (here, *here.parents, Path(__file__).resolve().parents[3]):
        folder = clone / "bench"
        if (folder / "harness" / "command.py").is_file() and (clone / "crates" / "bench").is_dir():
            return folder
    return None
