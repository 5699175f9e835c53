"""Runs ``wirespeed serve``: starts a server with the options of the command line."""

from __future__ import annotations

import argparse
import contextlib
import errno
import logging
import math
import sys
from collections.abc import Iterator
from http import HTTPStatus
from typing import Any

from .. import TLS, Request, Response, Server, ServerConnection, serve, unix_serve
from .. import run as run_loop
from . import _handler as handler
from ._renewal import Renewal
from ._status import CommandError, Status, describe
from ._values import PORT, limit
from ._writing import write_all

__all__ = ["run"]

LOGGER = logging.getLogger("wirespeed.cli")


def run(arguments: argparse.Namespace) -> Status:
    """Serve until a signal arrives.

    Args:
        arguments: The parsed command line.

    Raises:
        CommandError: The command line is wrong, or the server cannot listen.
    """
    found = handler.echo if arguments.handler is None else handler.load(arguments.handler)
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
        "ssl": _tls(arguments),
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


def _tls(arguments: argparse.Namespace) -> TLS | None:
    if arguments.cert is not None:
        return TLS(cert=arguments.cert, key=arguments.key, ca=arguments.client_ca)
    for name in ("key", "client_ca"):
        if getattr(arguments, name) is not None:
            raise CommandError(Status.USAGE, f"--{name.replace('_', '-')} needs --cert")
    return None


def _allow_paths(paths: list[str]) -> Any:
    """Return a ``process_request`` that accepts only some paths, with any query."""

    def check(ws: ServerConnection, request: Request) -> Response | None:
        if request.path.partition("?")[0] in paths:
            return None
        return ws.respond(HTTPStatus.NOT_FOUND, "Not found\n")

    return check


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
