"""What the records become: the page, words and pictures of the README."""

from __future__ import annotations

import re
import shutil
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from harness import command, report, scenario
from harness.errors import BenchError, UsageError
from harness.peers import Peers, Sample
from harness.places import ROOT
from harness.record import COLUMNS, Journal, read
from harness.results import Figure
from harness.scenario import Cell
from harness.wins import Comparison, comparisons, is_ours
from msgspec.structs import replace

FACTS = {
    "time": "2026-01-02T03:04:05+00:00",
    "revision": "1a2b3c",
    "tree": "7d8e9f",
    "cpu": "A Processor",
    "cores": "2",
    "system": "Linux 6",
    "peers' python": "CPython 3.13.1",
}


def samples(cell: Cell, rates: dict[str, list[int]], **changes: Any) -> list[Sample]:
    fields: dict[str, Any] = {**cell._asdict(), "seconds": 1.0, "user": 0.1, "system": 0.1, **changes}
    return [
        Sample(peer=peer, round=number, count=rate, **fields)
        for peer, own in rates.items()
        for number, rate in enumerate(own, 1)
    ]


def keep(folder: Path, name: str, made: Iterable[Sample], **facts: str) -> Path:
    peers = Peers(folder, folder, folder, {}, "")
    journal = Journal(folder / f"{name}.csv", {"scenario": name, **FACTS, **facts}, peers, resume=False)
    journal.add(list(made))
    return journal.finish(folder / "records" / "machine")


ROUND_TRIP = Cell("round-trip", 256, tls=False)
STREAM = Cell("stream-in", 64, tls=False)
OURS, WEBSOCKETS, PICOWS = "wirespeed:await@uvloop", "websockets:await@uvloop", "picows:callbacks@uvloop"
CYTHON = "picows-cython:callbacks@uvloop"
RESTLESS = [400, 420, 540, 400, 410]
# Rates of servers.
SERVING = {"wirespeed-server:await": 800, "websockets-server": 100, "uvicorn-server:wirespeed": 300}


@pytest.fixture
def records(tmp_path: Path) -> Path:
    made = [
        *samples(ROUND_TRIP, {OURS: RESTLESS, WEBSOCKETS: [100] * 5, PICOWS: RESTLESS[::-1], "raw-c:epoll": [800]}),
        *samples(ROUND_TRIP, {"curl_cffi:await@uvloop": [0], "wirespeed-sync": [0]}, failure="lost a message"),
        *samples(STREAM, {OURS: [300, 310] * 3, CYTHON: [1000] * 6, WEBSOCKETS: [100] * 6}),
        # The slower style of a rival is no second win, and one whose rounds disagree hides no loss.
        *samples(STREAM, {"websockets:iterate@uvloop": [50] * 6, "picows-cython:await@uvloop": [200, 9000, 9000] * 2}),
        # Too few rounds for a verdict.
        *samples(Cell("send", 64, tls=False), {OURS: [100] * 4, "aiohttp:await@uvloop": [900] * 4}),
    ]
    keep(tmp_path, "clients", made)
    keep(tmp_path, "beast", samples(ROUND_TRIP, {OURS: [1] * 5, WEBSOCKETS: [1000] * 5}))
    latencies = {OURS: [5] * 5, WEBSOCKETS: [5] * 5}
    made = samples(Cell("ready", 0, tls=True), latencies, figures={"p50": 20.0}, measures="latency")
    keep(tmp_path, "opening", made)
    codecs = {"codecs:send-json@uvloop": [100] * 5, "codecs:orjson@uvloop": [200] * 5}
    closed = samples(Cell("closed-send", 0, tls=False), {OURS: [900] * 5, WEBSOCKETS: [1] * 5})
    keep(tmp_path, "rest", [*samples(Cell("codec-send-book", 0, tls=False), codecs), *closed])
    serving = {f"{peer}@uvloop": [rate] * 5 for peer, rate in (SERVING | {"uvicorn-server:default": 200}).items()}
    keep(tmp_path, "servers", samples(Cell("echo-100", 128, tls=False), serving))
    return tmp_path / "records"


def run(*arguments: object) -> int:
    return command.main(["report", *map(str, arguments)])


def test_page_readme_and_pictures(records: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    clone = tmp_path / "clone"
    clone.mkdir()
    (clone / "README.md").write_text(f"before\n{report.BEGIN}\nold\n{report.END}\nafter\n")
    assert run("--records", records, "--clone", clone, "--out", tmp_path / "out") == 2
    assert run("--records", records, "--clone", clone, "--out", tmp_path / "out", "--partial") == 0

    page = (clone / "docs" / "benchmarks.md").read_text()
    assert len(page.splitlines()) <= 250
    sentence = (
        "its clients are 3.6 times as fast as those of websockets (from 3.0 to 4.1), its servers are 8.0 times as fast"
        " as those of websockets (from 8.0 to 8.0). In most cells it is behind: orjson as codec, picows-cython."
        " Level with: aiohttp, picows. Ahead of 3 others. Of 10 comparisons, latencies and memory among"
        " them, it is better in 5, level in 3, worse in 2."
    )
    assert sentence in page
    assert "| picows-cython | 0.3 `clients/stream-in` of 64 B | 0 | 0 | 1 |" in page
    losses = [line.split(" |")[0] for line in page.splitlines() if line.startswith(("| picows", "| orjson"))]
    assert losses[:3] == ["| picows-cython", "| orjson as codec", "| picows"]
    assert "Failed: `clients/round-trip, 256 B, plain`, wirespeed-sync: lost a message" in page
    assert "| rounds | 5 rounds, 5% apart |" in page
    assert "| uvicorn-server:default@uvloop | 200 (1.50) |" in page
    assert "A Processor, 2 cores, Linux 6, CPython 3.13.1; 2026-01-02, at commit 1a2b3c." in page
    assert "| websockets:await@uvloop | 100 (4.10) |" in page
    assert "(**" not in page.partition("## And with a server")[0]
    assert "| picows-cython:callbacks@uvloop | 1,000 (**0.30**) |" in page
    assert "| curl_cffi:await@uvloop | failed |" in page
    assert "Not measured." in page
    readme = (clone / "README.md").read_text()
    assert readme.startswith("before\n")
    assert readme.endswith("after\n")
    assert "old" not in readme
    loss = "| `clients/stream-in` of 64 B | picows-cython:callbacks@uvloop | 0.305 (0.300 - 0.310) | 6 rounds,"
    assert loss in readme
    assert "| `rest/codec-send-book` | codecs:orjson@uvloop | 0.500" in readme
    assert "docs/pictures/round-trip.svg" in readme
    assert "(docs/benchmarks.md)" in readme
    picture = (clone / "docs" / "pictures" / "round-trip.svg").read_text()
    texts = [element.text for element in ElementTree.fromstring(picture).iter("{http://www.w3.org/2000/svg}text")]
    assert {"wirespeed", "websockets", "410", "sockets in C"} <= set(texts)
    tables = (tmp_path / "out" / "tables.txt").read_text()
    assert "Round trips: send, wait for the echo, 256 B, plain (5 rounds, 5% apart)" in tables
    assert "curl_cffi:await@uvloop: FAILED: lost a message" in tables


def test_a_readme_without_a_place_is_left_alone(records: Path, tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("nothing")
    assert run("--partial", "--records", records, "--clone", tmp_path, "--out", tmp_path / "out") == 1
    assert (tmp_path / "README.md").read_text() == "nothing"


def test_the_newest_whole_record_of_each_scenario_counts(records: Path, tmp_path: Path) -> None:
    made = samples(ROUND_TRIP, {OURS: [1]})
    later = keep(tmp_path, "clients", made, time="2026-02-01T00:00:00+00:00")
    keep(tmp_path, "clients", made, time="2026-03-01T00:00:00+00:00", choice="--peer wirespeed")
    assert {later.name, next(records.rglob("*opening*")).name} < {path.name for path in report.newest(records)}
    other = records / "another"
    other.mkdir()
    shutil.move(keep(tmp_path, "opening", made, time="2026-04-01T00:00:00+00:00", cpu="Another"), other)
    found = report.newest(records)
    assert [path.parent.name for path in found if "opening" in path.name] == ["another"]
    found = [path for path in found if "opening" in path.name or "clients" in path.name]
    text = report.Report(report.plan(), [report.Chosen(path) for path in found]).page()
    more = "2 cores, Linux 6, CPython 3.13.1"
    assert f"Measured on A Processor, {more} (clients); Another, {more} (opening); 2026-02-01 to 2026-04-01, at" in text
    with pytest.raises(UsageError, match="has no whole records"):
        report.newest(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("low", "median", "high", "lower", "verdict"),
    [
        (1.1, 1.2, 1.3, False, "better"),
        (1.1, 1.2, 1.3, True, "worse"),
        (0.9, 1.2, 1.3, False, "level"),
        (1.001, 1.01, 1.02, False, "level"),
        (0.7, 0.8, 0.9, False, "worse"),
        (0.7, 0.8, 0.9, True, "better"),
    ],
)
def test_verdicts(low: float, median: float, high: float, lower: bool, verdict: str) -> None:
    whole, cell = scenario.load("clients"), Cell("idle", 0, tls=False) if lower else ROUND_TRIP
    workload, figure = whole.called(cell.workload), Figure(median, low, high)
    for rounds, expected in ((5, verdict), (4, "level")):
        made = samples(cell, {"a": [1] * rounds})
        assert Comparison(whole, workload, cell, "a", "b", figure, made).verdict == expected


def test_every_rival_is_compared_with_one_of_ours_in_every_cell() -> None:
    for name in scenario.names():
        whole = scenario.load(name)
        for job in whole.jobs():
            figures = dict.fromkeys(("p50", "p99", "late_p50", "share", "lesser"), 1.0)
            made = samples(job.cell, {peer: [1] for peer in job.peers}, measures=job.workload.measures, figures=figures)
            made = [replace(one, memory=1) for one in made]
            found = Counter(one.rival for one in comparisons(whole, {job.cell: made}))
            ours = {peer for peer in job.peers if is_ours(peer) or peer.startswith("codecs:send")}
            rivals = {peer for peer in job.peers if not scenario.is_one_of(peer, whole.limits)} - ours
            # Others encode and decode alone, without a message of anybody.
            assert found == (Counter() if job.workload.group in ("encode", "decode") else Counter(rivals)), (
                name,
                job.cell,
            )


def test_the_page_is_short_and_has_every_loss_whatever_is_lost(tmp_path: Path) -> None:
    chosen = []
    for name in scenario.names():
        whole = scenario.load(name)
        made = [
            one
            for job in whole.jobs()
            for number, peer in enumerate(sorted(job.peers, key=is_ours))
            for one in samples(job.cell, {peer: [10 * (len(job.peers) - number) for _ in range(5)]}, measures="rate")
        ]
        chosen.append(report.Chosen(keep(tmp_path, name, made)))
    whole_report = report.Report(report.plan(), chosen)
    page = whole_report.page()
    assert len(page.splitlines()) <= 250
    table = page.partition("## Rival by rival")[2].partition("\n## ")[0]
    assert len(re.findall(r"(?:\| |<br>)[0-9.]+ `", table)) == len(whole_report.losses) > 250
    missed = page.partition("## Bars")[2].partition("\n## ")[0]
    assert len(re.findall(r"(?:\| |<br>)`[^`]+` [^ ]+: ", missed)) == len(whole_report.missed) > 50
    whole_report.plan.question.extend(whole_report.plan.question)
    with pytest.raises(BenchError, match=r"report\.toml asks for too much"):
        whole_report.page()


def test_what_is_not_whole_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = samples(ROUND_TRIP, {OURS: [1]})
    for name in scenario.names():
        if name != "servers":
            keep(tmp_path, name, made)
    for facts in ({}, {"choice": "--rounds 1"}, {"tree": "another", "time": "2025-01-01"}):
        if facts:
            keep(tmp_path, "servers", made, **facts)
        assert run("--records", tmp_path / "records", "--out", tmp_path) == 2
        assert "run python -m bench run --resume servers," in capsys.readouterr().err
    keep(tmp_path, "servers", made)
    assert run("--records", tmp_path / "records", "--out", tmp_path) == 0


def test_the_plan_is_sound() -> None:
    plan = report.plan()
    assert len(plan.picture) == 2
    for one in plan.question:
        whole = scenario.load(one.scenario)
        for name in one.workloads:
            assert any(workload.is_called(name) for workload in whole.workload), (one.title, name)
        assert all(any(scenario.is_one_of(peer, [asked]) for peer in whole.peers) for asked in one.peers), one.title
    for picture in plan.picture:
        cells = {job.cell: job.peers for job in scenario.load(picture.scenario).jobs()}
        assert set(picture.peers) <= set(cells[Cell(picture.workload, picture.size, picture.tls)])


# By document, words of the names of its workloads.
SEEDS = {
    "curl_cffi": "upload; download; concurrent; with and without coalescing; 2,048 and 65,536; TLS and plain; hashed",
    "WSE": """connect latency; p95; ping round trip; sequential; sustained JSON and MessagePack; by second;
        50 senders x 1,000; sizes 93 B to 64 KiB; 10 and 64; worker scaling; connect cycles; storms 100 to 15,000;
        pings under load; saturation; hold; serialization; formats; drain on and off; fan-out""",
    "websocket-benchmark": "256, 8,192, 100,000 B; plain and TLS; asyncio and uvloop; every client; Beast as server",
    "websocket-rs": """request-response 512 B to 1 MiB; sync and async; client to server; server to client;
        pipelined 100; with latency; mixed 90/10; error path""",
}


def test_every_workload_of_other_projects_is_here() -> None:
    seeds = report.plan().seed
    for document, words in SEEDS.items():
        text = "; ".join(one.workload for one in seeds if one.document == document)
        assert [word for word in re.split(r";\s+", words) if word not in text] == [], document
    for one in seeds:
        assert one.here
        for place in one.here:
            name, _, workload = place.partition("/")
            assert any(known.is_called(workload) for known in scenario.load(name).workload), place
    sizes = {job.cell.size for job in scenario.load("clients").jobs() if job.cell.workload == "round-trip"}
    assert {256, 512, 8192, 100_000, 1 << 20} <= sizes


def test_pictures_need_matplotlib(records: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "harness.pictures", None)
    made = report.Report(report.plan(), [report.Chosen(path) for path in report.newest(records)])
    with pytest.raises(BenchError, match="pictures need"):
        list(made.pictures())


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("", "it has no samples"),
        ("a,b\n1,2\n", "KeyError"),
        (",".join(COLUMNS) + "\necho,many,0,1,ours,1,rate,1,1,1,1,,,,\n", "ValidationError"),
        (",".join(COLUMNS) + "\necho,1,0,1,ours,1,luck,1,1,1,1,,,,\n", "measures luck"),
        (",".join(COLUMNS) + "\necho,1\n", "is no record"),
    ],
)
def test_no_record(tmp_path: Path, content: str, complaint: str) -> None:
    path = tmp_path / "wrong.csv"
    path.write_text(content)
    with pytest.raises(UsageError, match=complaint):
        read(path)


def test_every_record_that_is_kept() -> None:
    page = ROOT / "docs" / "benchmarks.md"
    assert not page.exists() or len(page.read_text().splitlines()) <= 250
    trees = set()
    for path in (ROOT / "bench" / "records").rglob("*.csv"):
        kept = read(path)
        assert kept.facts["scenario"] in path.name
        assert kept.facts["tree"].isalnum()
        trees.add(kept.facts["tree"])
    assert len(trees) <= 1


def test_page_and_readme_are_what_the_kept_records_make() -> None:
    records = [report.Chosen(path) for path in report.newest(ROOT / "bench" / "records")]
    made = report.Report(report.plan(), records)
    assert (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8") == made.page(), "make bench-report"
    words = f"{report.BEGIN}\n\n{made.readme()}\n\n{report.END}"
    assert words in (ROOT / "README.md").read_text(encoding="utf-8"), "make bench-report"
