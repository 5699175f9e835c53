"""Functions for reconnecting. The Sans-I/O protocol of a client is that of the installed package."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from typing import Any

from ... import exceptions
from ._installed import Names

_DELAYS = {"INITIAL_DELAY": 5.0, "MIN_DELAY": 3.1, "MAX_DELAY": 90.0, "FACTOR": 1.618}
_INITIAL, _MIN, _MAX, _FACTOR = (
    float(os.environ.get(f"WEBSOCKETS_BACKOFF_{name}", delay)) for name, delay in _DELAYS.items()
)


def _backoff(
    initial_delay: float = _INITIAL, min_delay: float = _MIN, max_delay: float = _MAX, factor: float = _FACTOR
) -> Iterator[float]:
    # RFC 6455, section 7.2.3: the first delay is random, so that clients do not return all at once.
    yield random.random() * initial_delay  # noqa: S311 - not a secret
    delay = min_delay
    while delay < max_delay:
        yield delay
        delay *= factor
    while True:
        yield max_delay


def _process_exception(exc: Exception) -> Exception | None:
    if isinstance(exc, (OSError, TimeoutError)):
        return None
    if isinstance(exc, exceptions.InvalidMessage) and isinstance(exc.__cause__, EOFError):
        return None
    if isinstance(exc, exceptions.InvalidStatus) and exc.response.status_code in (500, 502, 503, 504):
        return None
    return exc


_names = Names(
    "client", {"backoff": _backoff, "process_exception": _process_exception}, also=("backoff", "process_exception")
)
__all__ = _names.public


def __getattr__(name: str) -> Any:
    return _names.get(name)


def __dir__() -> list[str]:
    return sorted(__all__)
