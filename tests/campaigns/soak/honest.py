"""Honest clients, a program: ``honest NAME=PORT,PATH ...``.

They keep a connection to each server, and open one after the other beside it. Their answers give, in milliseconds and
for the time since the last question, the latency of the worst hundredth of replies and the slowest opening. They use
another library, so that only the server is under test.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from websockets.asyncio.client import connect

from campaigns.common.honest import Clients, Measured
from campaigns.common.program import serve_in_thread


class Honest(Clients):
    """The clients of one server."""

    def __init__(self, uri: str) -> None:
        dial = lambda _: connect(uri, proxy=None, open_timeout=20, ping_interval=None)  # noqa: E731
        super().__init__(Measured(), dial, lambda: False, blocking=False, pause=0.02)

    def other(self, message: Any) -> None:
        """The engine's rooms have published messages in between."""

    async def forever(self, work: Callable[[int], Coroutine[Any, Any, None]]) -> None:
        while True:
            await self.guarded(work(0))
            await asyncio.sleep(1)

    def since_last(self) -> dict[str, Any]:
        """Returns the measurements since the last call."""
        found, self.measured = self.measured.report(), Measured()
        figures = {"replies": found["count"], "openings": found["opened"], "problems": found["problems"]}
        if found["count"]:
            figures["latency"] = 1000 * found["p99"]
        if found["opened"]:
            figures["opening"] = 1000 * found["opened_last"]
        return figures


async def run(targets: tuple[str, ...]) -> None:
    clients = {}
    for target in targets:
        name, _, where = target.partition("=")
        port, _, path = where.partition(",")
        clients[name] = Honest(f"ws://127.0.0.1:{port}{path}")
    loop = asyncio.get_running_loop()

    async def since_last() -> dict[str, Any]:
        return {name: client.since_last() for name, client in clients.items()}

    serve_in_thread(lambda: asyncio.run_coroutine_threadsafe(since_last(), loop).result(60))
    await asyncio.gather(*(client.forever(work) for client in clients.values() for work in (client.stay, client.come)))


def main(*targets: str) -> None:
    """Runs until the input ends."""
    asyncio.run(run(targets))
