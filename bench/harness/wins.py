"""Comparisons between libraries, and which is ahead: by the ratios within the rounds."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from harness.figures import KINDS
from harness.peers import Sample
from harness.results import NOISE, Figure, ratio
from harness.scenario import LIBRARY, Cell, PeerName, Scenario, Workload, is_one_of

__all__ = ["FASTER", "LEVEL", "SLOWER", "Comparison", "comparisons", "counted", "is_ours"]

# Fewer rounds agree by chance too often for a verdict: of two that are equal, five do once in sixteen times.
ROUNDS = 5
# Whose styles are the rivals: wirespeed sends what they make.
CODECS = "codecs"
FASTER, LEVEL, SLOWER = "better", "level", "worse"


@dataclass(frozen=True)
class Comparison:
    """What wirespeed reaches in a cell beside a rival.

    Attributes:
        ours: the peer that is wirespeed.
        rival: the other, no limit of the system.
        ratio: the figure of the one as a multiple of the other's.
        samples: those of the cell.
    """

    scenario: Scenario
    workload: Workload
    cell: Cell
    ours: str
    rival: str
    ratio: Figure
    samples: Sequence[Sample]

    @property
    def lower(self) -> bool:
        """Whether less is better of what is compared."""
        return KINDS[self.workload.measures].lower

    @property
    def is_rate(self) -> bool:
        """Whether that is how fast something useful is done."""
        return self.workload.measures == "rate" and self.workload.units != "exceptions"

    @property
    def name(self) -> str:
        """The name of the rival, whatever its style and loop."""
        parts = PeerName.of(self.rival)
        return f"{parts.style} as codec" if parts.folder == CODECS else parts.folder

    @property
    def advantage(self) -> float:
        """How many times better wirespeed is; below 1: worse."""
        if not self.lower:
            return self.ratio.median
        return 1 / self.ratio.median if self.ratio.median else float("inf")

    @property
    def verdict(self) -> str:
        """FASTER or SLOWER where enough rounds all agree and the median is off by more than noise; else LEVEL."""
        if sum(sample.peer == self.ours for sample in self.samples) < ROUNDS:
            return LEVEL
        above = self.ratio.low > 1 and self.ratio.median >= 1 + NOISE
        below = self.ratio.high < 1 and self.ratio.median <= 1 / (1 + NOISE)
        if not above and not below:
            return LEVEL
        return FASTER if above != self.lower else SLOWER


def comparisons(scenario: Scenario, cells: dict[Cell, list[Sample]]) -> Iterator[Comparison]:
    """Yields every comparison of a record.

    A rival is compared with the subject that it has in this workload. One that has none, as it has a loop of its own,
    is compared with the subject on each loop.
    """
    for cell, samples in cells.items():
        workload = scenario.called(cell.workload)
        subjects = {one: scenario.subject_for(one, workload) for one in sorted({sample.peer for sample in samples})}
        for rival, subject in subjects.items():
            if not is_ours(rival) and rival != subject and not is_one_of(rival, scenario.limits):
                for ours in (peer for peer, own in subjects.items() if own == peer and subject in (peer, None)):
                    if (figure := ratio(samples, ours, rival)) is not None:
                        yield Comparison(scenario, workload, cell, ours, rival, figure, samples)


def counted(every: Iterable[Comparison]) -> list[Comparison]:
    """Returns the comparisons that count: of a rival's styles on one loop the best in a cell, a loss before all."""
    best: dict[tuple[object, ...], Comparison] = {}
    for one in sorted(every, key=lambda one: (one.verdict == SLOWER, -one.advantage)):
        best[one.scenario.name, one.cell, one.ours, one.name, PeerName.of(one.rival).loop] = one
    return list(best.values())


def is_ours(peer: str) -> bool:
    """Tells whether a peer is wirespeed, or what runs on it."""
    parts = PeerName.of(peer)
    return parts.folder == LIBRARY or parts.folder.startswith(f"{LIBRARY}-") or parts.style == LIBRARY
