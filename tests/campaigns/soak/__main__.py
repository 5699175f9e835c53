"""Soaks from the command line: ``PYTHONPATH=tests python -m campaigns.soak``; ``--help`` lists the options."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

from .campaign import Soak, Unwell
from .clients import CLIENTS
from .picture import draw
from .servers import SERVERS

# Samples of each series; more would not change a median.
SAMPLES = 240
# Seconds between two full samples, which count objects.
SHORTEST = 1.0


def main() -> int:
    """Runs the soak that the arguments select; 0: no series rises, 1: one does, or another error occurred."""
    parser = argparse.ArgumentParser(
        prog="soak", description="All servers and clients at once against peers that misbehave: does anything grow?"
    )
    parser.add_argument("--minutes", type=float, default=30, help="how long to run (%(default)s)")
    parser.add_argument("--servers", nargs="*", choices=list(SERVERS), default=list(SERVERS), metavar="NAME")
    parser.add_argument("--clients", nargs="*", choices=list(CLIENTS), default=list(CLIENTS), metavar="NAME")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="of what the peers do (the time)")
    parser.add_argument(
        "--out", type=Path, default=Path("build/soak"), help="folder of picture and figures (%(default)s)"
    )
    options = parser.parse_args()
    seconds = 60 * options.minutes
    samples = max(4, min(SAMPLES, int(seconds / SHORTEST)))
    print(f"soak: {options.minutes:g} minutes, seed {options.seed}", flush=True)
    with Soak(options.servers, options.clients, options.seed) as soak:
        try:
            soak.run(seconds, samples, lambda text: print(text, flush=True))
        except Unwell as exc:
            print(exc, file=sys.stderr)
            return 1
        finally:
            if soak.lines:
                draw(soak, options.out / "soak.svg")
    lines = {" / ".join(key): [line.times, line.figures] for key, line in soak.lines.items()}
    (options.out / "soak.json").write_text(json.dumps(lines))

    print("\n| line | median | rise | |\n|---|---|---|---|")
    verdicts = soak.verdicts()
    for (name, kind), verdict in verdicts.items():
        told = "RISES" if verdict.rises else ""
        print(f"| {name}, {kind} | {verdict.median:.1f} | {verdict.rise:+.1f} | {told} |")
    wrong = soak.problems + soak.idle() + soak.said()
    for problem in wrong:
        print(problem)
    print(f"\n{soak.replies} replies and {soak.openings} openings of honest clients; {options.out / 'soak.svg'}")
    return int(bool(wrong) or any(verdict.rises for verdict in verdicts.values()))


if __name__ == "__main__":
    sys.exit(main())
