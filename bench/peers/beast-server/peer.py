"""Boost.Beast, server, under load."""

from __future__ import annotations

from peers.serving import main

WORKLOADS = ["echo-1", "echo-100", "echo-1000", "echo-100-picows", "fan-out-1000", "open", "idle"]

if __name__ == "__main__":
    main(None, [], WORKLOADS)
