"""What is kept: every window as a row of CSV, with the circumstances above. A record in the making can be continued."""

from __future__ import annotations

import csv
import datetime
import io
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from harness.errors import BenchError, UsageError
from harness.figures import KINDS
from harness.peers import Peers, Sample
from harness.scenario import Cell

__all__ = ["CIRCUMSTANCES", "Journal", "Record", "read", "rows_text"]

# What must be the same for two records to be comparable at all.
CIRCUMSTANCES = ("scenario", "cpu", "cores", "system", "peers' python", "server", "pinning", "measure")
# And for a record to be continued: the code, and what was chosen.
SAME = (*CIRCUMSTANCES, "revision", "choice")
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
        rounded = msgspec.structs.replace(
            sample, figures={name: float(f"{value:.6g}") for name, value in sample.figures.items()}
        )
        row = msgspec.to_builtins(rounded)
        row["figures"] = msgspec.json.encode(row["figures"]).decode() if row["figures"] else ""
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


class Journal:
    """The record of one scenario while it runs. Cells are kept whole, as ratios are taken within them.

    Attributes:
        name: that of the record.
        samples: what was measured before, by cell.
        discarded: what has changed since then, so that all is measured again.
    """

    def __init__(self, folder: Path, name: str) -> None:
        self.name = name
        self.samples: dict[Cell, list[Sample]] = {}
        self.discarded = ""
        self._path = folder / f"{name}.csv"
        self._over = folder / f"{name}.over"

    @property
    def is_over(self) -> bool:
        """Whether the scenario was finished by the run that is continued."""
        return self._over.exists()

    def forget(self) -> None:
        """Removes what is kept."""
        self._path.unlink(missing_ok=True)
        self._over.unlink(missing_ok=True)

    def open(self, facts: Mapping[str, str], peers: Peers) -> None:
        """Goes on with what is there, if it can be continued; else begins."""
        if self._path.exists():
            self._continue(facts, peers)
        if not self.samples:
            self._write("w", start_text(facts, peers))

    def _continue(self, facts: Mapping[str, str], peers: Peers) -> None:
        try:
            before = read(self._path)
        except UsageError:
            return  # nothing was measured, or the system stopped in the middle of writing
        changed = [key for key in SAME if before.facts.get(key) != facts.get(key)]
        versions = {one.peer: one.version for one in before.samples}
        changed += [
            f"version of {one.name}"
            for one in peers.ready.values()
            if versions.get(one.name, one.version) != one.version
        ]
        if changed:
            self.discarded = ", ".join(changed)
        else:
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

    def finish(self, folder: Path | None) -> Path | None:
        """Moves the record to where records are, DATE-NAME.csv, never where an older one is; returns its path."""
        path = None
        if folder is not None:
            name, again = f"{datetime.date.today().isoformat()}-{self.name}", 1
            path = folder / f"{name}.csv"
            while path.exists():
                again += 1
                path = folder / f"{name}-{again}.csv"
            try:
                folder.mkdir(parents=True, exist_ok=True)
                shutil.move(self._path, path)
            except OSError as error:
                raise BenchError(f"cannot keep the record: {error}") from error
        self._over.touch()
        return path
