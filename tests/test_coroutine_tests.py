"""Tests that are coroutine functions: tests/support/coroutine_tests.py."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.wirespeed_only("about the tests themselves")

CASES = {
    "passes": ("async def test_it(tmp_path): assert tmp_path.is_dir()", "1 passed"),
    "fails": ("async def test_it(): assert 1 == 2", "assert 1 == 2"),
    "skips": ("async def test_it(): pytest.skip('why')", "1 skipped"),
    "takes too long": (
        "@pytest.mark.loop(timeout=0.1)\nasync def test_it(): await asyncio.sleep(60)",
        "not done after",
    ),
    "leaves a task": ("async def test_it(): kept.append(asyncio.ensure_future(asyncio.sleep(60)))", "left behind"),
    "callback raises": (
        "async def test_it(): asyncio.get_running_loop().call_soon(lambda: 1 / 0)",
        "ZeroDivisionError",
    ),
    "leaks": ("@pytest.mark.no_leaks\nasync def test_it(): kept.append(os.dup(0))", "descriptors leaked"),
    "takes long": ("@pytest.mark.within(9, at_least=5)\nasync def test_it(): pass", "less than 5 s"),
    "debug": ("@pytest.mark.loop(debug=True)\nasync def test_it(): assert loop().get_debug()", "1 passed"),
    "other loop": (
        "@pytest.fixture\ndef run(): return lambda main: asyncio.new_event_loop().run_until_complete(main())\n"
        "async def test_it(): assert loop().get_exception_handler() is None",
        "1 passed",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_outcome(tmp_path: Path, case: str) -> None:
    test, expected = CASES[case]
    path = tmp_path / "test_it.py"
    path.write_text(f"import asyncio, os, pytest\nloop = asyncio.get_running_loop\nkept = []\n{test}\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "support.coroutine_tests", "-p", "no:cacheprovider"]
    environment = {
        **os.environ,
        "PYTHONPATH": str(Path(__file__).parent),
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    }
    done = subprocess.run(
        [*command, f"--rootdir={tmp_path}", str(path)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert expected in done.stdout, done.stdout + done.stderr
    assert (done.returncode == 0) == (expected in ("1 passed", "1 skipped"))
