"""The order of the runs: cell by cell, round by round, one peer after the other (A B C A B C ...)."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import threading
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass, field

from harness.errors import BenchError
from harness.peers import Peer, Peers, Sample
from harness.scenario import Cell, Measure, Scenario
from harness.server import Server

__all__ = ["Runner"]


@dataclass
class Runner:
    """Runs a scenario against a started server.

    Attributes:
        progress: is told before each window what comes.
        parallel: how many windows run at the same time: one, where they are to measure anything.
    """

    scenario: Scenario
    measure: Measure
    peers: Peers
    server: Server
    core: int | None
    progress: Callable[[str], None] = lambda text: None
    parallel: int = 1
    _server_lock: threading.Lock = field(default_factory=threading.Lock)

    def takes_part(self, peer: Peer, cell: Cell) -> bool:
        """Tells whether a peer runs in a cell: it can, and the scenario wants it."""
        workload = self.scenario.workload(cell.workload)
        return peer.can(workload, cell.tls) and workload.admits(peer.name)

    def cells(self) -> list[Cell]:
        """Returns the cells in which at least one peer takes part."""
        peers = self.peers.ready.values()
        return [cell for cell in self.scenario.cells() if any(self.takes_part(peer, cell) for peer in peers)]

    def rounds(self, cell: Cell) -> int:
        """Returns how many rounds a cell has."""
        most = self.scenario.workload(cell.workload).rounds
        return self.measure.rounds if most is None else min(most, self.measure.rounds)

    def windows(self, without: Container[Cell] = ()) -> int:
        """Returns how many windows there will be if nothing fails."""
        peers = self.peers.ready.values()
        cells = [cell for cell in self.cells() if cell not in without]
        return sum(self.rounds(cell) * sum(self.takes_part(peer, cell) for peer in peers) for cell in cells)

    def run(self, without: Container[Cell] = ()) -> Iterator[tuple[Cell, list[Sample]]]:
        """Yields each cell with its samples once all its rounds are over; not those of `without`.

        Raises:
            BenchError: the server died and cannot be started again.
        """
        for cell in self.cells():
            if cell not in without:
                yield cell, self._run_cell(cell)

    def _run_cell(self, cell: Cell) -> list[Sample]:
        samples: list[Sample] = []
        dropped: set[str] = set()
        rounds = self.rounds(cell)
        for number in range(1, rounds + 1):
            names = [
                name for name, peer in self.peers.ready.items() if self.takes_part(peer, cell) and name not in dropped
            ]
            for sample in self._run_round(cell, names, number, rounds):
                samples.append(sample)
                if sample.failure is not None:
                    # It would most likely fail again, after a long wait.
                    dropped.add(sample.peer)
        return samples

    def _run_round(self, cell: Cell, names: Sequence[str], number: int, rounds: int) -> Iterator[Sample]:
        """Yields the sample of each peer, in this order, whatever runs at the same time."""

        def window(name: str) -> Sample:
            self.progress(f"{cell}: round {number} of {rounds}, {name}")
            return self._run_window(name, cell, number)

        if self.parallel == 1:
            yield from map(window, names)
            return
        with concurrent.futures.ThreadPoolExecutor(self.parallel) as pool:
            try:
                yield from pool.map(window, names)
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                self.peers.stop()
                raise

    def _run_window(self, name: str, cell: Cell, number: int) -> Sample:
        workload = self.scenario.workload(cell.workload)
        endpoint = self.server.endpoint(workload.target(cell.size), tls=cell.tls)
        seconds = (workload.seconds or self.measure.seconds) * workload.stretch
        measure = dataclasses.replace(self.measure, seconds=seconds)
        sample = self.peers.run(
            self.peers.ready[name], Sample(name, cell, number), workload, measure, endpoint, self.core
        )
        with self._server_lock:
            failure = self.server.failure()
            if failure is not None:
                self.server.stop()
                try:
                    self.server.start()
                except BenchError as error:
                    raise BenchError(f"{failure} ({cell}, {name}), and does not start again: {error}") from error
                return dataclasses.replace(sample, failure=failure)
        return sample
