"""What a report says, before it becomes a page or Markdown: its tables, its pictures, its lists of what went wrong."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["FAILED", "Part", "Picture", "Report", "Row", "Table"]


FAILED = "What failed of wirespeed"
"""The title of `Report.failed`."""


@dataclass(frozen=True)
class Row:
    """A row of a table.

    Attributes:
        texts: its cells; each may have several lines.
        mark: what it is: "ours", "limit", "pass", "miss", or nothing.
        share: how much of the greatest its second column is, 0 to 1; None where that tells nothing.
    """

    texts: tuple[str, ...]
    mark: str = ""
    share: float | None = None


@dataclass(frozen=True)
class Table:
    """A table.

    Attributes:
        left: how many columns at the left are text; the others are figures.
        failures: what has no figures, each a line.
        group: the title that it stands under, together with its neighbours.
    """

    title: str
    head: tuple[str, ...]
    rows: tuple[Row, ...]
    left: int = 1
    note: str = ""
    failures: tuple[str, ...] = ()
    group: str = ""


@dataclass(frozen=True)
class Picture:
    """A chart that was drawn.

    Attributes:
        name: its name, that of its file without the ending.
        text: what it shows, for those who cannot see it.
        failures: what is not in it, each a line.
        headline: whether it is one of those that stand in the README.
    """

    name: str
    title: str
    svg: str
    text: str
    failures: tuple[str, ...] = ()
    headline: bool = False


@dataclass(frozen=True)
class Part:
    """What one record says.

    Attributes:
        anchor: its name within the report.
        facts: its circumstances.
        notes: what a reader has to know, each a paragraph.
        versions: the versions of the peers.
        without: why peers are not in it.
        failures: what failed, and where.
    """

    anchor: str
    title: str
    facts: dict[str, str]
    notes: tuple[str, ...]
    versions: Table
    without: dict[str, str]
    failures: tuple[str, ...]
    pictures: tuple[Picture, ...]
    bars: Table | None
    tables: tuple[Table, ...] = field(default=())


@dataclass(frozen=True)
class Report:
    """The whole report.

    Attributes:
        summary: its first sentences.
        score: each rival, and how often wirespeed is faster or slower than it.
        failed: what of wirespeed failed or did not run, each a line.
        missed: the bars that were missed.
        slower, faster, level: the comparisons, by what came out.
    """

    title: str
    summary: tuple[str, ...]
    score: Table
    failed: tuple[str, ...]
    missed: Table
    slower: Table
    faster: Table
    level: Table
    parts: tuple[Part, ...]
