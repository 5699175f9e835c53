"""Option values, exit statuses and output that all commands share."""

from __future__ import annotations

import argparse
import enum
import importlib
import math
import os
import re
import select
import sys
from typing import TYPE_CHECKING, Any

from .._lazy import ssl
from .._redaction import printable
from ..exceptions import InvalidStatus

if TYPE_CHECKING:
    from .. import TLS

__all__ = [
    "CommandError",
    "PORT",
    "Status",
    "describe",
    "limit",
    "load",
    "parse_count",
    "parse_seconds",
    "parse_size",
    "server_tls",
    "write_all",
]


class Status(enum.IntEnum):
    """Exit statuses."""

    OK = 0
    """The connection was closed properly, by either end."""

    FAILED = 1
    """The connection could not be opened, or the standard output could not be written."""

    USAGE = 2
    """The command line is wrong."""

    LOST = 3
    """The connection was lost, or closed with a code for an error."""

    DATA = 4
    """The standard input does not match the options: it is not UTF-8, or with ``--json`` not JSON."""

    INTERRUPTED = 130
    """SIGINT, or Ctrl-C."""

    BROKEN_PIPE = 141
    """The reader of the standard output has closed the pipe."""

    TERMINATED = 143
    """SIGTERM."""


class CommandError(Exception):
    """Ends the command with an exit status and a message of one line."""

    def __init__(self, status: Status, text: str) -> None:
        super().__init__(text)
        self.status = status


def describe(exc: BaseException) -> str:
    """Return an error as a text of one line.

    Args:
        exc: The exception.
    """
    hint = ""
    text = str(exc)
    if isinstance(exc, ssl.SSLCertVerificationError):
        hint = " (--ca trusts another authority, --insecure any certificate)"
    elif isinstance(exc, InvalidStatus) and exc.response.status_code == 401:
        hint = " (log in by wss://user:password@host/, or by --header Authorization:...)"
    elif isinstance(exc, TimeoutError) and exc.errno is None:
        hint = " (--timeout sets the limit)"
    elif isinstance(exc, OSError) and exc.strerror is not None:
        # Without the error number that str() includes.
        text = exc.strerror if exc.filename is None else f"{exc.strerror}: {exc.filename}"
    return printable(text or type(exc).__name__) + hint


PORT = 8765
"""The default port of servers, used in all examples."""


def parse_seconds(text: str) -> float:
    """Return a number of seconds; ``inf`` is allowed.

    Args:
        text: The argument.

    Raises:
        ArgumentTypeError: It is not a number of seconds.
    """
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1
    if not seconds >= 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds")
    return seconds


def parse_count(text: str) -> int:
    """Return a number that is at least 1.

    Args:
        text: The argument.

    Raises:
        ArgumentTypeError: It is not a positive number.
    """
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number")
    return int(text)


def parse_size(text: str) -> int | None:
    """Return a number of bytes, ``None`` for ``none``.

    Args:
        text: The argument: ``1048576``, ``16M`` or ``none``.

    Raises:
        ArgumentTypeError: It is not a size.
    """
    if text.lower() == "none":
        return None
    match = re.fullmatch(r"(\d+)([kmg]?)", text.lower())
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of bytes, such as 1048576, 16M or none")
    return int(match[1]) << {"": 0, "k": 10, "m": 20, "g": 30}[match[2]]


def limit(seconds: float) -> float | None:
    """Return a timeout for ``connect`` and ``serve``: ``None`` for no limit.

    Args:
        seconds: The value of the option.
    """
    return None if math.isinf(seconds) else seconds


def server_tls(arguments: argparse.Namespace) -> TLS | None:
    """Return the TLS settings of a server, ``None`` without a certificate.

    Args:
        arguments: The parsed command line.

    Raises:
        CommandError: The options contradict each other.
        OSError, ValueError: The files cannot be used.
    """
    if arguments.cert is not None:
        from .. import TLS

        return TLS(cert=arguments.cert, key=arguments.key, ca=arguments.client_ca)
    for name in ("key", "client_ca"):
        if getattr(arguments, name) is not None:
            raise CommandError(Status.USAGE, f"--{name.replace('_', '-')} needs --cert")
    return None


def write_all(descriptor: int, data: bytes) -> None:
    """Write all bytes, whether or not the descriptor is non-blocking.

    Args:
        descriptor: The file descriptor.
        data: The bytes.
    """
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(descriptor, view) :]
        except BlockingIOError:
            select.select([], [descriptor], [])


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
