"""Constructors and functions with an arbitrary value for each option: they refuse it with a clear error, or work."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

import wirespeed
import wirespeed.sync
from wirespeed.engine import JWT, Engine, Publisher

from .conversation import QUIET, Conversation
from .values import VALUES, Choice

# The factory, the option, its value.
Program = tuple[str, int, Choice]

_SECRET = "a secret of at least thirty-two bytes"


def _with(options: dict[str, Any], usual: dict[str, Any]) -> dict[str, Any]:
    return usual | options


def _engine(**options: Any) -> None:
    options = _with(options, {"host": "127.0.0.1", "port": 0, "workers": 1})
    with Engine(**options) as engine:
        engine.stats()


def _serve(**options: Any) -> None:
    options = _with(options, {"handler": lambda ws: None, "host": "127.0.0.1", "port": 0, "logger": QUIET})
    server = wirespeed.sync.serve(**options)
    server.shutdown()


def _connect(uri: str) -> Callable[..., None]:
    def connect(**options: Any) -> None:
        options = _with(options, {"uri": uri, "proxy": None, "open_timeout": 5, "logger": QUIET})
        with wirespeed.sync.connect(**options) as ws:
            ws.send("x")
            ws.recv(timeout=20)

    return connect


def _asyncio_connect(**options: Any) -> None:
    # Not awaited: the arguments are checked before that.
    wirespeed.connect(**_with(options, {"uri": "ws://127.0.0.1:9/", "logger": QUIET}))


def _asyncio_serve(**options: Any) -> None:
    wirespeed.serve(**_with(options, {"handler": None, "host": "127.0.0.1", "port": 0, "logger": QUIET}))


def _publisher(**options: Any) -> None:
    with Publisher(**_with(options, {"url": "memory://api"})) as publisher:
        publisher.publish("a", "b")


def _jwt(**options: Any) -> None:
    repr(JWT(**_with(options, {"key": _SECRET, "algorithms": ["HS256"]})))


def _tls(**options: Any) -> None:
    repr(wirespeed.TLS(**options))


def _route(**options: Any) -> None:
    engine = Engine("127.0.0.1", 0, workers=1)
    engine.route(**_with(options, {"path": "/a"}))


def _deflate(**options: Any) -> None:
    repr(wirespeed.Deflate(**options))


def _response(**options: Any) -> None:
    headers = wirespeed.Headers()
    repr(wirespeed.Response(**_with(options, {"status_code": 200, "reason_phrase": "", "headers": headers})))


# The signature and factory of each. Foreign descriptors must not be closed, and files not written.
_LEFT_OUT = {"self", "sock", "handoff", "fd", "kwargs", "args", "connection", "create_connection", "reuse_port"}


def makers(uri: str) -> dict[str, tuple[Any, Callable[..., None]]]:
    """Returns the factories.

    Args:
        uri: The address of an echo server.
    """
    return {
        "sync.connect": (wirespeed.sync.connect, _connect(uri)),
        "sync.serve": (wirespeed.sync.serve, _serve),
        "connect": (wirespeed.connect, _asyncio_connect),
        "serve": (wirespeed.serve, _asyncio_serve),
        "Engine": (Engine, _engine),
        "Engine.route": (Engine.route, _route),
        "JWT": (JWT, _jwt),
        "TLS": (wirespeed.TLS, _tls),
        "Publisher": (Publisher, _publisher),
        "Deflate": (wirespeed.Deflate, _deflate),
        "Response": (wirespeed.Response, _response),
    }


PROGRAMS: st.SearchStrategy[Program] = st.tuples(st.sampled_from(list(makers(""))), st.integers(0, 1000), VALUES)


def run(uri: str, program: Program) -> None:
    """Runs one program.

    Args:
        uri: The address of an echo server.
        program: The factory, option and value.
    """
    name, number, choice = program
    made_of, make = makers(uri)[name]
    names = [option for option in inspect.signature(made_of).parameters if option not in _LEFT_OUT]
    option = names[number % len(names)]
    conversation = Conversation(lambda _: None)
    value = conversation.maker.make(choice)
    try:
        make(**{option: value})
    except BaseException as exc:
        conversation.note_error(exc, f"{name}({option}={type(value).__name__})", value)
        exc.__traceback__ = None
    del value
    conversation.finish()
