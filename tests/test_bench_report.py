"""``bench/run.py report``: records as one page with pictures, and as Markdown."""

from __future__ import annotations

import dataclasses
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, cast

import pytest

if sys.hexversion < 0x030B0000:  # not by version_info: type checkers, which go by 3.10, are to read on
    pytest.skip("the harness of the benchmarks needs Python 3.11", allow_module_level=True)

BENCH = Path(__file__).resolve().parents[1] / "bench"
ROOT = BENCH.parent
sys.path.insert(0, str(BENCH))

from harness.errors import BenchError, UsageError  # noqa: E402
from harness.peers import Sample  # noqa: E402
from harness.record import COLUMNS, Record, rows_text  # noqa: E402
from harness.report import (  # noqa: E402
    Chosen,
    build,
    choose,
    main,
    newest,
    units,
    write,
)
from harness.report.series import ChartData, chart_data  # noqa: E402
from harness.report.wins import FASTER, LEVEL, SLOWER, compared, is_ours, pairs  # noqa: E402
from harness.scenario import Cell, Chart, Scenario, Workload, parse  # noqa: E402

OURS, RIVAL, OTHER, LIMIT = "wirespeed:await@uvloop", "picows:callbacks@uvloop", "aiohttp:await@uvloop", "raw-c"
HOSTILE = "ContentError: <script>alert(1)</script> | $x_1$ [link](http://nowhere) 日本"

MEASURE = {"rounds": 3, "seconds": 1.0, "warmup": 0.1}
SCENARIO: dict[str, Any] = {
    "title": "Clients & more",
    "peers": [OURS, RIVAL, OTHER, LIMIT],
    "subject": OURS,
    "limits": [LIMIT],
    "measure": MEASURE,
    "quick": {},
    "workload": [
        {"name": "echo", "title": "Echo: there and back", "unit": "echo", "sizes": [256, 8192], "tls": [False, True]},
        {"name": "delay", "title": "Delay", "unit": "round trip", "sizes": [64], "measures": "latency"},
        {"name": "idle", "title": "Idle", "unit": "connection", "measures": "memory"},
        {
            "name": "crowd",
            "title": "{connections} at once",
            "unit": "delivery",
            "sizes": [64],
            "each": {"connections": [10, 1000]},
            "throughput": True,
        },
    ],
    "bar": [
        {"text": "as fast", "workload": "echo", "peer": OURS, "versus": RIVAL, "tls": [False], "at_least": 1.0},
        {"text": "4 KiB", "workload": "idle", "peer": OURS, "at_most": 4096},
    ],
}


def scenario(*charts: Chart) -> Scenario:
    return dataclasses.replace(parse("clients", SCENARIO), charts=charts)


def sample(peer: str, cell: Cell, turn: int, rate: float, **more: Any) -> Sample:
    return Sample(peer, cell, turn, 1000, 1000 / rate, 0.01, 0.02, version="1.0", **more)


def rates(cell: Cell, **peers: tuple[float, ...]) -> list[Sample]:
    """Makes a cell: the rates of each peer, round by round."""
    names = {"ours": OURS, "rival": RIVAL, "other": OTHER, "limit": LIMIT}
    return [sample(names[name], cell, turn, rate) for name, own in peers.items() for turn, rate in enumerate(own, 1)]


def latencies(peer: str, least: float, workload: str = "delay") -> list[Sample]:
    shape = {"p50": 1.0, "p90": 1.3, "p99": 4.0, "p999": 20.0, "max": 300.0}
    cell = Cell(workload, 64, tls=False)
    return [
        sample(
            peer, cell, turn, 1e6 / least, measures="latency", figures={k: least * turn * v for k, v in shape.items()}
        )
        for turn in (1, 2, 3)
    ]


def samples() -> list[Sample]:
    small, large, secure = Cell("echo", 256, False), Cell("echo", 8192, False), Cell("echo", 256, True)
    idle, few, many = Cell("idle", 0, False), Cell("crowd-10", 64, False), Cell("crowd-1000", 64, False)
    return [
        *rates(small, ours=(50e3, 51e3, 52e3), rival=(40e3, 41e3, 42e3), other=(30e3, 31e3, 29e3), limit=(60e3,) * 3),
        *rates(large, ours=(10e3, 11e3, 12e3), rival=(20e3, 22e3, 24e3), other=(10e3, 12e3, 11e3)),
        *rates(secure, ours=(9e3, 9e3, 9e3), rival=(8e3, 8e3, 8e3)),
        Sample(OTHER, secure, 1, version="1.0", failure=HOSTILE),
        *latencies(OURS, 20.0),
        *latencies(RIVAL, 10.0),
        sample(OURS, idle, 1, 1000, memory=8_192_000, measures="memory"),
        sample(RIVAL, idle, 1, 1000, memory=16_384_000, measures="memory"),
        *rates(few, ours=(1e6,), rival=(2e6,)),
        *rates(many, ours=(3e6,), rival=(1e6,)),
    ]


def chosen(*charts: Chart, more: list[Sample] | None = None, **facts: str) -> Chosen:
    facts = {"scenario": "clients", "cpu": "A <fast> one", "cores": "2", "time": "2026-01-02T03:04:05+00:00", **facts}
    record = Record(facts, samples() if more is None else more)
    return Chosen(Path("2026-01-02-clients.csv"), record, scenario(*charts), known=True)


def kept(path: Path, name: str, *rows: Sample, **facts: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [f"# scenario: {name}\n", *(f"# {key}: {text}\n" for key, text in facts.items())]
    path.write_text("".join(lines) + ",".join(COLUMNS) + "\n" + rows_text(rows or samples()))
    return path


def report(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(BENCH / "run.py"), "report", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=50, check=False)


class Reader(HTMLParser):
    """Checks that every element that begins also ends, and gathers ids, references and texts."""

    VOID = ("meta", "br", "use", "path")

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.names: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.texts: list[str] = []
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.append(tag)
        if tag not in ("meta", "br"):
            self.open.append(tag)
        for key, value in attrs:
            if key == "id" and value is not None:
                self.ids.append(value)
            if key in ("href", "xlink:href", "src") and value is not None:
                self.links.append(value)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in ("meta", "br"):
            self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def test_verdicts() -> None:
    """Better or worse only where the rounds agree; of memory and latency, less is better."""
    verdicts = {(str(one.cell), one.rival): (one.verdict, round(one.advantage, 2)) for one in compared([chosen()])}
    assert verdicts == {
        ("echo, 256 B, plain", RIVAL): (FASTER, 1.24),
        ("echo, 256 B, plain", OTHER): (FASTER, 1.67),
        ("echo, 256 B, plain", LIMIT): (SLOWER, 0.85),
        ("echo, 8 KiB, plain", RIVAL): (SLOWER, 0.5),
        ("echo, 8 KiB, plain", OTHER): (LEVEL, 1.0),
        ("echo, 256 B, TLS", RIVAL): (FASTER, 1.12),
        ("delay, 64 B, plain", RIVAL): (SLOWER, 0.5),
        ("idle, plain", RIVAL): (FASTER, 2.0),
        ("crowd-10, 64 B, plain", RIVAL): (SLOWER, 0.5),
        ("crowd-1000, 64 B, plain", RIVAL): (FASTER, 3.0),
    }


def test_pairs() -> None:
    """The same loop; a rival with a loop of its own meets ours on each; what can run on wirespeed meets itself."""
    on_loops = dataclasses.replace(scenario(), subject="wirespeed-server:await@{loop}")
    ours = ["wirespeed-server:await@asyncio", "wirespeed-server:await@uvloop", "wirespeed-server:callbacks@uvloop"]
    theirs = [
        "picows-server@uvloop",
        "beast-server",
        "uvicorn-server:wirespeed@uvloop",
        "uvicorn-server:default@uvloop",
    ]
    assert list(pairs(on_loops, [*ours, *theirs])) == [
        ("wirespeed-server:await@uvloop", "picows-server@uvloop"),
        ("wirespeed-server:await@asyncio", "beast-server"),
        ("wirespeed-server:await@uvloop", "beast-server"),
        ("wirespeed-server:await@uvloop", "uvicorn-server:default@uvloop"),
        ("uvicorn-server:wirespeed@uvloop", "uvicorn-server:default@uvloop"),
    ]
    # Those of another kind meet their counterpart.
    counterparts = {"wirespeed-sync": ("ws4py", "raw-c")}
    kinds = dataclasses.replace(scenario(), subject="wirespeed:await@uvloop", counterparts=counterparts)
    assert list(pairs(kinds, ["wirespeed:await@uvloop", "wirespeed-sync", "ws4py", "raw-c", "picows@uvloop"])) == [
        ("wirespeed-sync", "ws4py"),
        ("wirespeed-sync", "raw-c"),
        ("wirespeed:await@uvloop", "picows@uvloop"),
    ]
    # What is measured may be no peer of wirespeed's own name; it does not meet itself.
    codecs = dataclasses.replace(scenario(), subject="codecs:send@uvloop")
    assert list(pairs(codecs, ["codecs:send@uvloop", "codecs:json@uvloop"])) == [
        ("codecs:send@uvloop", "codecs:json@uvloop")
    ]
    assert [is_ours(peer) for peer in ("wirespeed", "wirespeed-sync", "wirespeedy", "picows")] == [
        True,
        True,
        False,
        False,
    ]


def test_the_whole_report(tmp_path: Path) -> None:
    """Losses stand beside wins, in the same form; failures and bars are there; the page needs nothing beside it."""
    written = write([chosen(**cast("dict[str, Any]", {"without tornado": "pip install tornado"}))], tmp_path, draw=None)
    page, markdown = written.page.read_text(), written.markdown.read_text()
    reader = Reader(page)
    text = "\n".join(reader.texts)
    for said in (
        "better in 5, worse in 3, and there is no clear difference in 1",
        "Of 3 bars, 1 are reached, 2 missed, 0 not measured",
        "Where wirespeed is slower",
        "Where wirespeed is faster",
        "8 KiB: 0.500 x",
        f"{OTHER} failed: {HOSTILE} (Echo: there and back, 256 B, TLS)",
        "A <fast> one",
        "tornado: pip install tornado",
        "deliveries/s",
        "PASS",
        "MISS",
    ):
        assert said in text, said
    assert page.index('id="slower"') < page.index('id="faster"') < page.index('id="record-clients"')
    assert "script" not in reader.names
    assert "img" not in reader.names
    assert len(reader.ids) == len(set(reader.ids))
    assert {link[1:] for link in reader.links} <= set(reader.ids)
    assert r"\<script\>alert(1)\</script\> \| \$x\_1\$ \[link\](http://nowhere)" in markdown
    assert "| **wirespeed:await@uvloop** | 51,000 | 50,000 - 52,000 |" in markdown
    assert written.pictures == ()


def test_lists_of_wins_and_losses() -> None:
    made = build([chosen()], None)
    assert [row.texts[1:] for row in made.slower.rows] == [
        (f"{OURS}\nagainst {RIVAL}", "8 KiB: 0.500 x"),
        (f"{OURS}\nagainst {RIVAL}", "64 B: 2.00 x, less is better"),
        (f"{OURS}\nagainst {RIVAL}", "64 B: 0.500 x"),
        (f"{OURS}\nagainst {LIMIT} (a limit)", "256 B: 0.850 x (0.833 - 0.867)"),
    ]
    assert made.faster.rows[0].texts == (
        "Clients & more\n1,000 at once, plain",
        f"{OURS}\nagainst {RIVAL}",
        "64 B: 3.00 x",
    )
    assert made.faster.head == made.slower.head == made.level.head
    assert len(made.faster.rows) + len(made.slower.rows) + len(made.level.rows) == len(compared([chosen()]))
    assert [row.texts[1:] for row in made.missed.rows] == [
        (OURS, "as fast", "8 KiB: 0.500"),
        (OURS, "4 KiB", "8.00 KiB"),
    ]
    score = {row.texts[0]: row.texts[1:] for row in made.score.rows}
    assert score[RIVAL] == ("4", "0", "3", "0.500 x", "3.00 x")


def test_our_failure_stands_on_top(tmp_path: Path) -> None:
    cell = Cell("echo", 256, tls=False)
    more = [*rates(cell, rival=(1.0, 2.0)), Sample(OURS, cell, 1, failure="it <b>lost</b> one")]
    made = build([chosen(more=more)], None)
    assert made.failed == (f"Clients & more: {OURS} failed: it <b>lost</b> one (Echo: there and back, 256 B, plain)",)
    page = write([chosen(more=more)], tmp_path, draw=None).page.read_text()
    assert page.index("it &lt;b&gt;lost&lt;/b&gt; one") < page.index('id="slower"')
    gone = build([chosen(more=rates(cell, rival=(1.0,)), **{f"without {OURS}": "no compiler"})], None)
    assert gone.failed == (f"Clients & more: {OURS} was not measured: no compiler",)


def test_table_of_a_cell() -> None:
    """The best first, ratios and limits in columns, figures in their units, failed ones below."""
    tables = {table.title: table for table in build([chosen()], None).parts[0].tables}
    echo = tables["Echo: there and back, 256 B, plain"]
    assert echo.head == ("peer", "echoes/s", "min - max", "client µs", "server µs", "of raw-c", f"{OURS} is")
    assert [(row.texts[0], row.mark) for row in echo.rows] == [
        (LIMIT, "limit"),
        (OURS, "ours"),
        (RIVAL, ""),
        (OTHER, ""),
    ]
    assert echo.rows[2].texts[1:] == ("41,000", "40,000 - 42,000", "30.0", "?", "0.683", "1.24 x")
    assert tables["Echo: there and back, 256 B, TLS"].failures == (f"{OTHER} failed: {HOSTILE}",)
    delay = tables["Delay, 64 B, plain"]
    assert delay.head[1] == "p50 of a round trip"
    assert {"round trips/s", "p99", "p99.9", "max"} <= set(delay.head)
    assert delay.rows[0].texts[0] == RIVAL
    assert delay.note == "p50 of a round trip, less is better; median of 3 rounds"
    assert tables["Idle, plain"].rows[0].texts[1] == "8.00 KiB"
    assert "throughput" in tables["10 at once, 64 B, plain"].head


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (units.short_text(51_158), "51.2k"),
        (units.short_text(999_960), "1.00M"),
        (units.short_text(4), "4"),
        (units.bytes_text(3481), "3.40 KiB"),
        (units.bytes_text(812), "812 B"),
        (units.time_text(0.85), "850 ns"),
        (units.time_text(1250), "1.25 ms"),
        (units.time_text(0), "0"),
        (units.number_text(51_158.4), "51,158"),
        (units.number_text(2.5), "2.5"),
        (units.ratio_text(0.9731) + units.ratio_text(1.05) + units.ratio_text(1234.5), "0.9731.051,234"),
    ],
)
def test_units(text: str, expected: str) -> None:
    assert text == expected


def test_units_of_lateness_and_shares() -> None:
    workload = Workload("sleep", "", "round trip")
    late, share = units.unit_of(workload, "lateness"), units.unit_of(workload, "share")
    assert (late.label, late.lower, late.text(1250)) == ("late p50", True, "1.25 ms")
    assert (share.label, share.lower, share.text(0.333)) == ("computed", False, "33.3 %")
    assert units.unit_of(workload, "lateness", "late_max").label == "late max"
    assert units.unit_of(workload, "share", "kept").lower is False


# Charts: what they show.


def data(chart: Chart, **more: Any) -> ChartData:
    made = chart_data(chosen(**more), chart)
    assert made is not None
    return made


def test_panels_and_lines() -> None:
    made = data(Chart("a", "A", "bars", ("echo",), limits=(LIMIT,)))
    assert [panel.title for panel in made.panels] == ["plain", "TLS"]
    assert made.xs == {256: "256 B", 8192: "8 KiB"}
    # All have one loop, or none: it stands in the subtitle and not behind each name.
    assert [(line.label, line.ours, line.limit) for line in made.lines] == [
        ("wirespeed:await", True, False),
        ("picows:callbacks", False, False),
        ("aiohttp:await", False, False),
        ("raw-c", False, True),
    ]
    assert made.shared == "on uvloop"
    assert made.failures == (f"{OTHER} failed: {HOSTILE} (echo, 256 B, TLS)",)
    assert made.panels[0].of(256)["picows:callbacks"].high == 42e3


def test_chosen_peers_sizes_and_transport() -> None:
    made = data(Chart("a", "A", "bars", ("echo",), tls=False, sizes=(8192,), peers=("aiohttp", "wirespeed")))
    assert [line.label for line in made.lines] == ["aiohttp:await", "wirespeed:await"]
    assert [panel.title for panel in made.panels] == [""]
    assert made.shared == "plain, on uvloop"


def test_other_x() -> None:
    """An option, a workload, the event loop."""
    by_option = data(Chart("a", "A", "lines", ("crowd",), x="connections", figure="throughput"))
    assert by_option.xs == {10: "10", 1000: "1,000"}
    assert by_option.panels[0].of(1000)["wirespeed:await"].median == 3e6 * 64
    by_workload = data(Chart("a", "A", "bars", ("echo", "crowd-10"), x="workload", tls=False, sizes=(256, 64)))
    assert list(by_workload.xs.values()) == ["Echo", "10 at once"]
    cell = Cell("echo", 256, tls=False)
    more = [sample(f"aiohttp:await@{loop}", cell, 1, 1000) for loop in ("uvloop", "asyncio")]
    by_loop = data(Chart("a", "A", "bars", ("echo",), x="loop"), more=more)
    assert list(by_loop.xs) == ["uvloop", "asyncio"]
    # The scenario knows one of the two; what else a record has comes as it is.
    assert {line.label for line in by_loop.lines} == {"aiohttp:await"}


def test_nothing_measured() -> None:
    chart = Chart("a", "What is missing", "bars", ("idle",))
    assert chart_data(chosen(more=latencies(OURS, 1.0)), chart) is None
    made = build([chosen(chart, more=latencies(OURS, 1.0))], lambda data, name: "")
    assert made.parts[0].pictures == ()
    assert any("What is missing" in note for note in made.parts[0].notes)


@pytest.mark.parametrize(
    ("chart", "complaint"),
    [
        (Chart("a", "A", "bars", ("echo",), x="colour"), "chart a: x is size, workload, loop or an option"),
        (Chart("a", "A", "bars", ("echo",), figure="p42"), "chart a: unknown figure p42"),
        (Chart("a", "A", "bars", ("crowd",), x="connections"), "chart a: two figures of .* for connections 10"),
    ],
)
def test_charts_that_cannot_be(chart: Chart, complaint: str) -> None:
    """What does not exist, and two figures at one place: nothing is left out in silence."""
    one = chosen()
    workloads = [
        dataclasses.replace(workload, options={"connections": 10}) if workload.group == "crowd" else workload
        for workload in one.scenario.workloads
    ]
    one = dataclasses.replace(one, scenario=dataclasses.replace(one.scenario, workloads=tuple(workloads)))
    with pytest.raises(UsageError, match=complaint):
        chart_data(one, chart)


def test_charts_with_one_name() -> None:
    one = Chart("same", "A", "bars", ("echo",))
    with pytest.raises(UsageError, match="two charts are called same"):
        build([chosen(one, one)], lambda data, name: "<svg />")
    made = build([chosen(one), chosen(one)], lambda data, name: "<svg />")
    assert [picture.name for part in made.parts for picture in part.pictures] == ["same", "same-2"]


# Charts: how they are drawn.


def drawn(chart: Chart, **more: Any) -> Any:
    pytest.importorskip("matplotlib")
    from harness.report.drawing import figure

    return figure(data(chart, **more))


def texts(figure: Any) -> list[str]:
    return [text.get_text() for text in figure.findobj(lambda one: hasattr(one, "get_text")) if text.get_text()]


def test_bars() -> None:
    """A bar for each peer in each group, its figure on top; limits hatched; who failed stands below."""
    figure = drawn(Chart("a", "A title", "bars", ("echo",), limits=(LIMIT,)))
    plain, secure = figure.axes
    assert (len(plain.patches), len(secure.patches)) == (4 + 3, 2)
    assert sorted(bar.get_height() for bar in plain.patches) == [11e3, 11e3, 22e3, 30e3, 41e3, 51e3, 60e3]
    assert sum(bar.get_hatch() is not None for bar in plain.patches) == 1
    seen = texts(figure)
    for text in ("A title", "51.0k", "256 B", "8 KiB", "plain", "TLS", "wirespeed:await", "message size"):
        assert text in seen, text
    assert any(text.startswith(f"{OTHER} failed: ContentError: <script>") for text in seen)
    # The font has none of these.
    assert not any("日" in text for text in seen)


def test_bars_of_different_magnitudes() -> None:
    """Each group has a scale of its own where the least could not be seen on that of the others."""
    small, large = Cell("echo", 256, tls=False), Cell("echo", 8192, tls=False)
    more = rates(small, ours=(5e4,), rival=(4e4,)) + rates(large, ours=(50.0,), rival=(40.0,))
    figure = drawn(Chart("a", "A", "bars", ("echo",)), more=more)
    assert [[bar.get_height() for bar in axes.patches] for axes in figure.axes] == [[5e4, 4e4], [50, 40]]
    assert "message size; each with a scale of its own" in texts(figure)


def test_lines() -> None:
    """A line for each peer, the limit dashed, x by its logarithm, both transports on one scale."""
    figure = drawn(Chart("a", "A", "lines", ("echo",), limits=(LIMIT,)))
    plain, secure = figure.axes
    assert [line.get_label() for line in plain.lines] == [
        "wirespeed:await",
        "picows:callbacks",
        "aiohttp:await",
        "raw-c",
    ]
    assert list(plain.lines[0].get_xdata()) == [8, 13]
    assert list(plain.lines[0].get_ydata()) == [51e3, 11e3]
    assert plain.lines[3].get_linestyle() == "--"
    assert plain.lines[0].get_linestyle() == "-"
    assert len(secure.lines) == 2
    assert plain.get_ylim() == secure.get_ylim()
    assert [tick.get_text() for tick in plain.get_xticklabels()] == ["256 B", "8 KiB"]


def test_percentiles() -> None:
    figure = drawn(Chart("a", "A", "percentiles", ("delay",)))
    (axes,) = figure.axes
    assert len(axes.lines) == 2
    assert axes.get_yscale() == "log"
    assert list(axes.lines[0].get_ydata()) == pytest.approx([40, 52, 160, 800, 12_000])
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["50 %", "90 %", "99 %", "99.9 %", "max"]
    places = list(axes.lines[0].get_xdata())
    assert places[2] - places[1] == pytest.approx(places[3] - places[2])


def test_figures_of_nothing() -> None:
    """A figure may be 0, for all of them."""
    cell = Cell("echo", 256, tls=False)
    more = [sample(OURS, cell, 1, 10.0, figures={"deviation": 0.0})]
    for kind in ("bars", "lines"):
        figure = drawn(Chart("a", "A", kind, ("echo",), figure="deviation"), more=more)
        assert len(figure.axes) == 1


def test_colours() -> None:
    """A rival has the same colour in every chart, whoever else is in it; no two have the same one in a chart."""
    pytest.importorskip("matplotlib")
    from harness.report.drawing.style import RIVALS, looks

    everybody = data(Chart("a", "A", "bars", ("echo",)))
    fewer = data(Chart("a", "A", "bars", ("echo",), peers=("picows",)))
    assert looks(everybody.lines)["picows:callbacks"].colour == looks(fewer.lines)["picows:callbacks"].colour
    assert len({look.colour for look in looks(everybody.lines).values()}) == len(everybody.lines)
    assert len(set(RIVALS.values())) == len(RIVALS)


CHARTS = (
    Chart("echo-bars", "Echo", "bars", ("echo",), limits=(LIMIT,)),
    Chart("echo-lines", "Echo", "lines", ("echo",), figure="throughput"),
    Chart("delay", "Delay", "percentiles", ("delay",)),
)


def test_pictures(tmp_path: Path) -> None:
    """The same bytes each time; small; nothing from elsewhere; no id twice in the page; linked from the Markdown."""
    pytest.importorskip("matplotlib")
    from harness.report import drawing

    def draw(data: ChartData, name: str) -> str:
        return drawing.svg(drawing.figure(data), name)

    first = write([chosen(*CHARTS)], tmp_path / "a", tmp_path / "docs pictures", draw=draw)
    again = write([chosen(*CHARTS)], tmp_path / "b", draw=draw)
    assert [path.name for path in first.pictures] == ["echo-bars.svg", "echo-lines.svg", "delay.svg"]
    for one, other in zip(first.pictures, again.pictures, strict=True):
        assert one.read_bytes() == other.read_bytes()
        assert len(one.read_bytes()) < 150_000
        assert ElementTree.fromstring(one.read_text()).tag == "{http://www.w3.org/2000/svg}svg"
        assert "<!--" not in one.read_text()
        assert not re.search(r"20\d\d-\d\d-\d\dT", one.read_text())
    assert first.page.read_text() == again.page.read_text()
    reader = Reader(first.page.read_text())
    assert reader.names.count("svg") == 3
    assert len(reader.ids) == len(set(reader.ids))
    assert {link[1:] for link in reader.links} <= set(reader.ids)
    assert "](../docs%20pictures/delay.svg)" in first.markdown.read_text()
    assert "](pictures/delay.svg)" in again.markdown.read_text()


def test_settings_of_the_user() -> None:
    """matplotlib's global settings change nothing, and are left as they are."""
    matplotlib = pytest.importorskip("matplotlib")
    from harness.report import drawing

    made = data(CHARTS[0])
    usual = drawing.svg(drawing.figure(made), "a")
    with matplotlib.rc_context({"font.size": 30, "svg.fonttype": "none", "axes.facecolor": "red"}):
        assert drawing.svg(drawing.figure(made), "a") == usual
        assert matplotlib.rcParams["font.size"] == 30


# Which records.


def test_newest(tmp_path: Path) -> None:
    """Of the machine measured last, of each scenario the newest; of one day the one with the greatest number."""
    for name in ("old/2026-01-01-sync.csv", "old/2026-01-03-field.csv", "new/2026-02-01-sync.csv"):
        kept(tmp_path / name, "sync")
    for number in (2, 9, 10):
        kept(tmp_path / f"new/2026-02-01-sync-{number}.csv", "sync")
    kept(tmp_path / "new/2026-01-30-asyncio.csv", "asyncio")
    (tmp_path / "new" / "notes.csv").write_text("no record")
    found = {name: path.name for name, (path,) in newest(tmp_path).items()}
    assert found == {"asyncio": "2026-01-30-asyncio.csv", "sync": "2026-02-01-sync-10.csv"}
    assert [one.path.name for one in choose([], tmp_path)] == list(found.values())
    assert [one.path.name for one in choose(["sync"], tmp_path)] == ["2026-02-01-sync-10.csv"]
    old = str(tmp_path / "old/2026-01-01-sync.csv")
    assert [str(one.path) for one in choose([old, old])] == [old]


def test_scenario_that_is_gone(tmp_path: Path) -> None:
    """A record outlives its scenario: bare names, no charts."""
    path = kept(tmp_path / "2026-01-01-gone.csv", "gone")
    (one,) = choose([str(path)])
    assert (one.known, one.scenario.charts) == (False, ())
    page = write([one], tmp_path, draw=None).page.read_text()
    assert "There is no scenario of this name any more" in page
    assert "echo, 256 B, plain" in page


def test_workload_that_is_gone(tmp_path: Path) -> None:
    cell = Cell("a-workload-of-old", 16, tls=False)
    path = kept(tmp_path / "2026-01-01-sync.csv", "sync", sample("a-peer-of-old", cell, 1, 10.0))
    page = write(choose([str(path)]), tmp_path, draw=None).page.read_text()
    assert "a-workload-of-old, 16 B, plain" in page
    assert "a-peer-of-old" in page
    assert "NOT MEASURED" in page


def test_every_record_that_is_kept(tmp_path: Path) -> None:
    """And every chart of every scenario can be made of what there is of it."""
    paths = [str(path) for path in sorted((BENCH / "records").rglob("*.csv"))]
    assert paths
    records = choose(paths)
    made = build(records, lambda data, name: "<svg />")
    assert [len(part.tables) for part in made.parts] == [len(one.cells) for one in records]
    write(records, tmp_path, draw=None)
    Reader((tmp_path / "index.html").read_text())


# The command.


def test_command(tmp_path: Path) -> None:
    path = kept(tmp_path / "2026-01-01-gone.csv", "gone")
    done = report(path, "--no-pictures", "--out", tmp_path / "out")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split() == [str(tmp_path / "out" / "index.html"), str(tmp_path / "out" / "report.md")]


@pytest.mark.parametrize("asked", ["missing.csv", "no-such-scenario", "broken.csv"])
def test_unknown(tmp_path: Path, asked: str) -> None:
    (tmp_path / "broken.csv").write_text("a,b\n1,2\n")
    asked = str(tmp_path / asked) if asked.endswith(".csv") else asked
    done = report(asked, "--out", tmp_path / "out")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("bench: ")
    assert done.stderr.count("\n") == 1
    assert asked in done.stderr
    assert not (tmp_path / "out").exists()


def test_no_records(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="has no records: run a benchmark first"):
        choose([], tmp_path)


def test_without_matplotlib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = kept(tmp_path / "2026-01-01-gone.csv", "gone")
    for name in [name for name in sys.modules if name.startswith("harness.report.drawing")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delattr("harness.report.drawing", raising=False)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(BenchError, match=re.escape('pip install "wirespeed[bench]"')) as caught:
        main([str(path), "--out", str(tmp_path / "out")])
    assert not isinstance(caught.value, UsageError)
    assert main([str(path), "--out", str(tmp_path / "out"), "--no-pictures"]) == 0


def test_newer_parts_of_a_record(tmp_path: Path) -> None:
    """Cells of a newer record that is only of these replace older ones, if it has their peers and their machine."""
    one, two, three = (Cell(name, 8, tls=False) for name in ("one", "two", "three"))
    old = [Sample(peer, cell, 1, count=10, seconds=1.0) for cell in (one, two) for peer in ("a", "b")]
    new = [Sample("a", one, 1, count=20, seconds=1.0)]
    new += [Sample(peer, cell, 1, count=20, seconds=1.0) for cell in (two, three) for peer in ("a", "b")]
    kept(tmp_path / "m" / "2026-01-01-x.csv", "x", *old, cpu="1")
    kept(tmp_path / "m" / "2026-01-02-x.csv", "x", *old, cpu="1")
    kept(tmp_path / "m" / "2026-01-03-x.csv", "x", *new, cpu="2", choice="--size 8")
    kept(tmp_path / "m" / "2026-01-03-x-2.csv", "x", *new, cpu="1", choice="--size 8")
    (found,) = choose([], tmp_path)
    assert (found.path.name, [path.name for path in found.parts]) == ("2026-01-02-x.csv", ["2026-01-03-x-2.csv"])
    assert [(sample.cell, sample.count) for sample in found.record.samples if sample.peer == "a"] == [
        (one, 10),
        (two, 20),
        (three, 20),
    ]
    page = write([found], tmp_path / "out", draw=None).page.read_text()
    assert "2026-01-02-x.csv, newer in part: 2026-01-03-x-2.csv" in page


def test_docs_have_the_headline_pictures(tmp_path: Path) -> None:
    charts = [dataclasses.replace(chart, headline=chart.name == "delay") for chart in CHARTS]
    written = write([chosen(*charts)], tmp_path / "out", draw=lambda data, name: f"<svg>{name}</svg>", clone=tmp_path)
    assert len(written.pictures) == len(CHARTS)
    page, *pictures = written.docs
    assert page == tmp_path / "bench" / "benchmarks.md"
    assert [path.parent for path in pictures] == [tmp_path / "docs" / "pictures"]
    assert re.findall(r"^!\[.*\]\((.*)\)$", page.read_text(), re.MULTILINE) == [f"../docs/pictures/{pictures[0].name}"]
    assert set(written.docs) < set(written.all)


def test_the_kept_page_is_that_of_the_kept_records(tmp_path: Path) -> None:
    """``make bench-report`` was run after the last change of either; pictures depend on the version of matplotlib."""
    written = write(choose([]), tmp_path / "out", draw=lambda data, name: "<svg></svg>", clone=tmp_path)
    assert written.docs[0].read_text() == (ROOT / "bench" / "benchmarks.md").read_text()
    kept = {path.name for path in (ROOT / "docs" / "pictures").glob("*.svg")}
    assert {path.name for path in written.docs[1:]} == kept


def test_nowhere_to_write(tmp_path: Path) -> None:
    path = kept(tmp_path / "2026-01-01-gone.csv", "gone")
    (tmp_path / "file").touch()
    done = report(path, "--no-pictures", "--out", tmp_path / "file")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"bench: cannot write {tmp_path / 'file'}: ")
