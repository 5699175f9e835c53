"""The measuring loops of the blocking peers: the same code around every library, so that checking costs each the same.

A peer program gives `main` a function that connects; the rest is here and in `program`. It knows no library and no
other peer.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NoReturn

from models import closed, compressed, dead, duplex, fairness, one_way, opening, processes, program, sending, transfer
from models.abilities import Abilities, add_arguments
from models.content import ContentError, Sink, Stream, two_messages
from models.latency import WINDOW_SHARE, Latencies
from models.program import STEP_SECONDS, Library, echo_url, gate
from models.stepping import Loop, Step
from models.usage import Usage

__all__ = ["BASE", "Blocking", "Connect", "main", "text_report"]

# What sends and receives by turns; `duplex` is for libraries that say that two threads may share a
# connection.
BASE = (
    *("round-trip", "stream-in", "send", "send-each", processes.WORKLOAD),
    *one_way.BLOCKING,
    *transfer.BLOCKING,
    *fairness.WORKLOADS,
)


@dataclass
class Blocking:
    """One open connection, as the loops drive it.

    Attributes:
        send: sends one binary message; takes what `encode` made of it.
        recv: returns the next message.
        report: asks the server's /sink what has arrived, returns its answer.
        send_text: sends one text message.
        messages: iterates over the messages that arrive.
        recv_many: returns a list of the messages that are ready, at least one and at most so many.
        send_many: sends a list of messages.
        close: closes the connection, with the closing handshake where the library has one.
        encode: makes of a message what `send` takes and what `recv` must then return. A raw socket takes the whole
            frame, prepared; a library takes the message itself.
    """

    send: Callable[[Any], object]
    recv: Callable[[], object]
    report: Callable[[], object]
    send_text: Callable[[str], object] | None = None
    messages: Iterable[Any] = ()
    recv_many: Callable[[int], list[Any]] | None = None
    send_many: Callable[[list[bytes]], object] | None = None
    close: Callable[[], object] | None = None
    encode: Callable[[bytes], tuple[Any, Any]] = lambda message: (message, message)


Connect = Callable[[str, str | None, int], Blocking]
"""Connects to a URL, trusting the CA in a PEM file if given; the third argument is the size of the messages to come."""


def text_report(send: Callable[[str], object], recv: Callable[[], object]) -> Callable[[], object]:
    """Returns the `report` of a library that sends a str as a text message."""

    def report() -> object:
        send("report")
        return recv()

    return report


def main(
    module: str,
    distribution: str | None,
    connect: Connect,
    *,
    workloads: tuple[str, ...] = BASE,
    helpers: tuple[str, ...] = (),
    abilities: Abilities | None = None,
) -> NoReturn:
    """Runs a peer program: parses the command line, measures, prints one JSON line, ends the process.

    Args:
        module: what the peer needs to import.
        distribution: its name on PyPI; None for a peer of the standard library.
        connect: opens a connection.
        workloads: what it can do; by default what every blocking client can.
        helpers: distributions that make it faster.
        abilities: what it can do beside; None: it is no library, and neither opens connections again and again.
    """
    if abilities is not None:
        workloads = (*workloads, opening.WORKLOAD, *abilities.workloads())
    parser = program.parser(workloads)
    add_arguments(parser)
    options = parser.parse_args()
    library = Library(module, distribution, helpers)
    program.main(options, [library], workloads, lambda options: _measure(connect, abilities or Abilities(), options))


def _measure(connect: Connect, abilities: Abilities, options: argparse.Namespace) -> dict[str, object]:
    if options.workload == opening.WORKLOAD:
        return opening.blocking(connect, options)
    if options.workload == dead.WORKLOAD:
        return dead.blocking(abilities, options)
    if options.workload == processes.WORKLOAD:
        return processes.measure(options)
    if options.workload in (*fairness.WORKLOADS, *fairness.SERVING):
        serve = abilities.serve if options.workload in fairness.SERVING else None
        return fairness.in_threads(connect, serve, options)
    if options.workload in closed.WORKLOADS:
        loop = closed.blocking(connect, abilities, options)
    elif options.workload in compressed.BLOCKING:
        loop = compressed.BLOCKING[options.workload](abilities, options)
    else:
        loop = _LOOPS[options.workload](connect, options)
    step = _warm_up(loop, options.warmup)
    gate(options)
    loop.begin()
    count = 0
    since = Usage.now(options.server_pid)
    end = since.wall + options.seconds
    while time.perf_counter() < end:
        count += step()
    count += loop.finish() or 0
    used = Usage.now(options.server_pid) - since
    loop.settle()
    return program.result(count, used, **loop.figures(options.seconds * WINDOW_SHARE))


def _warm_up(loop: Loop, seconds: float) -> Step:
    """Runs the workload for some time, and finds the step that takes about STEP_SECONDS."""
    count = 2
    step = loop.prepare(count)
    end = time.perf_counter() + seconds
    while True:
        since = time.perf_counter()
        step()
        now = time.perf_counter()
        if now - since < STEP_SECONDS / 2 and count * 2 <= loop.limit:
            count *= 2
            step = loop.prepare(count)
        elif now >= end:
            break
    loop.finish()
    return step


def _round_trip(connect: Connect, options: argparse.Namespace) -> Loop:
    connection = connect(options.url, options.ca, options.size)
    pairs = [connection.encode(message) for message in two_messages(options.size)]
    send, recv = connection.send, connection.recv

    def prepare(count: int) -> Step:
        turns = pairs * (count // 2)

        def step() -> int:
            for message, expected in turns:
                send(message)
                if recv() != expected:
                    raise ContentError("a reply differs from the message that was sent")
            return len(turns)

        return step

    def figures(seconds: float) -> dict[str, object]:
        latencies, clock = Latencies(), time.perf_counter_ns
        end = time.perf_counter() + seconds
        while True:
            for message, expected in pairs:
                begun = clock()
                send(message)
                if recv() != expected:
                    raise ContentError("a reply differs from the message that was sent")
                latencies.add(clock() - begun)
            if latencies.full or time.perf_counter() >= end:
                return latencies.figures(options)

    return Loop(prepare, figures=figures)


def _stream_in(connect: Connect, options: argparse.Namespace) -> Loop:
    messages = connect(options.url, options.ca, options.size).messages
    stream = Stream(options.size)

    def prepare(count: int) -> Step:
        def step() -> int:
            remaining = count
            for message in messages:
                remaining -= 1
                if not remaining:
                    stream.check(message, count)
                    return count
            raise ContentError(f"the stream ended after {stream.position + count - remaining} messages")

        return step

    return Loop(prepare)


def _stream_in_many(connect: Connect, options: argparse.Namespace) -> Loop:
    recv_many = connect(options.url, options.ca, options.size).recv_many
    stream = Stream(options.size)
    limit = options.batch
    if recv_many is None:
        raise ContentError("this peer has no recv_many")

    def prepare(count: int) -> Step:
        def step() -> int:
            received = 0
            messages: list[Any] = []
            while received < count:
                messages = recv_many(limit)
                received += len(messages)
            stream.check(messages[-1], received)
            return received

        return step

    return Loop(prepare)


def _send(connect: Connect, options: argparse.Namespace) -> Loop:
    echo = connect(echo_url(options.url), options.ca, options.size)
    for message, expected in [echo.encode(message) for message in two_messages(options.size)]:
        echo.send(message)
        if echo.recv() != expected:
            raise ContentError("the echo of a message that was sent differs from it")

    connection = connect(options.url, options.ca, options.size)
    sink = Sink(options.size)
    messages = [connection.encode(message)[0] for message in two_messages(options.size)]
    send = connection.send

    def prepare(count: int) -> Step:
        turns = messages * (count // 2)

        def step() -> int:
            for message in turns:
                send(message)
            sink.sent += len(turns)
            return len(turns)

        return step

    return Loop(prepare, lambda: sink.check(connection.report()))


def _send_many(connect: Connect, options: argparse.Namespace) -> Loop:
    batch = two_messages(options.size) * max(1, options.batch // 2)
    echo = connect(echo_url(options.url), options.ca, options.size)
    connection = connect(options.url, options.ca, options.size)
    send_many = connection.send_many
    if echo.send_many is None or send_many is None:
        raise ContentError("this peer has no send_many")
    # No more than the socket buffers hold both ways: nobody reads the echo meanwhile.
    part = batch[: max(2, 65536 // options.size)]
    echo.send_many(part)
    if any(echo.recv() != message for message in part):
        raise ContentError("the echo of messages that were sent together differs from them")

    sink = Sink(options.size)

    def prepare(count: int) -> Step:
        calls = max(1, count // len(batch))

        def step() -> int:
            for _ in range(calls):
                send_many(batch)
            sink.sent += calls * len(batch)
            return calls * len(batch)

        return step

    return Loop(prepare, lambda: sink.check(connection.report()))


_LOOPS: dict[str, Callable[..., Loop]] = {
    "round-trip": _round_trip,
    "stream-in": _stream_in,
    "stream-in-many": _stream_in_many,
    "send": _send,
    "send-many": _send_many,
    "send-each": sending.each_is_handed_over(_send),
    **one_way.BLOCKING,
    **transfer.BLOCKING,
    **duplex.BLOCKING,
}
