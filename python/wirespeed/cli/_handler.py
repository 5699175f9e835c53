"""The handlers of ``wirespeed serve``: the echo, or the object that ``module:handler`` names."""

from __future__ import annotations

import importlib
import os
import re
import sys
from typing import Any

from .. import ServerConnection
from ._status import CommandError, Status

__all__ = ["echo", "load"]


_CLOSE = re.compile(r"/close\?code=(100[0-37-9]|101[0-4]|[34][0-9]{3})")
"""The path that requests a close code which may be sent (RFC 6455, section 7.4)."""


async def echo(ws: ServerConnection) -> None:
    """Send every message back; a connection to ``/close?code=N`` is closed with that code.

    Args:
        ws: The connection.
    """
    asked = _CLOSE.fullmatch(ws.request.path)
    if asked is not None:
        await ws.close(int(asked[1]))
    async for message in ws:
        await ws.send(message)


def load(name: str) -> Any:
    """Import an object by its name; modules in the current folder are found too.

    Args:
        name: ``module:handler``; both may contain dots.

    Raises:
        CommandError: The module or the object does not exist.
        Exception: The exception of importing the module.
    """
    match = re.fullmatch(r"([\w.]*\w):([\w.]*\w)", name)
    if match is None or name.startswith("."):
        raise CommandError(Status.USAGE, f"{name!r} is not of the form module:handler")
    module_name, path = match.groups()
    # Like the interpreter for a script in the current folder.
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as exc:
        if not f"{module_name}.".startswith(f"{exc.name}."):
            raise  # the module exists, but imports one that does not
        hint = f"; write {module_name.removesuffix('.py')}:{path}" if module_name.endswith(".py") else ""
        raise CommandError(Status.USAGE, f"there is no module {exc.name}, here or installed{hint}") from None
    for part in path.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            raise CommandError(Status.USAGE, f"there is no {path} in {module_name}") from None
    return found
