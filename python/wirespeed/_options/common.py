"""The keyword arguments that clients and servers share, checked once for both APIs."""

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
    "OptionsCache",
    "bounded",
    "check_count",
    "check_seconds",
    "check_subprotocols",
    "check_type",
    "pair",
    "cached",
]

_P = ParamSpec("_P")
_T = TypeVar("_T")

QUEUE_BYTES = 4 * 2**20
"""Default limit in bytes for received messages that wait for the application: the size of the socket buffers of one
connection on common systems."""

_UNLIMITED = 2**62

# Three weeks in seconds. System calls accept timeouts of at most 2**31 ms, and Python accepts no infinite ones.
_LONGEST_TIMEOUT = 21 * 86400.0

_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


@dataclasses.dataclass(kw_only=True, repr=False, eq=False)
class ConnectionOptions:
    """Keyword arguments of all connections, with the names that ``connect`` and ``serve`` use.

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
        """Return ``compression`` with the defaults of a client; servers override it."""
        return self.compression

    def shared_settings(self) -> SharedSettings:
        """Return the settings that the native core needs at both ends."""
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
    """Keyword arguments of connections on an event loop.

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


# Enough for the different argument sets of an application.
_MAX_ENTRIES = 32


class OptionsCache(Generic[_T]):
    """Caches objects made from keyword arguments.

    Programs open many connections with the same arguments, and checking them took a sixth of the time.

    Args:
        kinds: Types of arguments that are immutable, keep no other object alive and contain no secrets. Objects made
            from other types are not cached.
    """

    def __init__(self, kinds: Collection[type]) -> None:
        self._kinds = frozenset(kinds)
        self._made: dict[tuple[object, ...], _T] = {}

    def key(self, arguments: Mapping[str, object]) -> tuple[object, ...] | None:
        """Return the cache key of arguments, ``None`` if they must not be cached."""
        values = tuple(arguments.values())
        # Includes the types, because 1 and True are equal but differ.
        types = tuple(map(type, values))
        return (*arguments, *types, *values) if self._kinds.issuperset(types) else None

    def get(self, key: tuple[object, ...]) -> _T | None:
        """Return the cached object, ``None`` without one."""
        return self._made.get(key)

    def put(self, key: tuple[object, ...], made: _T) -> None:
        """Cache an object. It must not be changed afterwards."""
        if len(self._made) >= _MAX_ENTRIES:
            self._made.clear()
        self._made[key] = made


def cached(make: Callable[_P, _T], kinds: Collection[type]) -> Callable[_P, _T]:
    """Return a function like ``make`` that caches its results.

    Args:
        make: Function of keyword arguments only, whose results must not be changed.
        kinds: As for :class:`OptionsCache`.
    """
    cache: OptionsCache[_T] = OptionsCache(kinds)

    @functools.wraps(make)
    def options(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        key = None if args else cache.key(kwargs)
        if key is None:
            return make(*args, **kwargs)
        found = cache.get(key)
        if found is None:
            found = make(*args, **kwargs)
            cache.put(key, found)
        return found

    return options


def pair(value: Any) -> tuple[Any, Any]:
    """Return both items of an argument that is a pair or one value; the second item is then ``None``."""
    return (value[0], value[1]) if isinstance(value, tuple) and len(value) == 2 else (value, None)


def bounded(seconds: float | None) -> float | None:
    """Return a timeout, or ``None`` for three weeks and more, such as ``math.inf``.

    Args:
        seconds: The argument of the user.
    """
    return None if seconds is None or seconds >= _LONGEST_TIMEOUT else seconds


def check_type(name: str, value: object, expected: type | tuple[type, ...], description: str) -> None:
    """Raise TypeError unless an argument is ``None`` or an instance of a type."""
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
    # NaN is the only value that differs from itself; math.isnan does not accept every int.
    if value != value or value < 0:
        raise ValueError(f"{name} must not be negative; use None to switch it off")
    if value == 0 and name.startswith("ping"):
        raise ValueError(f"{name} must not be 0; use None to switch it off")


def check_count(name: str, value: object) -> None:
    """Raise TypeError or ValueError unless an argument is ``None`` or a valid limit."""
    if value is None:
        return
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{name} must be an int or None, not {type(value).__name__}")
    low, bits = (1, 32) if name in ("max_fragments", "yield_after") else (0, 62)
    if value < low or value >> bits:
        raise ValueError(f"{name} must be at least {low} and less than 2**{bits}; None is no limit")
