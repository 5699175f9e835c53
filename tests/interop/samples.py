"""How much of a long table of cases a run of the tests takes: the one place that chooses.

Without an option a run takes a short form of each table, which is the same in every run. ``--rotation N/M`` takes of
every table of cases each M-th, beginning with the N-th. N counts from 0, so ``--rotation 0/1`` takes whole tables. No
table is left out: of one that ends before the N-th case, it takes the case N modulo its length.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Hashable, Iterable
from typing import Any, TypeVar

__all__ = ["add_option", "rotation_of", "sample"]

T = TypeVar("T")


def add_option(parser: Any) -> None:
    """Add ``--rotation`` to a parser of pytest."""
    parser.addoption(
        "--rotation",
        default=None,
        type=rotation_of,
        metavar="N/M",
        help="of every table of cases, each M-th beginning with the N-th (from 0); 0/1: whole tables",
    )


def sample(
    cases: Iterable[T], share: int, rotation: str | None, *, kind: Callable[[T], Hashable] | None = None
) -> list[T]:
    """Return one case in ``share``, in the order of the table.

    Args:
        cases: The whole table.
        share: How many cases one is taken from, without a rotation.
        rotation: The value of ``--rotation``, which replaces ``share``; ``None`` if there is none.
        kind: Returns the kind of a case. The first case of each kind that has none in the sample is taken as well.
    """
    table = list(cases)
    first, step = (0, share) if rotation is None else _parsed(rotation)
    taken = set(range(first, len(table), step))
    if table and not taken:
        taken = {first % len(table)}
    if kind is not None:
        missing: dict[Hashable, int] = {}
        for index, case in enumerate(table):
            missing.setdefault(kind(case), index)
        for index in taken:
            missing.pop(kind(table[index]), None)
        taken.update(missing.values())
    return [case for index, case in enumerate(table) if index in taken]


def _parsed(rotation: str) -> tuple[int, int]:
    first, _, step = rotation.partition("/")
    return int(first), int(step)


def rotation_of(rotation: str) -> str:
    """Return the value of the option, or raise if it is no rotation."""
    found = re.fullmatch(r"(\d+)/(\d+)", rotation)
    if found is None or int(found[1]) >= int(found[2]):
        raise argparse.ArgumentTypeError(f"{rotation!r} is not N/M with N from 0 to M - 1")
    return rotation
