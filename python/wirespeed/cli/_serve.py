"""The arguments of ``wirespeed serve``."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from ._status import Status
from ._values import PORT, parse_seconds, parse_size

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]

__all__ = ["add_parser"]

DESCRIPTION = """\
Serve WebSocket connections: send every message back, or run a handler.

A handler is a coroutine function that receives the connection, or a listener
class. It is named by MODULE:HANDLER; the current folder is searched for the
module first. The addresses of the server are written to the standard output,
errors to the standard error.

The echo closes a connection to /close?code=N with that code, to test how a
client handles it.

SIGINT (Ctrl-C) and SIGTERM close the connections with code 1001 and wait for
their handlers; a second signal cancels the handlers. The certificate is read
again when its files have changed, or at once on SIGHUP; open connections are
not affected.
"""

EPILOG = """\
examples:
  wirespeed serve
  wirespeed serve --port 9000 --host 0.0.0.0 app:handler
  wirespeed serve --path /chat --origin https://example.com app:handler
  wirespeed serve --cert server.pem --key server.key app:handler
  wirespeed serve --unix /run/app.sock app:handler

exit status:
  0    the server was closed by a signal
  1    it could not listen
  2    the command line is wrong
"""


def add_parser(subparsers: Subparsers) -> None:
    """Add the parser of this command.

    Args:
        subparsers: The result of ``add_subparsers``.
    """
    parser = subparsers.add_parser(
        "serve",
        help="serve connections with an echo or your handler",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.set_defaults(run=_run)
    what = "handler to run for each connection (default: an echo)"
    parser.add_argument("handler", metavar="MODULE:HANDLER", nargs="?", help=what)
    add = parser.add_argument_group("address").add_argument
    host = "name or address to listen on (repeat); 0.0.0.0 and :: for all (default: localhost)"
    add("--host", metavar="HOST", action="append", help=host)
    add("--port", metavar="PORT", type=_port, help=f"port, 0 for a free one (default: {PORT})")
    add("--unix", metavar="FILE", help="listen on a Unix socket instead")
    add("--reuse-port", action="store_true", help="share the port with other processes that do so")
    add = parser.add_argument_group("requests").add_argument
    path = "accept connections to this path only (repeat); others get 404 (default: all)"
    add("--path", metavar="PATH", action="append", type=_path, help=path)
    origin = "accept web pages of this origin only (repeat); none: also accept requests without an Origin header"
    add("--origin", metavar="ORIGIN", action="append", help=origin)
    add("--subprotocol", metavar="NAME", action="append", help="accept a subprotocol (repeat, preferred first)")
    add = parser.add_argument_group("TLS").add_argument
    add("--cert", metavar="FILE", help="certificate and intermediate certificates, in PEM, to serve wss")
    add("--key", metavar="FILE", help="private key of --cert, if it is not in the same file")
    add("--client-ca", metavar="FILE", help="require client certificates of the authorities in this PEM file")
    add = parser.add_argument_group("limits").add_argument
    add("--max-size", metavar="BYTES", default=2**20, type=parse_size, help="maximum message size: 1048576, 16M, none")
    timeout = "timeout of opening and of closing (default: 10)"
    add("--timeout", metavar="SECONDS", default=10.0, type=parse_seconds, help=timeout)
    ping = "keepalive interval, 0 for none (default: 20)"
    add("--ping", metavar="SECONDS", default=20.0, type=parse_seconds, help=ping)
    add = parser.add_argument_group("output").add_argument
    add("-v", "--verbose", action="count", default=0, help="log refused connections; twice: every connection")


def _run(arguments: argparse.Namespace) -> Status:
    # Imported here, because the help does not need it.
    from ._serving import run

    return run(arguments)


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port, 0 to 65535")
    return int(text)


def _path(text: str) -> str:
    if not text.startswith("/"):
        raise argparse.ArgumentTypeError(f"{text!r} does not begin with /")
    return text
