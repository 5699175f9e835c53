"""Setup of every test: the implementation under test, and a clean environment.

Options:
    --subject websockets runs the tests against the library that wirespeed is compatible with, to validate the tests
    --campaign runs every fault at every stage of every API, and every attack on every server
    --again TIMES: a test that fails beside others has passed if it passes this many times alone
    --rotation N/M adds a share to the default run: of the full matrix and of long tables of cases; 0/1: all
    --files N/M runs every M-th file, and all files that depend on the version of Python

Markers:
    serial: measures time or needs the machine for itself; runs alone, after the parallel tests
    wirespeed_only(reason): beyond the API of websockets; skipped there
    websockets_differs(reason): websockets is known to behave differently; expected to fail there

The last two have no effect when wirespeed is under test. The peers are fixtures of ``support``.
"""

from __future__ import annotations

import gc
import importlib.util
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

# Helpers are imported as ``support.*`` in every import mode of pytest, and parts of the benchmarks as they are.
sys.path.insert(0, str(Path(__file__).parent))
sys.path.append(str(Path(__file__).parents[1] / "bench"))

from support.samples import share_text
from support.selection import select

if sys.version_info < (3, 11) or importlib.util.find_spec("msgspec") is None:
    # These tests need both libraries.
    collect_ignore_glob = ["bench/*"]

pytest_plugins = ["support.addresses", "support.coroutine_tests", "support.retry_failed", "support.fixtures"]

PROXY_VARIABLES = ("all", "http", "https", "no", "socks", "ws", "wss")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--subject",
        choices=["wirespeed", "websockets"],
        default=os.environ.get("WIRESPEED_TEST_SUBJECT", "wirespeed"),
        help="the implementation under test",
    )
    parser.addoption(
        "--rotation",
        type=share_text,
        metavar="N/M",
        help="run also the N-th of M shares of the full matrix and of long tables of cases; N counts from 0, 0/1: all",
    )
    parser.addoption(
        "--files",
        type=share_text,
        metavar="N/M",
        help="run the N-th of M shares of the files, and all files that depend on the version of Python",
    )
    parser.addoption(
        "--campaign",
        action="store_true",
        help="run every cell of the matrix of faults, and every attack on every server: hours",
    )


def pytest_configure(config: pytest.Config) -> None:
    os.environ["WIRESPEED_TEST_SUBJECT"] = str(config.getoption("--subject"))
    config.addinivalue_line(
        "markers",
        "serial: measures time or needs the machine for itself: runs alone, after the tests that run beside each other",
    )
    config.addinivalue_line("markers", "wirespeed_only(reason): beyond the API of websockets")
    config.addinivalue_line("markers", "websockets_differs(reason): websockets is known not to behave so")
    config.addinivalue_line("markers", "full_matrix: a setting that is not in the default matrix")


def pytest_report_header(config: pytest.Config) -> str:
    chosen = [f"{name}: {config.getoption(f'--{name}')}" for name in ("subject", "rotation", "files")]
    return ", ".join(chosen)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    select(config, items)
    if config.getoption("--subject") == "wirespeed":
        return
    for item in items:
        marker = item.get_closest_marker("wirespeed_only")
        if marker is not None:
            item.add_marker(pytest.mark.skip(reason=marker.args[0]))
        marker = item.get_closest_marker("websockets_differs")
        if marker is not None:
            item.add_marker(pytest.mark.xfail(reason=marker.args[0], strict=True))


@pytest.fixture(scope="session")
def rotation(pytestconfig: pytest.Config) -> str | None:
    """The option ``--rotation``, for ``support.samples.sample``."""
    value: str | None = pytestconfig.getoption("--rotation")
    return value


@pytest.fixture(autouse=True, scope="session")
def _interrupts() -> None:
    """Programs that tests start are interrupted as from a terminal, also below ``nohup``, which ignores the signal."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _same_network() -> Iterator[None]:
    """A test that moves its thread to another network would leave every later one there, where no server answers."""
    namespace = Path("/proc/thread-self/ns/net")
    before = os.readlink(namespace) if namespace.is_symlink() else ""
    yield
    assert not before or os.readlink(namespace) == before, "this test has left the network that it was started in"


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loopback connections must not go through the proxy of the environment."""
    for name in PROXY_VARIABLES:
        monkeypatch.delenv(f"{name}_proxy", raising=False)
        monkeypatch.delenv(f"{name}_proxy".upper(), raising=False)


@pytest.fixture(autouse=True)
def _collect_garbage() -> Iterator[None]:
    """A connection left open must warn in the test that left it, not in a later one."""
    yield
    gc.collect(0)
