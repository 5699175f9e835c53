"""The order of the runs: cell by cell, round by round, one peer after the other (A B C A B C ...)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from harness.errors import BenchError
from harness.peers import Peers, Sample
from harness.scenario import Cell, Measure, Scenario
from harness.server import Server

__all__ = ["Runner"]


@dataclass
class Runner:
    """Runs a scenario against a started server; `progress` is told before each window what comes."""

    scenario: Scenario
    measure: Measure
    peers: Peers
    server: Server
    core: int | None
    progress: Callable[[str], None] = lambda text: None

    def cells(self) -> list[Cell]:
        """Returns the cells in which at least one peer takes part."""
        return [cell for cell in self.scenario.cells() if any(peer.can(cell) for peer in self.peers.ready.values())]

    def windows(self) -> int:
        """Returns how many windows there will be if nothing fails."""
        return self.measure.rounds * sum(peer.can(cell) for cell in self.cells() for peer in self.peers.ready.values())

    def run(self) -> Iterator[tuple[Cell, list[Sample]]]:
        """Yields each cell with its samples once all its rounds are over.

        Raises:
            BenchError: the server died and cannot be started again.
        """
        for cell in self.cells():
            yield cell, self._run_cell(cell)

    def _run_cell(self, cell: Cell) -> list[Sample]:
        samples: list[Sample] = []
        dropped: set[str] = set()
        for number in range(1, self.measure.rounds + 1):
            for name, peer in self.peers.ready.items():
                if not peer.can(cell) or name in dropped:
                    continue
                self.progress(f"{cell}: round {number} of {self.measure.rounds}, {name}")
                sample = self._run_window(name, cell, number)
                samples.append(sample)
                if sample.failure is not None:
                    # It would most likely fail again, after a long wait.
                    dropped.add(name)
        return samples

    def _run_window(self, name: str, cell: Cell, number: int) -> Sample:
        path = self.scenario.workload(cell.workload).path.format(size=cell.size)
        endpoint = self.server.endpoint(path, tls=cell.tls)
        sample = self.peers.run(self.peers.ready[name], Sample(name, cell, number), self.measure, endpoint, self.core)
        failure = self.server.failure()
        if failure is not None:
            self.server.stop()
            try:
                self.server.start()
            except BenchError as error:
                raise BenchError(f"{failure} ({cell}, {name}), and does not start again: {error}") from error
            return dataclasses.replace(sample, failure=failure)
        return sample
