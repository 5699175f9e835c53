"""Runs ``wirespeed serve``: starts a server, and reloads its certificate when the files change."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import errno
import logging
import math
import re
import signal
import sys
from collections.abc import Iterator, Sequence
from http import HTTPStatus
from types import TracebackType
from typing import TYPE_CHECKING, Any

from .. import Request, Response, Server, ServerConnection, serve, unix_serve
from .. import run as run_loop
from ..tls import Stamp, stamp
from ._common import PORT, CommandError, Status, describe, limit, load, server_tls, write_all

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Renewal", "run"]

LOGGER = logging.getLogger("wirespeed.cli")


def run(arguments: argparse.Namespace) -> Status:
    """Serve until a signal arrives.

    Args:
        arguments: The parsed command line.

    Raises:
        CommandError: The command line is wrong, or the server cannot listen.
    """
    found = _echo if arguments.handler is None else load(arguments.handler)
    _set_up_logging(arguments.verbose)
    try:
        server = _make(found, arguments)
    except (OSError, TypeError, ValueError) as exc:
        raise CommandError(Status.USAGE, describe(exc)) from None
    run_loop(_serve(server, arguments))
    return Status.OK


def _make(found: Any, arguments: argparse.Namespace) -> Server:
    """Create a server from the command line.

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
        "ssl": server_tls(arguments),
    }
    if arguments.origin is not None:
        options["origins"] = [None if origin == "none" else origin for origin in arguments.origin]
    if arguments.path is not None:
        options["process_request"] = _allow_paths(arguments.path)
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


def _allow_paths(paths: list[str]) -> Any:
    """Return a ``process_request`` that accepts only some paths, with any query."""

    def check(ws: ServerConnection, request: Request) -> Response | None:
        if request.path.partition("?")[0] in paths:
            return None
        return ws.respond(HTTPStatus.NOT_FOUND, "Not found\n")

    return check


_CLOSE_PATH = re.compile(r"/close\?code=(100[0-37-9]|101[0-4]|[34][0-9]{3})")
"""The path that requests a close code which may be sent (RFC 6455, section 7.4)."""


async def _echo(ws: ServerConnection) -> None:
    """Send every message back; a connection to ``/close?code=N`` is closed with that code.

    Args:
        ws: The connection.
    """
    asked = _CLOSE_PATH.fullmatch(ws.request.path)
    if asked is not None:
        await ws.close(int(asked[1]))
    async for message in ws:
        await ws.send(message)


async def _serve(server: Server, arguments: argparse.Namespace) -> None:
    try:
        await server
    except OSError as exc:
        raise CommandError(Status.FAILED, _listen_error(exc, arguments)) from None
    server.close_on_signals()
    with contextlib.ExitStack() as stack:
        if arguments.cert is not None:
            files = [file for file in (arguments.cert, arguments.key, arguments.client_ca) if file is not None]
            stack.enter_context(Renewal(server, files, LOGGER))
        # Writing may fail, because the standard output need not be open.
        with contextlib.suppress(OSError):
            write_all(1, "".join(f"listening on {place}\n" for place in _uris(server, arguments)).encode())
        await server.wait_closed()


def _uris(server: Server, arguments: argparse.Namespace) -> Iterator[str]:
    """Yield the URIs of the server."""
    if arguments.unix is not None:
        yield arguments.unix
        return
    scheme = "ws" if arguments.cert is None else "wss"
    port = server.sockets[0].getsockname()[1]
    for host in arguments.host or ["localhost"]:
        for path in arguments.path or [""]:
            yield f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}{path}"


def _listen_error(exc: OSError, arguments: argparse.Namespace) -> str:
    text = describe(exc)
    if not text.startswith("cannot listen"):
        text = f"cannot listen on {', '.join(arguments.host or ['localhost'])}: {text}"
    if exc.errno == errno.EADDRINUSE and arguments.unix is None:
        text += " (--port chooses another)"
    return text


def _set_up_logging(verbose: int) -> None:
    level = (logging.WARNING, logging.INFO, logging.DEBUG)[min(verbose, 2)]
    # This has no effect if the module of the handler has configured logging.
    logging.basicConfig(stream=sys.stderr, format="%(asctime)s %(levelname)s %(message)s", level=level)
    if verbose:
        logging.getLogger("wirespeed").setLevel(level)
    # The replacement of a certificate is always logged.
    LOGGER.setLevel(min(level, logging.INFO))


INTERVAL = 1.0
"""Seconds between two checks of the files, which take some system calls each."""


class Renewal:
    """Context manager that reloads the certificate of a server on SIGHUP, and when its files have changed.

    If that fails, the server keeps the old certificate, and the reason is logged.

    Args:
        server: The started server. It uses :class:`wirespeed.TLS`.
        files: Paths of certificate, key and authorities.
        logger: Logger for the result.
        interval: Seconds between two checks of the files.
    """

    def __init__(
        self, server: Server, files: Sequence[str], logger: logging.Logger, *, interval: float = INTERVAL
    ) -> None:
        self._server = server
        self._files = files
        self._logger = logger
        self._interval = interval
        self._loop = asyncio.get_running_loop()
        self._used_stamp = self._current_stamp()

    def __enter__(self) -> Self:
        self._loop.add_signal_handler(signal.SIGHUP, self.read)
        self._watching = self._loop.create_task(self._watch())
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._watching.cancel()
        self._loop.remove_signal_handler(signal.SIGHUP)

    def read(self) -> None:
        """Read the files, for connections accepted from now on."""
        # Store the state first, so that a change during reading is noticed.
        self._used_stamp = self._current_stamp()
        try:
            self._server.reload_ssl()
        except (OSError, ValueError) as exc:
            self._logger.warning("the certificate cannot be read again, the old one stays in use: %s", describe(exc))
        else:
            self._logger.info("the certificate was read again")

    async def _watch(self) -> None:
        before = self._used_stamp
        while True:
            await asyncio.sleep(self._interval)
            now = self._current_stamp()
            # Certificate and key are usually written one after the other: read them when they have stopped changing.
            if now == before and now != self._used_stamp:
                self.read()
            before = now

    def _current_stamp(self) -> Stamp:
        return stamp(self._files)
