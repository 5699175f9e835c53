"""Boost.Beast, server, under load."""

from __future__ import annotations

from serving.peer import main

if __name__ == "__main__":
    main(None, [])
