"""Runs many cases and collects the findings."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterator

from .case import Case
from .compare import Result, compare, report
from .core import Core
from .generate import draw
from .shrink import shrink
from .tally import Tally


@dataclasses.dataclass
class CaseTally(Tally):
    """Counts of a campaign.

    Attributes:
        cases: The number of cases.
        alike: The number of cases with equal results without any decision.
        decisions: The number of uses of each decision, and of cases in which it alone made the difference.
        events: The number of cases with each kind of event, which proves that something was compared.
    """

    cases: int = 0
    alike: int = 0
    decisions: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    alone: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    events: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)

    def add(self, result: Result) -> None:
        self.cases += 1
        self.alike += not result.decisions and not result.difference
        self.decisions.update(result.decisions)
        if len(result.decisions) == 1:
            self.alone.update(result.decisions)
        if result.ours is None:
            return
        seen = {result.case.side}
        for step in result.ours.steps:
            seen.update(" ".join(map(str, event[: 1 + (event[0] == "fault")])) for event in step.events)
            seen.update(["refused"] if step.refused else [])
            seen.update(f"sent {frame[0]}" for frame in step.frames)
        self.events.update(seen)

    def __str__(self) -> str:
        events = ", ".join(f"{name} {count}" for name, count in sorted(self.events.items()))
        lines = [f"{self.cases} cases, {self.alike} alike, {len(self.failures)} differ", f"  with: {events}"]
        for name, count in sorted(self.decisions.items()):
            lines.append(f"  decision {name}: {count}, alone {self.alone[name]}")
        return "\n".join(lines)


def campaign(
    core: Core, seeds: Iterator[str], seconds: float | None = None, *, side: str | None = None, stop: bool = True
) -> CaseTally:
    """Runs the cases of seeds.

    Args:
        seconds: The duration; without it, until the seeds end.
        side: Only cases in which our end is this one.
        stop: Whether to stop at the first failure.
    """
    tally = CaseTally()

    def one(seed: str) -> list[str]:
        case = draw(seed)
        if side is not None and case.side != side:
            return []
        try:
            result = compare(core, case)
        except Exception as error:
            raise RuntimeError(f"seed {seed} cannot be compared: {case}") from error
        tally.add(result)
        return [report(smaller(core, result), seed)] if result.difference else []

    tally.count(seeds, one, seconds, stop=stop)
    return tally


def smaller(core: Core, result: Result, seconds: float = 20) -> Result:
    """Returns the smallest case that differs, possibly in another way."""

    def fails(case: Case) -> bool:
        return bool(compare(core, case).difference)

    return compare(core, shrink(result.case, fails, seconds))
