"""The program of an asyncio peer: which way of receiving, which event loop, which workload."""

from __future__ import annotations

import argparse
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from models import (
    awaiting,
    callbacks,
    closed,
    compressed,
    crowd,
    dead,
    duplex,
    fairness,
    loops,
    memory,
    one_way,
    opening,
    processes,
    program,
    sending,
    transfer,
)
from models.abilities import Abilities, add_arguments
from models.program import Library

__all__ = ["Callbacks", "main", "on_loop"]

# What awaits on one connection, step by step.
LOOPS: dict[str, Any] = awaiting.LOOPS | one_way.LOOPS | sending.LOOPS | transfer.LOOPS | duplex.LOOPS

# By the way of receiving. What awaits `recv` does everything; iteration and `recv_many` differ from it in
# streams only.
WORKLOADS = {
    "await": (*LOOPS, "idle", crowd.WORKLOAD, processes.WORKLOAD, opening.WORKLOAD, *fairness.WORKLOADS),
    "iterate": ("stream-in",),
    "many": ("stream-in",),
    "callbacks": (
        *(*callbacks.WORKLOADS, *one_way.COURSES, "send", *sending.LOOPS, "transfer-out"),
        *("idle", crowd.WORKLOAD, processes.WORKLOAD, opening.WORKLOAD, *fairness.WORKLOADS),
    ),
}


@dataclass(frozen=True)
class Callbacks:
    """A library that calls back.

    Attributes:
        listen: starts a course of callbacks.
        connect: connects for the workloads in which nothing has to be received at speed.
    """

    listen: callbacks.Listen
    connect: awaiting.Connect


def main(
    module: str,
    distribution: str,
    styles: Mapping[str, awaiting.Connect | Callbacks],
    *,
    helpers: tuple[str, ...] = (),
    abilities: Mapping[str, Abilities] | None = None,
) -> NoReturn:
    """Runs a peer program: parses the command line, measures, prints one JSON line, ends the process.

    Args:
        module: what the peer needs to import.
        distribution: its name on PyPI.
        styles: the ways of receiving that it has: await, iterate, many, callbacks; and how it connects for each.
        helpers: distributions that make it faster.
        abilities: what it can do beside, by the way of receiving.
    """
    able = {style: (abilities or {}).get(style, Abilities()) for style in styles}
    workloads = {style: (*WORKLOADS[style], *_more(able[style])) for style in styles}
    parser = program.parser(sorted({name for names in workloads.values() for name in names}))
    add_arguments(parser)
    parser.add_argument("--style", choices=list(styles), default=next(iter(styles)), help="how it receives")
    parser.add_argument("--loop", choices=loops.LOOPS, default="asyncio", help="the event loop")
    options = parser.parse_args()
    libraries = [Library(module, distribution, helpers)]
    loop = loops.LIBRARIES[options.loop]
    if loop is not None and loop.module != module:
        libraries.append(loop)
    style = styles[options.style]

    def measure(options: argparse.Namespace) -> dict[str, object]:
        if options.workload == processes.WORKLOAD:
            return processes.measure(options)
        if options.workload in (*fairness.WORKLOADS, *fairness.SERVING):
            serve = able[options.style].serve if options.workload in fairness.SERVING else None
            return fairness.in_a_loop(lambda connections: _run_many(style, options, connections), serve, options)

        on_loop(options, libraries, lambda: _measure(style, able[options.style], options))

    program.main(options, libraries, workloads[options.style], measure)


def on_loop(
    options: argparse.Namespace,
    libraries: Sequence[Library],
    measure: Callable[[], Awaitable[dict[str, object]]],
) -> NoReturn:
    """Measures on the event loop that the options name, prints the answer, ends the process.

    Ends it from inside: what a loop does while it closes is not measured, and may take long.
    """

    async def body() -> None:
        try:
            answer = await measure()
        except Exception as error:
            program.fail(error)
        program.end(answer | {"version": program.version(libraries)})

    loops.run(options.loop, body())
    raise RuntimeError("the event loop ended before the workload did")


def _more(abilities: Abilities) -> tuple[str, ...]:
    """Returns the workloads that a library's abilities add."""
    return (*abilities.workloads(), *((compressed.IDLE,) if abilities.deflate is not None else ()))


async def _measure(
    style: awaiting.Connect | Callbacks, abilities: Abilities, options: argparse.Namespace
) -> dict[str, object]:
    connect = style.connect if isinstance(style, Callbacks) else style
    if options.workload == "idle":
        return await memory.measure(connect, options)
    if options.workload == compressed.IDLE:
        return await compressed.idle(abilities, options)
    if options.workload == opening.WORKLOAD:
        return await opening.awaiting(connect, options)
    if options.workload == dead.WORKLOAD:
        return await dead.awaiting(abilities, options)
    if options.workload in closed.WORKLOADS:
        return await awaiting.run(await closed.awaiting(connect, abilities, options), options)
    if options.workload in compressed.AWAITING:
        return await awaiting.run(await compressed.AWAITING[options.workload](abilities, options), options)
    if options.workload == crowd.WORKLOAD:
        return await _run_many(style, options)
    if isinstance(style, Callbacks) and options.workload in (*callbacks.WORKLOADS, *one_way.COURSES):
        course = one_way.COURSES.get(options.workload, callbacks.Course)
        return await callbacks.measure(style.listen, options, course)
    if options.workload == sending.EACH and abilities.at_once is not None:
        connect = abilities.at_once
    return await awaiting.run(await LOOPS[options.workload](connect, options.style, options), options)


async def _run_many(
    style: awaiting.Connect | Callbacks, options: argparse.Namespace, many: crowd.Crowd | None = None
) -> dict[str, object]:
    if isinstance(style, Callbacks):
        return await crowd.by_callbacks(style.listen, options, many)
    return await crowd.by_awaiting(style, options, many)
