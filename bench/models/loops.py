"""The event loops that the asyncio peers run on, by the names that scenarios use."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Coroutine
from typing import Any

from models.program import Library

__all__ = ["LIBRARIES", "LOOPS", "run"]

# The standard library's own loop; two others; the one of wirespeed.run.
LOOPS = ("asyncio", "uvloop", "rloop", "run")

LIBRARIES = {
    "asyncio": None,
    "uvloop": Library("uvloop", "uvloop"),
    "rloop": Library("rloop", "rloop"),
    "run": Library("wirespeed", "wirespeed"),
}


def run(name: str, main: Coroutine[Any, Any, None]) -> None:
    """Runs a coroutine on a loop of that name."""
    if name == "run":
        importlib.import_module("wirespeed").run(main)
        return
    factory = asyncio.SelectorEventLoop if name == "asyncio" else importlib.import_module(name).new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(main)
