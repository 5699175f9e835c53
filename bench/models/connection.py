"""The interface of a peer to its library: connecting, driving a connection, and optional features."""

from __future__ import annotations

import functools
import importlib
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from models.content import ContentError
from models.program import Library

__all__ = ["Client", "Connect", "Connection", "check_deflate", "tls_context"]


@dataclass
class Connection:
    """One open connection, as the loops drive it.

    What an asyncio library has to be awaited for, returns an awaitable, what blocks, its result.

    Attributes:
        kept: what must be kept for the connection to stay open.
        send: sends one binary message; takes what `frame` made of it. An asyncio library returns an awaitable, or None
            if there is nothing to wait for. If it raises BlockingIOError, the message is sent again after `writable`.
        recv: returns the next message.
        send_text: sends one text message; returns as `send` does.
        messages: iterates over the messages that arrive.
        recv_many: returns a list of the messages that are ready, at least one and at most so many.
        send_many: sends a list of messages.
        send_each: sends a list of messages, by one call of compiled code for each.
        writable: waits until `send` can take more; only for a library whose `send` raises BlockingIOError.
        drain: waits until not too much is queued; only for a library whose `send` takes whatever comes.
        flush: waits until the system has taken all that was sent; only for a library that can gather messages.
        close: closes the connection, with the closing handshake where the library has one; returns as `send` does.
        report: asks the server's /sink what has arrived, returns its answer; by default a text message does.
        merges: whether messages that are sent together may become one: their count says nothing then.
        frame: makes of a message what `send` takes: the message itself, but for sockets that take prepared frames.
        encode: makes of a message what `recv` returns for it.
    """

    kept: object
    send: Callable[[Any], Any]
    recv: Callable[[], Any]
    send_text: Callable[[str], Any] | None = None
    messages: Any = ()
    recv_many: Any = None
    send_many: Any = None
    send_each: Callable[[list[bytes]], object] | None = None
    writable: Callable[[], Any] | None = None
    drain: Callable[[], Any] | None = None
    flush: Callable[[], Any] | None = None
    close: Callable[[], Any] | None = None
    report: Callable[[], Any] | None = None
    merges: bool = False
    frame: Callable[[Any], Any] = lambda message: message
    encode: Callable[[Any], Any] = lambda message: message

    def can(self, what: str) -> Any:
        """Returns one of the attributes, which must not be None."""
        call = getattr(self, what)
        if call is None:
            raise ContentError(f"this peer has no {what}")
        return call


Connect = Callable[[str, str | None, int], Any]
"""Connects to a URL, trusting the CA in a PEM file if given, for messages of a size; returns a `Connection`, or an
awaitable of one."""


@dataclass(frozen=True)
class Client:
    """One way to use a library; what is missing here, its peer does not answer.

    Attributes:
        connect: opens a connection: for what calls back, one on which nothing has to be received at speed.
        receives: how: "await", "iterate" or "many" (`recv_many`).
        listen: starts a `callbacks.Course` on a new connection, for what calls back.
        deflate: connects with permessage-deflate, and for text: `send` takes a str, `recv` returns what `encode` makes
            of it.
        closed: the exceptions, MODULE:NAME, that `recv` and `send` each raise on a closed connection.
        serve: starts a server that echoes, without compression, keepalive and limits, on this event loop or in threads
            of its own; returns its URL and what must be kept; for asyncio an awaitable of that.
        at_once: connects so that `send` hands each message to the system, for a library that gathers them otherwise.
        more: further workloads, of those that not every library can.
        without: workloads of its kind that it cannot do.
        only: the only workloads, if not all of its kind.
        own: workloads that no other library has, by name: from the client and the options to a `running.Loop`.
        libraries: what must be installed, if that differs among the ways.
        loads: modules that it uses and its libraries import late.
    """

    connect: Connect
    receives: str = "await"
    listen: Callable[..., Any] | None = None
    deflate: Connect | None = None
    closed: Mapping[str, str] = field(default_factory=dict)
    serve: Callable[[], Any] | None = None
    at_once: Connect | None = None
    more: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    only: tuple[str, ...] = ()
    own: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    libraries: tuple[Library, ...] = ()
    loads: tuple[str, ...] = ()

    def closed_error(self, call: str) -> type[Exception]:
        """Imports the exception for a call on a closed connection."""
        module, _, name = self.closed[call].partition(":")
        error: type[Exception] = getattr(importlib.import_module(module), name)
        return error


def tls_context(url: str, ca: str | None) -> ssl.SSLContext | None:
    """Returns the standard library's default settings, trusting a CA beside the system's; None for a URL without TLS.

    The same object for all connections of a process, as a program that opens many would have it.
    """
    return _context(ca) if url.startswith("wss:") else None


@functools.cache
def _context(ca: str | None) -> ssl.SSLContext:
    context = ssl.create_default_context()
    if ca is not None:
        context.load_verify_locations(ca)
    return context


def check_deflate(extensions: str | None) -> None:
    """Checks the extensions of a server's answer: without compression there is nothing to measure."""
    if "permessage-deflate" not in (extensions or ""):
        raise ContentError("the server did not agree to permessage-deflate")
