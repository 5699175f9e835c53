"""Compares with other implementations from the command line: ``PYTHONPATH=tests python -m campaigns.differential``."""

from __future__ import annotations

import argparse
import itertools
import sys
import time

from campaigns.common.command import arguments

from .campaign import campaign
from .case import Case
from .compare import compare, report
from .core import Core
from .ends import Ends, end_campaign
from .generate import draw
from .head_campaign import compare_head, head_campaign
from .head_generate import draw_head
from .heads import HeadCase
from .tally import Tally

WHAT = ["protocol", "heads", "ends"]


def main() -> int:
    """Runs the comparisons that the arguments select; returns the exit status: 0, or 1 after a difference."""
    parser = arguments("differential", "Random bytes and calls, through ours and theirs.")
    parser.add_argument(
        "--what",
        choices=[*WHAT, "all"],
        default="all",
        help="protocol: the core beside websockets; heads: beside websockets and wsproto; ends: clients and servers "
        "over sockets; all of them, half of the time the first (all)",
    )
    parser.add_argument("--first", type=int, default=int(time.time()), help="the first seed (the time)")
    parser.add_argument("--seed", help="run the case of this seed only; needs --what")
    parser.add_argument("--case", help="run this case, as a difference that was found shows it; needs --what for heads")
    parser.add_argument("--role", choices=["server", "client"], help="which end is ours, of protocol (both)")
    parser.add_argument("--keep-going", action="store_true", help="go on after a difference")
    options = parser.parse_args()
    if options.case is not None or options.seed is not None:
        return _one(options)
    print(f"seeds from {options.first} on, {options.seconds:.0f} s", flush=True)
    status = 0
    for what in WHAT if options.what == "all" else [options.what]:
        share = 1.0 if options.what != "all" else 0.5 if what == "protocol" else 0.25
        status |= _campaign(what, options, options.seconds * share)
    return status


def _campaign(what: str, options: argparse.Namespace, seconds: float) -> int:
    seeds, stop = map(str, itertools.count(options.first)), not options.keep_going
    if what == "ends":
        with Ends() as ends:
            return _print(end_campaign(ends, seeds, seconds, stop=stop))
    with Core() as core:
        if what == "heads":
            return _print(head_campaign(core, seeds, seconds, stop=stop))
        return _print(campaign(core, seeds, seconds, side=options.role, stop=stop))


def _print(tally: Tally) -> int:
    print("\n\n".join([*tally.failures, str(tally)]), flush=True)
    return 1 if tally.failures else 0


def _one(options: argparse.Namespace) -> int:
    if options.what == "ends":
        with Ends() as ends:
            return _print(end_campaign(ends, iter([options.seed])))
    with Core() as core:
        if options.what == "heads":
            head = HeadCase.load(options.case) if options.case is not None else draw_head(options.seed)
            verdict, differences, rules = compare_head(core, head)
            print(f"{head.head!r}\nours {verdict}\nrules: {', '.join(sorted(rules)) or 'none'}")
            print("\n".join(differences.values()) or "alike")
            return 1 if differences else 0
        case = Case.load(options.case) if options.case is not None else draw(options.seed)
        result = compare(core, case)
    if result.difference:
        print(report(result, options.seed or "-"))
        return 1
    print(f"{case}\nours:\n{result.ours}\nalike; decisions: {', '.join(sorted(result.decisions)) or 'none'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
