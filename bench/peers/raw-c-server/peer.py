"""A server of bare system calls in C, under load."""

from __future__ import annotations

from serving.peer import main

if __name__ == "__main__":
    # It echoes messages of 256 KiB at most, and sends no pings.
    main(None, [], ("echo", "echo-picows", "burst", "open", "touch", "storm"), deflate=False)
