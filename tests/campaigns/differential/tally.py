"""The loop of every comparison: runs one case after the other, and counts what was compared."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable
from typing import TypeVar

T = TypeVar("T")


@dataclasses.dataclass
class Tally:
    """Counts of a campaign.

    Attributes:
        failures: The differences, in full.
    """

    failures: list[str] = dataclasses.field(default_factory=list)

    def count(
        self, cases: Iterable[T], compare: Callable[[T], list[str]], seconds: float | None, *, stop: bool
    ) -> None:
        """Compares cases.

        Args:
            cases: The cases, or their seeds.
            compare: Compares one; returns the differences.
            seconds: The duration; without it, until the cases end.
            stop: Whether to stop at the first failure.
        """
        end = None if seconds is None else time.monotonic() + seconds
        for case in cases:
            if end is not None and time.monotonic() > end:
                break
            found = compare(case)
            self.failures += found
            if found and stop:
                break
