"""Runs many heads through our implementation, ``websockets`` and ``wsproto``."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterator

from .core import Core
from .head_generate import draw_head
from .head_rules import difference
from .heads import HeadCase, Verdict, ours, websockets, wsproto
from .tally import Tally


@dataclasses.dataclass
class HeadTally(Tally):
    """Counts of a campaign.

    Attributes:
        heads: The number of heads.
        verdicts: The number of each of our verdicts.
        alone: The number of differences that each rule alone explained.
    """

    heads: int = 0
    verdicts: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    alone: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)

    def __str__(self) -> str:
        verdicts = ", ".join(f"{name} {count}" for name, count in sorted(self.verdicts.items()))
        rules = [f"  rule {name}: {count}" for name, count in sorted(self.alone.items())]
        return "\n".join([f"{self.heads} heads, {len(self.failures)} differ; {verdicts}", *rules])


def compare_head(core: Core, case: HeadCase) -> tuple[Verdict, dict[str, str], set[str]]:
    """Runs a head through all three.

    Returns:
        Our verdict; the differences that no rule explains, by the name of the other implementation; the rules that each
            alone explain a difference.
    """
    our = ours(core, case)
    differences: dict[str, str] = {}
    rules: set[str] = set()
    for who, judge in (("websockets", websockets), ("wsproto", wsproto)):
        found, explained = difference(who, case, our, judge(case))
        if found:
            differences[who] = found
        if len(explained) == 1:
            rules |= explained
    return our, differences, rules


def head_campaign(core: Core, seeds: Iterator[str], seconds: float | None = None, *, stop: bool = True) -> HeadTally:
    """Runs the heads of seeds; the arguments are those of ``campaign``."""
    tally = HeadTally()

    def one(seed: str) -> list[str]:
        case = draw_head(seed)
        our, differences, rules = compare_head(core, case)
        tally.heads += 1
        tally.verdicts[f"{case.kind} {our.kind}"] += 1
        tally.alone.update(rules)
        again = f"again: PYTHONPATH=tests python -m campaigns.differential --what heads --case '{case.dump()}'"
        return [f"DIFFERS: {found}\nseed {seed}\n{case.head!r}\n{again}" for found in differences.values()]

    tally.count(seeds, one, seconds, stop=stop)
    return tally
