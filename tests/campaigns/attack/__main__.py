"""Runs attacks: ``PYTHONPATH=python:tests python -m campaigns.attack``; ``--help`` lists the options."""

from __future__ import annotations

import argparse
import fnmatch
import json
import sys
import tempfile
from pathlib import Path

from interop.certificates import Certificates

from .measuring import Attacked, Figures, complaints, defects
from .report import markdown, one_line
from .table import KINDS, ROWS, chosen


def main() -> int:
    """Runs the attacks that the arguments select; returns the exit status: 0, or 1 if a bound was exceeded."""
    options = _arguments()
    if options.list:
        for row in ROWS:
            print(f"{row.slug}: {row.does} -- {', '.join(row.kinds)}")
        return 0
    kinds = [kind for kind in KINDS if fnmatch.fnmatch(kind, options.kind)]
    found: list[Figures] = []
    exceeded = 0
    with tempfile.TemporaryDirectory() as folder:
        certificates = Certificates(Path(folder))
        for kind in kinds:
            rows = [row for row in chosen(kind, options.matrix) if fnmatch.fnmatch(row.slug, options.row)]
            if not rows:
                continue
            with Attacked(kind, certificates) as attacked:
                for row in rows:
                    figures = attacked.run(row, options.seconds, compare=True)
                    found.append(figures)
                    print(one_line(figures), file=sys.stderr, flush=True)
                    for complaint in (*defects(figures), *complaints(row, figures)):
                        exceeded += 1
                        print(f"  EXCEEDED: {complaint}", file=sys.stderr, flush=True)
                        print(f"  again: --kind {kind} --row {row.slug} --seconds {options.seconds}", file=sys.stderr)
    if options.json:
        print(json.dumps([figures.as_json() for figures in found], indent=1))
    else:
        print(markdown(found))
    print(f"{len(found)} attacks, {exceeded} bounds exceeded", file=sys.stderr)
    return 1 if exceeded or not found else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="attack", description="Attacks on servers and clients: what honest ones notice, and what it costs."
    )
    parser.add_argument("--seconds", type=float, default=3, help="how long each attack lasts (3)")
    parser.add_argument("--kind", default="*", help=f"whom to attack, a pattern: {', '.join(KINDS)}")
    parser.add_argument("--row", default="*", help="which attacks, a pattern: see --list")
    parser.add_argument(
        "--matrix", choices=["default", "all"], default="all", help="each attack on all that it concerns (all), or some"
    )
    parser.add_argument("--json", action="store_true", help="print all figures as JSON")
    parser.add_argument("--markdown", action="store_true", help="print a table in Markdown, the default")
    parser.add_argument("--list", action="store_true", help="list the attacks")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
