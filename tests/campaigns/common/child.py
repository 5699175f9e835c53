"""Starts a program of the campaigns: ``python -m campaigns.common.child MODULE ARGUMENT...`` calls its ``main``."""

from __future__ import annotations

import importlib
import sys

from .command import forget_proxies

if __name__ == "__main__":
    forget_proxies()
    importlib.import_module(f"campaigns.{sys.argv[1]}").main(*sys.argv[2:])
