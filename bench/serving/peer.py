"""The program around the server peers: starts the server, puts load on it, prints the JSON line.

A peer.toml calls it and says what there is to know of its server. The figures of such a peer are those of the server:
its rate and latencies, as the load generator has counted and checked them, and its CPU time. The load generator runs on
the core that the harness gives; the server on another, where there is one.
"""

import argparse
import contextlib
import importlib.util
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from typing import NoReturn

from models.program import LOOPS, Library, can_fork, end, fail, once_or_forking, parser, version
from serving import load as serving_load
from serving.load import FORMATS, ROLES, WORKLOADS, Load, measure_memory, require_descriptors
from serving.nodes import NODES, Cores, broker, broker_version
from serving.process import ChildError, certificate, started

# How long a server may take until it listens.
START_SECONDS = 15.0
# What two servers are measured by.
PUBLISHING = ("fan-out", "publish")
# Where connections are at rest: servers release what only busy ones need at their next ping.
IDLE_PING_SECONDS = 1.0


def main(argv: Sequence[str]) -> NoReturn:
    """Runs a server peer: measures, or answers --probe."""
    options = _options(argv)
    signal.signal(signal.SIGTERM, _terminated)
    own_loop = LOOPS[options.loop]
    libraries = [Library(*name.split("=")) if "=" in name else Library(name, name) for name in options.library]
    libraries += [own_loop] if own_loop is not None and libraries else []
    try:
        # Without importing what the server imports, once it is measured: that would be waiting for nothing.
        about = _version(options, libraries)
        if options.probe:
            end({"version": about, "workloads": _workloads(options), "tls": options.serves_tls, "forks": can_fork()})
        if options.deflate and options.no_deflate:
            raise ChildError("it has no permessage-deflate: leave it out of workloads with the option deflate")
        end(_measured(options) | {"version": about})
    except ChildError as error:
        end({"skipped" if options.probe else "failed": str(error)})
    except Exception as error:
        fail(error, libraries)


def _options(argv: Sequence[str]) -> argparse.Namespace:
    arguments = parser(WORKLOADS)
    # To the load generator, it means something else in each workload.
    arguments.set_defaults(window=None)
    add = arguments.add_argument
    add("--style", default="")
    add("--format", choices=FORMATS, help="what messages are")
    add("--share", type=float, help="messages a second to publish, as a share of the most it can do")
    add("--messages", type=int, help="of each connection, until the server has to confirm them")
    add("--busy", action="store_true", help="echo over connections that are pinged")
    add("--ping-interval", type=float, help="seconds between two pings of the server to a client")
    add("--workers", type=int, default=1, help="threads of the server, 0: one for each core")
    add("--threads", type=int, default=1, help="threads of the load generator")
    add("--settle", type=float, default=3.0, help="seconds before memory is looked at")
    about = arguments.add_argument_group("what there is to know of the server (an S= before a value: for that style)")
    add = about.add_argument
    add("--server", help="its program in Python, with the options of serving/server.py")
    add("--program", help="or a compiled one, with --until-eof and --version")
    add("--library", action="append", default=[], metavar="MODULE[=NAME]", help="what it needs; its name on PyPI")
    add("--without", action="append", default=[], metavar="WORKLOAD", help="what it cannot do")
    add("--only", action="append", default=[], metavar="S=WORKLOADS", help="all that a style can do, or differs in")
    add("--no-deflate", action="store_true", help="it has no permessage-deflate")
    add("--serves-tls", action="store_true", help="over TLS too, in workloads without connections of the harness")
    add("--plain", action="append", default=[], metavar="[S=]FORM", help="messages, where the workload does not say it")
    add("--token", metavar="S", help="the style in which clients need a token")
    add("--greets", action="store_true", help="it tells clients with a token when they are ready, as WSE does")
    add("--descriptors", type=int, default=1, help="that it needs for a connection")
    add("--pair", action="append", default=[], metavar="S=[BROKER]", help="two servers publish, and what connects them")
    add("--counts", action="store_true", help="it answers `count` with what it has moved, and waits for locks")
    options = arguments.parse_args(argv)
    for name in ("only", "pair", "plain"):
        setattr(options, name, dict(text.rpartition("=")[::2] for text in getattr(options, name)))
    plain = options.plain.get(options.style, options.plain.get("", "binary"))
    options.format = options.format or plain
    options.is_pair, options.link = options.style in options.pair, options.pair.get(options.style)
    return options


def _workloads(options: argparse.Namespace) -> list[str]:
    only = options.only[options.style].split(",") if options.style in options.only else WORKLOADS
    only = PUBLISHING if options.is_pair else only
    # The load of picows has no tokens.
    without_picows = options.style == options.token or importlib.util.find_spec("picows") is None
    without = [*options.without, *(["echo-picows"] if without_picows else [])]
    return [name for name in WORKLOADS if name in only and name not in without]


def _version(options: argparse.Namespace, libraries: list[Library]) -> str:
    if options.program is not None:
        command = [options.program, "--version"]
        return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.strip()
    return version(libraries, load=options.probe) + (f" with {broker_version(options.link)}" if options.link else "")


def _measured(options: argparse.Namespace) -> dict[str, object]:
    """Returns the answer of a window, all processes stopped."""
    cores = _cores(options)
    number = NODES if options.is_pair else 1
    require_descriptors(options.connections * number, options.descriptors)
    with contextlib.ExitStack() as stack:
        command, between = _command(options), None
        if options.ca is not None:
            server_file, options.ca = stack.enter_context(certificate())
            command += ["--certificate", server_file]
        if options.link:
            url, between = stack.enter_context(broker(options.link, None if cores is None else cores.broker))
            command += ["--broker", url]
        engines = [None] * number if cores is None else cores.engines[:number]
        children = [stack.enter_context(started(command, core, "the server")) for core in engines]
        urls, token = [], ""
        for child in children:
            # The port alone, or behind `listening ws://127.0.0.1:`; the token that clients need, if they do.
            port, _, token = child.line(START_SECONDS).strip().rpartition(":")[2].partition(" ")
            if not port.isdigit():
                raise child.failure("did not say where it listens")
            urls.append(f"{'ws' if options.ca is None else 'wss'}://127.0.0.1:{port}/{ROLES.get(options.workload, '')}")
        load = Load(options, urls, token or None, apart=options.is_pair and between is None)
        try:
            if options.workload == "idle":
                return measure_memory(load, children[0].pid)
            answer = serving_load.run(load, children, between)
        except ChildError as error:
            # The load only sees connections that end.
            for child in filter(None, (*children, between)):
                if child.has_ended():
                    raise child.failure("ended while it was under load") from error
            raise
        if options.is_pair and cores is not None:
            answer["shared"] = cores.shared(broker=between is not None)
        return answer


def _command(options: argparse.Namespace) -> list[str]:
    is_python, idle = options.program is None, options.workload == "idle"
    command = [sys.executable, options.server] if is_python else [options.program, "--until-eof"]
    interval = options.ping_interval or (IDLE_PING_SECONDS if idle and is_python else None)
    wanted = {"deflate": options.deflate, "ping-interval": interval}
    if is_python:
        wanted |= {"loop": options.loop, "style": options.style, "role": ROLES.get(options.workload, "echo")}
        wanted |= {"workers": options.workers, "format": options.format, "must-ping": options.ping_interval is not None}
    for name, value in wanted.items():
        if value is not None and value is not False:
            command += [f"--{name}"] if value is True else [f"--{name}", str(value)]
    return command


def _cores(options: argparse.Namespace) -> Cores | None:
    if options.core is None:
        return None
    # Where the harness has put its own server, which is idle now.
    cores = os.sched_getaffinity(options.server_pid) if options.server_pid is not None else {options.core}
    return Cores.spread(options.core, cores)


def _terminated(signum: int, frame: object) -> NoReturn:
    # Unwinds, so that server and load are stopped.
    raise SystemExit(128 + signum)


if __name__ == "__main__":
    once_or_forking(main, lambda argv: None)
