"""The newest records as `docs/benchmarks.md`, as the words and pictures of README.md, and whole as tables.

What stands where is in `bench/report.toml`: questions that users have, two pictures, the workloads that others measure.
"""

from __future__ import annotations

import argparse
import itertools
import re
import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import structs

from harness.errors import BenchError, UsageError
from harness.figures import KINDS, value_text
from harness.places import BENCH, RECORDS, REPORT
from harness.record import Record, read
from harness.results import BarResult, Summary, judge, measured, summarize
from harness.scenario import Cell, Job, Scenario, is_one_of, load, names, size_text
from harness.tables import apart_text, cell_table, text_of
from harness.wins import FASTER, LEVEL, SLOWER, Comparison, comparisons, counted, is_ours

__all__ = ["add_arguments", "run"]

# A generated part of a page stands between these.
BEGIN, END = "<!-- from the records: make bench-report -->", "<!-- to here -->"
LINES = 250
# The library that everybody knows, by what of it is compared with what of ours.
KNOWN = {"client": ("websockets", "websockets-sync"), "server": ("websockets-server",)}
AHEAD = "A rival is ahead where all rounds, five at least, agree on that, by more than 2 %."
AHEAD += " At 0.5, wirespeed is half as fast, or takes twice the time or memory."


class Question(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A table of the page: peers as rows, cells as columns.

    Attributes:
        title: the question.
        scenario, workloads: where the answer is; a workload or a group.
        sizes, tls, peers: what of that; empty or None: all.
        text: what is compared, in words.
    """

    title: str
    scenario: str
    workloads: list[str]
    sizes: list[int] = []
    tls: bool | None = None
    peers: list[str] = []
    text: str = ""

    def cells(self, chosen: Chosen) -> list[Cell]:
        """Returns the cells that were measured, in the order of the question."""
        return [
            cell
            for name in self.workloads
            for cell in chosen.cells
            if chosen.scenario.called(cell.workload).is_called(name)
            and (not self.sizes or cell.size in self.sizes)
            and self.tls in (None, cell.tls)
        ]


class Picture(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A picture of the README: bars of one cell, in the order of `peers`, with the words for each; at most eight."""

    name: str
    title: str
    text: str
    scenario: str
    workload: str
    size: int = 0
    tls: bool = False
    peers: Annotated[dict[str, str], msgspec.Meta(max_length=8)]


class Seed(msgspec.Struct, forbid_unknown_fields=True):
    """A workload of another project's documents, and where its figure stands: SCENARIO/WORKLOAD."""

    document: str
    workload: str
    here: list[str]


class Plan(msgspec.Struct, forbid_unknown_fields=True):
    """`bench/report.toml`.

    Attributes:
        repeats: scenarios that measure once more what others do: they are shown, and not counted.
    """

    repeats: list[str]
    question: list[Question]
    picture: list[Picture]
    seed: list[Seed]


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


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds what `report` takes."""
    record = "a record; default: the newest whole one of each scenario"
    parser.add_argument("record", nargs="*", type=Path, metavar="RECORD", help=record)
    parser.add_argument("--records", type=Path, default=RECORDS, metavar="FOLDER", help="where records are kept")
    clone = "write docs/benchmarks.md, README.md and pictures there"
    parser.add_argument("--clone", type=Path, metavar="FOLDER", help=clone)
    partial = "also of some scenarios only, or of records that do not belong together"
    parser.add_argument("--partial", action="store_true", help=partial)
    parser.add_argument("--out", type=Path, default=REPORT, metavar="FOLDER", help="where tables.txt goes")


def run(options: argparse.Namespace) -> int:
    """Writes the report, prints its files, returns the exit status."""
    records = [Chosen(path) for path in options.record or newest(options.records)]
    if not options.partial and (options.clone or not options.record):
        _refuse_parts(records)
    report = Report(plan(), records)
    files = {options.out / "tables.txt": "\n".join(_tables(records))}
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
    """Returns the newest whole record of each scenario.

    Raises:
        UsageError: there is none.
    """
    kept: dict[str, tuple[str, Path]] = {}
    # By their dates: what is unfinished has none.
    for path in folder.glob("*/[0-9]*.csv"):
        facts = read(path).facts
        if "choice" not in facts:
            scenario = facts["scenario"]
            kept[scenario] = max(kept.get(scenario, ("", path)), (facts["time"], path))
    if not kept:
        raise UsageError(f"{folder} has no whole records: run a benchmark first, or name a record")
    return [path for _, path in sorted(kept.values(), key=lambda one: one[1].name)]


def _refuse_parts(records: Sequence[Chosen]) -> None:
    """Complains unless there is a whole record of every scenario, all of one state of what is measured.

    Raises:
        UsageError: there is not.
    """
    facts = [chosen.record.facts for chosen in records]
    tree = max(facts, key=lambda one: one["time"]).get("tree")
    whole = {one["scenario"] for one in facts if one.get("tree") == tree and "choice" not in one}
    if lacking := [name for name in names() if name not in whole]:
        raise UsageError(
            f"of tree {tree}, which the newest record is of, there is no whole record of {', '.join(lacking)}:"
            f" run python -m bench run --resume {' '.join(lacking)}, or report --partial"
        )


class Chosen:
    """A record, its scenario and its cells."""

    def __init__(self, path: Path) -> None:
        self.record: Record = read(path)
        self.scenario: Scenario = load(self.record.facts["scenario"])
        known_workloads = {workload.name for workload in self.scenario.workload}
        self.cells = {cell: own for cell, own in self.record.cells().items() if cell.workload in known_workloads}
        self.comparisons = list(comparisons(self.scenario, self.cells))

    def bars(self) -> Iterator[BarResult]:
        """Yields the bars of the scenario, as far as their cells were measured."""
        for cell, samples in self.cells.items():
            yield from judge(self.scenario.called(cell.workload), cell, samples)

    def limit(self, missed: BarResult) -> BarResult | None:
        """Returns what bare C that was measured beside it makes of a bar, the best of it; None: there is none."""
        bar, workload = missed.bar, self.scenario.called(missed.cell.workload)
        names = [one for one in self.scenario.limits if one.startswith("raw-c") and one not in bar.versus]
        samples = self.cells[missed.cell]
        bare = [measured(structs.replace(bar, peer=one), workload, missed.cell, samples) for one in names]
        return max((one for one in bare if one.figure is not None), key=lambda one: one.reached, default=None)


class Report:
    """What the records say."""

    def __init__(self, plan: Plan, records: Sequence[Chosen]) -> None:
        self.plan = plan
        self.records = records
        self._chosen = {chosen.scenario.name: chosen for chosen in records}.get
        measured = [chosen for chosen in records if chosen.scenario.name not in plan.repeats]
        self.all = counted(one for chosen in measured for one in chosen.comparisons)
        self.rivals: dict[str, list[Comparison]] = {}
        for one in sorted(self.all, key=lambda one: one.name):
            self.rivals.setdefault(one.name, []).append(one)
        self.losses = sorted((one for one in self.all if one.verdict == SLOWER), key=lambda one: one.advantage)
        self.bars = [(chosen, bar) for chosen in measured for bar in chosen.bars()]
        self.missed = sorted((one for one in self.bars if one[1].verdict == "MISS"), key=lambda one: one[1].reached)

    def page(self) -> str:
        """Returns docs/benchmarks.md.

        Raises:
            BenchError: it is too long.
        """
        lines = ["# Benchmarks", "", self._sentence(), "", *self._circumstances("../"), "", "## Rival by rival", ""]
        lines += [f"{AHEAD} Whoever is furthest ahead comes first.", "", *self._failed()]
        what = ["where it is ahead: wirespeed is", FASTER, LEVEL, SLOWER, "rates: at worst", "middle", "best"]
        lines += [*_markdown(["against", *what], self._score(), left=2), ""]
        for question in self.plan.question:
            lines += self._question(question)
        lines += ["## Bars", "", *self._bars(), "", "## Workloads of other projects", ""]
        lines += ["Each is measured here, with its rivals beside it.", ""]
        seeds = itertools.groupby(self.plan.seed, lambda one: one.document)
        rows = []
        for document, own in seeds:
            rows.append([document, "; ".join(f"{one.workload} (`{'`, `'.join(one.here)}`)" for one in own)])
        lines += _markdown(["document", "workloads, and where their figures stand"], rows, left=2)
        if len(lines) > LINES:
            raise BenchError(f"docs/benchmarks.md has {len(lines)} lines: report.toml asks for too much")
        return "\n".join(lines) + "\n"

    def _failed(self) -> list[str]:
        lines = []
        for chosen in self.records:
            failed = [one for one in chosen.record.samples if one.failure is not None and is_ours(one.peer)]
            told = [f"Failed: `{chosen.scenario.name}/{one.cell}`, {one.peer}: {one.failure}" for one in failed]
            lines += [line for text in told for line in (text, "")]
        return lines

    def readme(self) -> str:
        """Returns the generated part of README.md."""
        pictures = [f"![{one.title}](docs/pictures/{one.name}.svg)" for one in self.plan.picture]
        worst = {one.name: one for one in reversed(self.losses)}
        losses = "\n".join(_behind(sorted(worst.values(), key=lambda one: one.advantage)))
        link = f"{AHEAD} Of each the worst for wirespeed; [every rival, question and loss](docs/benchmarks.md)."
        return "\n\n".join([self._sentence(), link, losses, *pictures, " ".join(self._circumstances())])

    def pictures(self) -> Iterator[tuple[str, str]]:
        """Yields the name of each picture, and its SVG.

        Raises:
            BenchError: Matplotlib is not here.
        """
        try:
            from harness.pictures import Line, svg
        except ModuleNotFoundError as error:
            raise BenchError(f"pictures need {error.name}: python -m pip install -r bench/requirements.txt") from None
        for one in self.plan.picture:
            chosen = self._chosen(one.scenario)
            cell = Cell(one.workload, one.size, one.tls)
            found = {summary.peer: summary for summary in summarize(chosen.cells.get(cell, []))} if chosen else {}
            lines = []
            for peer, label in one.peers.items():
                if peer in found and (value := found[peer].value) is not None:
                    text = value_text(value.median, found[peer].measures)
                    limit = chosen is not None and is_one_of(peer, chosen.scenario.limits)
                    lines.append(Line(label, value.median, text, is_ours(peer), limit))
            if lines:
                yield one.name, svg(one.title, one.text, lines)

    def _sentence(self) -> str:
        """Says how many times the best known library, level with whom, behind whom, by rates alone; then what else."""
        told, usual = [], {SLOWER: list[str](), LEVEL: list[str](), FASTER: list[str]()}
        rates = {name: [one for one in own if one.is_rate] for name, own in self.rivals.items()}
        for who, known in KNOWN.items():
            if own := [one.advantage for name in known for one in rates.get(name, [])]:
                low, middle, high = map(_times, _span(own))
                told.append(f"its {who}s are {middle} times as fast as those of websockets (from {low} to {high})")
        for name, every in rates.items():
            verdicts = Counter(one.verdict for one in every)
            # Whichever is the most frequent; of two that are, the worse.
            usual[max(usual, key=lambda verdict: verdicts[verdict])] += [name] if every else []
        behind, level = (", ".join(usual[verdict]) or "nobody" for verdict in (SLOWER, LEVEL))
        counts = Counter(one.verdict for one in self.all)
        return (
            f"wirespeed by its rates: in the middle of all cells {', '.join(told) or 'nothing was measured'}. In most"
            f" cells it is behind: {behind}. Level with: {level}. Ahead of {len(usual[FASTER])} others."
            f" Of {len(self.all):,} comparisons, latencies and memory among them, it is better in {counts[FASTER]:,},"
            f" level in {counts[LEVEL]:,}, worse in {counts[SLOWER]:,}."
        )

    def _circumstances(self, root: str = "") -> list[str]:
        facts = [chosen.record.facts for chosen in self.records]
        days = sorted({one["time"].partition("T")[0] for one in facts})
        when = " to ".join(dict.fromkeys((days[0], days[-1])))
        commits = ", ".join(sorted({one["revision"] for one in facts}))
        machines: dict[str, list[str]] = {}
        for one in facts:
            parts = (one["cpu"], f"{one['cores']} cores", one["system"], one["peers' python"])
            machines.setdefault(", ".join(parts), []).append(one["scenario"])
        # Nothing is compared across scenarios, so that each may have a machine of its own.
        parted = [f"{machine} ({', '.join(names)})" for machine, names in machines.items()]
        where = "; ".join(parted if len(parted) > 1 else machines)
        lacking = {f"{peer} ({why})": None for chosen in self.records for peer, why in chosen.record.without.items()}
        return [
            f"Measured on {where}; {when}, at commit {commits}.",
            f"A ratio is the median of the ratios within each round; [how it is measured]({root}bench/METHODOLOGY.md),"
            f" [where that leans]({root}bench/BIAS.md). Rounds are so far apart as is said; (!) is above 20 %.",
            *([f"Not measured: {', '.join(lacking)}."] if lacking else []),
        ]

    def _score(self) -> list[list[str]]:
        rows = []
        for rival, own in sorted(self.rivals.items(), key=lambda item: _worst(item[1])):
            ahead = [one for one in self.losses if one.name == rival]
            losses = "<br>".join(f"{_times(one.advantage)} {_where(one)}" for one in ahead)
            counts = Counter(one.verdict for one in own)
            rates = [one.advantage for one in own if one.is_rate]
            spans = map(_times, _span(rates)) if rates else "---"
            rows.append([rival, losses, *(str(counts[verdict]) for verdict in (FASTER, LEVEL, SLOWER)), *spans])
        return rows

    def _question(self, question: Question) -> list[str]:
        lines = [f"## {question.title}", "", *([question.text, ""] if question.text else [])]
        chosen = self._chosen(question.scenario)
        if chosen is None or not (asked := question.cells(chosen)):
            return [*lines, "Not measured.", ""]
        cells = {cell: {one.peer: one for one in summarize(chosen.cells[cell])} for cell in asked}
        ahead = {(one.cell, one.rival): one for one in chosen.comparisons}
        rows = []
        for peer in chosen.scenario.peers:
            if not any(peer in summaries for summaries in cells.values()):
                continue
            if question.peers and not is_one_of(peer, question.peers):
                continue
            own = [(summaries.get(peer), ahead.get((cell, peer))) for cell, summaries in cells.items()]
            rows.append([peer, *(_entry(summary, against) for summary, against in own)])
        rows.append(["rounds", *(apart_text(chosen.cells[cell]) for cell in cells)])
        several = len({cell.workload for cell in cells}) > 1
        heads = [str(cell) if several or not cell.size else str(cell).partition(", ")[2] for cell in cells]
        return [*lines, *_markdown(["", *(head.removesuffix(", plain") for head in heads)], rows), ""]

    def _bars(self) -> list[str]:
        counts = Counter(bar.verdict for _, bar in self.bars)
        limits = {bar: chosen.limit(bar) for chosen, bar in self.missed}
        beyond = sum(limit is not None and limit.verdict == "MISS" for limit in limits.values())
        text = (
            f"{counts['PASS']} of {len(self.bars)} are reached, {counts['NOT MEASURED']} were not measured,"
            f" {len(self.missed)} are missed. Of these, {beyond} ask for more than bare C reaches in the same run;"
            " what it reaches there stands behind the semicolon."
        )
        rows = []
        for name in sorted({one.scenario.name for one, _ in self.missed}):
            told = []
            for bar in (bar for one, bar in self.missed if one.scenario.name == name):
                limit = limits[bar]
                beside = f"; {limit.bar.peer}: {limit.told}" if limit else ""
                told.append(f"`{bar.cell}` {bar.bar.peer}: {bar.told} ({bar.wanted}{beside})")
            rows.append([name, "<br>".join(told)])
        return [text, "", *_markdown(["scenario", "measured (to reach), the worst first"], rows, left=2)]


def _worst(own: Sequence[Comparison]) -> float:
    return min((one.advantage for one in own if one.verdict == SLOWER), default=1.0)


def _behind(losses: Iterable[Comparison]) -> list[str]:
    return _markdown(["workload", "rival", "wirespeed is", "rounds"], map(_loss, losses), left=2)


def _entry(summary: Summary | None, against: Comparison | None) -> str:
    """Returns what stands in a table: the figure, and how many times better wirespeed is, bold where it is behind."""
    if summary is None:
        return ""
    if summary.value is None:
        return "failed"
    text = value_text(summary.value.median, summary.measures)
    if against is None:
        return text
    times = f"{against.advantage:.2f}"
    return f"{text} (**{times}**)" if against.verdict == SLOWER else f"{text} ({times})"


def _span(values: Sequence[float]) -> tuple[float, float, float]:
    return min(values), statistics.median(values), max(values)


def _times(factor: float) -> str:
    return f"{factor:,.0f}" if factor >= 100 else f"{factor:.2g}" if factor < 1 else f"{factor:.1f}"


def _where(one: Comparison) -> str:
    cell = one.cell
    size = f" of {size_text(cell.size)}" if cell.size else ""
    measures = one.workload.measures
    what = "" if measures == "rate" else f", {(KINDS[measures].figure or measures).replace('late_', 'lateness ')}"
    return f"`{one.scenario.name}/{cell.workload}`{size}{' over TLS' if cell.tls else ''}{what}"


def _loss(one: Comparison) -> list[str]:
    spans = sorted(1 / value if one.lower and value else value for value in (one.ratio.low, one.ratio.high))
    times = f"{one.advantage:.3f} ({spans[0]:.3f} - {spans[1]:.3f})"
    return [_where(one), one.rival, times, apart_text(one.samples)]


def _tables(records: Sequence[Chosen]) -> Iterator[str]:
    """Yields the tables of all cells, for a terminal."""
    for chosen in records:
        facts = "".join(f"  {key}: {text}\n" for key, text in chosen.record.facts.items())
        yield f"{chosen.scenario.title}\n{facts}"
        for cell, samples in chosen.cells.items():
            job = Job(cell, chosen.scenario.called(cell.workload), ())
            yield text_of(cell_table(chosen.scenario, job, samples)) + "\n"


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
