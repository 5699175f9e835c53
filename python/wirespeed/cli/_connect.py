"""``wirespeed connect``: its arguments, and what they mean for a connection."""

from __future__ import annotations

import argparse
import asyncio
import math
import os
from typing import TYPE_CHECKING, Any

from .. import TLS, ClientConnection, connect, run
from .._redaction import mask_user_info, printable
from ..exceptions import InvalidHandshake, InvalidStatus, WebSocketException
from . import _trace as trace
from ._prompt import Prompt
from ._screen import Screen
from ._session import Session
from ._settings import Settings
from ._status import CommandError, Status, describe
from ._stop import Stop
from ._values import limit, parse_count, parse_seconds, parse_size

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]

__all__ = ["add_parser"]

DESCRIPTION = """\
Connect to a WebSocket server; send what is typed, show what arrives.

On a terminal each line that you enter is sent as a text message. Ctrl-D closes
the connection. Ctrl-C discards the line, or closes if it is empty.

In a pipe each line of the standard input is sent. Each message received is a
line of the standard output; all else goes to the standard error. After the end
of the input the connection is closed when nothing has come for a second, which
--wait and --count change.
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
  1    the connection could not be opened, or the output not be written
  2    the command line is wrong
  3    the connection was lost, or closed with a code that tells of an error
  4    the standard input is not UTF-8, or with --json not JSON
  130  interrupted by Ctrl-C
  141  nobody reads the standard output any more
  143  ended by SIGTERM
"""


def add_parser(subparsers: Subparsers) -> None:
    """Add the parser of this command to those of the others.

    Args:
        subparsers: What ``add_subparsers`` returned.
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
    add("--subprotocol", metavar="NAME", action="append", help="offer a subprotocol (repeat, best first)")
    add("--origin", metavar="ORIGIN", help="value of the Origin header")
    add = parser.add_argument_group("messages").add_argument
    add("--json", action="store_true", help="indent JSON that arrives; refuse to send anything else")
    add(
        "--binary", action="store_true", help="send binary messages; in a pipe, of the bytes as they come, not of lines"
    )
    add(
        "--max-size",
        metavar="BYTES",
        default=2**20,
        type=parse_size,
        help="longest message accepted: 1048576, 16M, none",
    )
    add = parser.add_argument_group("network").add_argument
    add("--insecure", action="store_true", help="accept every certificate: anyone in between can read and change all")
    add("--ca", metavar="FILE", help="trust the authorities in this PEM file instead of the system's")
    add("--cert", metavar="FILE", help="own certificate, in PEM")
    add("--key", metavar="FILE", help="private key of --cert, where it is not in the same file")
    add(
        "--proxy", metavar="URL", default=True, help="http, https or socks proxy; none for no proxy (default: system's)"
    )
    add(
        "--timeout",
        metavar="SECONDS",
        default=10.0,
        type=parse_seconds,
        help="limit for opening, and closing (default: 10)",
    )
    add(
        "--ping",
        metavar="SECONDS",
        default=20.0,
        type=parse_seconds,
        help="keepalive interval, 0 for none (default: 20)",
    )
    add = parser.add_argument_group("ending").add_argument
    wait = "after the end of the input, close when nothing came for so long; inf: only the server closes (default: 1)"
    add("--wait", metavar="SECONDS", default=1.0, type=parse_seconds, help=wait)
    add("--count", metavar="N", type=parse_count, help="close after N messages")
    add = parser.add_argument_group("output").add_argument
    add("-v", "--verbose", action="store_true", help="show handshake, frames, pings and the closing")
    add("--no-color", action="store_true", help="no colors; NO_COLOR in the environment does the same")


def _run(arguments: argparse.Namespace) -> Status:
    typed, terminal = os.isatty(0), os.isatty(1)
    # no-color.org: any value but the empty one.
    color = not (arguments.no_color or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb")
    try:
        options = _connect_options(arguments)
    except (OSError, ValueError) as exc:
        raise CommandError(Status.USAGE, describe(exc)) from None
    settings = Settings(
        uri=arguments.uri,
        options=options,
        json=arguments.json,
        binary=arguments.binary,
        wait=0 if typed else arguments.wait,
        count=arguments.count,
        verbose=arguments.verbose,
        interactive=typed and terminal,
        terminal=terminal,
        color=color and terminal,
        note_color=color and os.isatty(2),
        prompt=os.environ.get("TERM") != "dumb",
    )
    return run(_converse(settings))


async def _converse(settings: Settings) -> Status:
    prompt, hint = _make_prompt(settings)
    screen = Screen(settings, prompt)
    with Stop() as stop:
        connecting = asyncio.ensure_future(_connect(settings, screen))
        ends: set[asyncio.Future[Any]] = {connecting, stop.future}
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        if not connecting.done():
            connecting.cancel()
            await asyncio.wait({connecting})
        if connecting.cancelled():
            return stop.status
        ws = connecting.result()
        stop.insist = ws.abort
        try:
            if settings.verbose:
                await screen.note(*trace.opening(ws))
            if settings.interactive:
                await screen.note(f"connected to {_shown(settings)}, Ctrl-D closes{hint}")
            return await Session(ws, settings, screen, prompt, stop).run()
        finally:
            ws.abort()


def _make_prompt(settings: Settings) -> tuple[Prompt | None, str]:
    if not (settings.interactive and settings.prompt):
        return None, ""
    try:
        return Prompt(), ""
    except ImportError:
        return None, '; for history and line editing: pip install "wirespeed[cli]"'


async def _connect(settings: Settings, screen: Screen) -> ClientConnection:
    options = dict(settings.options)
    if settings.verbose:
        options["listener"] = trace.Watcher(screen)
    try:
        return await connect(settings.uri, **options)
    except (OSError, InvalidHandshake) as exc:
        if settings.verbose and isinstance(exc, InvalidStatus):
            await screen.note(*trace.response(exc.response))
        raise CommandError(Status.FAILED, f"cannot connect to {_shown(settings)}: {describe(exc)}") from None
    except (TypeError, ValueError, WebSocketException) as exc:
        raise CommandError(Status.USAGE, describe(exc)) from None


def _shown(settings: Settings) -> str:
    return printable(mask_user_info(settings.uri))


def _connect_options(arguments: argparse.Namespace) -> dict[str, Any]:
    options: dict[str, Any] = {
        "additional_headers": [pair for pair in arguments.header if pair[0].lower() not in _OWN_HEADERS],
        "subprotocols": arguments.subprotocol,
        "origin": arguments.origin,
        "max_size": arguments.max_size,
        "proxy": None if arguments.proxy == "none" else arguments.proxy,
        "open_timeout": limit(arguments.timeout),
        "close_timeout": limit(arguments.timeout),
        "ping_interval": limit(arguments.ping or math.inf),
    }
    for name, value in arguments.header:
        if name.lower() in _OWN_HEADERS:
            options[_OWN_HEADERS[name.lower()]] = value
    if arguments.uri.lower().startswith("wss:"):
        options["ssl"] = _tls(arguments)
    return options


_OWN_HEADERS = {"user-agent": "user_agent_header", "origin": "origin"}
"""Headers for which ``connect`` has an argument: as additional ones they would be sent twice."""


def _tls(arguments: argparse.Namespace) -> TLS:
    return TLS(ca=arguments.ca, cert=arguments.cert, key=arguments.key, verify=not arguments.insecure)


def _header(text: str) -> tuple[str, str]:
    name, colon, value = text.partition(":")
    if not colon or not name.strip():
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form NAME:VALUE")
    return name.strip(), value.strip()
