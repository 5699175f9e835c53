"""``wirespeed serve``: its arguments, and what they mean for a server."""

from __future__ import annotations

import argparse
import contextlib
import errno
import logging
import math
import sys
from collections.abc import Iterator
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from .. import TLS, Request, Response, Server, ServerConnection, run, serve, unix_serve
from . import _handler as handler
from ._renewal import Renewal
from ._status import CommandError, Status, describe
from ._values import limit, parse_seconds, parse_size
from ._worker import write_all

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]

__all__ = ["add_parser"]

DESCRIPTION = """\
Serve WebSocket connections: send every message back, or run a handler.

A handler is a coroutine function that receives the connection, or a class of
listeners; module:handler names it, and the module is looked for in the current
folder first. Where the server listens is written to the standard output, what
goes wrong to the standard error.

The echo closes a connection to /close?code=N with that code, to try what a
client makes of it.

SIGINT (Ctrl-C) and SIGTERM close the connections with code 1001 and wait for
their handlers; a second signal cancels these. The certificate is read again
when its files have changed, or at once when SIGHUP comes; connections that are
open go on.
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

LOGGER = logging.getLogger("wirespeed.cli")

PORT = 8765
"""As in all examples."""


def add_parser(subparsers: Subparsers) -> None:
    """Add the parser of this command to those of the others.

    Args:
        subparsers: What ``add_subparsers`` returned.
    """
    parser = subparsers.add_parser(
        "serve",
        help="serve connections: an echo, or a handler of yours",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.set_defaults(run=_run)
    what = "what to run for each connection (default: an echo)"
    parser.add_argument("handler", metavar="MODULE:HANDLER", nargs="?", help=what)
    add = parser.add_argument_group("address").add_argument
    host = "name or address to listen on (repeat); 0.0.0.0 and :: for all (default: localhost)"
    add("--host", metavar="HOST", action="append", help=host)
    add("--port", metavar="PORT", type=_port, help=f"port, 0 for one that is free (default: {PORT})")
    add("--unix", metavar="FILE", help="listen on a Unix socket instead")
    add("--reuse-port", action="store_true", help="share the port with other processes that do so")
    add = parser.add_argument_group("requests").add_argument
    path = "accept connections to this path only (repeat); others get 404 (default: all)"
    add("--path", metavar="PATH", action="append", type=_path, help=path)
    origin = "accept web pages of this origin only (repeat); none: also programs, which send none"
    add("--origin", metavar="ORIGIN", action="append", help=origin)
    add("--subprotocol", metavar="NAME", action="append", help="accept a subprotocol (repeat, best first)")
    add = parser.add_argument_group("TLS").add_argument
    add("--cert", metavar="FILE", help="certificate and intermediate ones, in PEM: the server speaks wss")
    add("--key", metavar="FILE", help="private key of --cert, where it is not in the same file")
    add("--client-ca", metavar="FILE", help="demand certificates of clients, of the authorities in this PEM file")
    add = parser.add_argument_group("limits").add_argument
    add("--max-size", metavar="BYTES", default=2**20, type=parse_size, help="longest message: 1048576, 16M, none")
    timeout = "limit for opening, and closing (default: 10)"
    add("--timeout", metavar="SECONDS", default=10.0, type=parse_seconds, help=timeout)
    ping = "keepalive interval, 0 for none (default: 20)"
    add("--ping", metavar="SECONDS", default=20.0, type=parse_seconds, help=ping)
    add = parser.add_argument_group("output").add_argument
    add("-v", "--verbose", action="count", default=0, help="log what is refused; twice: every connection")


def _run(arguments: argparse.Namespace) -> Status:
    found = handler.echo if arguments.handler is None else handler.load(arguments.handler)
    _set_up_logging(arguments.verbose)
    try:
        server = _make(found, arguments)
    except (OSError, TypeError, ValueError) as exc:
        raise CommandError(Status.USAGE, describe(exc)) from None
    run(_serve(server, arguments))
    return Status.OK


def _make(found: Any, arguments: argparse.Namespace) -> Server:
    """Make a server of what the command line says.

    Raises:
        CommandError: The options contradict each other.
        OSError: A file cannot be read.
        TypeError, ValueError: An argument of ``serve`` is wrong.
    """
    options: dict[str, Any] = {
        "subprotocols": arguments.subprotocol,
        "max_size": arguments.max_size,
        "open_timeout": limit(arguments.timeout),
        "close_timeout": limit(arguments.timeout),
        "ping_interval": limit(arguments.ping or math.inf),
        "ssl": _tls(arguments),
    }
    if arguments.origin is not None:
        options["origins"] = [None if origin == "none" else origin for origin in arguments.origin]
    if arguments.path is not None:
        options["process_request"] = _only(arguments.path)
    if isinstance(found, type):
        found, options["listener"] = None, found
    if arguments.unix is None:
        hosts = arguments.host or ["localhost"]
        port = PORT if arguments.port is None else arguments.port
        return serve(found, hosts, port, reuse_port=arguments.reuse_port, **options)
    for name in ("host", "port", "reuse_port"):
        if getattr(arguments, name) not in (None, False):
            raise CommandError(Status.USAGE, f"--unix excludes --{name.replace('_', '-')}")
    return unix_serve(found, arguments.unix, **options)


def _tls(arguments: argparse.Namespace) -> TLS | None:
    if arguments.cert is not None:
        return TLS(cert=arguments.cert, key=arguments.key, ca=arguments.client_ca)
    for name in ("key", "client_ca"):
        if getattr(arguments, name) is not None:
            raise CommandError(Status.USAGE, f"--{name.replace('_', '-')} needs --cert")
    return None


def _only(paths: list[str]) -> Any:
    """Return a ``process_request`` that lets only some paths through, whatever their query."""

    def check(ws: ServerConnection, request: Request) -> Response | None:
        if request.path.partition("?")[0] in paths:
            return None
        return ws.respond(HTTPStatus.NOT_FOUND, "Not found\n")

    return check


async def _serve(server: Server, arguments: argparse.Namespace) -> None:
    try:
        await server
    except OSError as exc:
        raise CommandError(Status.FAILED, _refused(exc, arguments)) from None
    server.close_on_signals()
    with contextlib.ExitStack() as stack:
        if arguments.cert is not None:
            files = [file for file in (arguments.cert, arguments.key, arguments.client_ca) if file is not None]
            stack.enter_context(Renewal(server, files, LOGGER))
        # Nobody has to read it.
        with contextlib.suppress(OSError):
            write_all(1, "".join(f"listening on {place}\n" for place in _places(server, arguments)).encode())
        await server.wait_closed()


def _places(server: Server, arguments: argparse.Namespace) -> Iterator[str]:
    """Yield where clients can connect to."""
    if arguments.unix is not None:
        yield arguments.unix
        return
    scheme = "ws" if arguments.cert is None else "wss"
    port = server.sockets[0].getsockname()[1]
    for host in arguments.host or ["localhost"]:
        for path in arguments.path or [""]:
            yield f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}{path}"


def _refused(exc: OSError, arguments: argparse.Namespace) -> str:
    text = describe(exc)
    if not text.startswith("cannot listen"):
        text = f"cannot listen on {', '.join(arguments.host or ['localhost'])}: {text}"
    if exc.errno == errno.EADDRINUSE and arguments.unix is None:
        text += " (--port chooses another)"
    return text


def _set_up_logging(verbose: int) -> None:
    level = (logging.WARNING, logging.INFO, logging.DEBUG)[min(verbose, 2)]
    # The handler's module may have done so already.
    logging.basicConfig(stream=sys.stderr, format="%(asctime)s %(levelname)s %(message)s", level=level)
    if verbose:
        logging.getLogger("wirespeed").setLevel(level)
    # That a certificate was replaced is for everybody to know.
    LOGGER.setLevel(min(level, logging.INFO))


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port, 0 to 65535")
    return int(text)


def _path(text: str) -> str:
    if not text.startswith("/"):
        raise argparse.ArgumentTypeError(f"{text!r} does not begin with /")
    return text
