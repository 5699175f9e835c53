"""What is kept: every window as a row of CSV, with the circumstances above. A record in the making can be continued."""

from __future__ import annotations

import csv
import datetime
import io
import itertools
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from harness.errors import BenchError, UsageError
from harness.figures import KINDS
from harness.peers import Peers, Sample
from harness.scenario import Cell

__all__ = ["Journal", "Record", "is_kept", "read", "rows_text"]

# What must be the same for a record to be continued.
SAME = (
    *("scenario", "cpu", "cores", "system", "peers' python", "congestion control"),
    *("server", "pinning", "measure", "tree", "choice", "set"),
)
COLUMNS = Sample.__struct_fields__


@dataclass(frozen=True)
class Record:
    """A record that was read: the circumstances, and the samples in the order in which they were taken."""

    facts: dict[str, str]
    samples: list[Sample]

    @property
    def without(self) -> dict[str, str]:
        """Why a peer is not in it, by name."""
        return {key.removeprefix("without "): text for key, text in self.facts.items() if key.startswith("without ")}

    def cells(self) -> dict[Cell, list[Sample]]:
        """Returns the samples of each cell."""
        cells: dict[Cell, list[Sample]] = {}
        for sample in self.samples:
            cells.setdefault(sample.cell, []).append(sample)
        return cells


def start_text(facts: Mapping[str, str], peers: Peers) -> str:
    """Returns the beginning of a record: the circumstances after `#`, and the names of the columns."""
    without = {f"without {peer}": reason for peer, reason in {**peers.skipped, **peers.failed}.items()}
    lines = [f"# {key}: {' '.join(value.split())}\n" for key, value in {**facts, **without}.items()]
    return "".join(lines) + ",".join(COLUMNS) + "\n"


def rows_text(samples: Sequence[Sample]) -> str:
    """Returns the rows of some windows.

    `user`, `system` and `server` are CPU seconds of the whole window, `memory` is bytes of all that was counted,
    `figures` are those of `figures.FIGURES`, as JSON; an empty cell was not measured.
    """
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    for sample in samples:
        row = msgspec.to_builtins(sample)
        figures = {name: float(f"{value:.6g}") for name, value in sample.figures.items()}
        row["figures"] = msgspec.json.encode(figures).decode() if figures else ""
        row["tls"] = int(sample.tls)
        writer.writerow(f"{value:.6f}" if isinstance(value, float) else value for value in row.values())
    return out.getvalue()


def read(path: Path) -> Record:
    """Reads a record.

    Raises:
        UsageError: it cannot be read, or is no record.
    """
    facts: dict[str, str] = {}
    try:
        lines = path.read_text().splitlines(keepends=True)
        table = [line for line in lines if not line.startswith("# ")]
        for line in lines[: len(lines) - len(table)]:
            key, _, value = line[2:].rstrip("\n").partition(": ")
            facts[key] = value
        samples = [_sample(row) for row in csv.DictReader(table)]
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from None
    except (KeyError, TypeError, ValueError, msgspec.MsgspecError) as error:
        raise UsageError(f"{path} is no record of these benchmarks: {type(error).__name__} {error}") from None
    if not samples:
        raise UsageError(f"{path} is no record of these benchmarks: it has no samples")
    return Record(facts, samples)


def _sample(row: Mapping[str, str]) -> Sample:
    known: dict[str, object] = {name: row[name] for name in COLUMNS if row[name] != ""}
    if "figures" in known:
        known["figures"] = msgspec.json.decode(row["figures"])
    sample = msgspec.convert(known, Sample, strict=False)
    if sample.measures not in KINDS:
        raise ValueError(f"measures {sample.measures}")
    return sample


def is_kept(folder: Path, facts: Mapping[str, str], peers: Peers) -> bool:
    """Tells whether a folder has a record of the same scenario, code and circumstances, with all these peers."""
    paths = folder.glob(f"*-{facts['scenario']}*.csv")
    return any(not _changes(read(path), facts, peers) for path in paths)


class Journal:
    """The record of one scenario while it runs. Cells are kept whole, as ratios are taken within them.

    Attributes:
        samples: what was measured before, by cell.
        discarded: what has changed since then, so that all is measured again.
    """

    def __init__(self, path: Path, facts: Mapping[str, str], peers: Peers, *, resume: bool) -> None:
        """Goes on with what is there, if that is wanted and can be; else begins."""
        self.samples: dict[Cell, list[Sample]] = {}
        self.discarded = ""
        self._path = path
        if resume and path.exists():
            self._continue(facts, peers)
        if not self.samples:
            self._write("w", start_text(facts, peers))

    def _continue(self, facts: Mapping[str, str], peers: Peers) -> None:
        try:
            before = read(self._path)
        except UsageError:
            return  # nothing was measured, or the system stopped in the middle of writing
        gone = [f"lack of {name}" for name in {**peers.skipped, **peers.failed} if name not in before.without]
        self.discarded = ", ".join(_changes(before, facts, peers) + gone)
        if not self.discarded:
            self.samples = before.cells()

    def add(self, samples: Sequence[Sample]) -> None:
        """Keeps a cell that is over."""
        self._write("a", rows_text(samples))

    def _write(self, mode: str, text: str) -> None:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open(mode) as file:
                file.write(text)
        except OSError as error:
            raise BenchError(f"cannot keep the record: {error}") from error

    def finish(self, folder: Path) -> Path:
        """Moves the record to where records are, DATE-NAME.csv, never where an older one is; returns its path."""
        name = f"{datetime.date.today().isoformat()}-{self._path.stem}"
        names = itertools.chain([name], (f"{name}-{again}" for again in itertools.count(2)))
        path = next(path for one in names if not (path := folder / f"{one}.csv").exists())
        try:
            folder.mkdir(parents=True, exist_ok=True)
            shutil.move(self._path, path)
        except OSError as error:
            raise BenchError(f"cannot keep the record: {error}") from error
        return path


def _changes(before: Record, facts: Mapping[str, str], peers: Peers) -> list[str]:
    """Returns what is not as it was: circumstances, versions of peers, peers that were not there."""
    versions = {one.peer: one.version for one in before.samples} | dict.fromkeys(before.without, "")
    others = [name for name, one in peers.ready.items() if versions.get(name, one.version) != one.version]
    changed = [key for key in SAME if before.facts.get(key) != facts.get(key)]
    return changed + [f"version of {name}" for name in others]
