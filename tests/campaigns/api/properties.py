"""All properties by name, as functions of hypothesis' data."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import fnmatch
import gc
import sys
from collections.abc import Callable, Iterator
from typing import Any

from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from campaigns.common.schedules import Schedules
from support.asyncio_tools import SETTINGS
from support.servers import WebSocketsServer

from . import arguments, connections, engine, heads, listening
from .oracle import Misbehaved
from .values import BYTES, TEXTS

# An example of each takes some milliseconds.
_SETTINGS = {
    f"{kind} {setting}": (kind, setting)
    for setting in SETTINGS
    for kind in ("asyncio client", "asyncio server", "listener")
}

# The number of programs drawn from one seed.
TRIES = 200

NAMES = ["blocking client", "blocking server", *_SETTINGS, "engine", "arguments", "requests", "refusals", "locations"]


class World:
    """The resources that all examples share: a third-party echo server, an engine, and the targets of heads."""

    def __init__(self) -> None:
        self._stack = contextlib.ExitStack()
        self.uri = self._stack.enter_context(WebSocketsServer()).uri
        self.engine = self._stack.enter_context(engine.new_engine())
        self.answering = self._stack.enter_context(contextlib.closing(heads.Answering()))
        self.asking = self._stack.enter_context(contextlib.closing(heads.Asking()))

    def close(self) -> None:
        """Closes them."""
        self._stack.close()

    def property(self, name: str) -> tuple[st.SearchStrategy[Any], Callable[[Any], None]]:
        """The strategy and the function of a property."""
        if name.startswith("blocking"):
            uri = self.uri if name == "blocking client" else None
            return connections.BLOCKING.programs, lambda program: connections.run_blocking(uri, program)
        if name == "engine":
            return engine.PROGRAMS, lambda program: engine.run(self.engine, program)
        if name == "arguments":
            return arguments.PROGRAMS, lambda program: arguments.run(self.uri, program)
        if name == "requests":
            return heads.REQUESTS, self.answering.run
        if name == "refusals":
            return heads.REFUSALS, self.asking.run
        if name == "locations":
            return heads.LOCATIONS, heads.follow
        kind, setting = _SETTINGS[name]
        if kind == "listener":
            return listening.PROGRAMS, lambda program: listening.run(self.uri, program, setting)
        uri = self.uri if kind == "asyncio client" else None
        return connections.AWAITED.programs, lambda program: connections.run_on_loop(uri, program, setting)


@contextlib.contextmanager
def world() -> Iterator[World]:
    """Yields one set of shared resources."""
    made = World()
    try:
        yield made
    finally:
        made.close()


def attempt(here: World, name: str, tries: int, number: int | None = None) -> None:
    """Runs a number of examples; raises the failure of the smallest.

    Args:
        here: The shared resources.
        name: One of ``NAMES``.
        tries: The number of examples.
        number: The seed; ``None``: a fixed one.
    """
    strategy, run = here.property(name)

    def check(program: Any) -> None:
        run(program)

    test = settings(
        max_examples=tries,
        deadline=None,
        database=None,
        derandomize=number is None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example],
        report_multiple_bugs=False,
    )(given(strategy)(check))
    if number is not None:
        test = seed(number)(test)
    before = _references()
    test()
    gc.collect()
    if (after := _references()) != before:
        raise Misbehaved(f"references to values that many programs have in common: {before} before, {after} after")


@dataclasses.dataclass(frozen=True)
class Round:
    """The programs of one property that are drawn from one seed. Hypothesis itself makes a failing one small."""

    name: str
    seed: int


class Programs(Schedules[Round]):
    """All programs, a round of each property after the other.

    Args:
        here: The shared resources.
    """

    name = "api"
    does = "Any calls of the Python API with any values."
    unit = f"rounds of {TRIES} programs"
    hang = 300.0

    def __init__(self, here: World) -> None:
        self._here = here
        self._names = NAMES

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--name", action="append", help="what to try, or a pattern: see --list; repeatable")
        parser.add_argument("--list", action="store_true", help="list what is tried")

    def configure(self, options: argparse.Namespace) -> str:
        if options.list:
            print("\n".join(NAMES))
            raise SystemExit(0)
        patterns = options.name or ["*"]
        self._names = [name for name in NAMES if any(fnmatch.fnmatch(name, pattern) for pattern in patterns)]
        return "" if self._names else f"nothing is called {options.name}: see --list"

    def first(self) -> int:
        return 0

    def draw(self, seed: int) -> Round:
        return Round(self._names[seed % len(self._names)], seed)

    def run(self, plan: Round) -> list[str]:
        try:
            attempt(self._here, plan.name, TRIES, plan.seed)
        except BaseException as exc:
            return ["\n".join([f"{type(exc).__name__}: {exc}", *getattr(exc, "__notes__", [])])]
        return []

    def title(self, plan: Round) -> str:
        return f"{plan.name}, seed {plan.seed}"

    def again(self, plan: Round) -> str:
        return f"PYTHONPATH=tests python -m campaigns.api --name '{plan.name}' --seed {plan.seed}"


def _references() -> list[int]:
    """Reference counts of values that are unique to a run."""
    return [sys.getrefcount(value) for value in (*TEXTS, *BYTES) if len(value) > 100]
