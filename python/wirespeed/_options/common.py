"""The keyword arguments that clients and servers share: checked here, once, for every kind of connection."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar

from ..typing import LoggerLike
from .compression import Deflate, deflate_options

if TYPE_CHECKING:
    from .._native_types import DeflateOptions, SharedSettings

__all__ = [
    "QUEUE_BYTES",
    "AsyncOptions",
    "ConnectionOptions",
    "Recalled",
    "bounded",
    "check_count",
    "check_seconds",
    "check_subprotocols",
    "check_type",
    "pair",
    "remembered",
]

_P = ParamSpec("_P")
_T = TypeVar("_T")

QUEUE_BYTES = 4 * 2**20
"""Bytes that are kept for an application that does not receive: as much as the socket buffers of one connection hold
on common systems."""

_UNLIMITED = 2**62

# Three weeks. The system calls that wait take 2**31 milliseconds at most, those of Python less than infinity.
_FOREVER = 21 * 86400.0

_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


@dataclasses.dataclass(kw_only=True, repr=False, eq=False)
class ConnectionOptions:
    """Keyword arguments of every kind of connection. Their names are those of ``connect`` and ``serve``.

    Raises:
        TypeError: An argument has a wrong type.
        ValueError: An argument has a wrong value.
    """

    subprotocols: Sequence[str] | None = None
    compression: Deflate | str | None = "deflate"
    open_timeout: float | None = 10
    ping_interval: float | None = 20
    ping_timeout: float | None = 20
    close_timeout: float | None = 10
    max_size: int | tuple[int | None, int | None] | None = 2**20
    max_fragments: int | None = 4096
    max_queue: int | tuple[int | None, int | None] | None = 16
    logger: LoggerLike | None = None
    _deflate: DeflateOptions | None = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        if self.subprotocols is not None:
            check_subprotocols(self.subprotocols)
        for name in ("open_timeout", "ping_interval", "ping_timeout", "close_timeout"):
            check_seconds(name, getattr(self, name))
            setattr(self, name, bounded(getattr(self, name)))
        for limit in pair(self.max_size):
            check_count("max_size", limit)
        check_count("max_fragments", self.max_fragments)
        for limit in pair(self.max_queue):
            check_count("max_queue", limit)
        if self.logger is not None and not hasattr(self.logger, "debug"):
            raise TypeError(f"logger must be a logging.Logger, not {type(self.logger).__name__}")
        self._deflate = deflate_options(self._compression())

    def _compression(self) -> Deflate | str | None:
        """Return what the defaults of this end make of ``compression``."""
        return self.compression

    def shared_settings(self) -> SharedSettings:
        """Return what the native core needs to know for either end."""
        message_size, fragment_size = pair(self.max_size)
        queue = pair(self.max_queue)[0]
        return {
            "subprotocols": list(self.subprotocols or ()),
            "deflate": self._deflate,
            "max_size": message_size,
            "max_fragment_size": fragment_size,
            "max_fragments": self.max_fragments,
            "queue_messages": _UNLIMITED if queue is None else queue,
            "queue_bytes": _UNLIMITED if queue is None else QUEUE_BYTES,
            "ping_interval": self.ping_interval,
            "ping_timeout": self.ping_timeout,
            "close_timeout": self.close_timeout,
        }


@dataclasses.dataclass(kw_only=True, repr=False, eq=False)
class AsyncOptions(ConnectionOptions):
    """The same for connections on an event loop, with what only those have.

    Raises:
        TypeError: An argument has a wrong type.
        ValueError: An argument has a wrong value.
    """

    max_queue_bytes: int | None = QUEUE_BYTES
    write_limit: int | tuple[int, int | None] = 2**15
    coalesce: bool = True
    yield_after: int = 1024
    io_backend: str | None = None
    zero_copy: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count("max_queue_bytes", self.max_queue_bytes)
        for value in pair(self.write_limit):
            check_count("write_limit", value)
        if pair(self.write_limit)[0] is None:
            raise TypeError("write_limit must be an int, not None")
        if self.yield_after is None:
            raise TypeError("yield_after must be an int, not None")
        check_count("yield_after", self.yield_after)
        for name in ("max_queue", "write_limit"):
            high, low = pair(getattr(self, name))
            if high is not None and low is not None and low > high:
                raise ValueError(f"{name} must be a pair of high and low marks; {low} is above {high}")
        if self.io_backend not in (None, "fd", "transport"):
            raise ValueError(f'io_backend must be "fd", "transport" or None, not {self.io_backend!r}')
        for name in ("coalesce", "zero_copy"):
            value = getattr(self, name)
            if not isinstance(value, bool):
                raise TypeError(f"{name} must be a bool, not {type(value).__name__}")


# As many as an application has different ways to connect.
_MAX_ENTRIES = 32


class Recalled(Generic[_T]):
    """What was made of keyword arguments, for the next time that somebody passes the same.

    Programs open many connections with the same arguments, and checking them anew was a sixth of opening one.

    Args:
        kinds: Types of arguments that cannot change, keep nothing else alive and hold no secrets. What is made of
            others is not kept.
    """

    def __init__(self, kinds: Collection[type]) -> None:
        self._kinds = frozenset(kinds)
        self._made: dict[tuple[object, ...], _T] = {}

    def key(self, arguments: Mapping[str, object]) -> tuple[object, ...] | None:
        """Return what stands for arguments, ``None`` if what is made of them is not kept."""
        values = tuple(arguments.values())
        # With the types, as 1 and True are equal and not the same.
        types = tuple(map(type, values))
        return (*arguments, *types, *values) if self._kinds.issuperset(types) else None

    def get(self, key: tuple[object, ...]) -> _T | None:
        """Return what was made, ``None`` if nothing was."""
        return self._made.get(key)

    def put(self, key: tuple[object, ...], made: _T) -> None:
        """Keep what was made. It must not be changed afterwards."""
        if len(self._made) >= _MAX_ENTRIES:
            self._made.clear()
        self._made[key] = made


def remembered(make: Callable[_P, _T], kinds: Collection[type]) -> Callable[_P, _T]:
    """Return what makes options and, for arguments that it has seen, returns those that it has made before.

    Args:
        make: What makes and checks options, of keyword arguments only. They must not be changed afterwards.
        kinds: As for :class:`Recalled`.
    """
    recalled: Recalled[_T] = Recalled(kinds)

    @functools.wraps(make)
    def options(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        key = None if args else recalled.key(kwargs)
        if key is None:
            return make(*args, **kwargs)
        found = recalled.get(key)
        if found is None:
            found = make(*args, **kwargs)
            recalled.put(key, found)
        return found

    return options


def pair(value: Any) -> tuple[Any, Any]:
    """Return both numbers of an argument that may be a number or a pair."""
    return (value[0], value[1]) if isinstance(value, tuple) and len(value) == 2 else (value, None)


def bounded(seconds: float | None) -> float | None:
    """Return a time to wait, ``None`` for one that is as good as for ever, such as ``math.inf``.

    Args:
        seconds: What the user passed.
    """
    return None if seconds is None or seconds >= _FOREVER else seconds


def check_type(name: str, value: object, expected: type | tuple[type, ...], description: str) -> None:
    """Raise TypeError unless an argument is ``None`` or of a type."""
    if value is not None and not isinstance(value, expected):
        raise TypeError(f"{name} must be {description}, not {type(value).__name__}")


def check_subprotocols(value: object) -> None:
    """Raise TypeError or ValueError unless an argument is a list of subprotocols."""
    if isinstance(value, (str, bytes)) or not isinstance(value, Sequence):
        raise TypeError(f"subprotocols must be a list of str, not {type(value).__name__}")
    for subprotocol in value:
        if not isinstance(subprotocol, str):
            raise TypeError(f"subprotocols must be a list of str, it contains a {type(subprotocol).__name__}")
        # RFC 6455, section 4.1: tokens of RFC 9110.
        if not _TOKEN.fullmatch(subprotocol):
            raise ValueError(f"subprotocols must be tokens, without spaces or commas; {subprotocol!r} is not")


def check_seconds(name: str, value: object) -> None:
    """Raise TypeError or ValueError unless an argument is ``None`` or a number of seconds."""
    if value is None:
        return
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        raise TypeError(f"{name} must be a number of seconds or None, not {type(value).__name__}")
    # Only NaN differs from itself; math.isnan does not take every int.
    if value != value or value < 0:
        raise ValueError(f"{name} must not be negative; use None to switch it off")
    if value == 0 and name.startswith("ping"):
        raise ValueError(f"{name} must not be 0; use None to switch it off")


def check_count(name: str, value: object) -> None:
    """Raise TypeError or ValueError unless an argument is ``None`` or a number that may be a limit."""
    if value is None:
        return
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{name} must be an int or None, not {type(value).__name__}")
    low, bits = (1, 32) if name in ("max_fragments", "yield_after") else (0, 62)
    if value < low or value >> bits:
        raise ValueError(f"{name} must be at least {low} and less than 2**{bits}; None is no limit")
