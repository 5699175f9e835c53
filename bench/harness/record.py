"""What is kept: every window as a row of CSV, with the circumstances above; the same and the figures as JSON."""

from __future__ import annotations

import csv
import dataclasses
import datetime
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.errors import UsageError
from harness.peers import Peers, Sample
from harness.results import BarResult, summarize
from harness.scenario import Cell

__all__ = ["COLUMNS", "Record", "as_json", "read_csv", "write_csv"]


@dataclasses.dataclass(frozen=True)
class Record:
    """A record that was read: the circumstances, and the samples in the order in which they were taken."""

    facts: dict[str, str]
    samples: list[Sample]


COLUMNS = (
    "workload", "size", "tls", "round", "peer", "version", "count", "seconds", "rate",
    "user", "system", "server", "memory", "failure",
)  # fmt: skip


def write_csv(
    folder: Path, scenario: str, facts: Mapping[str, str], peers: Peers, samples: Sequence[Sample]
) -> Path:  # fmt: skip
    """Writes the raw samples as DATE-SCENARIO.csv, never over an older record. Lines with # are the circumstances.

    `user`, `system` and `server` are CPU seconds of the whole window, `memory` is bytes of all that was counted; an
    empty cell was not measured.
    """
    folder.mkdir(parents=True, exist_ok=True)
    name = f"{datetime.date.today().isoformat()}-{scenario}"
    path, again = folder / f"{name}.csv", 1
    while path.exists():
        again += 1
        path = folder / f"{name}-{again}.csv"
    with path.open("x", newline="") as file:
        for key, value in facts.items():
            file.write(f"# {key}: {value}\n")
        for peer, reason in {**peers.skipped, **peers.failed}.items():
            file.write(f"# without {peer}: {reason}\n")
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        for sample in samples:
            good = sample.failure is None
            figures = (sample.count, f"{sample.seconds:.6f}", f"{sample.rate:.1f}") if good else ("", "", "")
            usage = (f"{sample.user:.6f}", f"{sample.system:.6f}", _optional(sample.server)) if good else ("", "", "")
            memory = sample.memory if good and sample.memory is not None else ""
            cell = (sample.cell.workload, sample.cell.size, int(sample.cell.tls))
            version = peers.ready[sample.peer].version
            writer.writerow((*cell, sample.round, sample.peer, version, *figures, *usage, memory, sample.failure or ""))
    return path


def read_csv(path: Path) -> Record:
    """Reads what `write_csv` wrote.

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
    sample = Sample(row["peer"], Cell(row["workload"], int(row["size"]), row["tls"] == "1"), int(row["round"]))
    if row["failure"]:
        return dataclasses.replace(sample, failure=row["failure"])
    return dataclasses.replace(
        sample,
        count=int(row["count"]),
        seconds=float(row["seconds"]),
        user=float(row["user"]),
        system=float(row["system"]),
        server=float(row["server"]) if row["server"] else None,
        memory=int(row["memory"]) if row.get("memory") else None,  # a column that older records lack
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
