"""Selects a part of a long table of cases: the only place that selects.

A run takes a short form of each table, which is the same in every run. ``--rotation N/M`` adds to it each M-th case,
beginning with the N-th. N counts from 0, so ``--rotation 0/1`` takes whole tables.
"""

from __future__ import annotations

import argparse
import zlib
from collections.abc import Callable, Hashable, Iterable
from typing import TypeVar

__all__ = ["Share", "sample", "share_text"]

T = TypeVar("T")


class Share:
    """One of several shares of a table or of a set of names, written ``N/M``.

    Args:
        text: ``N/M``, for example ``3/12``; N counts from 0.

    Raises:
        ValueError: The text is not of this form.
    """

    def __init__(self, text: str) -> None:
        number, _, total = text.partition("/")
        if not (number.isdecimal() and total.isdecimal() and int(number) < int(total)):
            raise ValueError(f"{text!r} is not N/M with N from 0 to M - 1, for example 3/12")
        self.number, self.total = int(number), int(total)

    def __contains__(self, name: str) -> bool:
        return zlib.crc32(name.encode()) % self.total == self.number

    def indexes(self, length: int) -> range:
        """Return the indexes of the share in a table of this length."""
        return range(self.number, length, self.total)


def share_text(text: str) -> str:
    """Return the value of an option that takes a share; the type of the option for argparse.

    Workers of pytest-xdist get options as text.
    """
    try:
        Share(text)
    except ValueError as exc:
        raise argparse.ArgumentTypeError(str(exc)) from None
    return text


def sample(
    cases: Iterable[T], share: int, rotation: str | None, *, kind: Callable[[T], Hashable] | None = None
) -> list[T]:
    """Return the cases of a table that this run takes, in the order of the table.

    Args:
        cases: The whole table.
        share: The short form has one case in this many.
        rotation: The value of ``--rotation``; ``None`` if there is none.
        kind: Returns the kind of a case. The short form has at least one case of each kind.
    """
    table = list(cases)
    taken = set(range(0, len(table), share))
    if kind is not None:
        missing: dict[Hashable, int] = {}
        for index, case in enumerate(table):
            missing.setdefault(kind(case), index)
        for index in taken:
            missing.pop(kind(table[index]), None)
        taken.update(missing.values())
    if rotation is not None:
        taken.update(Share(rotation).indexes(len(table)))
    return [case for index, case in enumerate(table) if index in taken]
