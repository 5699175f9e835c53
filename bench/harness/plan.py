"""The tables and pictures of `bench/report.toml`, and the headline set: the cells and peers that they show.

The report is made from this plan, and `run --headline` measures the same cells. A cell is in the headline set because a
table or a picture shows it; there is no second list.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import msgspec

from harness.errors import UsageError
from harness.places import BENCH
from harness.scenario import Cell, Job, Scenario, is_one_of

__all__ = ["Picture", "Plan", "Question", "Row", "plan"]


class Question(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A table of docs/benchmarks.md: peers as rows, cells as columns.

    Attributes:
        title: the question that the table answers.
        text: what the figures are, in plain English.
        scenario, workloads: where the cells are; a workload, or a group of workloads.
        sizes, tls, peers: the part of them that is shown; empty or None: all.
    """

    title: str
    text: str
    scenario: str
    workloads: list[str]
    sizes: list[int] = []
    tls: bool | None = None
    peers: list[str] = []

    def jobs(self, jobs: Sequence[Job]) -> list[Job]:
        """Returns the cells of the table in their order, each with the peers of the table."""
        return [
            job._replace(peers=peers)
            for name in self.workloads
            for job in jobs
            if job.workload.is_called(name)
            and (not self.sizes or job.cell.size in self.sizes)
            and self.tls in (None, job.cell.tls)
            and (peers := tuple(peer for peer in job.peers if not self.peers or is_one_of(peer, self.peers)))
        ]


class _OfOneCell(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    scenario: str
    workload: str
    size: int = 0
    tls: bool = False

    @property
    def cell(self) -> Cell:
        """The cell that is shown."""
        return Cell(self.workload, self.size, self.tls)


class Picture(_OfOneCell, forbid_unknown_fields=True, kw_only=True):
    """A picture of README.md: a bar for each of `peers`, with its label; at most eight."""

    name: str
    title: str
    text: str
    peers: Annotated[dict[str, str], msgspec.Meta(max_length=8)]


class Row(_OfOneCell, forbid_unknown_fields=True, kw_only=True):
    """A row of the table of README.md: a peer of wirespeed, and the best other library, in a cell of a question."""

    title: str
    peer: str


class Seed(msgspec.Struct, forbid_unknown_fields=True):
    """A benchmark in the documents of another project, and the workloads here that measure it: SCENARIO/WORKLOAD."""

    document: str
    workload: str
    here: list[str]


class Plan(msgspec.Struct, forbid_unknown_fields=True):
    """`bench/report.toml`.

    Attributes:
        repeats: scenarios that measure again what others do: they are shown, but not counted.
        question: the tables of docs/benchmarks.md.
        row, picture: the table and the pictures of README.md.
        seed: the benchmarks of other projects.
    """

    repeats: list[str]
    question: list[Question]
    row: Annotated[list[Row], msgspec.Meta(max_length=10)]
    picture: list[Picture]
    seed: list[Seed]

    def headline(self, scenario: Scenario, jobs: Sequence[Job]) -> list[Job]:
        """Returns the jobs of a scenario that are shown, each with the peers that are shown."""
        shown: dict[Cell, set[str]] = {}
        for question in self.question:
            if question.scenario == scenario.name:
                for job in question.jobs(jobs):
                    shown.setdefault(job.cell, set()).update(job.peers)
        for picture in self.picture:
            if picture.scenario == scenario.name:
                shown.setdefault(picture.cell, set()).update(picture.peers)
        return [
            job._replace(peers=tuple(peer for peer in job.peers if peer in shown[job.cell]))
            for job in jobs
            if job.cell in shown
        ]


def plan() -> Plan:
    """Reads `bench/report.toml`.

    Raises:
        UsageError: it does not say what it must.
    """
    path = BENCH / "report.toml"
    try:
        return msgspec.toml.decode(path.read_text(), type=Plan)
    except msgspec.MsgspecError as error:
        raise UsageError(f"{path}: {error}") from error
