"""The load on a server peer: the load generator's command line, and what becomes of its answer."""

import argparse
import contextlib
import json
import os
import resource
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from models.program import process_cpu
from serving.process import GENERATOR, Child, ChildError, started

__all__ = ["FORMATS", "GENERATOR", "ROLES", "WORKLOADS", "Load", "measure_memory", "require_descriptors", "run"]

PICOWS = Path(__file__).resolve().parents[1] / "peers" / "picows" / "peer.py"
# How long after the window the last echo of a fixed rate may come; later, the server does not keep up with it.
LATE_SECONDS = 0.5
# Workloads of the load generator that several of its threads can share.
THREADED = ("echo", "sink", "fan-out", "open")
# How long a server may take to say what it has counted.
ANSWER_SECONDS = 10.0
# Descriptors of a server that are not connections of the load.
SPARE = 64
# Idle connections that are opened before the first look at the memory: what a process needs once is not counted.
FIRST = 100
# Of their message: large enough to be compressed where that is agreed on, and no larger, as handlers that wait still
# hold the last one.
IDLE_SIZE = 256
# What messages may be: bytes or text with a number in front, or documents with a number in them.
FORMATS = ("binary", "text", "json", "json-bytes", "msgpack")


# By the names that scenarios use. The load of the second is the client of picows, many connections with a message under
# way; in `hold`, the server has to send pings.
WORKLOADS = (
    *("echo", "echo-picows", "burst", "sink", "fan-out", "publish"),
    *("open", "touch", "storm", "pings", "hold", "idle"),
)
ROLES = {"sink": "sink", "fan-out": "fan-out", "publish": "fan-out"}
"""What a server has to do with the messages of a workload, other than to echo them; also its path."""


@dataclass(frozen=True)
class Load:
    """How a server is put under load.

    Attributes:
        options: the command line of the peer.
        urls: where the servers listen.
        token: what a client must have, if the server wants one.
        apart: whether several servers know nothing of each other.
    """

    options: argparse.Namespace
    urls: Sequence[str]
    token: str | None
    apart: bool = False

    def command(self, workload: str, **different: object) -> list[str]:
        """Returns the command line of a load generator; `different`: options that are not those of the peer.

        Raises:
            ChildError: it is not there.
        """
        options = self.options
        wanted = {name: getattr(options, name) for name in ("connections", "seconds", "warmup")}
        wanted["size"] = options.size or None
        if workload == "echo-picows":
            program = [sys.executable, str(PICOWS), "--loop", "uvloop", "--workload", "many"]
        elif not GENERATOR.exists():
            raise ChildError(f"no {GENERATOR}: build it with cargo build --release -p wirespeed-bench")
        else:
            program = [str(GENERATOR), "load", "--workload", workload]
            own = ("window", "rate", "share", "messages", "busy", "deflate")
            wanted |= {name: getattr(options, name) for name in own}
            wanted |= {"wse-token" if options.greets else "token": self.token, "ca": options.ca, "apart": self.apart}
            wanted["threads"] = options.threads if workload in THREADED else None
            wanted["content"] = options.format if options.format != "binary" else None
        for name, value in (wanted | different).items():
            if value is not None and value is not False:
                program += [f"--{name}"] if value is True else [f"--{name}", str(value)]
        return [*program, *(["--url"] if workload == "echo-picows" else []), *self.urls]


def _look(servers: Sequence[Child], broker: Child | None, *, counts: bool) -> dict[str, float | None]:
    """Looks at the CPU time that they have used, and at what they have counted, if they do, so far."""
    cpu = [process_cpu(child.pid) for child in servers]
    counted = [json.loads(child.ask(ANSWER_SECONDS)) for child in servers] if counts else []
    return {
        "server": None if None in cpu else sum(filter(None, cpu)),
        "broker": None if broker is None else process_cpu(broker.pid),
        **{name: sum(one[name] for one in counted) for name in ("locks_contended", "messages")},
    }


def run(load: Load, servers: Sequence[Child], broker: Child | None) -> dict[str, object]:
    """Puts load on servers for a window and returns the answer of the contract, with all figures that there are.

    Args:
        load: how.
        servers: what they are.
        broker: what connects them, if something does.

    Raises:
        ChildError: the load generator has found something wrong.
    """
    options, workload = load.options, load.options.workload
    # The client of picows looks itself at what the server uses.
    different = {"server-pid": servers[0].pid} if workload == "echo-picows" else {}
    with started(load.command(workload, **different), options.core, "the load generator") as child:
        # Where nothing says when it begins, all of it counts.
        before = _look(servers, broker, counts=options.counts)
        line = child.line()
        if line.strip() == "begin":
            before = _look(servers, broker, counts=options.counts)
            line = child.line()
        answer = _answer(child, line)
        after = _look(servers, broker, counts=options.counts)
    if workload == "hold" and not answer.get("pings"):
        raise ChildError("the server sent no pings to the connections that were held")
    if options.deflate and answer.get("deflate") is not True:
        raise ChildError("the server did not agree to compression")
    seconds, rate = answer["seconds"], options.rate if workload == "echo" else None
    if rate is not None and seconds - answer["count"] / rate > LATE_SECONDS:
        raise ChildError(
            f"the server cannot answer {rate:.0f} messages a second: it answered {answer['count'] / seconds:.0f}"
        )
    used = {name: None if None in (old, after[name]) else after[name] - old for name, old in before.items()}  # type: ignore[operator]
    figures = {name: value for name, value in answer.items() if name not in ("cpu", "servers") and value is not None}
    if parts := answer.get("servers"):
        # The first of two servers is A, the second B.
        rates_of = {f"{name}_rate": part["count"] / seconds for name, part in zip("ab", parts, strict=True)}
        figures |= {"lesser": min(rates_of.values()), **rates_of}
        figures |= {f"{name}_p99": part["p99"] for name, part in zip("ab", parts, strict=True) if "p99" in part}
    if used["broker"] is not None:
        figures["broker_busy"] = used["broker"] / seconds
    if used["messages"]:
        figures["contended"] = (used["locks_contended"] or 0) / used["messages"] * 1e6
    return {"user": answer.get("cpu", 0.0), "system": 0.0, "server": used["server"], **figures}


def _answer(child: Child, line: str) -> dict[str, Any]:
    try:
        answer: dict[str, Any] = json.loads(line)
    except ValueError:
        raise _failure(child, "gave no answer") from None
    if answer.get("checked") is not True:
        raise ChildError(str(answer.get("failed") or answer.get("skipped")))
    return answer


def _failure(child: Child, what: str) -> ChildError:
    """Returns the error of the load generator: what it says itself, as it says what is wrong with the server."""
    child.has_ended()
    reason = child.last_error().removeprefix("wirespeed-bench: ")
    return ChildError(reason) if reason else child.failure(what)


def measure_memory(load: Load, pid: int) -> dict[str, object]:
    """Has connections opened that have one message echoed, lets them rest; `memory` is what the server holds for them.

    They rest for some seconds, for what a server releases when a connection is idle.

    Raises:
        ChildError: connections cannot be opened, or do not stay open.
    """
    connections, settle, started_at = load.options.connections, load.options.settle, time.perf_counter()
    with _idle(load, FIRST):
        time.sleep(settle)
        before = _resident(pid)
        with _idle(load, connections):
            time.sleep(settle)
            memory = _resident(pid) - before
    answer = {"count": connections, "seconds": time.perf_counter() - started_at, "memory": memory, "checked": True}
    return {**answer, "user": 0.0, "system": 0.0, "server": None}


@contextlib.contextmanager
def _idle(load: Load, connections: int) -> Iterator[None]:
    command = load.command("idle", connections=connections, size=IDLE_SIZE, seconds=None, warmup=None)
    # On no core of its own: nothing is measured while they are opened.
    with started(command, None, "the load generator") as child:
        if child.line().strip() != "ready":
            raise ChildError(f"the connections could not be opened: {_failure(child, 'gave no answer')}")
        yield
        if child.has_ended(0.0):
            raise child.failure("lost idle connections")


def _resident(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


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
    too_few = most != resource.RLIM_INFINITY and needed > most
    if too_few:
        # Only who has the privilege may.
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (needed, needed))
            return
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    if too_few:
        raise ChildError(
            f"{connections} connections need {needed} descriptors, the system allows {most}: "
            "raise the hard limit (ulimit -Hn), or ask for fewer with --connections"
        )
