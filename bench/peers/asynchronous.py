"""The program of an asyncio peer: which way of receiving, which event loop, which workload."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NoReturn

from peers import awaiting, callbacks, loops, memory, program
from peers.program import Library

__all__ = ["Callbacks", "main"]

# By the way of receiving. What awaits `recv` does everything; iteration and `recv_many` differ from it in streams only.
WORKLOADS = {
    "await": (*awaiting.LOOPS, "idle"),
    "iterate": ("stream-in",),
    "many": ("stream-in",),
    "callbacks": (*awaiting.LOOPS, "idle"),
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
) -> NoReturn:
    """Runs a peer program: parses the command line, measures, prints one JSON line, ends the process.

    Args:
        module: what the peer needs to import.
        distribution: its name on PyPI.
        styles: the ways of receiving that it has: await, iterate, many, callbacks; and how it connects for each.
        helpers: distributions that make it faster.
    """
    parser = program.parser(WORKLOADS["await"])
    parser.add_argument("--style", choices=list(styles), default=next(iter(styles)), help="how it receives")
    parser.add_argument("--loop", choices=loops.LOOPS, default="asyncio", help="the event loop")
    options = parser.parse_args()
    libraries = [Library(module, distribution, helpers)]
    loop = loops.LIBRARIES[options.loop]
    if loop is not None and loop.module != module:
        libraries.append(loop)
    style = styles[options.style]

    def measure(options: argparse.Namespace) -> dict[str, object]:
        async def body() -> None:
            # Ends the process from inside: what a loop does while it closes is not measured, and may take long.
            try:
                answer = await _measure(style, options)
            except Exception as error:
                program.fail(error)
            program.end(answer | {"version": program.version(libraries)})

        loops.run(options.loop, body())
        raise RuntimeError("the event loop ended before the workload did")

    program.main(options, libraries, WORKLOADS[options.style], measure)


async def _measure(style: awaiting.Connect | Callbacks, options: argparse.Namespace) -> dict[str, object]:
    connect = style.connect if isinstance(style, Callbacks) else style
    if options.workload == "idle":
        return await memory.measure(connect, options)
    if isinstance(style, Callbacks) and options.workload != "send":
        return await callbacks.measure(style.listen, options)
    return await awaiting.measure(connect, options.style, options)
