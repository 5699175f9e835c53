"""Random schedules on the engine: ``PYTHONPATH=tests python -m engine.liveness``; ``--help`` lists the options."""

from __future__ import annotations

import sys

from campaigns.common.schedules import main

from .campaign import EngineLiveness

if __name__ == "__main__":
    sys.exit(main(EngineLiveness()))
