"""Where wirespeed is faster, and where it is slower: each comparison with a rival, by the ratios within the rounds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from harness.figures import KINDS
from harness.report.selection import Chosen
from harness.results import NOISE, Figure, ratio
from harness.scenario import Cell, PeerName, Scenario

__all__ = ["FASTER", "LEVEL", "LIBRARY", "SLOWER", "Comparison", "compared", "is_limit", "is_ours", "pairs"]

LIBRARY = "wirespeed"
FASTER, LEVEL, SLOWER = "faster", "no clear difference", "slower"


@dataclass(frozen=True)
class Comparison:
    """What wirespeed reaches in a cell beside a rival.

    Attributes:
        ours: the peer that is wirespeed.
        rival: the other.
        ratio: the figure of the one as a multiple of the other's.
        lower: whether less is better of what is compared.
        limit: whether the rival is no library but what a system allows.
    """

    chosen: Chosen
    cell: Cell
    ours: str
    rival: str
    ratio: Figure
    lower: bool
    limit: bool

    @property
    def advantage(self) -> float:
        """How many times better wirespeed is; below 1: how much worse."""
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


def compared(records: Iterable[Chosen]) -> list[Comparison]:
    """Returns every comparison that the records allow, in their order."""
    return [comparison for chosen in records for comparison in _of_record(chosen)]


def pairs(scenario: Scenario, peers: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yields who is compared with whom: peers that are wirespeed with rivals, all of them from `peers`.

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


def is_limit(scenario: Scenario, peer: str) -> bool:
    """Tells whether a peer is what a system allows, as the scenario or one of its charts says."""
    limits = [*scenario.limits, *(name for chart in scenario.charts for name in chart.limits)]
    return any(PeerName.of(peer).is_asked_for(name) for name in limits)


def _of_record(chosen: Chosen) -> Iterator[Comparison]:
    for cell, samples in chosen.cells.items():
        lower = any(KINDS[sample.measures].lower for sample in samples)
        peers = list(dict.fromkeys(sample.peer for sample in samples))
        for ours, rival in pairs(chosen.scenario, peers):
            figure = ratio(samples, ours, rival)
            if figure is not None:
                limit = is_limit(chosen.scenario, rival)
                yield Comparison(chosen, cell, ours, rival, figure, lower, limit)
