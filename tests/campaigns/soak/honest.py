"""Honest clients, a program: ``python -m campaigns.soak.honest NAME=PORT,PATH ...``.

They keep a connection to each server, and open one after the other beside it. Their answers give, in milliseconds and
for the time since the last question, the latency of the worst hundredth of replies and the slowest opening. They use
another library, so that only the server is under test.
"""

from __future__ import annotations

import asyncio
import collections
import sys
import time
from typing import Any

from websockets.asyncio.client import connect

from .program import serve_figures

__all__ = ["main"]

PAUSE = 0.02


class Honest:
    """The measurements of one server."""

    def __init__(self, uri: str) -> None:
        self.uri = uri
        self.late: list[float] = []
        self.opening: list[float] = []
        self.problems: collections.Counter[str] = collections.Counter()

    def connect(self) -> Any:
        return connect(self.uri, proxy=None, open_timeout=20, ping_interval=None)

    async def stay(self) -> None:
        while True:
            try:
                async with self.connect() as ws:
                    while True:
                        await self.ask(ws)
            except Exception as exc:
                self.problems[repr(exc)] += 1
                await asyncio.sleep(1)

    async def come_and_go(self) -> None:
        while True:
            await asyncio.sleep(10 * PAUSE)
            begun = time.monotonic()
            try:
                async with self.connect() as ws:
                    self.opening.append(time.monotonic() - begun)
                    await self.ask(ws)
            except Exception as exc:
                self.problems[repr(exc)] += 1

    async def ask(self, ws: Any) -> None:
        await asyncio.sleep(PAUSE)
        begun = time.monotonic()
        text = str(begun)
        await ws.send(text)
        # The engine's rooms have published messages in between.
        while await asyncio.wait_for(ws.recv(), 20) != text:
            pass
        self.late.append(time.monotonic() - begun)

    def tell(self) -> dict[str, Any]:
        late, self.late = sorted(self.late), []
        opening, self.opening = sorted(self.opening), []
        figures: dict[str, Any] = {"replies": len(late), "openings": len(opening)}
        if late:
            figures["latency"] = 1000 * late[len(late) * 99 // 100]
        if opening:
            figures["opening"] = 1000 * opening[-1]
        if self.problems:
            figures["problems"] = dict(self.problems)
            self.problems.clear()
        return figures


async def main() -> None:
    """Runs until the input ends."""
    clients = {}
    for argument in sys.argv[1:]:
        name, _, where = argument.partition("=")
        port, _, path = where.partition(",")
        clients[name] = Honest(f"ws://127.0.0.1:{port}{path}")
    loop = asyncio.get_running_loop()

    async def tell() -> dict[str, Any]:
        return {name: client.tell() for name, client in clients.items()}

    serve_figures(lambda: asyncio.run_coroutine_threadsafe(tell(), loop).result(60))
    await asyncio.gather(*(run() for client in clients.values() for run in (client.stay, client.come_and_go)))


if __name__ == "__main__":
    asyncio.run(main())
