"""Reports made of the records: the page, words and pictures of the README."""

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
from harness.plan import plan
from harness.record import COLUMNS, Journal, read
from harness.results import NOISE, Figure, judge
from harness.scenario import Cell
from harness.wins import Comparison, comparisons, is_ours
from msgspec.structs import replace

FACTS = {
    "time": "2026-01-02T03:04:05+00:00",
    "revision": "1a2b3c4d5e6f",
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
        *samples(ROUND_TRIP, {"aiohttp:await@uvloop": [0], "wirespeed-sync": [0]}, failure="lost a message"),
        *samples(STREAM, {OURS: [300, 310] * 3, CYTHON: [1000] * 6, WEBSOCKETS: [100] * 6}),
        # The slower style of a rival is no second win, and one with contradicting rounds hides no loss.
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
    (clone / "README.md").write_text(f"before\n{report.BEGIN}\nearlier words\n{report.END}\nafter\n")
    assert run("--records", records, "--clone", clone, "--out", tmp_path / "out") == 2
    assert run("--records", records, "--clone", clone, "--out", tmp_path / "out", "--partial") == 0

    page = (clone / "docs" / "benchmarks.md").read_text()
    for sentence in (
        "the clients of wirespeed are 3.6 times as fast as those of `websockets` (3.0 to 4.1 times).",
        "the servers of wirespeed are 8.0 times as fast as those of `websockets` (8.0 to 8.0 times).",
        "In 9 comparisons with other libraries, wirespeed is better in 4, level in 3 and worse in 2.",
        "Measured on A Processor, 2 cores, Linux 6, CPython 3.13.1.",
        "Revision 1a2b3c4d5, 2026-01-02.",
        "| rounds | 5 rounds, 5% apart |",
        "| uvicorn-server:default@uvloop | 200 (1.50) |",
        "| websockets:await@uvloop | 100 (4.10) |",
        "| picows-cython:callbacks@uvloop | 1,000 (**0.30**) |",
        "| aiohttp:await@uvloop | failed |",
        "`aiohttp:await@uvloop` failed: lost a message.",
        "| `clients/stream-in` of 64 B | picows-cython:callbacks@uvloop | **0.30** | 6 rounds, 0% apart | 1a2b3c4d5 |",
        "| `rest/codec-send-book` | codecs:orjson@uvloop | **0.50** | 5 rounds, 0% apart | 1a2b3c4d5 |",
        "Not measured.",
    ):
        assert sentence in page, sentence
    # The server of another project is shown, and not counted.
    assert "| websockets:await@uvloop | 1,000 (**0.00**) |" in page
    assert "`beast/round-trip` of" not in page
    readme = (clone / "README.md").read_text()
    assert readme.startswith("before\n")
    assert readme.endswith("after\n")
    assert "earlier words" not in readme
    assert (
        "| client: messages received per second, 64 B | 305 | picows-cython: 1,000 | **0.30** | 1a2b3c4d5 |" in readme
    )
    assert "| client: round trips per second, 256 B | 410 | picows: 410 | 1.00 | 1a2b3c4d5 |" in readme
    assert "docs/pictures/round-trip.svg" in readme
    assert "/blob/main/docs/benchmarks.md)" in readme
    picture = (clone / "docs" / "pictures" / "round-trip.svg").read_text()
    texts = [element.text for element in ElementTree.fromstring(picture).iter("{http://www.w3.org/2000/svg}text")]
    assert {"wirespeed", "websockets", "410", "sockets in C"} <= set(texts)
    tables = (tmp_path / "out" / "tables.txt").read_text()
    assert "Round trips: send, wait for the echo, 256 B, plain (5 rounds, 5% apart)" in tables
    assert "aiohttp:await@uvloop: FAILED: lost a message" in tables
    assert "Sending on a connection that the server has closed, plain (5 rounds" in tables


def test_readme_without_markers_is_unchanged(records: Path, tmp_path: Path) -> None:
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
    text = report.Report(plan(), found).page()
    more = "2 cores, Linux 6, CPython 3.13.1"
    assert f"Measured on A Processor, {more} (clients).\nMeasured on Another, {more} (opening).\n" in text
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
            # Others encode and decode alone, without sending messages.
            assert found == (Counter() if job.workload.group in ("encode", "decode") else Counter(rivals)), (
                name,
                job.cell,
            )


def shown_samples(name: str) -> list[Sample]:
    """Returns five rounds of every shown cell of a scenario, in which wirespeed is the slowest."""
    whole = scenario.load(name)
    return [
        one
        for job in plan().headline(whole, whole.jobs())
        for number, peer in enumerate(sorted(job.peers, key=is_ours))
        for one in samples(job.cell, {peer: [10 * (len(job.peers) - number) for _ in range(5)]}, measures="rate")
    ]


def test_page_lists_every_loss(tmp_path: Path) -> None:
    own = {name: shown_samples(name) for name in scenario.names() if name != "cores"}
    made = report.Report(plan(), [keep(tmp_path, name, one) for name, one in own.items()])
    losses = made.page().partition("## Where wirespeed is worse\n")[2].partition("\n## ")[0]
    assert losses.count("| **0.") == len(made.losses) > 100


def test_missing_cells_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in scenario.names():
        if name not in ("brokers", "cores"):
            keep(tmp_path, name, shown_samples(name))
    # A record of a part does not count, and neither does one without all cells.
    for facts in ({"choice": "--rounds 1"}, {"time": "2025-01-01"}):
        keep(tmp_path, "brokers", shown_samples("brokers")[:5], **facts)
        assert run("--records", tmp_path / "records", "--out", tmp_path) == 2
        assert "python -m bench run --headline brokers," in capsys.readouterr().err
    keep(tmp_path, "brokers", shown_samples("brokers"), revision="9f8e7d6c5b4a")
    assert run("--records", tmp_path / "records", "--out", tmp_path) == 0


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


def test_every_workload_of_other_projects_exists() -> None:
    seeds = plan().seed
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
    made = report.Report(plan(), report.newest(records))
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


KEPT = report.newest(ROOT / "bench" / "records")


def test_records_are_of_committed_code() -> None:
    for path in (ROOT / "bench" / "records").rglob("*.csv"):
        kept = read(path)
        assert kept.facts["scenario"] in path.name
        assert kept.facts["tree"].isalnum()


def test_page_and_readme_match_the_stored_records() -> None:
    made = report.Report(plan(), KEPT)
    assert (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8") == made.page(), "make bench-report"
    words = f"{report.BEGIN}\n\n{made.readme()}\n\n{report.END}"
    assert words in (ROOT / "README.md").read_text(encoding="utf-8"), "make bench-report"


def test_every_table_names_the_revision_of_its_record() -> None:
    revisions = {one.scenario.name: one.revision for one in report.Report(plan(), KEPT).shown}
    page = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    for question in plan().question:
        table = page.partition(f"\n## {question.title}\n")[2].partition("\n## ")[0]
        assert f"\nRevision {revisions[question.scenario]}, 20" in table, question.title
    losses = page.partition("\n## Where wirespeed is worse\n")[2].partition("\n## ")[0]
    for rows in (rows_of(readme_part()), rows_of(losses)):
        assert rows[0][-1] == "revision"
        assert {row[-1] for row in rows[2:]} <= set(revisions.values())
    named = {row[0]: row[-1] for row in rows_of(readme_part())}
    assert all(named[row.title] == revisions[row.scenario] for row in plan().row)


def test_readme_shows_gains_and_losses() -> None:
    factors = [row[-2] for row in rows_of(readme_part())[2:]]
    assert 1 <= len(factors) <= 10
    assert any(factor.startswith("**") for factor in factors)
    assert any(float(factor.strip("*")) > 1 for factor in factors)


def readme_part() -> str:
    return (ROOT / "README.md").read_text(encoding="utf-8").partition(report.BEGIN)[2].partition(report.END)[0]


def rows_of(text: str) -> list[list[str]]:
    """Returns the rows of a table, with its heading and the line below."""
    return [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("|")]


def test_every_bar_holds_in_the_stored_records() -> None:
    """A bar is a promise: it holds in the records, and requires no more than bare C reaches in the same run.

    A difference within the noise of these benchmarks breaks no promise.
    """
    judged = 0
    for path in (ROOT / "bench" / "records").rglob("*.csv"):
        kept = read(path)
        whole = scenario.load(kept.facts["scenario"])
        for cell, own in kept.cells().items():
            workload = next((one for one in whole.workload if one.name == cell.workload), None)
            for result in judge(workload, cell, own) if workload else ():
                if "set" in kept.facts and result.figure is None:
                    continue  # a headline record does not have all peers
                assert workload is not None
                low, high = result.bar.at_least, result.bar.at_most
                bar = replace(result.bar, at_least=low and low / (1 + NOISE), at_most=high and high * (1 + NOISE))
                assert result.figure is not None, (path.name, result)
                assert bar.passes(result.figure.median), (path.name, result)
                judged += 1
                bare = [peer for peer in whole.limits if peer.startswith("raw-c") and peer not in bar.versus]
                limits = replace(workload, bars=tuple(replace(bar, peer=peer) for peer in bare))
                verdicts = {one.verdict for one in judge(limits, cell, own)} - {"NOT MEASURED"}
                assert not verdicts or "PASS" in verdicts, (path.name, result)
    assert judged > 50
