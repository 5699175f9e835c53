"""Runs the property-based tests: ``PYTHONPATH=tests python -m campaigns.api``; ``--help`` lists the options."""

from __future__ import annotations

import sys

from campaigns.common.schedules import main

from .properties import Programs, world

if __name__ == "__main__":
    with world() as here:
        sys.exit(main(Programs(here)))
