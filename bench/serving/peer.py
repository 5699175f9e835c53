"""The program around the server peers: starts the server, puts load on it, prints the JSON line.

A server peer's figures are those of its server: its rate and latencies, as the load generator has counted and checked
them, and its CPU time. The load generator runs on the core that the harness gives; the server on another, where there
is one.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import importlib.util
import os
import signal
import subprocess
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from models.loops import LIBRARIES
from models.program import Library, end, fail, parser, version
from serving import load as serving_load
from serving.certificate import certificate
from serving.load import FORMATS, MODELS, Load, require_descriptors
from serving.memory import measure_memory
from serving.nodes import NODES, Cores, broker, broker_version
from serving.process import Child, ChildError, started

__all__ = ["main"]

# How long a server may take until it listens.
START_SECONDS = 15.0
# What two servers are measured by.
PUBLISHING = ("fan-out", "publish")
# Where connections are at rest: servers release what only busy ones need at their next ping.
IDLE_PING_SECONDS = 1.0


def main(
    server: Path | None,
    libraries: Sequence[Library],
    workloads: Collection[str] | None = None,
    *,
    deflate: bool = True,
    token_styles: Collection[str] = (),
    descriptors: int = 1,
    plain: str = "binary",
    plain_by_style: Mapping[str, str] | None = None,
    greets: bool = False,
    limited: Mapping[str, Collection[str]] | None = None,
    tls: bool = False,
    pairs: Mapping[str, str | None] | None = None,
    counts: bool = False,
) -> NoReturn:
    """Runs a server peer: measures, or answers --probe.

    Args:
        server: Its program. It takes the options of `server_program`, prints its port, and ends with its standard
            input. None: a compiled one, which --program names; it takes --until-eof, and says where it listens.
        libraries: What must be installed.
        workloads: Those that it takes part in, names of `load.MODELS`; None for all.
        deflate: Whether it knows permessage-deflate.
        token_styles: The styles in which clients need a token; not for workloads whose clients have none.
        descriptors: How many it needs for a connection.
        plain: What messages are where the workload does not say it, one of `load.FORMATS`: not `binary` for
            a server that takes some bytes at their beginning for its own. They are as long, and are compared in full.
        plain_by_style: The same for some styles, where it differs.
        greets: Whether a server that wants tokens says when a connection is ready, as WSE does.
        limited: Of some styles the only workloads that they take part in.
        tls: Whether it serves TLS too, in the workloads that need no connections of the harness.
        pairs: Styles in which two servers run, and the broker between them, one of `nodes.PROGRAMS`; None: they know
            nothing of each other. They take part in what is published only.
        counts: Whether it answers `count` with the messages that it has moved, and how often a lock was waited for.
    """
    names = list(MODELS if workloads is None else workloads)
    arguments = _parser(names)
    options = arguments.parse_args()
    if options.format is None:
        options.format = (plain_by_style or {}).get(options.style, plain)
    signal.signal(signal.SIGTERM, _terminated)
    pairs = pairs or {}
    if options.style in pairs:
        limited = {**(limited or {}), options.style: PUBLISHING}
    link = pairs.get(options.style)
    on = LIBRARIES[options.loop]
    libraries = [*libraries, *([on] if on is not None else [])]
    try:
        if options.probe:
            about = version(libraries) if server is not None else _compiled_version(options.program)
            if link is not None:
                try:
                    about = f"{about} with {broker_version(link)}"
                except ChildError as error:
                    end({"skipped": str(error)})
            known = [name for name in names if options.style not in token_styles or MODELS[name].tokens]
            if limited is not None and options.style in limited:
                known = [name for name in known if name in limited[options.style]]
            if importlib.util.find_spec("picows") is None:
                known = [name for name in known if MODELS[name].workload is not None]
            end({"version": about, "workloads": known, "tls": tls})
        if options.deflate and not deflate:
            raise ChildError("it has no permessage-deflate: leave it out of workloads with the option deflate")
        pair = Pair(link) if options.style in pairs else None
        answer = _measured(server, options, descriptors, greets, pair, counts=counts)
        # Without importing what the server imports: that is waiting for nothing.
        about = _installed(libraries) if server is not None else _compiled_version(options.program)
        about += f" with {broker_version(link)}" if link is not None else ""
    except ChildError as error:
        end({"failed": str(error)})
    except Exception as error:
        fail(error, libraries)
    end(answer | {"version": about})


def _parser(names: Sequence[str]) -> argparse.ArgumentParser:
    arguments = parser(names)
    # To the load generator, it means something else in each workload.
    arguments.set_defaults(window=None)
    arguments.add_argument("--style")
    arguments.add_argument("--loop", default="asyncio")
    arguments.add_argument("--program", help="the server, if it was compiled")
    arguments.add_argument("--format", choices=FORMATS, help="what messages are")
    arguments.add_argument("--share", type=float, help="messages a second to publish, as a share of the most it can do")
    arguments.add_argument("--ping-interval", type=float, help="seconds between two pings of the server to a client")
    arguments.add_argument("--workers", type=int, default=1, help="threads of the server, 0: one for each core")
    arguments.add_argument("--threads", type=int, default=1, help="threads of the load generator")
    arguments.add_argument("--settle", type=float, default=3.0, help="seconds before memory is looked at")
    return arguments


@dataclass(frozen=True)
class Pair:
    """Two servers, and the kind of broker between them; None: they know nothing of each other."""

    link: str | None


def _measured(
    server: Path | None,
    options: argparse.Namespace,
    descriptors: int,
    greets: bool,
    pair: Pair | None,
    *,
    counts: bool,
) -> dict[str, object]:
    """Returns the answer of a window, all processes stopped."""
    model = MODELS[options.workload]
    number = 1 if pair is None else NODES
    require_descriptors(0 if model.as_many_as_fit else options.connections * number, descriptors)
    cores = _cores(options)
    with contextlib.ExitStack() as stack:
        options.certificate = None
        if options.ca is not None:
            options.certificate, options.ca = stack.enter_context(certificate())
        command, between = _command(server, options), None
        if pair is not None and pair.link is not None:
            url, between = stack.enter_context(broker(pair.link, None if cores is None else cores.broker))
            command += ["--broker", url]
        children: list[Child] = []
        urls = []
        for place in range(number):
            core = None if cores is None else cores.engines[place]
            children.append(stack.enter_context(started(command, core, "the server")))
        for child in children:
            # The port alone, or behind `listening ws://127.0.0.1:`; the token that clients need, if they do.
            port, _, token = child.line(START_SECONDS).strip().rpartition(":")[2].partition(" ")
            if not port.isdigit():
                raise child.failure("did not say where it listens")
            urls.append(f"{'ws' if options.ca is None else 'wss'}://127.0.0.1:{port}{model.path}")
        load = Load(options, urls, token or None, descriptors, greets, apart=pair is not None and between is None)
        try:
            if model.workload == "idle":
                return measure_memory(load, children[0].pid, options)
            answer = serving_load.run(model, load, serving_load.Servers(children, between, counts))
        except ChildError as error:
            # The load only sees connections that end.
            for child in (*children, *([between] if between is not None else [])):
                if child.has_ended():
                    raise child.failure("ended while it was under load") from error
            raise
        if pair is not None and cores is not None:
            answer["shared"] = cores.shared(broker=between is not None)
        return answer


def _command(server: Path | None, options: argparse.Namespace) -> list[str]:
    model = MODELS[options.workload]
    command = [options.program, "--until-eof"] if server is None else [sys.executable, str(server)]
    if server is not None:
        command += ["--loop", options.loop, "--role", model.role]
        command += ["--style", options.style] if options.style is not None else []
        command += ["--workers", str(options.workers), "--format", options.format]
        command += ["--certificate", options.certificate] if options.certificate is not None else []
    if options.deflate:
        command += ["--deflate"]
    if options.ping_interval is not None:
        command += ["--ping-interval", str(options.ping_interval), *(["--must-ping"] if server is not None else [])]
    elif model.workload == "idle" and server is not None:
        command += ["--ping-interval", str(IDLE_PING_SECONDS)]
    return command


def _cores(options: argparse.Namespace) -> Cores | None:
    if options.core is None:
        return None
    # Where the harness has put its own server, which is idle now.
    cores = os.sched_getaffinity(options.server_pid) if options.server_pid is not None else {options.core}
    return Cores.spread(options.core, cores)


def _compiled_version(program: str) -> str:
    return subprocess.run([program, "--version"], capture_output=True, text=True, timeout=10, check=True).stdout.strip()


def _installed(libraries: Sequence[Library]) -> str:
    versions = [importlib.metadata.version(one.distribution or one.module) for one in libraries]
    return " on ".join(
        [versions[0], *(f"{one.module} {text}" for one, text in zip(libraries[1:], versions[1:], strict=True))]
    )


def _terminated(signum: int, frame: object) -> NoReturn:
    # Unwinds, so that server and load are stopped.
    raise SystemExit(128 + signum)
