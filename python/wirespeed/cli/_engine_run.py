"""Runs ``wirespeed engine``: serves an engine with the options of the command line."""

from __future__ import annotations

import argparse
import contextlib
import errno
import logging
import os
import signal
import sys
from collections.abc import Callable, Iterator
from typing import Any

from .. import TLS
from ..engine import Engine
from . import _handler as handler
from ._engine_view import View
from ._status import CommandError, Status, describe
from ._values import PORT, limit
from ._writing import write_all

__all__ = ["run"]

ENGINE_ARGUMENTS = {
    "host": "host",
    "port": "port",
    "unix": "path",
    "workers": "workers",
    "origin": "origins",
    "subprotocol": "subprotocols",
    "compression": "compression",
    "metrics": "metrics",
    "handoff": "handoff",
    "drain": "drain_timeout",
}
"""Options that are passed to the engine, with the names of its arguments."""

LEVELS = (logging.WARNING, logging.INFO, logging.DEBUG)


def run(arguments: argparse.Namespace) -> Status:
    """Serve until a signal arrives.

    Args:
        arguments: The parsed command line.

    Raises:
        CommandError: The command line is wrong, or the engine cannot listen.
    """
    found = None if arguments.app is None else handler.load(arguments.app)
    engine = _engine(found, arguments)
    view = View(engine, sys.stdout.isatty() and not arguments.plain, arguments.interval)
    level = LEVELS[min(arguments.verbose, 2)]
    logging.basicConfig(handlers=[view.log_handler()], format="%(asctime)s %(levelname)s %(message)s", level=level)
    logging.getLogger("wirespeed").setLevel(min(level, logging.INFO))
    # The handlers are set before the address is printed: a program that reads the address may send a signal at once.
    with engine.draining_on_sigterm(), _draining_on_sigint():
        try:
            engine.start()
        except OSError as exc:
            raise CommandError(Status.FAILED, _listen_error(exc)) from None
        with contextlib.suppress(OSError):  # the standard output need not be open
            lines = (f"listening on {place}\n" for place in _addresses(engine, arguments.cert is not None))
            write_all(1, "".join(lines).encode())
        with view:
            _serve(engine)
    return Status.OK


def _engine(found: Any, arguments: argparse.Namespace) -> Engine:
    if isinstance(found, Engine):
        options_set = [name for name in _set_options(arguments) if name not in ("interval", "plain")]
        if options_set:
            option = f"--{options_set[0].replace('_', '-')}"
            raise CommandError(Status.USAGE, f"{option}: {arguments.app} is an Engine with its own settings")
        return found
    if found is not None and (not callable(found) or isinstance(found, type)):
        raise CommandError(Status.USAGE, f"{arguments.app} is neither an Engine nor a function that sets one up")
    try:
        engine = Engine(**_options(arguments))
    except (OSError, TypeError, ValueError) as exc:
        raise CommandError(Status.USAGE, describe(exc)) from None
    if found is None:
        engine.echo("/")
        engine.echo("/{*rest}")
    else:
        found(engine)
    return engine


def _set_options(arguments: argparse.Namespace) -> list[str]:
    """Return the options of the engine that the command line sets."""
    names = [*ENGINE_ARGUMENTS, "cert", "key", "client_ca", "timeout", "ping"]
    options_set = [name for name in names if getattr(arguments, name) is not None]
    return options_set if arguments.max_size is ... else [*options_set, "max_size"]


def _options(arguments: argparse.Namespace) -> dict[str, Any]:
    options: dict[str, Any] = {
        name: value for option, name in ENGINE_ARGUMENTS.items() if (value := getattr(arguments, option)) is not None
    }
    if arguments.unix is None or "host" in options or "port" in options:
        options.setdefault("host", "127.0.0.1")
        options.setdefault("port", PORT)
    if options.get("host") == "localhost":
        options["host"] = "127.0.0.1"
    if arguments.max_size is not ...:
        options["max_size"] = arguments.max_size
    if arguments.timeout is not None:
        # An engine does not support infinite timeouts.
        timeout = limit(arguments.timeout)
        if timeout is None:
            raise CommandError(Status.USAGE, "--timeout: a number of seconds, not inf")
        options["open_timeout"] = options["close_timeout"] = timeout
    if arguments.ping is not None:
        options["ping_interval"] = limit(arguments.ping) or None
    if arguments.cert is not None:
        options["ssl"] = TLS(cert=arguments.cert, key=arguments.key, ca=arguments.client_ca)
    for name in ("key", "client_ca"):
        if arguments.cert is None and getattr(arguments, name) is not None:
            raise CommandError(Status.USAGE, f"--{name.replace('_', '-')} needs --cert")
    return options


def _serve(engine: Engine) -> None:
    if engine.has_handlers:
        engine.run()
        return
    try:
        with engine.draining_on_sigterm():
            for _ in engine.batches():
                pass
    finally:
        engine.stop()


@contextlib.contextmanager
def _draining_on_sigint() -> Iterator[None]:
    """Let Ctrl-C drain the engine, as SIGTERM does."""

    def end(_number: int, _frame: object) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    previous: Callable[..., Any] | int | None = signal.signal(signal.SIGINT, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)


def _addresses(engine: Engine, secure: bool) -> Iterator[str]:
    """Yield the URIs and socket paths of the engine."""
    for address in engine.addresses:
        if isinstance(address, tuple):
            host, port = address
            yield f"{'wss' if secure else 'ws'}://{f'[{host}]' if ':' in host else host}:{port}"
        else:
            yield os.fspath(address)


def _listen_error(exc: OSError) -> str:
    text = f"cannot listen: {describe(exc)}"
    return f"{text} (--port chooses another)" if exc.errno == errno.EADDRINUSE else text
