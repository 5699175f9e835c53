"""The arguments of ``wirespeed connect``."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from ._status import Status
from ._values import parse_count, parse_seconds, parse_size

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]

__all__ = ["add_parser"]

DESCRIPTION = """\
Connect to a WebSocket server; send what is typed, show what arrives.

On a terminal, each line that you enter is sent as a text message. Ctrl-D closes
the connection. Ctrl-C discards the line, or closes if it is empty.

In a pipe, each line of the standard input is sent. Each received message is a
line of the standard output; everything else goes to the standard error. After
the end of the input, the connection is closed when no message has arrived for a
second. --wait and --count change that.
"""

EPILOG = """\
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


def add_parser(subparsers: Subparsers) -> None:
    """Add the parser of this command.

    Args:
        subparsers: The result of ``add_subparsers``.
    """
    parser = subparsers.add_parser(
        "connect",
        help="connect to a server: interactive, or in a pipe",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.set_defaults(run=_run)
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


def _run(arguments: argparse.Namespace) -> Status:
    # Imported here, because the help does not need it.
    from ._connecting import run

    return run(arguments)


def _header(text: str) -> tuple[str, str]:
    name, colon, value = text.partition(":")
    if not colon or not name.strip():
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form NAME:VALUE")
    return name.strip(), value.strip()
