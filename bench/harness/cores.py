"""The cores of the client and of the servers."""

import os
import sys
from dataclasses import dataclass

from harness.errors import UsageError

__all__ = ["Cores", "allowed_cores", "cores_of"]


@dataclass(frozen=True)
class Cores:
    """The core of the client and those of the servers; None: any."""

    client: int | None = None
    servers: frozenset[int] | None = None

    def __str__(self) -> str:
        if self.client is None or self.servers is None:
            return "client on any core, server on any core"
        return f"client on core {self.client}, server on core {', '.join(map(str, sorted(self.servers)))}"


def allowed_cores() -> list[int]:
    """Returns the cores this process may use; empty where the system has no affinity."""
    return sorted(os.sched_getaffinity(0)) if sys.platform == "linux" else []


def cores_of(mode: str, core: int | None = None) -> Cores:
    """Returns the cores of a mode: "one" for both, "two", "each" of several servers one, or "any".

    Raises:
        UsageError: there are too few.
    """
    allowed = allowed_cores()
    if mode == "any" or not allowed:
        return Cores()
    # The last one: the first core serves most interrupts.
    client = allowed[-1] if core is None else core
    if mode == "one":
        return Cores(client, frozenset([client]))
    others = [other for other in allowed if other != client]
    if not others:
        raise UsageError(f"a run that is pinned to {mode} needs two cores, this process may use one: try --pin one")
    return Cores(client, frozenset(others if mode == "each" else others[-1:]))
