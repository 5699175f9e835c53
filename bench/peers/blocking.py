"""The measuring loops of the blocking peers: the same code around every library, so that checking costs each the same.

A peer program gives `main` a function that connects; everything else is here: command line, warm-up, window, checks,
the JSON line. It knows no library and no other peer.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import json
import os
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NoReturn
from urllib.parse import urlsplit

from peers.usage import Usage

__all__ = ["BASE", "Blocking", "Connect", "ContentError", "main", "text_report"]

# A step is what runs between two looks at the clock, and between two checks of a stream.
STEP_SECONDS = 0.005

BASE = ("round-trip", "stream-in", "send")


class ContentError(Exception):
    """What arrived is not what was due."""


@dataclass
class Blocking:
    """One open connection, as the loops drive it.

    Attributes:
        send: sends one binary message; takes what `encode` made of it.
        recv: returns the next message.
        report: asks the server's /sink what has arrived, returns its answer.
        messages: iterates over the messages that arrive.
        recv_many: returns a list of the messages that are ready, at least one and at most so many.
        send_many: sends a list of messages.
        encode: makes of a message what `send` takes and what `recv` must then return. A raw socket takes the whole
            frame, prepared; a library takes the message itself.
    """

    send: Callable[[Any], object]
    recv: Callable[[], object]
    report: Callable[[], object]
    messages: Iterable[Any] = ()
    recv_many: Callable[[int], list[Any]] | None = None
    send_many: Callable[[list[bytes]], object] | None = None
    encode: Callable[[bytes], tuple[Any, Any]] = lambda message: (message, message)


Connect = Callable[[str, str | None, int], Blocking]
"""Connects to a URL, trusting the CA in a PEM file if given; the third argument is the size of the messages to come."""

Step = Callable[[], int]


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
) -> NoReturn:
    """Runs a peer program: parses the command line, measures, prints one JSON line, ends the process.

    Args:
        module: what the peer needs to import; where it is not installed, the peer reports itself as skipped.
        distribution: its name on PyPI, whose version is reported; None for a peer of the standard library.
        connect: opens a connection.
        workloads: what it can do; by default what every blocking client can.
        helpers: distributions that make it faster; reported with the version if they are installed.
    """
    options = _parser().parse_args()
    if options.core is not None:
        os.sched_setaffinity(0, {options.core})
    answer: dict[str, object]
    try:
        version = _version(module, distribution, helpers)
        if options.probe:
            answer = {"version": version, "workloads": workloads, "tls": True}
        else:
            answer = _measure_workload(connect, options) | {"checked": True, "version": version}
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and error.name == module:
            answer = {"skipped": f"{distribution or module} is not installed for {sys.executable}"}
        else:
            answer = {"failed": f"{type(error).__name__}: {error}"}
    print(json.dumps(answer), flush=True)
    # A closing handshake with a server in full flow would cost each peer a different time and measures nothing.
    os._exit("failed" in answer)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="A peer of the benchmarks; prints one JSON line. See METHODOLOGY.md.")
    parser.add_argument("--probe", action="store_true", help="print version and workloads, measure nothing")
    parser.add_argument("--url", default="ws://127.0.0.1:8765/")
    parser.add_argument("--workload", default="round-trip", choices=sorted(_LOOPS))
    parser.add_argument("--size", type=int, default=256, help="bytes of a message")
    parser.add_argument("--seconds", type=float, default=1.0, help="length of the window")
    parser.add_argument("--warmup", type=float, default=0.3, help="seconds before the window")
    parser.add_argument("--batch", type=int, default=1024, help="messages per call of recv_many and send_many")
    parser.add_argument("--ca", help="PEM file of the CA to trust")
    parser.add_argument("--core", type=int, help="the core to run on")
    parser.add_argument("--server-pid", type=int, help="the process whose CPU time counts as the server's")
    return parser


def _version(module: str, distribution: str | None, helpers: tuple[str, ...]) -> str:
    loaded = importlib.import_module(module)
    if distribution is None:
        return sys.version.split()[0]
    version = _installed(distribution) or str(getattr(loaded, "__version__", "unknown"))
    return " with ".join([version, *(f"{name} {_installed(name)}" for name in helpers if _installed(name))])


def _installed(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _measure_workload(connect: Connect, options: argparse.Namespace) -> dict[str, object]:
    prepare, finish = _LOOPS[options.workload](connect, options)
    step = _warm_up(prepare, finish, options.warmup)
    count = 0
    since = Usage.now(options.server_pid)
    end = since.wall + options.seconds
    while time.perf_counter() < end:
        count += step()
    finish()
    used = Usage.now(options.server_pid) - since
    return {
        "count": count,
        "seconds": used.wall,
        "user": used.user,
        "system": used.system,
        "server": used.server,
    }


def _warm_up(prepare: Callable[[int], Step], finish: Callable[[], None], seconds: float) -> Step:
    """Runs the workload for some time, and finds the step that takes about STEP_SECONDS."""
    count = 2
    step = prepare(count)
    end = time.perf_counter() + seconds
    while True:
        since = time.perf_counter()
        step()
        now = time.perf_counter()
        if now - since < STEP_SECONDS / 2:
            count *= 2
            step = prepare(count)
        elif now >= end:
            break
    finish()
    return step


def _two_messages(size: int) -> list[bytes]:
    """Returns two messages that differ in every byte: a reply that is late by one is noticed."""
    one = (bytes(index * 7 & 0xFF for index in range(256)) * (size // 256 + 1))[:size]
    return [one, one.translate(bytes(range(255, -1, -1)))]


def _nothing() -> None:
    pass


def _round_trip(connect: Connect, options: argparse.Namespace) -> tuple[Callable[[int], Step], Callable[[], None]]:
    connection = connect(options.url, options.ca, options.size)
    pairs = [connection.encode(message) for message in _two_messages(options.size)]
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

    return prepare, _nothing


class _Stream:
    """The expected content of /blast: message number i is i in 8 bytes, little-endian, then a fixed pattern."""

    def __init__(self, size: int) -> None:
        if size < 8:
            raise ContentError(f"/blast numbers its messages: a size of {size} is too small, 8 is the least")
        self.position = 0
        self.tail = (bytes(range(256)) * (size // 256 + 1))[8:size]

    def check(self, message: object, count: int) -> None:
        """Checks the last of `count` messages: its number proves that all before it came, once and in order."""
        self.position += count
        expected = (self.position - 1).to_bytes(8, "little") + self.tail
        if message != expected:
            number = int.from_bytes(bytes(message[:8]), "little") if isinstance(message, bytes) else message
            raise ContentError(
                f"message {self.position - 1} of the stream carries number {number}, or has other content"
            )


def _stream_in(connect: Connect, options: argparse.Namespace) -> tuple[Callable[[int], Step], Callable[[], None]]:
    messages = connect(options.url, options.ca, options.size).messages
    stream = _Stream(options.size)

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

    return prepare, _nothing


def _stream_in_many(connect: Connect, options: argparse.Namespace) -> tuple[Callable[[int], Step], Callable[[], None]]:
    recv_many = connect(options.url, options.ca, options.size).recv_many
    stream = _Stream(options.size)
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

    return prepare, _nothing


class _Sink:
    """What /sink must have received; its answer ends the window, so that nothing counts that is still in a buffer."""

    def __init__(self, report: Callable[[], object], size: int) -> None:
        self.report = report
        self.size = size
        self.sent = 0

    def finish(self) -> None:
        answer = self.report()
        if not isinstance(answer, (str, bytes)):
            raise ContentError(f"/sink answered {answer!r}")
        arrived = json.loads(answer)
        expected = {"messages": self.sent, "bytes": self.sent * self.size}
        if arrived != expected:
            raise ContentError(f"/sink received {arrived}, sent was {expected}")


def _send(connect: Connect, options: argparse.Namespace) -> tuple[Callable[[int], Step], Callable[[], None]]:
    echo = connect(_echo_url(options.url), options.ca, options.size)
    for message, expected in [echo.encode(message) for message in _two_messages(options.size)]:
        echo.send(message)
        if echo.recv() != expected:
            raise ContentError("the echo of a message that was sent differs from it")

    connection = connect(options.url, options.ca, options.size)
    sink = _Sink(connection.report, options.size)
    messages = [connection.encode(message)[0] for message in _two_messages(options.size)]
    send = connection.send

    def prepare(count: int) -> Step:
        turns = messages * (count // 2)

        def step() -> int:
            for message in turns:
                send(message)
            sink.sent += len(turns)
            return len(turns)

        return step

    return prepare, sink.finish


def _send_many(connect: Connect, options: argparse.Namespace) -> tuple[Callable[[int], Step], Callable[[], None]]:
    batch = _two_messages(options.size) * max(1, options.batch // 2)
    echo = connect(_echo_url(options.url), options.ca, options.size)
    connection = connect(options.url, options.ca, options.size)
    send_many = connection.send_many
    if echo.send_many is None or send_many is None:
        raise ContentError("this peer has no send_many")
    # No more than the socket buffers hold both ways: nobody reads the echo meanwhile.
    part = batch[: max(2, 65536 // options.size)]
    echo.send_many(part)
    if any(echo.recv() != message for message in part):
        raise ContentError("the echo of messages that were sent together differs from them")

    sink = _Sink(connection.report, options.size)

    def prepare(count: int) -> Step:
        calls = max(1, count // len(batch))

        def step() -> int:
            for _ in range(calls):
                send_many(batch)
            sink.sent += calls * len(batch)
            return calls * len(batch)

        return step

    return prepare, sink.finish


def _echo_url(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}/"


_LOOPS: dict[str, Callable[..., tuple[Callable[[int], Step], Callable[[], None]]]] = {
    "round-trip": _round_trip,
    "stream-in": _stream_in,
    "stream-in-many": _stream_in_many,
    "send": _send,
    "send-many": _send_many,
}
