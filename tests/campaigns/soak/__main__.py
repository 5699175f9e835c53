"""Soaks: ``PYTHONPATH=tests python -m campaigns.soak``; ``--help`` lists the options."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from campaigns.common.program import ProgramError
from campaigns.common.table import Table, Verdict, main

from .campaign import Soak
from .clients import CLIENTS
from .picture import draw
from .servers import SERVERS

# Samples of each series; more would not change a median.
SAMPLES = 240
# Seconds between two full samples, which count objects.
SHORTEST = 1.0


class Soaks(Table[str]):
    """All programs at once; a cell is a server or client."""

    name = "soak"
    does = "All servers and clients at once against peers that misbehave: does anything grow?"
    seconds = 1800

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--minutes", type=float, help="how long to run, instead of --seconds")
        parser.add_argument("--servers", nargs="*", choices=list(SERVERS), default=list(SERVERS), metavar="NAME")
        parser.add_argument("--clients", nargs="*", choices=list(CLIENTS), default=list(CLIENTS), metavar="NAME")
        parser.add_argument("--seed", type=int, default=int(time.time()), help="of what the peers do (the time)")
        parser.add_argument(
            "--out", type=Path, default=Path("build/soak"), help="folder of picture and figures (%(default)s)"
        )

    def cells(self, options: argparse.Namespace) -> list[str]:
        return [f"server {name}" for name in options.servers] + [f"client {name}" for name in options.clients]

    def rows(self) -> Iterator[str]:
        return iter([f"server {name}" for name in SERVERS] + [f"client {name}" for name in CLIENTS])

    def run(self, cells: Sequence[str], options: argparse.Namespace) -> Iterator[Verdict]:
        seconds = options.seconds if options.minutes is None else 60 * options.minutes
        samples = max(4, min(SAMPLES, int(seconds / SHORTEST)))
        print(f"soak: {seconds / 60:g} minutes, seed {options.seed}", flush=True)
        again = f"--seconds {seconds:g} --seed {options.seed}"
        with Soak(options.servers, options.clients, options.seed) as soak:
            try:
                for progress in soak.run(seconds, samples):
                    print(progress, flush=True)
            except ProgramError as exc:
                yield Verdict("a program has failed", [str(exc)], again)
                return
            finally:
                if soak.lines:
                    draw(soak, options.out / "soak.svg")
        lines = {" / ".join(key): [line.times, line.figures] for key, line in soak.lines.items()}
        (options.out / "soak.json").write_text(json.dumps(lines))
        for (name, kind), verdict in soak.verdicts().items():
            line = f"| {name}, {kind} | {verdict.median:.1f} | {verdict.rise:+.1f} | {'RISES' * verdict.rises} |"
            yield Verdict(line, [f"{name}, {kind} rises"] * verdict.rises, again)
        problems = soak.problems + soak.idle() + soak.errors()
        result = f"{soak.replies} replies and {soak.openings} openings of honest clients; {options.out / 'soak.svg'}"
        print(result, flush=True)
        yield Verdict(result, problems, again)


if __name__ == "__main__":
    sys.exit(main(Soaks()))
