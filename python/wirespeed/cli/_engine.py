"""``wirespeed engine``: its arguments."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from ._status import Status
from ._values import PORT, parse_count, parse_seconds, parse_size

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]

__all__ = ["add_parser"]

DESCRIPTION = """\
Serve WebSocket connections by the engine: threads of its own, without Python on
the way of a message that is sent back or published.

module:name is an Engine, which says itself where it listens, or a function that
is called with the engine that the options make, to add its paths and handlers;
the module is looked for in the current folder first. Without one, every message
is sent back.

On a terminal the rates are shown on one screen, else a line of them is written
to the standard output now and then.

SIGINT (Ctrl-C) and SIGTERM drain the engine: nobody is accepted any more, and
the sessions are closed with code 1012, a few at a time; a second signal ends at
once. With --handoff a new process gets the listening sockets of the old one,
which drains then: no client is refused while a service restarts. The
certificate is read again when its files have changed.
"""

EPILOG = """\
examples:
  wirespeed engine --echo
  wirespeed engine --port 9000 --host 0.0.0.0 --app app:set_up
  wirespeed engine --app app:engine --metrics 127.0.0.1:9100
  wirespeed engine --cert server.pem --key server.key --handoff /run/app.sock

exit status:
  0    the engine was drained
  1    it could not listen
  2    the command line is wrong
"""


def add_parser(subparsers: Subparsers) -> None:
    """Add the parser of this command to those of the others.

    Args:
        subparsers: What ``add_subparsers`` returned.
    """
    parser = subparsers.add_parser(
        "engine",
        help="serve connections on many threads, and show the rates",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.set_defaults(run=_run)
    what = parser.add_mutually_exclusive_group().add_argument
    what("--echo", action="store_true", help="send every message back (the default)")
    what("--app", metavar="MODULE:NAME", help="an Engine, or a function that sets one up")
    add = parser.add_argument_group("address").add_argument
    add("--host", metavar="ADDRESS", help="address to listen on; 0.0.0.0 or :: for all (default: 127.0.0.1)")
    add("--port", metavar="PORT", type=_port, help=f"port, 0 for one that is free (default: {PORT})")
    add("--unix", metavar="FILE", help="listen on a Unix socket instead, or too with --host or --port")
    add("--workers", metavar="COUNT", type=parse_count, help="threads that serve (default: one for each core)")
    add = parser.add_argument_group("requests").add_argument
    origin = "accept web pages of this origin only (repeat), * for all (default: those of the same host)"
    add("--origin", metavar="ORIGIN", action="append", help=origin)
    add("--subprotocol", metavar="NAME", action="append", help="accept a subprotocol (repeat, best first)")
    add("--compression", action="store_true", default=None, help="accept permessage-deflate")
    add = parser.add_argument_group("TLS").add_argument
    add("--cert", metavar="FILE", help="certificate and intermediate ones, in PEM: the server speaks wss")
    add("--key", metavar="FILE", help="private key of --cert, where it is not in the same file")
    add("--client-ca", metavar="FILE", help="demand certificates of clients, of the authorities in this PEM file")
    add = parser.add_argument_group("limits").add_argument
    add("--max-size", metavar="BYTES", type=parse_size, default=..., help="longest message: 1048576, 16M, none")
    timeout = "limit for opening, and closing (default: 10)"
    add("--timeout", metavar="SECONDS", type=parse_seconds, help=timeout)
    add("--ping", metavar="SECONDS", type=parse_seconds, help="keepalive interval, 0 for none (default: 20)")
    add = parser.add_argument_group("operations").add_argument
    metrics = "answer /metrics, /health and /ready here too"
    add("--metrics", metavar="ADDRESS:PORT", type=_address, help=metrics)
    add("--handoff", metavar="FILE", help="Unix socket by which a new process takes the listening sockets over")
    add("--drain", metavar="SECONDS", type=parse_seconds, help="limit for draining (default: 30)")
    add = parser.add_argument_group("output").add_argument
    interval = "between two lines of rates, 0 for none (default: 10; on a terminal 1)"
    add("--interval", metavar="SECONDS", type=parse_seconds, help=interval)
    add("--plain", action="store_true", help="lines also on a terminal")
    add("-v", "--verbose", action="count", default=0, help="log what is refused; twice: every failure")


def _run(arguments: argparse.Namespace) -> Status:
    # Not to show the help only.
    from ._engine_run import run

    return run(arguments)


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port, 0 to 65535")
    return int(text)


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host:
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form address:port")
    return host.removeprefix("[").removesuffix("]"), _port(port)
