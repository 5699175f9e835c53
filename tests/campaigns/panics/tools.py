"""Makes a failpoint of the native module panic, and checks the invariants afterwards."""

from __future__ import annotations

import contextlib
import importlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from support.brokers import wait_for
from support.checks import open_descriptors
from wirespeed import ConnectionClosed, State

__all__ = ["PANICS", "Failpoints", "is_over", "native", "no_descriptors", "places"]

# Not public, and available only if requested at the build.
native: Any = importlib.import_module("wirespeed._native")

# Exceptions of a call in which a failpoint panics: PyO3's, which is no Exception, or ours; or, where another thread or
# callback has met the panic, that the connection is closed.
PANICS: tuple[type[BaseException], ...] = (
    RuntimeError,
    ConnectionClosed,
    *([] if not hasattr(native, "arm_failpoint") else [native.PanicException]),
)

ROOT = Path(__file__).parents[3]


class Failpoints:
    """Failpoints that panic."""

    @contextlib.contextmanager
    def once(self, place: str, passes: int = 0) -> Iterator[None]:
        """Inside the block the failpoint must panic exactly once.

        Args:
            place: Its name in the source.
            passes: How often it is reached before.
        """
        before = native.failpoints_hit()
        native.arm_failpoint(place, passes)
        yield
        wait_for(lambda: native.failpoints_hit() > before, f"{place} was not reached")
        assert native.failpoints_hit() == before + 1

    @staticmethod
    def disarm() -> None:
        native.arm_failpoint("")


def is_over(connection: Any) -> bool:
    """Returns whether a connection of the blocking API is closed, and every call raises that."""
    for call in (lambda: connection.recv(5), lambda: connection.send("late"), connection.ping):
        with contextlib.suppress(ConnectionClosed):
            call()
            return False
    return bool(connection.state is State.CLOSED)


@contextlib.contextmanager
def no_descriptors() -> Iterator[None]:
    """Checks that the block leaves no socket open that it opened, soon after its end."""

    def sockets() -> set[int]:
        return {number for number, kind in open_descriptors().items() if kind.startswith("socket:")}

    before = sockets()
    yield
    wait_for(lambda: sockets() <= before, "sockets are left")


def places() -> set[str]:
    """Returns all failpoints of the source that can panic."""
    sources = [path.read_text(encoding="utf-8") for path in (ROOT / "crates").glob("*/src/**/*.rs")]
    return {name for source in sources for name in re.findall(r'failpoint::hit\(\s*"([^"]+)"', source)}
