"""Run the Autobahn test suite against the blocking client and compare the result with what is expected.

    python conformance/run_client.py [--cases quick|small|all|PATTERN ...] [--library wirespeed|websockets]

Exit status: 0 as expected, 1 not as expected, 2 the run itself failed, 77 there is no CPython 2.7 to run the suite
with."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

__all__ = ["main"]

HERE = Path(__file__).resolve().parent
EXPECTATIONS = HERE / "expectations.json"
SKIPPED = 77

# Patterns of the suite: regular expressions but for "." and "*".
SETS: dict[str, tuple[list[str], list[str]]] = {
    "quick": (["*"], ["9.*", "12.*", "13.*"]),
    "small": (["*"], ["9.*", "12.*.[5-9]$", "12.*.1[0-8]$", "13.*.[5-9]$", "13.*.1[0-8]$"]),
    "all": (["*"], []),
}

# Seconds. Case 12.5.18 is the longest: 1000 messages of 128 KiB, compressed by the suite in Python 2.
CASE_TIMEOUT = 120.0
START_TIMEOUT = 30.0
REPORT_TIMEOUT = 60.0

# The largest message of the suite has 16 MiB, in 9.3 and 9.4 in up to 256 Ki fragments.
LIMITS = {"max_size": None, "max_fragments": None}


class RunError(Exception):
    """The run did not come to a result."""


@dataclasses.dataclass(frozen=True)
class Library:
    """The client under test: how to connect, and what a closed connection raises."""

    name: str
    connect: Callable[..., Any]
    closed: type[Exception]


def load(name: str) -> Library:
    if name == "wirespeed":
        from wirespeed.exceptions import ConnectionClosed
        from wirespeed.sync import connect

        return Library(name, lambda uri, **options: connect(uri, **LIMITS, **options), ConnectionClosed)

    # Read when the library is imported.
    os.environ.setdefault("WEBSOCKETS_MAX_FRAGMENTS", str(1 << 20))
    from websockets.exceptions import ConnectionClosed as WebsocketsClosed
    from websockets.sync.client import connect as websockets_connect

    return Library(
        name,
        lambda uri, **options: websockets_connect(uri, max_size=None, legacy=True, **options),
        WebsocketsClosed,
    )


@contextlib.contextmanager
def fuzzing_server(wstest: Path, report: Path, cases: list[str], excluded: list[str]) -> Iterator[str]:
    """Run the suite's server on a free port of the loopback; yields its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    spec = report / "spec.json"
    uri = f"ws://127.0.0.1:{port}"
    spec.write_text(
        json.dumps(
            {
                "url": uri,
                "outdir": str(report),
                "cases": cases,
                "exclude-cases": excluded,
                "exclude-agent-cases": {},
            }
        )
    )
    with (report / "server.log").open("w") as log:
        # In a session of its own, so that a Ctrl-C in the terminal reaches this process only, which then stops it.
        child = subprocess.Popen(
            [str(wstest), "-m", "fuzzingserver", "-s", str(spec)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        wait_until_listening(child, port, report / "server.log")
        yield uri
    finally:
        child.terminate()
        try:
            child.wait(5)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait(5)


def wait_until_listening(child: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline = time.monotonic() + START_TIMEOUT
    while True:
        if child.poll() is not None:
            raise RunError(f"the fuzzing server ended with status {child.returncode}:\n{log.read_text()[-2000:]}")
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        if time.monotonic() > deadline:
            raise RunError(f"the fuzzing server does not listen after {START_TIMEOUT:.0f} s")
        time.sleep(0.05)


@contextlib.contextmanager
def deadline(seconds: float, what: str) -> Iterator[None]:
    """Interrupt the block, whatever it waits for, and end the run if it cannot be interrupted."""

    def expired(number: int, frame: object) -> None:
        raise RunError(f"{what} took more than {seconds:.0f} s")

    previous = signal.signal(signal.SIGALRM, expired)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)


def count_cases(library: Library, server: str) -> int:
    with deadline(START_TIMEOUT, "asking for the number of cases"):
        ws = library.connect(f"{server}/getCaseCount")
        try:
            return int(ws.recv())
        finally:
            ws.close()


def run_case(library: Library, server: str, number: int) -> None:
    """Echo everything until the connection is closed. How it is closed is for the suite to judge."""
    with deadline(CASE_TIMEOUT, f"case number {number}"):
        ws = library.connect(
            f"{server}/runCase?case={number}&agent={library.name}", open_timeout=30, ping_interval=None
        )
        try:
            while True:
                ws.send(ws.recv())
        except library.closed:
            pass
        finally:
            ws.close()


def update_reports(library: Library, server: str) -> None:
    with deadline(REPORT_TIMEOUT, "writing the reports"):
        # The suite answers the handshake when all reports are written.
        ws = library.connect(f"{server}/updateReports?agent={library.name}", open_timeout=REPORT_TIMEOUT)
        with contextlib.suppress(library.closed):
            while True:
                ws.recv()
        ws.close()


def run(library: Library, wstest: Path, report: Path, cases: list[str], excluded: list[str], limit: float) -> int:
    """Run all cases; returns their number."""
    start = time.monotonic()
    with fuzzing_server(wstest, report, cases, excluded) as server:
        count = count_cases(library, server)
        for number in range(1, count + 1):
            show_progress(number, count, start)
            if time.monotonic() - start > limit:
                raise RunError(f"only {number - 1} of {count} cases ran in {limit:.0f} s")
            try:
                run_case(library, server, number)
            except (RunError, KeyboardInterrupt):
                raise
            except Exception as exc:
                # The case counts as failed by what the suite has recorded; the reason would be lost otherwise.
                print(f"\ncase number {number}: {type(exc).__name__}: {exc}", file=sys.stderr)
        show_progress(count, count, start, end="\n")
        update_reports(library, server)
    return count


def show_progress(number: int, count: int, start: float, end: str = "") -> None:
    # A terminal shows one line that changes, a log some lines.
    if sys.stderr.isatty():
        print(f"\r{number}/{count} cases, {time.monotonic() - start:.0f} s", end=end, file=sys.stderr, flush=True)
    elif number % 50 == 0 or number == count:
        print(f"{number}/{count} cases, {time.monotonic() - start:.0f} s", file=sys.stderr, flush=True)


def order(case: str) -> list[int]:
    return [int(part) for part in case.split(".")]


def compare(results: dict[str, dict[str, Any]], expected: dict[str, Any]) -> list[str]:
    """The differences, one line each."""
    exceptions = expected["exceptions"]
    lines = []
    for case in sorted(results, key=order):
        allowed = exceptions.get(case, {"behavior": ["OK"], "behaviorClose": ["OK"]})
        for verdict in ("behavior", "behaviorClose"):
            found = results[case][verdict]
            if found not in allowed[verdict]:
                wanted = " or ".join(allowed[verdict])
                lines.append(f"{case:8} {verdict:13} {found}, expected {wanted}   {results[case]['reportfile']}")
    return lines


def judge(library: Library, report: Path, ran: int, wanted: int | None) -> int:
    """Compare the report with the expectations and tell; returns the exit status."""
    index = report / "index.json"
    if not index.exists():
        raise RunError(f"the suite wrote no {index}")
    results = json.loads(index.read_text()).get(library.name, {})
    # The suite exits with 0 and leaves out what did not run, so the number is part of the result.
    if len(results) != ran:
        raise RunError(f"{ran} cases ran, but the report has {len(results)}")
    if wanted is not None and ran != wanted:
        raise RunError(f"the suite ran {ran} cases, {wanted} were expected")
    expected = json.loads(EXPECTATIONS.read_text())
    differences = compare(results, expected)
    verdicts: dict[str, int] = {}
    for result in results.values():
        verdicts[result["behavior"]] = verdicts.get(result["behavior"], 0) + 1
    summary = ", ".join(f"{number} {name}" for name, number in sorted(verdicts.items(), key=lambda item: -item[1]))
    print(f"{library.name}: {len(results)} cases: {summary}")
    if not differences:
        for case in sorted(set(results) & set(expected["exceptions"]), key=order):
            print(f"  {case} {results[case]['behavior']}: {expected['exceptions'][case]['reason']}")
        print("as expected")
        return 0
    print(f"{len(differences)} verdicts are not as expected; the reports are in {report}")
    for line in differences:
        print(f"  {line}")
    return 1


def install(target: Path) -> int:
    """Make sure that the suite is there; returns the exit status of the script."""
    return subprocess.run([str(HERE / "setup.sh"), str(target)], check=False).returncode


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--cases", nargs="+", default=["small"], metavar="SET", help="quick (default: small), all, or case patterns"
    )
    parser.add_argument("--library", choices=["wirespeed", "websockets"], default="wirespeed")
    parser.add_argument("--autobahn", type=Path, default=HERE.parent / "build" / "autobahn", help="where the suite is")
    parser.add_argument("--report", type=Path, default=HERE / "report" / "client", help="where the reports go")
    parser.add_argument("--timeout", type=float, default=1800.0, help="seconds for the whole run")
    options = parser.parse_args(arguments)

    if options.cases[0] in SETS and len(options.cases) == 1:
        name = options.cases[0]
        cases, excluded = SETS[name]
        wanted = json.loads(EXPECTATIONS.read_text())["cases"][name]
    else:
        cases, excluded, wanted = options.cases, [], None

    status = install(options.autobahn)
    if status == SKIPPED:
        return SKIPPED
    if status != 0:
        print("the suite cannot be installed", file=sys.stderr)
        return 2
    library = load(options.library)
    report = options.report.resolve()
    shutil.rmtree(report, ignore_errors=True)
    report.mkdir(parents=True)
    try:
        wstest = options.autobahn.resolve() / "bin" / "wstest-local"
        ran = run(library, wstest, report, cases, excluded, options.timeout)
        return judge(library, report, ran, wanted)
    except (RunError, OSError) as exc:
        print(f"\n{exc}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
