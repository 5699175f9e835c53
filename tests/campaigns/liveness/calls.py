"""The calls of either API by their names in a schedule. Sent and received messages are recorded."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

from campaigns.common.calls import as_async, attempt

from . import payload
from .payload import Ident
from .plan import BAD, Step, decoding
from .record import Call, Link

# The only place that a signal handler interrupts, so that the records of this file stay true.
ATTEMPT = attempt.__code__

_END = object()

Wait = Callable[..., Awaitable[Any]]


class Calls:
    """Makes the calls of one run.

    Args:
        blocking: Whether the connections have the blocking API: then only calls with a timeout argument have a timeout.
        links: The connections.
        broadcast: The function of that name.
    """

    def __init__(self, *, blocking: bool, links: list[Link], broadcast: Callable[..., Any] | None = None) -> None:
        self.blocking = blocking
        self.links = links
        self.broadcast = broadcast
        self._numbers: dict[int, int] = {}
        self._lock = threading.Lock()

    async def make(self, call: Call, link: Link) -> None:
        """Makes a call, and waits for its end as the step specifies."""
        seconds = call.step.get("timeout")
        wait = attempt if seconds is None or self.blocking else functools.partial(_limited, seconds)
        await getattr(self, f"_{call.verb}")(call, link, call.step, wait)

    def message(self, call: Call, size: int) -> Any:
        with self._lock:
            number = self._numbers.get(call.actor, 0)
            self._numbers[call.actor] = number + 1
        ident = Ident(call.actor, number)
        call.idents.append(ident)
        return payload.make(ident, size, text=bool(call.step.get("text")))

    def _timeout(self, step: Step) -> tuple[float | None, ...]:
        """Returns the argument of blocking calls."""
        return (step.get("timeout"),) if self.blocking else ()

    # ---- sending ----

    async def _send(self, call: Call, link: Link, step: Step, wait: Wait) -> None:
        more = {} if step.get("compress") is None else {"compress": step.get("compress")}
        await wait(link.ws.send, self.message(call, step.get("size")), **more)

    async def _send_nowait(self, call: Call, link: Link, step: Step, wait: Wait) -> None:
        await wait(link.ws.send_nowait, self.message(call, step.get("size")))

    async def _broadcast(self, call: Call, _link: Link, step: Step, wait: Wait) -> None:
        message = self.message(call, step.get("size"))
        more = {} if step.get("slow") == "skip" else {"slow": step.get("slow")}
        await wait(self.broadcast, [link.ws for link in self.links], message, **more)

    async def _send_many(self, call: Call, link: Link, step: Step, wait: Wait) -> None:
        items = self._each(call, step)
        await wait(link.ws.send_many, items if self.blocking or not step.get("lazy") else _slowly(items))

    async def _fragments(self, call: Call, link: Link, step: Step, wait: Wait) -> None:
        sizes = [max(size, payload.HEADER) for size in step.get("sizes")]
        message = self.message(call, sum(sizes))
        parts = []
        for size in sizes:
            parts.append(message[:size])
            message = message[size:]
        await wait(link.ws.send, iter(parts) if self.blocking or not step.get("lazy") else _slowly(iter(parts)))

    def _each(self, call: Call, step: Step) -> Iterator[Any]:
        for size in step.get("sizes"):
            yield self.message(call, size)
        if step.get("bad"):
            yield BAD

    async def _flush(self, _call: Call, link: Link, _step: Step, wait: Wait) -> None:
        await wait(link.ws.flush)

    # ---- receiving ----

    async def _recv(self, call: Call, link: Link, step: Step, wait: Wait) -> None:
        link.take(call.actor, await wait(link.ws.recv, *self._timeout(step), **decoding(step)))

    async def _recv_nowait(self, call: Call, link: Link, step: Step, wait: Wait) -> None:
        link.take(call.actor, await wait(link.ws.recv_nowait, **decoding(step)))

    async def _recv_many(self, call: Call, link: Link, step: Step, wait: Wait) -> None:
        messages = await wait(link.ws.recv_many, step.get("limit"), *self._timeout(step), **decoding(step))
        for message in messages:
            link.take(call.actor, message)

    async def _iterate(self, call: Call, link: Link, step: Step, wait: Wait) -> None:
        following = (next, iter(link.ws), _END) if self.blocking else (link.ws.__aiter__().__anext__,)
        for _ in range(step.get("count")):
            try:
                message = await wait(*following)
            except StopAsyncIteration:
                return
            if message is _END:
                return
            link.take(call.actor, message)

    async def _stream(self, call: Call, link: Link, step: Step, _wait: Wait) -> None:
        parts: list[Any] = []
        complete = False
        streaming = link.ws.recv_streaming()
        try:
            async with contextlib.aclosing(as_async(streaming) if self.blocking else streaming) as fragments:
                async for fragment in fragments:
                    parts.append(fragment)
                    if step.get("leave") == len(parts):
                        break
                else:
                    complete = True
        finally:
            # An interrupted message may have been complete by then.
            link.take_parts(call.actor, parts, complete=complete)

    # ---- other calls ----

    async def _ping(self, _call: Call, link: Link, step: Step, wait: Wait) -> None:
        pong = await wait(link.ws.ping)
        await (wait(pong.wait, *self._timeout(step)) if self.blocking else wait(lambda: pong))

    async def _ping_sent(self, _call: Call, link: Link, _step: Step, wait: Wait) -> None:
        await wait(link.ws.ping)

    async def _pong(self, _call: Call, link: Link, _step: Step, wait: Wait) -> None:
        await wait(link.ws.pong)

    async def _stats(self, _call: Call, link: Link, _step: Step, wait: Wait) -> None:
        assert await wait(link.ws.stats)

    async def _close(self, _call: Call, link: Link, step: Step, wait: Wait) -> None:
        link.closed = link.closed or link.state == "OPEN"
        await wait(link.ws.close, step.get("code"))

    async def _wait_closed(self, _call: Call, link: Link, _step: Step, wait: Wait) -> None:
        await wait(link.ws.wait_closed)

    async def _abort(self, _call: Call, link: Link, _step: Step, wait: Wait) -> None:
        link.aborted = True
        await wait(link.ws.abort)


async def _limited(seconds: float, call: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    return await asyncio.wait_for(call(*arguments, **options), seconds)


async def _slowly(items: Iterator[Any]) -> AsyncIterator[Any]:
    """Yields items, each after a turn of the loop."""
    for item in items:
        await asyncio.sleep(0)
        yield item
