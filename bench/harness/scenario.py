"""Scenarios: what is measured, as data. Reads `bench/scenarios/*.toml`, complains about what it cannot mean."""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.errors import UsageError

__all__ = ["Bar", "Cell", "Measure", "Scenario", "Workload", "load", "names"]

FOLDER = Path(__file__).resolve().parents[1] / "scenarios"


@dataclass(frozen=True)
class Cell:
    """What the peers are compared in: one workload, one size, plain or TLS."""

    workload: str
    size: int
    tls: bool

    def __str__(self) -> str:
        return f"{self.workload}, {size_text(self.size)}, {'TLS' if self.tls else 'plain'}"


@dataclass(frozen=True)
class Workload:
    """One workload of a scenario; `path` is the path at the server, {size} replaced."""

    name: str
    title: str
    unit: str
    path: str
    sizes: tuple[int, ...]
    tls: tuple[bool, ...]

    def cells(self) -> list[Cell]:
        """Returns the cells, plain before TLS, sizes in the order of the scenario."""
        return [Cell(self.name, size, tls) for tls in self.tls for size in self.sizes]


@dataclass(frozen=True)
class Measure:
    """How long and how often: `rounds` windows of `seconds` each, after `warmup` seconds; `batch` messages per call."""

    rounds: int
    seconds: float
    warmup: float
    batch: int


@dataclass(frozen=True)
class Bar:
    """What a peer must reach: a rate, or with `versus` a ratio of rates; `at_least` or, strictly, `above`."""

    text: str
    workload: str
    peer: str
    versus: str | None = None
    sizes: tuple[int, ...] | None = None
    tls: tuple[bool, ...] | None = None
    at_least: float | None = None
    above: float | None = None

    def selects(self, cell: Cell) -> bool:
        """Tells whether the bar stands in this cell."""
        return (
            cell.workload == self.workload
            and (self.sizes is None or cell.size in self.sizes)
            and (self.tls is None or cell.tls in self.tls)
        )

    def passes(self, figure: float) -> bool:
        """Tells whether a measured figure reaches the bar."""
        if self.above is not None:
            return figure > self.above
        return self.at_least is not None and figure >= self.at_least


@dataclass(frozen=True)
class Scenario:
    """One file of `bench/scenarios`, or what the command line left of it."""

    name: str
    title: str
    peers: tuple[str, ...]
    subject: str
    limits: tuple[str, ...]
    measure: Measure
    quick: Measure
    workloads: tuple[Workload, ...]
    bars: tuple[Bar, ...]

    def workload(self, name: str) -> Workload:
        """Returns a workload by name."""
        return next(workload for workload in self.workloads if workload.name == name)

    def cells(self) -> list[Cell]:
        """Returns the cells of all workloads."""
        return [cell for workload in self.workloads for cell in workload.cells()]

    def narrowed(
        self,
        peers: Sequence[str] = (),
        workloads: Sequence[str] = (),
        sizes: Sequence[int] = (),
        tls: bool | None = None,
    ) -> Scenario:
        """Returns the scenario with only these peers, workloads, sizes and transports; empty or None means all.

        A bar stays if its peers do.

        Raises:
            UsageError: a name is unknown, or nothing is left.
        """
        _known("peer", peers, self.peers)
        _known("workload", workloads, [workload.name for workload in self.workloads])
        _known("size", sizes, sorted({size for workload in self.workloads for size in workload.sizes}))
        left = [
            dataclasses.replace(
                workload,
                sizes=tuple(size for size in workload.sizes if not sizes or size in sizes),
                tls=tuple(value for value in workload.tls if tls is None or value == tls),
            )
            for workload in self.workloads
            if not workloads or workload.name in workloads
        ]
        left = [workload for workload in left if workload.cells()]
        if not left:
            raise UsageError(f"scenario {self.name} has nothing of that workload, size and transport together")
        chosen = tuple(peer for peer in self.peers if not peers or peer in peers)
        bars = tuple(bar for bar in self.bars if {bar.peer, bar.versus or bar.peer} <= set(chosen))
        return dataclasses.replace(self, peers=chosen, workloads=tuple(left), bars=bars)


def names() -> list[str]:
    """Returns the names of the scenarios."""
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


def load(name: str) -> Scenario:
    """Reads a scenario.

    Raises:
        UsageError: there is none of that name, or the file does not say what a scenario must.
    """
    _known("scenario", [name], names())
    path = FOLDER / f"{name}.toml"
    try:
        return parse(name, tomllib.loads(path.read_text()))
    except (tomllib.TOMLDecodeError, KeyError, TypeError, ValueError) as error:
        raise UsageError(f"{path}: {type(error).__name__}: {error}") from error


def parse(name: str, data: dict[str, Any]) -> Scenario:
    """Makes a scenario of the content of its file."""
    workloads = tuple(Workload(**_tuples(workload)) for workload in data["workload"])
    bars = tuple(Bar(**_tuples(bar)) for bar in data.get("bar", []))
    for bar in bars:
        if (bar.at_least is None) == (bar.above is None):
            raise ValueError(f"bar {bar.text!r} needs either at_least or above")
        _known("workload", [bar.workload], [workload.name for workload in workloads])
        _known("peer", [peer for peer in (bar.peer, bar.versus) if peer], data["peers"])
    return Scenario(
        name=name,
        title=data["title"],
        peers=tuple(data["peers"]),
        subject=data["subject"],
        limits=tuple(data["limits"]),
        measure=Measure(**data["measure"]),
        quick=Measure(**(data["measure"] | data["quick"])),
        workloads=workloads,
        bars=bars,
    )


def size_text(size: int) -> str:
    """Returns a size as people write it."""
    for factor, unit in ((1 << 20, "MiB"), (1 << 10, "KiB"), (1000, "kB")):
        if size >= factor and size % factor == 0:
            return f"{size // factor} {unit}"
    return f"{size} B"


def _tuples(table: dict[str, Any]) -> dict[str, Any]:
    return {key: tuple(value) if isinstance(value, list) else value for key, value in table.items()}


def _known(kind: str, asked: Iterable[object], known: Sequence[object]) -> None:
    for one in asked:
        if one not in known:
            raise UsageError(f"unknown {kind} {one}: choose from {', '.join(map(str, known))}")
