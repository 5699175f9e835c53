"""Runs random schedules: ``PYTHONPATH=tests python -m campaigns.liveness``; ``--help`` lists the options."""

from __future__ import annotations

import sys

from campaigns.common.schedules import main

from .campaign import Liveness

if __name__ == "__main__":
    sys.exit(main(Liveness()))
