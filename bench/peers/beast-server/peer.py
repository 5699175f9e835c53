"""Boost.Beast, server, under load."""

from __future__ import annotations

from peers.serving import main

WORKLOADS = ["echo", "echo-picows", "fan-out", "open", "idle"]

if __name__ == "__main__":
    main(None, [], WORKLOADS)
