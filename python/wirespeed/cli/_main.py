"""The main function: parses the command line, runs a subcommand and returns its exit status."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
from argparse import ArgumentParser
from collections.abc import Sequence
from typing import TYPE_CHECKING

from .._version import __version__
from ._common import PORT, CommandError, Status, parse_count, parse_seconds, parse_size, write_all

__all__ = ["main"]

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[ArgumentParser]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status.

    Args:
        arguments: The arguments without the program name; by default those of this process.
    """
    try:
        try:
            parsed = _make_parser().parse_args(arguments)
        except SystemExit as exc:
            return int(exc.code or 0)
        _fill_standard_streams()
        # Imported here, because the help does not need it.
        run = importlib.import_module(f"._{parsed.command}", __package__).run
        return int(run(parsed))
    except CommandError as exc:
        with contextlib.suppress(OSError):
            write_all(2, f"wirespeed: {exc}\n".encode())
        return exc.status
    except KeyboardInterrupt:
        return Status.INTERRUPTED


def _fill_standard_streams() -> None:
    """Open /dev/null for standard streams that are closed, so that no socket gets their descriptor."""
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)


def _make_parser() -> ArgumentParser:
    parser = ArgumentParser(prog="wirespeed", description="WebSockets on the command line.", allow_abbrev=False)
    parser.add_argument("--version", action="version", version=f"wirespeed {__version__}")
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    _add_connect_parser(subparsers)
    _add_serve_parser(subparsers)
    _add_engine_parser(subparsers)
    return parser


def _add_command(subparsers: Subparsers, name: str, text: str, description: str, epilog: str) -> ArgumentParser:
    """Add the parser of a command, whose module has a function ``run``."""
    parser = subparsers.add_parser(
        name,
        help=text,
        description=description,
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.set_defaults(command=name)
    return parser


def _add_tls(parser: ArgumentParser) -> None:
    """Add the options of a server's certificate."""
    add = parser.add_argument_group("TLS").add_argument
    add("--cert", metavar="FILE", help="certificate and intermediate certificates, in PEM, to serve wss")
    add("--key", metavar="FILE", help="private key of --cert, if it is not in the same file")
    add("--client-ca", metavar="FILE", help="require client certificates of the authorities in this PEM file")


CONNECT_DESCRIPTION = """\
Connect to a WebSocket server; send what is typed, show what arrives.

On a terminal, each line that you enter is sent as a text message. Ctrl-D closes
the connection. Ctrl-C discards the line, or closes if it is empty.

In a pipe, each line of the standard input is sent. Each received message is a
line of the standard output; everything else goes to the standard error. After
the end of the input, the connection is closed when no message has arrived for a
second. --wait and --count change that.
"""

CONNECT_EPILOG = """\
examples:
  wirespeed connect ws://localhost:8765
  wirespeed connect --header 'Authorization: Bearer TOKEN' wss://example.com/
  echo hello | wirespeed connect --count 1 ws://localhost:8765
  echo '{"op": "subscribe"}' | wirespeed connect --wait inf wss://example.com/
  wirespeed connect --binary ws://localhost:8765 < in.bin > out.bin

exit status:
  0    the connection was closed properly, by either end
  1    the connection could not be opened, or the output could not be written
  2    the command line is wrong
  3    the connection was lost, or closed with a code for an error
  4    the standard input is not UTF-8, or with --json not JSON
  130  interrupted by Ctrl-C
  141  the reader of the standard output has closed the pipe
  143  ended by SIGTERM
"""


def _add_connect_parser(subparsers: Subparsers) -> None:
    parser = _add_command(
        subparsers, "connect", "connect to a server: interactive, or in a pipe", CONNECT_DESCRIPTION, CONNECT_EPILOG
    )
    parser.add_argument("uri", metavar="URI", help="ws:// or wss:// URI; user:password@ becomes Basic authentication")
    add = parser.add_argument_group("request").add_argument
    add("--header", metavar="NAME:VALUE", action="append", default=[], type=_header, help="add a header (repeat)")
    add("--subprotocol", metavar="NAME", action="append", help="offer a subprotocol (repeat, preferred first)")
    add("--origin", metavar="ORIGIN", help="value of the Origin header")
    add = parser.add_argument_group("messages").add_argument
    add("--json", action="store_true", help="indent JSON that arrives; refuse to send anything else")
    add("--binary", action="store_true", help="send binary messages; in a pipe, blocks of bytes instead of lines")
    add(
        "--max-size",
        metavar="BYTES",
        default=2**20,
        type=parse_size,
        help="maximum size of received messages: 1048576, 16M, none",
    )
    add = parser.add_argument_group("network").add_argument
    add("--insecure", action="store_true", help="accept every certificate: attackers can read and change the traffic")
    add("--ca", metavar="FILE", help="trust the authorities in this PEM file instead of the system's")
    add("--cert", metavar="FILE", help="own certificate, in PEM")
    add("--key", metavar="FILE", help="private key of --cert, if it is not in the same file")
    add(
        "--proxy", metavar="URL", default=True, help="http, https or socks proxy; none for no proxy (default: system's)"
    )
    add(
        "--timeout",
        metavar="SECONDS",
        default=10.0,
        type=parse_seconds,
        help="timeout of opening and of closing (default: 10)",
    )
    add(
        "--ping",
        metavar="SECONDS",
        default=20.0,
        type=parse_seconds,
        help="keepalive interval, 0 for none (default: 20)",
    )
    add = parser.add_argument_group("ending").add_argument
    wait = "after the end of the input, close after this time without messages; inf: never (default: 1)"
    add("--wait", metavar="SECONDS", default=1.0, type=parse_seconds, help=wait)
    add("--count", metavar="N", type=parse_count, help="close after N messages")
    add = parser.add_argument_group("output").add_argument
    add("-v", "--verbose", action="store_true", help="show handshake, frames, pings and closing")
    add("--no-color", action="store_true", help="no colors; NO_COLOR in the environment does the same")


def _header(text: str) -> tuple[str, str]:
    name, colon, value = text.partition(":")
    if not colon or not name.strip():
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form NAME:VALUE")
    return name.strip(), value.strip()


SERVE_DESCRIPTION = """\
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

SERVE_EPILOG = """\
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


def _add_serve_parser(subparsers: Subparsers) -> None:
    parser = _add_command(
        subparsers, "serve", "serve connections with an echo or your handler", SERVE_DESCRIPTION, SERVE_EPILOG
    )
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
    _add_tls(parser)
    add = parser.add_argument_group("limits").add_argument
    add("--max-size", metavar="BYTES", default=2**20, type=parse_size, help="maximum message size: 1048576, 16M, none")
    timeout = "timeout of opening and of closing (default: 10)"
    add("--timeout", metavar="SECONDS", default=10.0, type=parse_seconds, help=timeout)
    ping = "keepalive interval, 0 for none (default: 20)"
    add("--ping", metavar="SECONDS", default=20.0, type=parse_seconds, help=ping)
    add = parser.add_argument_group("output").add_argument
    add("-v", "--verbose", action="count", default=0, help="log refused connections; twice: every connection")


def _path(text: str) -> str:
    if not text.startswith("/"):
        raise argparse.ArgumentTypeError(f"{text!r} does not begin with /")
    return text


ENGINE_DESCRIPTION = """\
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

ENGINE_EPILOG = """\
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


def _add_engine_parser(subparsers: Subparsers) -> None:
    parser = _add_command(
        subparsers, "engine", "serve connections on many threads, and show the rates", ENGINE_DESCRIPTION, ENGINE_EPILOG
    )
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
    _add_tls(parser)
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


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port, 0 to 65535")
    return int(text)


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host:
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form address:port")
    return host.removeprefix("[").removesuffix("]"), _port(port)
