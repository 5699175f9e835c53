"""The exit statuses of the command, and the texts of its errors."""

from __future__ import annotations

import enum

from .._lazy import ssl
from .._redaction import printable
from ..exceptions import InvalidStatus

__all__ = ["CommandError", "Status", "describe"]


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
