"""One message to many connections."""

from __future__ import annotations

import builtins
from collections.abc import Iterable
from typing import Any, Literal

from .._native import broadcast as _broadcast
from ..exceptions import ConcurrencyError
from ..typing import DataLike
from .connection import Connection

__all__ = ["broadcast"]

_TEXTS = {
    "slow": "its peer does not read",
    "fragments": "sending a fragmented message",
    "failed": "failed to write message",
}


def broadcast(
    connections: Iterable[Connection],
    message: DataLike,
    *,
    text: bool | None = None,
    raise_exceptions: bool = False,
    slow: Literal["skip", "drop", "close"] = "skip",
) -> int:
    """Send a message to many connections, without waiting for any.

    It is encoded once, compressed at most once for each way of compressing that was negotiated, and written with one
    system call for each connection. Connections that are not open are passed over.

    Args:
        connections: The connections; those of clients may be among them.
        message: ``str`` for a text message, bytes-like for a binary message.
        text: ``True`` to send bytes as text, ``False`` to send ``str`` as binary.
        raise_exceptions: Whether to raise an ``ExceptionGroup`` of one exception for each connection that did not get
            the message, in Python 3.10 the first of them; it is logged otherwise.
        slow: What to do with a connection for which more than ``write_limit`` waits to be sent, because its peer does
            not read: ``"skip"`` to leave this message out, ``"drop"`` to end it at once, ``"close"`` to close it with
            code 1013.

    Returns:
        How many connections the message was sent to.

    Raises:
        TypeError: The message, or a connection, has another type.
    """
    if slow not in ("skip", "drop", "close"):
        raise ValueError(f'slow must be "skip", "drop" or "close", not {slow!r}')
    sent, missed = _broadcast(connections, message, text, slow)
    if missed:
        _report(missed, raise_exceptions)
    return sent


def _report(missed: list[tuple[Any, str]], raise_exceptions: bool) -> None:
    if not raise_exceptions:
        for connection, why in missed:
            connection.logger.warning("skipped broadcast to %s: %s", connection.id, _TEXTS[why])
        return
    exceptions: list[Exception] = []
    for connection, why in missed:
        kind = ConcurrencyError if why == "fragments" else BlockingIOError if why == "slow" else RuntimeError
        exc = kind(_TEXTS[why])
        if why == "failed":
            exc.__cause__ = connection._closed_error()
        exceptions.append(exc)
    # Python 3.10 has no groups: there, the first stands for all.
    group = getattr(builtins, "ExceptionGroup", None)
    raise exceptions[0] if group is None else group("skipped broadcast", exceptions)
