"""The calls of the blocking API by their names in a schedule. Sent and received messages are recorded."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any

from . import payload
from .payload import Ident
from .plan import BAD, Step, decoding
from .record import Call, Link

__all__ = ["ATTEMPT", "Calls", "attempt"]


def attempt(call: Callable[..., Any], *arguments: Any) -> Any:
    """Calls: the only place that a signal handler interrupts, so that the records here stay true."""
    return call(*arguments)


ATTEMPT = attempt.__code__


class Calls:
    """Makes the calls of one run."""

    def __init__(self) -> None:
        self._numbers: dict[int, int] = {}
        self._lock = threading.Lock()

    def make(self, call: Call, link: Link) -> None:
        """Makes a call, and waits for its end as the step specifies."""
        getattr(self, f"_{call.verb}")(call, link, call.step)

    def message(self, call: Call, size: int) -> Any:
        with self._lock:
            number = self._numbers.get(call.actor, 0)
            self._numbers[call.actor] = number + 1
        ident = Ident(call.actor, number)
        call.idents.append(ident)
        return payload.make(ident, size, text=bool(call.step.get("text")))

    # ---- sending ----

    def _send(self, call: Call, link: Link, step: Step) -> None:
        message = self.message(call, step.get("size"))
        compress = step.get("compress")
        send = link.ws.send
        attempt(send if compress is None else lambda what: send(what, compress=compress), message)

    def _send_many(self, call: Call, link: Link, step: Step) -> None:
        attempt(link.ws.send_many, self._each(call, step))

    def _each(self, call: Call, step: Step) -> Iterator[Any]:
        for size in step.get("sizes"):
            yield self.message(call, size)
        if step.get("bad"):
            yield BAD

    def _fragments(self, call: Call, link: Link, step: Step) -> None:
        sizes = [max(size, payload.HEADER) for size in step.get("sizes")]
        message = self.message(call, sum(sizes))
        parts = []
        for size in sizes:
            parts.append(message[:size])
            message = message[size:]
        attempt(link.ws.send, iter(parts))

    def _flush(self, call: Call, link: Link, step: Step) -> None:
        attempt(link.ws.flush)

    # ---- receiving ----

    def _recv(self, call: Call, link: Link, step: Step) -> None:
        link.take(call.actor, attempt(functools.partial(link.ws.recv, step.get("timeout"), **decoding(step))))

    def _recv_nowait(self, call: Call, link: Link, step: Step) -> None:
        link.take(call.actor, attempt(functools.partial(link.ws.recv_nowait, **decoding(step))))

    def _recv_many(self, call: Call, link: Link, step: Step) -> None:
        recv_many = functools.partial(link.ws.recv_many, **decoding(step))
        for message in attempt(recv_many, step.get("limit"), step.get("timeout")):
            link.take(call.actor, message)

    def _iterate(self, call: Call, link: Link, step: Step) -> None:
        iterator = iter(link.ws)
        for _ in range(step.get("count")):
            try:
                message = attempt(next, iterator)
            except StopIteration:
                return
            link.take(call.actor, message)

    def _stream(self, call: Call, link: Link, step: Step) -> None:
        parts: list[Any] = []
        complete = False
        try:
            with contextlib.closing(link.ws.recv_streaming()) as fragments:
                for fragment in fragments:
                    parts.append(fragment)
                    if step.get("leave") == len(parts):
                        break
                else:
                    complete = True
        finally:
            link.take_parts(call.actor, parts, complete=complete)

    # ---- other calls ----

    def _ping(self, call: Call, link: Link, step: Step) -> None:
        pong = attempt(link.ws.ping)
        attempt(pong.wait, step.get("timeout"))

    def _ping_sent(self, call: Call, link: Link, step: Step) -> None:
        attempt(link.ws.ping)

    def _pong(self, call: Call, link: Link, step: Step) -> None:
        attempt(link.ws.pong)

    def _stats(self, call: Call, link: Link, step: Step) -> None:
        assert attempt(link.ws.stats)

    def _close(self, call: Call, link: Link, step: Step) -> None:
        link.closed = link.closed or link.state == "OPEN"
        attempt(link.ws.close, step.get("code"))

    def _abort(self, call: Call, link: Link, step: Step) -> None:
        link.aborted = True
        attempt(link.ws.abort)
