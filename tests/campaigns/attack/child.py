"""Starts a program of this package in its process: ``python tests/campaigns/attack/child.py NAME ARGUMENT...``."""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path

# Replaces this folder on the path: its modules have names that are used elsewhere.
sys.path[0] = str(Path(__file__).parents[2])

if __name__ == "__main__":
    for variable in [name for name in os.environ if name.lower().endswith("_proxy")]:
        del os.environ[variable]
    importlib.import_module(f"campaigns.attack.{sys.argv[1]}").main(*sys.argv[2:])
