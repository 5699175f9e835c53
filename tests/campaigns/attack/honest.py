"""Honest clients, a program: it measures the latency of their echoes at each question.

Some stay connected, others reconnect all the time. Each question gives the addresses and the duration: ``uris``,
``seconds``, and optionally ``headers``, ``ca`` and ``hosts``, addresses to connect from.
"""

from __future__ import annotations

import threading
import time
from typing import Any

import wirespeed
from campaigns.common.calls import complete
from campaigns.common.honest import LONG, Clients, Measured
from campaigns.common.program import answer, questions
from wirespeed.sync import connect


def measure(question: dict[str, Any]) -> dict[str, Any]:
    uris: list[str] = question["uris"]
    hosts: list[str] = question.get("hosts") or ["127.0.0.1", "127.0.0.2"]
    options: dict[str, Any] = {"proxy": None, "open_timeout": LONG, "additional_headers": question.get("headers")}
    if "ca" in question:
        options["ssl"] = wirespeed.TLS(ca=question["ca"])
    end = time.monotonic() + question["seconds"]

    def dial(number: int) -> Any:
        return connect(uris[number % len(uris)], local_addr=(hosts[number % len(hosts)], 0), **options)

    clients = Clients(Measured(), dial, lambda: time.monotonic() > end, blocking=True)
    work = [clients.stay(number) for number in range(4)] + [clients.come(4)]
    threads = [threading.Thread(target=complete, args=[clients.guarded(one)]) for one in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return clients.measured.report()


def main() -> None:
    for question in questions():
        answer(measure(question))
