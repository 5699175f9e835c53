"""Clients that mean well: ``honest.py PORT SECONDS`` prints how many echoes they got, and how late, in seconds."""

from __future__ import annotations

import json
import sys
import threading
import time

from wirespeed.sync import connect

CLIENTS = 3
PAUSE = 0.005


def talk(uri: str, end: float, late: list[float], problems: list[str]) -> None:
    try:
        with connect(uri, proxy=None) as ws:
            number = 0
            while time.monotonic() < end:
                number += 1
                began = time.monotonic()
                ws.send(f"{uri} {number}")
                if ws.recv(30) != f"{uri} {number}":
                    raise ValueError("another echo")
                late.append(time.monotonic() - began)
                time.sleep(PAUSE)
    except Exception as exc:
        problems.append(repr(exc))


def main() -> None:
    port, seconds = sys.argv[1], float(sys.argv[2])
    late: list[float] = []
    problems: list[str] = []
    uris = [f"ws://127.0.0.1:{port}{path}" for path in ("/", "/echo")] * CLIENTS
    end = time.monotonic() + seconds
    threads = [threading.Thread(target=talk, args=(uri, end, late, problems)) for uri in uris]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    late.sort()
    figures = {"count": len(late), "p50": late[len(late) // 2], "p99": late[len(late) * 99 // 100]} if late else {}
    print(json.dumps({**figures, "problems": problems}))


if __name__ == "__main__":
    main()
