"""What is kept: every window as a row of CSV, with the circumstances above; the same and the figures as JSON."""

from __future__ import annotations

import csv
import dataclasses
import datetime
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.errors import UsageError
from harness.figures import FIGURES, KINDS
from harness.peers import Peers, Sample
from harness.results import BarResult, summarize
from harness.scenario import Cell

__all__ = ["CIRCUMSTANCES", "COLUMNS", "Record", "as_json", "new_path", "read_csv", "rows_text", "start_text"]

# What must be the same for two records to be comparable at all.
CIRCUMSTANCES = ("scenario", "cpu", "cores", "system", "peers' python", "server", "pinning", "measure")


@dataclasses.dataclass(frozen=True)
class Record:
    """A record that was read: the circumstances, and the samples in the order in which they were taken."""

    facts: dict[str, str]
    samples: list[Sample]

    @property
    def without(self) -> dict[str, str]:
        """Why a peer is not in it, by name."""
        return {key.removeprefix("without "): text for key, text in self.facts.items() if key.startswith("without ")}


COLUMNS = (
    "workload", "size", "tls", "round", "peer", "version", "count", "seconds", "rate",
    "user", "system", "server", "memory", "failure", "measures", *FIGURES,
)  # fmt: skip


def new_path(folder: Path, name: str) -> Path:
    """Returns where the record of a run goes, DATE-NAME.csv: never where an older one is."""
    name = f"{datetime.date.today().isoformat()}-{name}"
    path, again = folder / f"{name}.csv", 1
    while path.exists():
        again += 1
        path = folder / f"{name}-{again}.csv"
    return path


def start_text(facts: Mapping[str, str], peers: Peers) -> str:
    """Returns the beginning of a record: the circumstances after `#`, and the names of the columns."""
    lines = [f"# {key}: {value}\n" for key, value in facts.items()]
    lines += [f"# without {peer}: {reason}\n" for peer, reason in {**peers.skipped, **peers.failed}.items()]
    return "".join(lines) + ",".join(COLUMNS) + "\n"


def rows_text(samples: Sequence[Sample]) -> str:
    """Returns the rows of some windows.

    `user`, `system` and `server` are CPU seconds of the whole window, `memory` is bytes of all that was counted, the
    further figures are as in `figures.FIGURES`; an empty cell was not measured.
    """
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    for sample in samples:
        good = sample.failure is None
        figures = (sample.count, f"{sample.seconds:.6f}", f"{sample.rate:.1f}") if good else ("", "", "")
        usage = (f"{sample.user:.6f}", f"{sample.system:.6f}", _optional(sample.server)) if good else ("", "", "")
        memory = sample.memory if good and sample.memory is not None else ""
        more = [f"{sample.figures[name]:.6g}" if good and name in sample.figures else "" for name in FIGURES]
        cell = (sample.cell.workload, sample.cell.size, int(sample.cell.tls))
        about = (*cell, sample.round, sample.peer, sample.version)
        writer.writerow((*about, *figures, *usage, memory, sample.failure or "", sample.measures, *more))
    return out.getvalue()


def read_csv(path: Path) -> Record:
    """Reads what `start_text` and `rows_text` made.

    Raises:
        UsageError: it cannot be read, or is no record.
    """
    facts: dict[str, str] = {}
    samples = []
    try:
        with path.open(newline="") as file:
            lines = file.read().splitlines(keepends=True)
        table = [line for line in lines if not line.startswith("# ")]
        for line in lines[: len(lines) - len(table)]:
            key, _, value = line[2:].rstrip("\n").partition(": ")
            facts[key] = value
        for row in csv.DictReader(table):
            samples.append(_sample(row))
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from None
    except (KeyError, TypeError, ValueError) as error:
        raise UsageError(f"{path} is no record of these benchmarks: {type(error).__name__} {error}") from None
    if not samples:
        raise UsageError(f"{path} is no record of these benchmarks: it has no samples")
    return Record(facts, samples)


def _sample(row: Mapping[str, str]) -> Sample:
    # Columns that older records lack, and what they measured.
    memory = int(row["memory"]) if row.get("memory") else None
    measures = row.get("measures") or ("rate" if memory is None else "memory")
    if measures not in KINDS:
        raise ValueError(f"measures {measures}")
    cell = Cell(row["workload"], int(row["size"]), row["tls"] == "1")
    sample = Sample(row["peer"], cell, int(row["round"]), version=row["version"], measures=measures)
    if row["failure"]:
        return dataclasses.replace(sample, failure=row["failure"])
    return dataclasses.replace(
        sample,
        count=int(row["count"]),
        seconds=float(row["seconds"]),
        user=float(row["user"]),
        system=float(row["system"]),
        server=float(row["server"]) if row["server"] else None,
        memory=memory,
        figures={name: float(row[name]) for name in FIGURES if row.get(name)},
    )


def as_json(
    scenario: str, facts: Mapping[str, str], peers: Peers, samples: Sequence[Sample], bars: Sequence[BarResult]
) -> str:  # fmt: skip
    """Returns all of a run for other programs."""
    cells = dict.fromkeys(sample.cell for sample in samples)
    summaries = [one for cell in cells for one in summarize([sample for sample in samples if sample.cell == cell])]
    content: dict[str, Any] = {
        "scenario": scenario,
        "facts": dict(facts),
        "peers": {name: {"version": peer.version, "summary": peer.summary} for name, peer in peers.ready.items()},
        "skipped": peers.skipped,
        "failed": peers.failed,
        "samples": [dataclasses.asdict(sample) for sample in samples],
        "summaries": [dataclasses.asdict(summary) for summary in summaries],
        "bars": [dataclasses.asdict(bar) | {"verdict": bar.verdict} for bar in bars],
    }
    return json.dumps(content, indent=1) + "\n"


def _optional(value: float | None) -> str:
    return "" if value is None else f"{value:.6f}"
