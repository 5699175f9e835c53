"""The calls of the asyncio API by their names in a schedule. Sent and received messages are recorded."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

from . import payload
from .payload import Ident
from .plan import BAD, Step, decoding
from .record import Call, Link

__all__ = ["ATTEMPT", "Calls", "attempt"]


async def attempt(call: Callable[[], Any]) -> Any:
    """Calls and awaits: the only place that a signal handler interrupts, so that the records here stay true."""
    result = call()
    return await result if isinstance(result, Awaitable) else result


ATTEMPT = attempt.__code__


class Calls:
    """Makes the calls of one run.

    Args:
        links: The connections.
        broadcast: The function of that name.
    """

    def __init__(self, links: list[Link], broadcast: Callable[..., Any]) -> None:
        self.links = links
        self.broadcast = broadcast
        self._numbers: dict[int, int] = {}

    async def make(self, call: Call, link: Link) -> None:
        """Makes a call, and waits for its end as the step specifies."""
        seconds = call.step.get("timeout")
        made = getattr(self, f"_{call.verb}")
        if seconds is None:
            await made(call, link, call.step, lambda what: attempt(what))
        else:
            await made(call, link, call.step, lambda what: _limited(what, seconds))

    def message(self, call: Call, size: int) -> Any:
        number = self._numbers.get(call.actor, 0)
        self._numbers[call.actor] = number + 1
        ident = Ident(call.actor, number)
        call.idents.append(ident)
        return payload.make(ident, size, text=bool(call.step.get("text")))

    # ---- sending ----

    async def _send(self, call: Call, link: Link, step: Step, wait: Any) -> None:
        message = self.message(call, step.get("size"))
        more = {} if step.get("compress") is None else {"compress": step.get("compress")}
        await wait(lambda: link.ws.send(message, **more))

    async def _send_nowait(self, call: Call, link: Link, step: Step, wait: Any) -> None:
        message = self.message(call, step.get("size"))
        await wait(lambda: link.ws.send_nowait(message))

    async def _broadcast(self, call: Call, _link: Link, step: Step, wait: Any) -> None:
        message = self.message(call, step.get("size"))
        more = {} if step.get("slow") == "skip" else {"slow": step.get("slow")}
        await wait(lambda: self.broadcast([link.ws for link in self.links], message, **more))

    async def _send_many(self, call: Call, link: Link, step: Step, wait: Any) -> None:
        items = self._lazily(call, step) if step.get("lazy") else self._each(call, step)
        await wait(lambda: link.ws.send_many(items))

    async def _fragments(self, call: Call, link: Link, step: Step, wait: Any) -> None:
        sizes = [max(size, payload.HEADER) for size in step.get("sizes")]
        message = self.message(call, sum(sizes))
        parts = []
        for size in sizes:
            parts.append(message[:size])
            message = message[size:]
        await wait(lambda: link.ws.send(_slowly(parts) if step.get("lazy") else iter(parts)))

    def _each(self, call: Call, step: Step) -> Iterator[Any]:
        for size in step.get("sizes"):
            yield self.message(call, size)
        if step.get("bad"):
            yield BAD

    async def _lazily(self, call: Call, step: Step) -> AsyncIterator[Any]:
        for size in step.get("sizes"):
            await asyncio.sleep(0)
            yield self.message(call, size)
        if step.get("bad"):
            yield BAD

    async def _flush(self, call: Call, link: Link, step: Step, wait: Any) -> None:
        await wait(link.ws.flush)

    # ---- receiving ----

    async def _recv(self, call: Call, link: Link, step: Step, wait: Any) -> None:
        link.take(call.actor, await wait(lambda: link.ws.recv(**decoding(step))))

    async def _recv_nowait(self, call: Call, link: Link, step: Step, wait: Any) -> None:
        link.take(call.actor, await wait(lambda: link.ws.recv_nowait(**decoding(step))))

    async def _recv_many(self, call: Call, link: Link, step: Step, wait: Any) -> None:
        for message in await wait(lambda: link.ws.recv_many(step.get("limit"), **decoding(step))):
            link.take(call.actor, message)

    async def _iterate(self, call: Call, link: Link, step: Step, wait: Any) -> None:
        iterator = link.ws.__aiter__()
        for _ in range(step.get("count")):
            try:
                message = await wait(iterator.__anext__)
            except StopAsyncIteration:
                return
            link.take(call.actor, message)

    async def _stream(self, call: Call, link: Link, step: Step, wait: Any) -> None:
        parts: list[Any] = []
        complete = False
        try:
            async with contextlib.aclosing(link.ws.recv_streaming()) as fragments:
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

    async def _ping(self, call: Call, link: Link, step: Step, wait: Any) -> None:
        pong = await wait(link.ws.ping)
        await wait(lambda: pong)

    async def _ping_sent(self, call: Call, link: Link, step: Step, wait: Any) -> None:
        await wait(link.ws.ping)

    async def _pong(self, call: Call, link: Link, step: Step, wait: Any) -> None:
        await wait(link.ws.pong)

    async def _stats(self, call: Call, link: Link, step: Step, wait: Any) -> None:
        assert await wait(link.ws.stats)

    async def _close(self, call: Call, link: Link, step: Step, wait: Any) -> None:
        link.closed = link.closed or link.state == "OPEN"
        await wait(lambda: link.ws.close(step.get("code")))

    async def _wait_closed(self, call: Call, link: Link, step: Step, wait: Any) -> None:
        await wait(link.ws.wait_closed)

    async def _abort(self, call: Call, link: Link, step: Step, wait: Any) -> None:
        link.aborted = True
        await wait(link.ws.abort)


async def _limited(call: Callable[[], Any], seconds: float) -> Any:
    return await asyncio.wait_for(call(), seconds)


async def _slowly(parts: list[Any]) -> AsyncIterator[Any]:
    for part in parts:
        await asyncio.sleep(0)
        yield part
