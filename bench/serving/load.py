"""The load on a server peer: the load generator's command line, and what becomes of its answer."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import resource
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from models.usage import process_cpu
from serving.process import Child, ChildError, started

__all__ = ["FORMATS", "MODELS", "Load", "Model", "Servers", "require_descriptors", "run"]

ROOT = Path(__file__).resolve().parents[2]
GENERATOR = ROOT / os.environ.get("CARGO_TARGET_DIR", "target") / "release" / "wirespeed-bench"
PICOWS_LOAD = Path(__file__).with_name("picows_load.py")

# How long after the window the last echo of a fixed rate may come; later, the server does not keep up with
# it.
LATE_SECONDS = 0.5

# Workloads of the load generator that several of its threads can share.
THREADED = ("echo", "sink", "fan-out", "open")

# How long a server may take to say what it has counted.
ANSWER_SECONDS = 10.0

# Descriptors of a server that are not connections of the load.
SPARE = 64


# What messages may be: bytes or text with a number in front, or documents with a number in them.
FORMATS = ("binary", "text", "json", "json-bytes", "msgpack")


@dataclass(frozen=True)
class Model:
    """What the peers are asked to do.

    Attributes:
        workload: that of the load generator; None: the load is that of picows.
        role: what the server does with messages, one of `server_program.ROLES`.
        tokens: whether the load can have a token, for servers that want one.
        as_many_as_fit: whether it stops by itself where there are too few descriptors.
        pings: whether the server has to send pings.
    """

    workload: str | None
    role: str = "echo"
    tokens: bool = True
    as_many_as_fit: bool = False
    pings: bool = False

    @property
    def path(self) -> str:
        """The path at the server."""
        return "/" if self.role == "echo" else f"/{self.role}"


MODELS: dict[str, Model] = {
    "echo": Model("echo"),
    "echo-picows": Model(None, tokens=False),
    "burst": Model("burst"),
    "sink": Model("sink", role="sink"),
    "fan-out": Model("fan-out", role="fan-out"),
    "publish": Model("publish", role="fan-out"),
    "open": Model("open"),
    "touch": Model("touch"),
    "storm": Model("storm"),
    "pings": Model("pings"),
    "hold": Model("hold", pings=True),
    "most": Model("most", as_many_as_fit=True),
    "idle": Model("idle"),
}
"""By the names that scenarios use."""


@dataclass(frozen=True)
class Load:
    """How a server is put under load.

    Attributes:
        options: the command line of the peer.
        urls: where the servers listen.
        token: what a client must have, if the server wants one.
        greets: whether such a server says when it is ready: WSE's handshake.
        descriptors: that it needs for a connection.
        apart: whether several servers know nothing of each other.
    """

    options: argparse.Namespace
    urls: Sequence[str]
    token: str | None
    descriptors: int
    greets: bool = False
    apart: bool = False

    def command(self, workload: str | None, **different: object) -> list[str]:
        """Returns the command line of a load generator; `different`: options that are not those of the peer.

        Raises:
            ChildError: it is not there.
        """
        options = self.options
        wanted: dict[str, object] = {
            "connections": options.connections,
            "size": options.size or None,
            "seconds": options.seconds,
            "warmup": options.warmup,
        }
        if workload is None:
            program = [sys.executable, str(PICOWS_LOAD)]
        else:
            if not GENERATOR.exists():
                raise ChildError(f"no {GENERATOR}: build it with cargo build --release -p wirespeed-bench")
            program = [str(GENERATOR), "load", "--workload", workload]
            wanted |= {"window": options.window, "rate": options.rate, "share": options.share}
            wanted |= {"deflate": options.deflate, "wse-token" if self.greets else "token": self.token}
            wanted |= {"ca": options.ca, "apart": self.apart}
            wanted |= {"threads": options.threads if workload in THREADED else None}
            wanted |= {"content": options.format if options.format != "binary" else None}
        arguments = []
        for name, value in (wanted | different).items():
            if value is not None and value is not False:
                arguments += [f"--{name}"] if value is True else [f"--{name}", str(value)]
        return [*program, *arguments, *self.urls]


@dataclass(frozen=True)
class Servers:
    """The processes under load.

    Attributes:
        children: the servers.
        broker: what connects them, if something does.
        counts: whether they tell what they have counted.
    """

    children: Sequence[Child]
    broker: Child | None = None
    counts: bool = False

    def look(self) -> _Look:
        """Looks at what they have used and counted so far."""
        cpu = [process_cpu(child.pid) for child in self.children]
        counted = [json.loads(child.ask(ANSWER_SECONDS)) for child in self.children] if self.counts else []
        return _Look(
            None if None in cpu else sum(filter(None, cpu)),
            None if self.broker is None else process_cpu(self.broker.pid),
            sum(one["locks_contended"] for one in counted),
            sum(one["messages"] for one in counted),
        )


@dataclass(frozen=True)
class _Look:
    cpu: float | None
    broker: float | None
    contended: int
    messages: int


def run(model: Model, load: Load, servers: Servers) -> dict[str, object]:
    """Puts load on servers for a window and returns the answer of the contract, with all figures that there are.

    Args:
        model: what is asked for.
        load: how.
        servers: what they are.

    Raises:
        ChildError: the load generator has found something wrong.
    """
    with started(load.command(model.workload), load.options.core, "the load generator") as child:
        before = servers.look()
        line = child.line()
        if line.strip() == "begin":
            before = servers.look()
            line = child.line()
        answer = _answer(child, line)
        after = servers.look()
    if model.pings and not answer.get("pings"):
        raise ChildError("the server sent no pings to the connections that were held")
    if load.options.deflate and answer.get("deflate") is not True:
        raise ChildError("the server did not agree to compression")
    if model.workload == "echo" and load.options.rate is not None:
        _require_pace(answer)
    figures = {name: value for name, value in answer.items() if name not in ("cpu", "servers") and value is not None}
    if parts := answer.get("servers"):
        figures |= _of_each(parts, answer["seconds"])
    if before.broker is not None and after.broker is not None:
        figures["broker_busy"] = (after.broker - before.broker) / answer["seconds"]
    if after.messages > before.messages:
        figures["contended"] = (after.contended - before.contended) / (after.messages - before.messages) * 1e6
    return figures | {
        "user": answer.get("cpu", 0.0),
        "system": 0.0,
        "server": None if before.cpu is None or after.cpu is None else after.cpu - before.cpu,
    }


def _of_each(parts: Sequence[dict[str, Any]], seconds: float) -> dict[str, float]:
    """Returns what came of the first of two servers, A, and of the second, B."""
    rates = [part["count"] / seconds for part in parts]
    tails = {f"{name}_p99": part["p99"] for name, part in zip("ab", parts, strict=True) if "p99" in part}
    return {"a_rate": rates[0], "b_rate": rates[1], "lesser": min(rates), **tails}


def require_descriptors(connections: int, each: int) -> None:
    """Lets this process and its children open as many files as the system allows.

    Args:
        connections: that there will be.
        each: descriptors that one of them needs in the server.

    Raises:
        ChildError: that is not enough for so many connections.
    """
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = connections * each + SPARE
    if most != resource.RLIM_INFINITY and needed > most:
        # Only who has the privilege may.
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (needed, needed))
            most = needed
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    if most != resource.RLIM_INFINITY and needed > most:
        raise ChildError(
            f"{connections} connections need {needed} descriptors, the system allows {most}: "
            "raise the hard limit (ulimit -Hn), or ask for fewer with --connections"
        )


def _require_pace(answer: dict[str, Any]) -> None:
    offered, count, seconds = answer["offered"], answer["count"], answer["seconds"]
    if seconds - count / offered > LATE_SECONDS:
        raise ChildError(f"the server cannot answer {offered:.0f} messages a second: it answered {count / seconds:.0f}")


def _answer(child: Child, line: str) -> dict[str, Any]:
    try:
        answer: dict[str, Any] = json.loads(line)
    except ValueError:
        child.has_ended()
        reason = child.last_error().removeprefix("wirespeed-bench: ")
        raise ChildError(reason) if reason else child.failure("gave no answer") from None
    return answer
