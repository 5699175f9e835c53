"""Makes docs/benchmarks.md, the figures in README.md, and the tables of all cells, from the newest records.

`bench/report.toml` describes the tables and pictures. Records may be of different revisions: each table names its own.
"""

from __future__ import annotations

import argparse
import re
import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from harness.errors import BenchError, UsageError
from harness.figures import KINDS, value_text
from harness.peers import Sample
from harness.places import RECORDS, REPORT
from harness.plan import Plan, Question, plan
from harness.record import Record, read
from harness.results import NOISE, Summary, summarize
from harness.scenario import Cell, Job, Scenario, is_one_of, load, names, size_text
from harness.tables import apart_text, cell_table, text_of
from harness.wins import FASTER, LEVEL, SLOWER, Comparison, comparisons, counted, is_ours

__all__ = ["add_arguments", "run"]

# A generated part of a page stands between these.
BEGIN, END = "<!-- from the records: make bench-report -->", "<!-- to here -->"
# README.md is shown by package indexes too, where relative links lead nowhere.
PAGE = "https://github.com/wirespeed/wirespeed/blob/main/docs/benchmarks.md"
PICTURES = "https://raw.githubusercontent.com/wirespeed/wirespeed/main/docs/pictures"
# The library that most readers know: its clients are compared with our clients, its servers with our servers.
KNOWN = {"clients": ("websockets", "websockets-sync"), "servers": ("websockets-server",)}
READING = f"""\
A row is a library: its name, the way it is used after `:`, and its event loop after `@`.
A figure is the median of the rounds. The factor in brackets compares wirespeed with that library, in the same rounds.
Above 1, wirespeed is better: more per second, less time or less memory. At 0.5 it is half as good.
A **bold** factor means that wirespeed is worse in every round, and by more than {NOISE:.0%}.
Rows without a factor are wirespeed itself, or bare C, which shows what the system allows.
The last row says how many rounds there were, and how far apart: above 20%, marked (!), a cell was disturbed."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds what `report` takes."""
    record = "a record; default: the newest whole record of each scenario"
    parser.add_argument("record", nargs="*", type=Path, metavar="RECORD", help=record)
    parser.add_argument("--records", type=Path, default=RECORDS, metavar="FOLDER", help="where records are kept")
    clone = "write docs/benchmarks.md, README.md and pictures there"
    parser.add_argument("--clone", type=Path, metavar="FOLDER", help=clone)
    partial = "make a page although records or cells are missing"
    parser.add_argument("--partial", action="store_true", help=partial)
    parser.add_argument("--out", type=Path, default=REPORT, metavar="FOLDER", help="where tables.txt is written")


def run(options: argparse.Namespace) -> int:
    """Writes the report, prints the paths of its files, returns the exit status."""
    report = Report(plan(), options.record or newest(options.records))
    if not options.partial and (options.clone or not options.record):
        report.refuse_gaps()
    files = {options.out / "tables.txt": "\n".join(report.tables())}
    if options.clone is not None:
        readme = options.clone / "README.md"
        files[options.clone / "docs" / "benchmarks.md"] = report.page()
        files[readme] = _between(readme.read_text(encoding="utf-8"), report.readme())
        for name, text in report.pictures():
            files[options.clone / "docs" / "pictures" / f"{name}.svg"] = text
    try:
        for path, text in files.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            print(path)
    except OSError as error:
        raise BenchError(f"cannot write {error.filename}: {error.strerror}") from error
    return 0


def newest(folder: Path) -> list[Path]:
    """Returns the newest whole record of each scenario: of all its cells, or of those in the headline set.

    Raises:
        UsageError: there is none.
    """
    kept: dict[str, tuple[str, Path]] = {}
    # Only unfinished records have no date.
    for path in folder.glob("*/[0-9]*.csv"):
        facts = read(path).facts
        if "choice" not in facts:
            scenario = facts["scenario"]
            kept[scenario] = max(kept.get(scenario, ("", path)), (facts["time"], path))
    if not kept:
        raise UsageError(f"{folder} has no whole records: run a benchmark first, or name a record")
    return [path for _, path in sorted(kept.values(), key=lambda one: one[1].name)]


class Shown:
    """The part of a record that the page and README show.

    Attributes:
        record, scenario: the record and its scenario.
        jobs: the cells that are shown, with their peers, measured or not.
        cells: the samples of these peers in these cells, as far as they were measured.
        comparisons: wirespeed compared with each rival in each cell.
    """

    def __init__(self, path: Path, plan: Plan) -> None:
        self.record: Record = read(path)
        self.scenario: Scenario = load(self.record.facts["scenario"])
        self.jobs = plan.headline(self.scenario, self.scenario.jobs())
        every = self.record.cells()
        self.cells: dict[Cell, list[Sample]] = {
            job.cell: own
            for job in self.jobs
            if (own := [one for one in every.get(job.cell, []) if one.peer in job.peers])
        }
        self.comparisons: list[Comparison] = list(comparisons(self.scenario, self.cells))

    @property
    def revision(self) -> str:
        """The commit that was measured, shortened."""
        return self.record.facts["revision"][:9]

    @property
    def day(self) -> str:
        """The date of the record."""
        return self.record.facts["time"].partition("T")[0]


class Report:
    """The page, the part of README.md, and the pictures that records make."""

    def __init__(self, plan: Plan, paths: Sequence[Path]) -> None:
        self.plan = plan
        self.shown = [Shown(path, plan) for path in paths]
        self._by_scenario = {one.scenario.name: one for one in self.shown}
        self.all = counted(
            one for shown in self.shown if shown.scenario.name not in plan.repeats for one in shown.comparisons
        )
        self.losses = sorted((one for one in self.all if one.verdict == SLOWER), key=lambda one: one.advantage)

    def refuse_gaps(self) -> None:
        """Complains unless every cell that is shown was measured.

        Raises:
            UsageError: one was not.
        """
        gaps = []
        for name in names():
            scenario, shown = load(name), self._by_scenario.get(name)
            jobs = self.plan.headline(scenario, scenario.jobs())
            if any(shown is None or job.cell not in shown.cells for job in jobs):
                gaps.append(name)
        if gaps:
            raise UsageError(
                f"the records lack cells of {', '.join(gaps)} that are shown:"
                f" python -m bench run --headline {' '.join(gaps)}, or report --partial"
            )

    def page(self) -> str:
        """Returns docs/benchmarks.md."""
        method = ["[How it is measured](../bench/METHODOLOGY.md), and [known bias](../bench/BIAS.md).", ""]
        lines = ["# Benchmarks", "", *self._summary(), *self._machines(), *method]
        lines += ["## How to read the tables", "", *READING.splitlines(), ""]
        for question in self.plan.question:
            lines += self._question(question)
        lines += ["## Where wirespeed is worse", "", *self._losses(), ""]
        lines += ["## Benchmarks of other projects", ""]
        lines += [
            "These workloads measure the same here.",
            "Workloads without a table above run with `make bench-all`.",
            "",
        ]
        rows = ([one.document, one.workload, ", ".join(f"`{place}`" for place in one.here)] for one in self.plan.seed)
        lines += _markdown(["project", "its benchmark", "workloads here"], rows, left=3)
        return "\n".join(lines) + "\n"

    def readme(self) -> str:
        """Returns the generated part of README.md."""
        pictures = [f"![{one.title}]({PICTURES}/{one.name}.svg)" for one in self.plan.picture]
        reading = [
            "Each row compares wirespeed with the best other library in that benchmark.",
            "A factor above 1 means that wirespeed is better.",
            f"A **bold** factor means that wirespeed is worse in every round, and by more than {NOISE:.0%}.",
            f"[All tables, and every comparison in which wirespeed is worse]({PAGE}).",
        ]
        parts = ["\n".join(self._summary()).rstrip(), "\n".join(reading), "\n".join(self._rows()), *pictures]
        return "\n\n".join([*parts, "\n".join(self._machines()).rstrip()])

    def tables(self) -> Iterator[str]:
        """Yields the tables of all cells of the records, for a terminal."""
        for shown in self.shown:
            facts = "".join(f"  {key}: {text}\n" for key, text in shown.record.facts.items())
            yield f"{shown.scenario.title}\n{facts}"
            workloads = {workload.name: workload for workload in shown.scenario.workload}
            for cell, samples in shown.record.cells().items():
                if cell.workload in workloads:
                    job = Job(cell, workloads[cell.workload], ())
                    yield text_of(cell_table(shown.scenario, job, samples)) + "\n"

    def pictures(self) -> Iterator[tuple[str, str]]:
        """Yields the name of each picture, and its SVG.

        Raises:
            BenchError: Matplotlib is not installed.
        """
        try:
            from harness.pictures import Line, svg
        except ModuleNotFoundError as error:
            raise BenchError(f"pictures need {error.name}: python -m pip install -r bench/requirements.txt") from None
        for one in self.plan.picture:
            shown = self._by_scenario.get(one.scenario)
            found = {summary.peer: summary for summary in summarize(shown.cells.get(one.cell, []))} if shown else {}
            lines = []
            for peer, label in one.peers.items():
                if peer in found and (value := found[peer].value) is not None:
                    text = value_text(value.median, found[peer].measures)
                    limit = shown is not None and is_one_of(peer, shown.scenario.limits)
                    lines.append(Line(label, value.median, text, is_ours(peer), limit))
            if shown and lines:
                yield one.name, svg(one.title, f"{one.text}; revision {shown.revision}", lines)

    def _summary(self) -> list[str]:
        """Returns sentences: how wirespeed compares with the library that most know, and how often it is better."""
        lines = []
        for who, known in KNOWN.items():
            if own := [one.advantage for one in self.all if one.name in known and one.is_rate]:
                low, middle, high = (_times(value) for value in (min(own), statistics.median(own), max(own)))
                lines.append(
                    f"Median over these benchmarks: the {who} of wirespeed are {middle} times as fast as those of"
                    f" `websockets` ({low} to {high} times)."
                )
        counts = Counter(one.verdict for one in self.all)
        return [
            *lines,
            f"In {len(self.all)} comparisons with other libraries, wirespeed is better in {counts[FASTER]}, level in"
            f" {counts[LEVEL]} and worse in {counts[SLOWER]}.",
            f"Level means that the rounds disagree, or that the difference is at most {NOISE:.0%}.",
            "",
        ]

    def _machines(self) -> list[str]:
        machines: dict[str, list[str]] = {}
        for shown in self.shown:
            facts = shown.record.facts
            machine = ", ".join([facts["cpu"], f"{facts['cores']} cores", facts["system"], facts["peers' python"]])
            machines.setdefault(machine, []).append(shown.scenario.name)
        lines = []
        for machine, scenarios in machines.items():
            which = f" ({', '.join(scenarios)})" if len(machines) > 1 else ""
            lines.append(f"Measured on {machine}{which}.")
        lacking = dict.fromkeys(
            f"`{peer}` ({why})"
            for shown in self.shown
            for peer, why in shown.record.without.items()
            if any(peer in job.peers for job in shown.jobs)
        )
        return [*lines, *([f"Not measured: {', '.join(lacking)}."] if lacking else []), ""]

    def _question(self, question: Question) -> list[str]:
        lines = [f"## {question.title}", "", *question.text.splitlines()]
        shown = self._by_scenario.get(question.scenario)
        jobs = [job for job in question.jobs(shown.jobs) if job.cell in shown.cells] if shown else []
        if shown is None or not jobs:
            return [*lines, "", "Not measured.", ""]
        lines += [f"Revision {shown.revision}, {shown.day}.", ""]
        cells = {job.cell: {one.peer: one for one in summarize(shown.cells[job.cell])} for job in jobs}
        factors = {(one.cell, one.rival): one for one in shown.comparisons}
        rows = []
        for peer in dict.fromkeys(peer for peer in shown.scenario.peers for job in jobs if peer in job.peers):
            if any(peer in summaries for summaries in cells.values()):
                own = [(summaries.get(peer), factors.get((cell, peer))) for cell, summaries in cells.items()]
                rows.append([peer, *(_entry(summary, against) for summary, against in own)])
        rows.append(["rounds", *(apart_text(shown.cells[cell]) for cell in cells)])
        several = len({cell.workload for cell in cells}) > 1
        heads = [str(cell) if several or not cell.size else str(cell).partition(", ")[2] for cell in cells]
        lines += _markdown(["", *(head.removesuffix(", plain") for head in heads)], rows)
        failures = [
            f"`{summary.peer}` failed: {summary.failure}."
            for summaries in cells.values()
            for summary in summaries.values()
            if summary.failure is not None
        ]
        return [*lines, "", *([*dict.fromkeys(failures), ""] if failures else [])]

    def _losses(self) -> list[str]:
        if not self.losses:
            return ["In none of these comparisons."]
        rows = [
            [
                _where(one),
                one.rival,
                f"**{one.advantage:.2f}**",
                apart_text(one.samples),
                self._revision(one.scenario.name),
            ]
            for one in self.losses
        ]
        return _markdown(["benchmark", "better library", "factor", "rounds", "revision"], rows, left=2)

    def _revision(self, scenario: str) -> str:
        return self._by_scenario[scenario].revision

    def _rows(self) -> list[str]:
        rows = []
        for row in self.plan.row:
            shown = self._by_scenario.get(row.scenario)
            against = [
                one for one in (shown.comparisons if shown else []) if (one.cell, one.ours) == (row.cell, row.peer)
            ]
            if shown is None or not against:
                continue
            best = min(against, key=lambda one: one.advantage)
            figures = {one.peer: one for one in summarize(shown.cells[row.cell])}
            own = [_entry(figures[row.peer], None), f"{best.name}: {_entry(figures[best.rival], None)}"]
            rows.append([row.title, *own, _factor(best), shown.revision])
        return _markdown(["benchmark", "wirespeed", "best other library", "factor", "revision"], rows)


def _entry(summary: Summary | None, against: Comparison | None) -> str:
    """Returns the text of a table cell: the figure, and the factor by which wirespeed is better."""
    if summary is None:
        return ""
    if summary.value is None:
        return "failed"
    text = value_text(summary.value.median, summary.measures)
    return text if against is None else f"{text} ({_factor(against)})"


def _factor(one: Comparison) -> str:
    return f"**{one.advantage:.2f}**" if one.verdict == SLOWER else f"{one.advantage:.2f}"


def _times(factor: float) -> str:
    return f"{factor:,.0f}" if factor >= 100 else f"{factor:.2g}" if factor < 1 else f"{factor:.1f}"


def _where(one: Comparison) -> str:
    cell = one.cell
    size = f" of {size_text(cell.size)}" if cell.size else ""
    measures = one.workload.measures
    what = "" if measures == "rate" else f", {(KINDS[measures].figure or measures).replace('late_', 'lateness ')}"
    return f"`{one.scenario.name}/{cell.workload}`{size}{' over TLS' if cell.tls else ''}{what}"


def _markdown(head: Sequence[str], rows: Iterable[Sequence[str]], left: int = 1) -> list[str]:
    """Returns a table whose first columns are text and whose others are numbers."""
    escaped = [[text.replace("|", "\\|") for text in row] for row in rows]
    marks = [":---" if number < left else "---:" for number in range(len(head))]
    return [f"| {' | '.join(row)} |" for row in (head, marks, *escaped)]


def _between(text: str, new: str) -> str:
    """Returns a page with its generated part renewed.

    Raises:
        BenchError: it has none.
    """
    pattern = re.compile(f"{re.escape(BEGIN)}.*?{re.escape(END)}", re.DOTALL)
    if not pattern.search(text):
        raise BenchError(f"README.md has no place for figures: {BEGIN} ... {END}")
    return pattern.sub(lambda _: f"{BEGIN}\n\n{new}\n\n{END}", text)
