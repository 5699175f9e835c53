"""Which records a report is made of, and what the scenarios say about them."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from harness.errors import UsageError
from harness.peers import Sample
from harness.places import RECORDS
from harness.record import CIRCUMSTANCES, Record, read_csv
from harness.results import Summary, summarize
from harness.scenario import Cell, Measure, Scenario, Workload, load, names

__all__ = ["Chosen", "choose", "newest"]

# What must be the same for cells of two records to stand in one table. The lengths of windows may differ.
SAME = tuple(key for key in CIRCUMSTANCES if key != "measure")


@dataclass(frozen=True)
class Chosen:
    """A record and its scenario, completed by what only the record has.

    Attributes:
        known: whether the scenario still exists; else it says no more than the record itself.
        parts: records from which some cells are, as they are newer and only of these.
    """

    path: Path
    record: Record
    scenario: Scenario
    known: bool
    parts: tuple[Path, ...] = ()

    @cached_property
    def cells(self) -> dict[Cell, list[Sample]]:
        """The samples of each cell, in the order in which they were taken."""
        cells: dict[Cell, list[Sample]] = {}
        for sample in self.record.samples:
            cells.setdefault(sample.cell, []).append(sample)
        return cells

    @cached_property
    def summaries(self) -> dict[Cell, list[Summary]]:
        """The figures of each cell."""
        return {cell: summarize(samples) for cell, samples in self.cells.items()}

    @cached_property
    def peers(self) -> list[str]:
        """The peers that ran, in the order of the scenario."""
        ran = dict.fromkeys(sample.peer for sample in self.record.samples)
        return [peer for peer in self.scenario.peers if peer in ran]


@dataclass(frozen=True, order=True)
class _Name:
    """The parts of a record's name, DATE-SCENARIO[-AGAIN].csv; the newest is the greatest."""

    date: str
    again: int
    scenario: str

    @classmethod
    def of(cls, path: Path) -> _Name | None:
        """Takes a name apart; None if it is not that of a record."""
        match = re.fullmatch(r"(\d{4}-\d\d-\d\d)-(.+)", path.stem)
        if match is None:
            return None
        date, rest = match.groups()
        repeated = re.fullmatch(r"(.+)-(\d+)", rest)
        # A scenario may itself end with a number.
        if repeated is None or rest in names():
            return cls(date, 1, rest)
        return cls(date, int(repeated[2]), repeated[1])


def choose(asked: Sequence[str], folder: Path = RECORDS) -> list[Chosen]:
    """Returns the records that somebody asked for, each a file or the name of a scenario, which means what is newest.

    Without any: what is newest of each scenario of the machine that was measured last.

    Raises:
        UsageError: there is no such record, or it cannot be read.
    """
    found = newest(folder) if not asked or not all(map(_is_file, asked)) else {}
    if not asked and not found:
        raise UsageError(f"{folder} has no records: run a benchmark first, or name a record")
    paths = [_paths(one, found, folder) for one in asked] if asked else list(found.values())
    return [_chosen(one) for one in dict.fromkeys(paths)]


def newest(folder: Path) -> dict[str, tuple[Path, ...]]:
    """Returns the records of each scenario, by name, the newest first, of the folder below that has the newest of all.

    They end with one that is whole: for which nothing was chosen on the command line.
    """
    machines: dict[Path, dict[str, list[tuple[_Name, Path]]]] = {}
    for path in sorted(folder.glob("*/*.csv")):
        name = _Name.of(path)
        if name is not None:
            machines.setdefault(path.parent, {}).setdefault(name.scenario, []).append((name, path))
    if not machines:
        return {}
    last = max(machines, key=lambda machine: max(name.date for kept in machines[machine].values() for name, _ in kept))
    found = {scenario: sorted(kept, reverse=True) for scenario, kept in sorted(machines[last].items())}
    return {scenario: _up_to_whole([path for _, path in kept]) for scenario, kept in found.items()}


def _up_to_whole(paths: Sequence[Path]) -> tuple[Path, ...]:
    """Returns the first records, up to one that is whole."""
    for count, path in enumerate(paths, 1):
        if not _is_part(read_csv(path)):
            return tuple(paths[:count])
    return tuple(paths)


def _is_part(record: Record) -> bool:
    return "choice" in record.facts


def _is_file(asked: str) -> bool:
    return asked.endswith(".csv") or Path(asked).is_file()


def _paths(asked: str, found: dict[str, tuple[Path, ...]], folder: Path) -> tuple[Path, ...]:
    if _is_file(asked):
        return (Path(asked),)
    if asked not in found:
        choice = f"choose from {', '.join(found)}" if found else "there is none"
        raise UsageError(f"{asked} is neither a file nor a scenario with a record in {folder}: {choice}")
    return found[asked]


def _chosen(paths: Sequence[Path]) -> Chosen:
    """Returns the last of these records, with the cells of those before it that are as good, the first one's first."""
    *newer, path = paths
    record, parts = read_csv(path), []
    for part in reversed(newer):
        merged = _with_cells_of(record, read_csv(part))
        if merged is not record:
            record = merged
            parts.append(part)
    name = record.facts.get("scenario", "")
    known = name in names()
    scenario = _completed(load(name) if known else _plain(name or path.stem), record)
    return Chosen(path, record, scenario, known, tuple(parts))


def _with_cells_of(record: Record, part: Record) -> Record:
    """Returns a record with the cells of a newer one that have all of its peers; itself, if there are none.

    Ratios are taken within cells, so cells of several records can stand side by side, if the machine is the same.
    """
    if any(record.facts.get(key) != part.facts.get(key) for key in SAME):
        return record
    peers: dict[Cell, set[str]] = {}
    for sample in record.samples:
        peers.setdefault(sample.cell, set()).add(sample.peer)
    new: dict[Cell, set[str]] = {}
    for sample in part.samples:
        new.setdefault(sample.cell, set()).add(sample.peer)
    taken = {cell for cell, there in new.items() if there >= peers.get(cell, set())}
    if not taken:
        return record
    kept = [sample for sample in record.samples if sample.cell not in taken]
    return Record(record.facts, kept + [sample for sample in part.samples if sample.cell in taken])


def _plain(name: str) -> Scenario:
    """Returns a scenario that knows nothing but its name."""
    nothing = Measure(rounds=0, seconds=0, warmup=0)
    return Scenario(name, name, (), "", (), nothing, nothing, (), ())


def _completed(scenario: Scenario, record: Record) -> Scenario:
    """Adds the workloads and peers of a record that its scenario does not have, by their bare names."""
    workloads = {workload.name: workload for workload in scenario.workloads}
    for sample in record.samples:
        name = sample.cell.workload
        workloads.setdefault(name, Workload(name, name, unit="operation", measures=sample.measures))
    peers = dict.fromkeys([*scenario.peers, *(sample.peer for sample in record.samples)])
    return dataclasses.replace(scenario, workloads=tuple(workloads.values()), peers=tuple(peers))
