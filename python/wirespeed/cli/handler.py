"""What ``wirespeed serve`` runs for each connection: the echo, or what ``module:handler`` names."""

from __future__ import annotations

import importlib
import os
import re
import sys
from typing import Any

from .. import ServerConnection
from .status import CommandError, Status

__all__ = ["echo", "load"]


async def echo(ws: ServerConnection) -> None:
    """Send every message back.

    Args:
        ws: The connection.
    """
    async for message in ws:
        await ws.send(message)


def load(name: str) -> Any:
    """Import what a name stands for, from the current folder too.

    Args:
        name: ``module:handler``; both may have dots.

    Raises:
        CommandError: There is no such thing.
        Exception: What the module raises when it is imported.
    """
    match = re.fullmatch(r"([\w.]*\w):([\w.]*\w)", name)
    if match is None or name.startswith("."):
        raise CommandError(Status.USAGE, f"{name!r} is not of the form module:handler")
    module_name, path = match.groups()
    # As the interpreter does for a script that lies there.
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as exc:
        if not f"{module_name}.".startswith(f"{exc.name}."):
            raise  # it is there, and imports one that is not
        hint = f"; write {module_name.removesuffix('.py')}:{path}" if module_name.endswith(".py") else ""
        raise CommandError(Status.USAGE, f"there is no module {exc.name}, here or installed{hint}") from None
    for part in path.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            raise CommandError(Status.USAGE, f"there is no {path} in {module_name}") from None
    return found
