"""Who is compared with whom, and who is ahead: each comparison by the ratios within the rounds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from harness.figures import KINDS
from harness.peers import Sample
from harness.results import NOISE, Figure, ratio
from harness.scenario import Cell, PeerName, Scenario, is_one_of

__all__ = ["FASTER", "LEVEL", "SLOWER", "Comparison", "comparisons", "is_ours"]

LIBRARY = "wirespeed"
FASTER, LEVEL, SLOWER = "better", "level", "worse"


@dataclass(frozen=True)
class Comparison:
    """What wirespeed reaches in a cell beside a rival.

    Attributes:
        ours: the peer that is wirespeed.
        rival: the other, no limit of the system.
        ratio: the figure of the one as a multiple of the other's.
        lower: whether less is better of what is compared.
    """

    scenario: Scenario
    cell: Cell
    ours: str
    rival: str
    ratio: Figure
    lower: bool

    @property
    def advantage(self) -> float:
        """How many times better wirespeed is; below 1: worse."""
        if not self.lower:
            return self.ratio.median
        return 1 / self.ratio.median if self.ratio.median else float("inf")

    @property
    def verdict(self) -> str:
        """FASTER or SLOWER where all rounds agree and the median is off by more than noise; else LEVEL."""
        above = self.ratio.low > 1 and self.ratio.median >= 1 + NOISE
        below = self.ratio.high < 1 and self.ratio.median <= 1 / (1 + NOISE)
        if not above and not below:
            return LEVEL
        return FASTER if above != self.lower else SLOWER


def comparisons(scenario: Scenario, cells: dict[Cell, list[Sample]]) -> Iterator[Comparison]:
    """Yields every comparison of a record with rivals."""
    for cell, samples in cells.items():
        lower = any(KINDS[sample.measures].lower for sample in samples)
        for ours, rival in _pairs(scenario, sorted({sample.peer for sample in samples})):
            figure = None if is_one_of(rival, scenario.limits) else ratio(samples, ours, rival)
            if figure is not None:
                yield Comparison(scenario, cell, ours, rival, figure, lower)


def _pairs(scenario: Scenario, peers: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yields who is compared with whom.

    A rival is compared with the scenario's subject, on the same loop where that has one. One that has a loop of its own
    is compared with the subject on each loop. What can run on wirespeed is compared with itself without it.
    """
    for rival in peers:
        subject = scenario.subject_for(rival)
        if is_ours(rival) or rival == subject:
            continue
        yield from ((peer, rival) for peer in peers if subject in (peer, None) and scenario.subject_for(peer) == peer)
        parts = PeerName.of(rival)
        for peer in peers:
            host = PeerName.of(peer)
            if host.style == LIBRARY and (host.folder, host.loop) == (parts.folder, parts.loop):
                yield peer, rival


def is_ours(peer: str) -> bool:
    """Tells whether a peer is wirespeed, or what runs on it."""
    parts = PeerName.of(peer)
    return parts.folder == LIBRARY or parts.folder.startswith(f"{LIBRARY}-") or parts.style == LIBRARY
