"""Checks that many tests share."""

from __future__ import annotations

import builtins
import gc
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from .frames import Close
from .load_scaling import load_scaled
from .subject import exceptions

__all__ = [
    "alive",
    "as_close",
    "describe",
    "exception_types",
    "no_leaks",
    "open_descriptors",
    "pong_arrives",
    "within",
    "without_collecting",
]


def as_close(frame: Any) -> Close | None:
    """Returns ``exc.rcvd`` or ``exc.sent`` in a form that compares."""
    return None if frame is None else Close(int(frame.code), frame.reason)


def exception_types(names: tuple[str, ...]) -> tuple[type[BaseException], ...]:
    """Returns exceptions of the implementation under test, or built in, by name."""
    return tuple(getattr(exceptions, name, None) or getattr(builtins, name) for name in names)


def describe(exc: BaseException) -> str:
    """Returns the texts of the exception and its causes."""
    lines = []
    current: BaseException | None = exc
    while current is not None:
        lines.append(f"{type(current).__name__}: {current}")
        current = current.__cause__ or (None if current.__suppress_context__ else current.__context__)
    return "\n".join(lines)


def pong_arrives(waiter: Any, timeout: float = 5.0) -> bool:
    """Waits for the result of ``ping``.

    With wirespeed the result is the latency, and no pong is a TimeoutError; with websockets it is an event.
    """
    try:
        return bool(waiter.wait(timeout))
    except TimeoutError:
        return False


@contextmanager
def within(most: float, *, at_least: float = 0.0) -> Iterator[None]:
    """Checks that the block takes a time in these bounds.

    The lower bound is exact, except for coarse clocks. The upper one proves that it does not hang, and is higher on a
    busy machine.
    """
    start = time.monotonic()
    yield
    took = time.monotonic() - start
    assert took >= at_least - 0.002, f"took {took:.3f} s, less than {at_least} s"
    most = load_scaled(most)
    assert took <= most, f"took {took:.3f} s, more than {most:.1f} s"


def open_descriptors() -> dict[int, str]:
    """Returns the descriptors of this process and their targets."""
    found = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            found[int(name)] = os.readlink(f"/proc/self/fd/{name}")
        except OSError:  # the one that listdir itself used
            continue
    return found


@contextmanager
def no_leaks() -> Iterator[None]:
    """Checks that no descriptor is open after the block that was not open before it.

    Peers in this process close their ends a little later, so this waits for them.
    """
    before = open_descriptors()
    yield
    gc.collect()
    deadline = time.monotonic() + 2
    while leaked := {number: target for number, target in open_descriptors().items() if before.get(number) != target}:
        assert time.monotonic() < deadline, f"descriptors leaked: {leaked}"
        time.sleep(0.005)


def alive(kind: type) -> int:
    """Returns the number of objects of a type, including those in unreferenced cycles."""
    return sum(isinstance(one, kind) for one in gc.get_objects())


@contextmanager
def without_collecting() -> Iterator[None]:
    """Runs the block without garbage and without collections of cycles."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
