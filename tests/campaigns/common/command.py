"""The command line of a campaign."""

from __future__ import annotations

import argparse
import os


def arguments(name: str, does: str, *, seconds: float | None = 60) -> argparse.ArgumentParser:
    """Returns a parser with the argument that most campaigns have. The process has no HTTP proxy from then on."""
    forget_proxies()
    parser = argparse.ArgumentParser(prog=name, description=does)
    if seconds is not None:
        parser.add_argument("--seconds", type=float, default=seconds, help="how long to run (%(default)s)")
    return parser


def forget_proxies() -> None:
    """Removes the proxies of the environment: they do not reach the loopback."""
    for name in [name for name in os.environ if name.lower().endswith("_proxy")]:
        del os.environ[name]
