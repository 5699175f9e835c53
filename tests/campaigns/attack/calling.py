"""Attacked clients, a program, beside honest servers.

Kinds are ``client-sync``, ``client-asyncio-fd`` and ``client-asyncio-transport``. Each question gives the address of
the honest server, of the hostile one if there is one, and the duration: ``honest``, ``hostile``, ``seconds``, and
``how`` the latter is used: ``receive``, ``idle``, ``send``, ``close`` or ``reconnect``. The honest traffic is measured.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from typing import Any

import wirespeed
from campaigns.common.calls import attempt, complete
from campaigns.common.honest import LONG, Clients, Measured, entered
from campaigns.common.program import Log, answer, questions, trim
from wirespeed.exceptions import WebSocketException
from wirespeed.sync import connect as connect_blocking

# The number of clients of the hostile server at the same time.
CLIENTS = 4

OPEN_TIMEOUT = 1.0
# Exceptions of a client that is not answered.
DEADLINES: dict[str, Any] = {
    "open_timeout": OPEN_TIMEOUT, "close_timeout": 0.5, "ping_interval": 0.5, "ping_timeout": 0.5, "proxy": None,
}  # fmt: skip

# All exceptions that a server can cause. Any other is a defect.
EXPECTED = (WebSocketException, OSError, TimeoutError)

DATA = bytes(60_000)


class Attempts(Measured):
    def __init__(self) -> None:
        super().__init__()
        self.count = 0
        self.longest = 0.0

    def tried(self, since: float) -> None:
        self.count += 1
        self.longest = max(self.longest, time.monotonic() - since)

    def report(self) -> dict[str, Any]:
        return {**super().report(), "attempts": self.count, "longest_opening": self.longest}


class Victims(Clients):
    """Clients of an honest server that measure, and clients of a hostile one.

    Args:
        question: The question.
        kind: The kind of client.
    """

    def __init__(self, question: dict[str, Any], kind: str) -> None:
        self.attempts = Attempts()
        blocking = kind == "client-sync"
        self.connect: Any = connect_blocking if blocking else wirespeed.connect
        self.hostile = question.get("hostile", "")
        self.how = question["how"]
        end = time.monotonic() + question["seconds"]
        self.options = dict(DEADLINES)
        if self.hostile.startswith("wss"):
            self.options["ssl"] = wirespeed.TLS(verify=False)
        if not blocking:
            self.options["io_backend"] = kind.rpartition("-")[2]
        super().__init__(
            self.attempts,
            lambda _: self.connect(question["honest"], proxy=None, open_timeout=LONG),
            lambda: time.monotonic() > end,
            blocking=blocking,
        )
        self.honest = [self.stay(0), self.stay(1), self.come(2)]
        self.victims = [self.suffer() for _ in range(CLIENTS)] if self.hostile else []

    async def run(self) -> dict[str, Any]:
        """Runs all as tasks."""
        victims = [asyncio.create_task(self.guarded(victim)) for victim in self.victims]
        await asyncio.gather(*map(self.guarded, self.honest))
        for task in victims:
            task.cancel()
        await asyncio.gather(*victims, return_exceptions=True)
        return {**self.attempts.report(), "tasks": len(asyncio.all_tasks())}

    def run_blocking(self) -> dict[str, Any]:
        """Runs all as threads."""
        work = self.honest + self.victims
        threads = [threading.Thread(target=complete, args=[self.guarded(one)]) for one in work]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return self.attempts.report()

    async def suffer(self) -> None:
        """Connects to the hostile server again and again; tasks are cancelled in the end."""
        if self.how == "reconnect":
            async for ws in self.connect(self.hostile, **self.options):
                self.attempts.count += 1
                with contextlib.suppress(*EXPECTED):
                    await ws.recv()
            return
        while not (self.blocking and self.is_over()):
            began = time.monotonic()
            try:
                ws = await attempt(self.connect, self.hostile, **self.options)
            except EXPECTED:
                continue
            finally:
                self.attempts.tried(began)
            with contextlib.suppress(*EXPECTED):
                async with entered(ws):
                    await (self.use_blocking(ws) if self.blocking else self.use(ws))

    async def use(self, ws: Any) -> None:
        if self.how == "receive":
            async for _ in ws:
                pass
        elif self.how == "idle":
            await ws.wait_closed()
        elif self.how == "send":
            while True:
                await ws.send(DATA)

    async def use_blocking(self, ws: Any) -> None:
        while self.how in ("receive", "idle", "send") and not self.is_over():
            if self.how == "send":
                ws.send(DATA)
            else:
                # Idle: one message is received now and then.
                time.sleep(0.2 if self.how == "idle" else 0)
                ws.recv(0.2)


def main(kind: str) -> None:
    log = Log()
    answer({"ports": {}})
    for question in questions():
        victims = Victims(question, kind)
        figures = victims.run_blocking() if victims.blocking else asyncio.run(victims.run())
        trim()
        answer({**figures, "connections": 0, **log.since_last()})
