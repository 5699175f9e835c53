"""Runs ``wirespeed connect``: opens the connection with the options of the command line."""

from __future__ import annotations

import argparse
import asyncio
import math
import os
from typing import Any

from .. import TLS, ClientConnection, connect
from .. import run as run_loop
from .._redaction import mask_user_info, printable
from ..exceptions import InvalidHandshake, InvalidStatus, WebSocketException
from . import _trace as trace
from ._prompt import Prompt
from ._screen import Screen
from ._session import Session
from ._settings import Settings
from ._status import CommandError, Status, describe
from ._stop import Stop
from ._values import limit

__all__ = ["run"]


def run(arguments: argparse.Namespace) -> Status:
    """Connect, exchange messages, and return the exit status.

    Args:
        arguments: The parsed command line.

    Raises:
        CommandError: The command line is wrong, or the connection could not be opened.
    """
    typed, terminal = os.isatty(0), os.isatty(1)
    # See no-color.org: every value except the empty one.
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
    return run_loop(_converse(settings))


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
        stop.force = ws.abort
        try:
            if settings.verbose:
                await screen.note(*trace.opening(ws))
            if settings.interactive:
                await screen.note(f"connected to {_masked_uri(settings)}, Ctrl-D closes{hint}")
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
        raise CommandError(Status.FAILED, f"cannot connect to {_masked_uri(settings)}: {describe(exc)}") from None
    except (TypeError, ValueError, WebSocketException) as exc:
        raise CommandError(Status.USAGE, describe(exc)) from None


def _masked_uri(settings: Settings) -> str:
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
"""Headers for which ``connect`` has an argument. As additional headers they would be sent twice."""


def _tls(arguments: argparse.Namespace) -> TLS:
    return TLS(ca=arguments.ca, cert=arguments.cert, key=arguments.key, verify=not arguments.insecure)
