"""The program of a client in Python: which way to use the library, which event loop, which workload."""

import argparse
import dataclasses
import importlib
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from models import callbacks, crowd, ending, exchanging, fairness, memory, running, sending, streaming
from models.connection import Client
from models.content import two_messages
from models.program import LOOPS, Library, end, fail, once_or_forking, parser, run_on, run_program, version
from models.texts import texts
from models.twins import blocking

__all__ = ["main"]

# What needs no connection of this process, or one in other threads.
APART = fairness.WORKLOADS
CROWDS = ("idle", "many")
BLOCKING = (
    *("round-trip", "one-way", "one-way-window", "stream-in", "mixed"),
    *("send", "send-each", "transfer-in", "transfer-out"),
)
AWAITING = (*BLOCKING, "pipelined", "duplex", "tasks", *CROWDS)
CALLBACKS = (*callbacks.WORKLOADS, "send", "send-each", "tasks", "transfer-out", *CROWDS)


def main(library: Library, styles: Mapping[str, Client] | Client) -> NoReturn:
    """Runs a peer program: parses the command line, measures, prints one JSON line, ends the process.

    Args:
        library: what it measures.
        styles: the ways to use a library of asyncio, by name, the first one the default; or the one way to use a
            library that blocks.
    """
    awaits = not isinstance(styles, Client)
    clients = styles if not isinstance(styles, Client) else {"": dataclasses.replace(styles, receives="iterate")}
    known = {style: _workloads(client, awaits=awaits) for style, client in clients.items()}
    arguments = parser(list(dict.fromkeys(name for names in known.values() for name in names)))
    arguments.add_argument("--style", choices=list(clients), default=next(iter(clients)), help="how it is used")

    def needed(options: argparse.Namespace) -> list[Library]:
        libraries, loop = list(clients[options.style].libraries or (library,)), LOOPS[options.loop]
        # A loop of the library itself is no other one.
        return libraries + ([loop] if loop is not None and loop.module not in {one.module for one in libraries} else [])

    def load(argv: Sequence[str]) -> None:
        options = arguments.parse_args(argv)
        for module in (*(one.module for one in needed(options)), *clients[options.style].loads):
            importlib.import_module(module)

    def run(argv: Sequence[str]) -> NoReturn:
        options = arguments.parse_args(argv)
        run_program(options, needed(options), known[options.style], measure)

    def measure(options: argparse.Namespace) -> dict[str, object]:
        client, libraries = clients[options.style], needed(options)
        if options.workload in (*fairness.WORKLOADS, *fairness.SERVING):
            return fairness.measure(client, options, awaits=awaits)
        if not awaits:
            return _block(client, options)

        async def on_loop() -> None:
            # The process ends from inside: what a loop does while it closes is not measured, and may take long.
            try:
                answer = await _await(client, options)
            except Exception as error:
                fail(error)
            end(answer | {"version": version(libraries)})

        run_on(options.loop, on_loop())
        raise RuntimeError("the event loop ended before the workload did")

    once_or_forking(run, load)


def _workloads(client: Client, *, awaits: bool) -> tuple[str, ...]:
    """Returns what a client can do. Iteration and `recv_many` differ from awaiting `recv` in streams only."""
    if client.only or client.own:
        return (*client.only, *client.own)
    if awaits and client.receives != "await":
        return ("stream-in",)
    deflate = ("deflate-round-trip", "deflate-send", *(["deflate-idle"] if awaits else []))
    known = (
        *(CALLBACKS if client.listen is not None else AWAITING if awaits else BLOCKING),
        *("open", *APART, *client.more),
        *(deflate if client.deflate is not None else ()),
        *(f"closed-{call}" for call in client.closed),
        *(fairness.SERVING if client.serve is not None else ()),
    )
    return tuple(workload for workload in known if workload not in client.without)


async def _await(client: Client, options: argparse.Namespace) -> dict[str, object]:
    workload = options.workload
    if client.listen is not None and workload in callbacks.WORKLOADS:
        return await callbacks.measure(client.listen, options)
    if workload == "many":
        return await crowd.measure(client, options)
    if workload == "idle":
        return await memory.measure(client.connect, two_messages(memory.MESSAGE_BYTES)[0], options)
    if workload == "deflate-idle" and client.deflate is not None:
        return await memory.measure(client.deflate, texts("repetitive", memory.MESSAGE_BYTES)[0], options)
    if workload in ending.WORKLOADS:
        return await ending.WORKLOADS[workload](client, options)
    steps: dict[str, Any] = {**exchanging.WORKLOADS, **sending.WORKLOADS, **streaming.WORKLOADS, **client.own}
    return await running.run(await steps[workload](client, options), options)


def _block(client: Client, options: argparse.Namespace) -> dict[str, Any]:
    modules = {name: blocking(f"models.{name}") for name in ("ending", "exchanging", "sending", "streaming", "running")}
    if options.workload in ending.WORKLOADS:
        return modules["ending"].WORKLOADS[options.workload](client, options)  # type: ignore[no-any-return]
    names = ("exchanging", "sending", "streaming")
    steps = {workload: prepare for name in names for workload, prepare in modules[name].WORKLOADS.items()}
    return modules["running"].run(steps[options.workload](client, options), options)  # type: ignore[no-any-return]
