"""Repeats failed tests alone.

Thousands of tests share a few cores with everything else that a machine does, and some of them have time limits. With
``--again TIMES`` a failed test is repeated alone TIMES times, and has to pass each time. It is reported at the end with
its first failure, so that the cause can be found.

A failure stays one, even if repetitions pass, if more than ``AT_MOST`` tests failed, if a process ended, and in tests
that make random calls: those find rare errors, which no repetition would show again.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import PurePosixPath

import pytest

AT_MOST = 2
RANDOM = {"api", "differential", "liveness", "panics", "soak", "test_ends.py", "test_liveness.py"}
ALONE_TIMEOUT = 300


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--again",
        type=int,
        choices=range(100),
        default=0,
        metavar="TIMES",
        help="a test that fails beside others is no failure if it then passes so many times alone",
    )


def pytest_configure(config: pytest.Config) -> None:
    # Workers of xdist leave it to the process that started them.
    if config.getoption("--again") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Again(config), "again")


def repeatable(report: pytest.TestReport) -> bool:
    """Returns whether repeating a failure is meaningful."""
    path = PurePosixPath(report.nodeid.partition("::")[0])
    return "crashed" not in report.longreprtext[:200] and RANDOM.isdisjoint(path.parts)


class Again:
    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._times = int(config.getoption("--again", 0) or 0)
        self._failed: list[pytest.TestReport] = []
        self._collected = True
        self._passed = False

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self._collected = self._collected and not report.failed

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._failed.append(report)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        tests = {report.nodeid for report in self._failed}
        if session.exitstatus != pytest.ExitCode.TESTS_FAILED or not self._collected or not tests:
            return
        if session.shouldfail or session.shouldstop or len(tests) > AT_MOST or not all(map(repeatable, self._failed)):
            return
        self._passed = all(self._pass_alone(sorted(tests)) for _ in range(self._times))
        if self._passed:
            session.exitstatus = pytest.ExitCode.OK

    def _pass_alone(self, tests: list[str]) -> bool:
        # A test may be beyond the default run.
        everything = ["--rotation=0/1"] if self._config.getoption("rotation", None) else []
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
        command += [f"--rootdir={self._config.rootpath}", *everything, *tests]
        try:
            done = subprocess.run(
                command, cwd=self._config.rootpath, timeout=ALONE_TIMEOUT, capture_output=True, check=False
            )
        except subprocess.TimeoutExpired:
            return False
        # A skipped test has not passed.
        return done.returncode == 0 and b"%d passed" % len(tests) in done.stdout

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if not self._passed:
            return
        terminalreporter.section("failed beside others, passed alone", yellow=True)
        for report in self._failed:
            terminalreporter.line(f"{report.nodeid} ({report.when}): look for the cause; it passed {self._times} times")
