"""What of the scenarios a command line asks for."""

from __future__ import annotations

import argparse

from harness import scenario as scenarios
from harness.errors import UsageError
from harness.scenario import Option, Options, Scenario

__all__ = ["add_arguments", "choose", "describe", "workload_line"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options that choose."""
    parser.add_argument("scenario", nargs="*", metavar="SCENARIO", help="one or more, see list; default: all of them")
    choice = parser.add_argument_group("what (all by default; each option may be repeated)")
    name = "FOLDER[:STYLE][@LOOP]; FOLDER alone means all of it"
    choice.add_argument("--peer", action="append", default=[], metavar="NAME", help=name)
    choice.add_argument("--loop", action="append", default=[], metavar="NAME", help="only peers on that event loop")
    choice.add_argument("--workload", action="append", default=[], metavar="NAME")
    choice.add_argument("--size", action="append", default=[], type=int, metavar="BYTES")
    transport = choice.add_mutually_exclusive_group()
    transport.add_argument("--plain", dest="tls", action="store_const", const=False, help="only without TLS")
    transport.add_argument("--tls", dest="tls", action="store_const", const=True, help="only with TLS")
    option = "another value for an option of workloads: connections, window, bytes, rate, as list shows them"
    choice.add_argument("--set", action="append", default=[], type=_option, metavar="OPTION=VALUE", help=option)


def choose(options: argparse.Namespace, *, quick: bool) -> list[Scenario]:
    """Returns the scenarios, narrowed to what is asked for.

    Raises:
        UsageError: something is unknown, or nothing is left.
    """
    names = list(dict.fromkeys(options.scenario)) or scenarios.names()
    found, complaint = [], None
    for name in names:
        whole = scenarios.load(name)
        if quick and not options.size:
            whole = whole.shortened()
        try:
            found.append(_narrowed(whole, options))
        except UsageError as error:
            # A workload or peer that one scenario lacks may be another's.
            if options.scenario:
                raise
            complaint = complaint or error
    if not found:
        raise complaint or UsageError("there are no scenarios")
    return found


def _narrowed(whole: Scenario, options: argparse.Namespace) -> Scenario:
    narrowed = whole.narrowed(options.peer, options.workload, options.size, options.tls, options.loop)
    return narrowed.with_options(dict(options.set)) if options.set else narrowed


def describe(options: argparse.Namespace) -> str:
    """Returns what was chosen, as arguments; empty if that is all."""
    parts = [f"--{name} {value}" for name in ("peer", "loop", "workload", "size") for value in getattr(options, name)]
    parts += [] if options.tls is None else ["--tls" if options.tls else "--plain"]
    return " ".join(parts + [f"--set {name}={value}" for name, value in options.set])


def _option(text: str) -> tuple[str, Option]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not OPTION=VALUE")
    if value in ("true", "false"):
        return name, value == "true"
    for kind in (int, float):
        try:
            return name, kind(value)
        except ValueError:
            continue
    return name, value


def workload_line(workload: scenarios.Workload) -> str:
    """Returns what a list says of a workload."""
    transports = " and ".join("TLS" if tls else "plain" for tls in workload.tls)
    sizes = f"{', '.join(map(str, workload.sizes))} bytes, " if any(workload.sizes) else ""
    return f"{workload.name}: {workload.title}; {sizes}{transports}{_options_text(workload.options)}"


def _options_text(options: Options) -> str:
    return f"; {', '.join(f'{name}={value}' for name, value in options.items())}" if options else ""
