"""The arguments of ``wirespeed engine``."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from ._status import Status
from ._values import PORT, parse_count, parse_seconds, parse_size

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]

__all__ = ["add_parser"]

DESCRIPTION = """\
Serve WebSocket connections with the engine, on native threads: messages that
are echoed or published do not pass through Python.

MODULE:NAME is an Engine, which has its own addresses, or a function that is
called with an engine made from the options, and adds paths and handlers. The
current folder is searched for the module first. Without --app, every message is
sent back.

On a terminal, the rates are shown on one screen. Otherwise, a line of rates is
written to the standard output at intervals.

SIGINT (Ctrl-C) and SIGTERM drain the engine: it stops accepting, and closes the
sessions with code 1012, a few at a time. A second signal ends it at once. With
--handoff, a new process takes over the listening sockets of the old one, which
then drains, so that a restart refuses no client. The certificate is read again
when its files have changed.
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
    """Add the parser of this command.

    Args:
        subparsers: The result of ``add_subparsers``.
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
    add("--port", metavar="PORT", type=_port, help=f"port, 0 for a free one (default: {PORT})")
    add("--unix", metavar="FILE", help="listen on a Unix socket; with --host or --port, also on TCP")
    add("--workers", metavar="COUNT", type=parse_count, help="threads that serve (default: one for each core)")
    add = parser.add_argument_group("requests").add_argument
    origin = "accept web pages of this origin only (repeat), * for all (default: those of the same host)"
    add("--origin", metavar="ORIGIN", action="append", help=origin)
    add("--subprotocol", metavar="NAME", action="append", help="accept a subprotocol (repeat, preferred first)")
    add("--compression", action="store_true", default=None, help="accept permessage-deflate")
    add = parser.add_argument_group("TLS").add_argument
    add("--cert", metavar="FILE", help="certificate and intermediate certificates, in PEM, to serve wss")
    add("--key", metavar="FILE", help="private key of --cert, if it is not in the same file")
    add("--client-ca", metavar="FILE", help="require client certificates of the authorities in this PEM file")
    add = parser.add_argument_group("limits").add_argument
    add("--max-size", metavar="BYTES", type=parse_size, default=..., help="maximum message size: 1048576, 16M, none")
    timeout = "timeout of opening and of closing (default: 10)"
    add("--timeout", metavar="SECONDS", type=parse_seconds, help=timeout)
    add("--ping", metavar="SECONDS", type=parse_seconds, help="keepalive interval, 0 for none (default: 20)")
    add = parser.add_argument_group("operations").add_argument
    metrics = "answer /metrics, /health and /ready here too"
    add("--metrics", metavar="ADDRESS:PORT", type=_address, help=metrics)
    add("--handoff", metavar="FILE", help="Unix socket through which a new process takes over the listening sockets")
    add("--drain", metavar="SECONDS", type=parse_seconds, help="limit for draining (default: 30)")
    add = parser.add_argument_group("output").add_argument
    interval = "time between two lines of rates, 0 for none (default: 10; on a terminal 1)"
    add("--interval", metavar="SECONDS", type=parse_seconds, help=interval)
    add("--plain", action="store_true", help="show lines of rates also on a terminal")
    add("-v", "--verbose", action="count", default=0, help="log refused connections; twice: every failure")


def _run(arguments: argparse.Namespace) -> Status:
    # Imported here, because the help does not need it.
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
