"""Fixtures and parameters: each test runs for every peer that has the needed abilities, over each of our APIs.

Option: --ways one lets each test reach each peer over one API, which differs from test to test; default: over all

Marker: peers(*abilities, end=None, name=None, ways=None) names the abilities, the end and name of the peer, and the
APIs

WIRESPEED_INTEROP=all turns a peer that is not installed into a failure; otherwise its tests are skipped.
"""

from __future__ import annotations

import asyncio
import gc
import inspect
import os
import sys
import zlib
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme

# Helpers are imported as ``harness.*`` and ``peers.*``.
sys.path.insert(0, str(Path(__file__).resolve().parent))

from harness.installed import environment, missing
from harness.link import Link
from harness.peers import ABILITIES, PEERS, Peer
from harness.process import PeerProcess
from harness.ways import WAYS, Way

# Less than the timeout of pytest, which would end all tests of the process.
TEST_TIMEOUT = 35.0

RETRIED = "retried"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--ways", choices=["one", "all"], default="all", help="over how many of our ways each test reaches each peer"
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "peers(*abilities, end=None, name=None, ways=None): which peers, over which of our ways"
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "link" not in metafunc.fixturenames:
        return
    marker = metafunc.definition.get_closest_marker("peers")
    needed = marker.args if marker is not None else ()
    limits = marker.kwargs if marker is not None else {}
    if unknown := set(needed) - ABILITIES.keys():
        raise pytest.UsageError(f"no abilities: {unknown}")
    ways = [way for way in WAYS if way.name in limits.get("ways", (way.name,))]
    peers = [
        peer
        for peer in PEERS
        if limits.get("end") in (None, peer.end)
        and limits.get("name") in (None, peer.name)
        and not peer.lacks.keys() & set(needed)
    ]
    one = metafunc.config.getoption("--ways") == "one"
    metafunc.parametrize(
        "link",
        [
            pytest.param(
                (way, peer),
                id=f"{peer}-{way}",
                # One process for each peer; each attempt has pytest's own limit of a minute.
                marks=[pytest.mark.xdist_group(str(peer)), pytest.mark.timeout(60 * peer.tries)],
            )
            for peer in peers
            for way in (_one_of(ways, f"{metafunc.function.__name__} {peer}") if one else ways)
        ],
        indirect=True,
    )


def _one_of(ways: list[Way], name: str) -> list[Way]:
    """Returns one of the APIs, chosen by a hash of the name, so that every run chooses alike."""
    return ways[(turn := zlib.crc32(name.encode()) % len(ways)) : turn + 1]


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Runs a test that is a coroutine function on the loop of its API, as often as its peer needs."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in inspect.signature(pyfuncitem.obj).parameters}
    link: Link = next(value for value in arguments.values() if isinstance(value, Link))
    tries = link.peer.tries if link.peer.tried_again in pyfuncitem.nodeid else 1
    for left in reversed(range(tries)):
        try:
            _run(lambda: pyfuncitem.obj(**arguments), link.way.new_loop())
            break
        except (Exception, pytest.fail.Exception) as exc:
            if not left:
                raise
            pyfuncitem.user_properties.append((RETRIED, f"{type(exc).__name__}: {exc}".partition("\n")[0]))
            link.renew()
    return True


def _run(test: Callable[[], Coroutine[Any, Any, None]], loop: asyncio.AbstractEventLoop) -> None:
    """Runs a test in bounded time. The test must leave no task and no exception that only the loop reports."""
    problems: list[str] = []
    loop.set_exception_handler(lambda _, context: problems.append(str(context)))
    try:
        loop.run_until_complete(asyncio.wait_for(test(), TEST_TIMEOUT))
        loop.run_until_complete(loop.shutdown_asyncgens())
        problems += [f"left behind: {task}" for task in asyncio.all_tasks(loop)]
    finally:
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()
    assert not problems, "\n".join(problems)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Prints the tests that needed more than one attempt."""
    for report in terminalreporter.stats.get("passed", []):
        for name, fault in report.user_properties:
            if name == RETRIED and report.when == "call":
                terminalreporter.write_line(f"RETRIED {report.nodeid} - {fault}")


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loopback connections must not go through the proxy of the environment."""
    for name in [name for name in os.environ if name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)


@pytest.fixture(autouse=True)
def _collect_garbage() -> Iterator[None]:
    """A connection left open must warn in the test that left it, not in a later one."""
    yield
    gc.collect(0)


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str, str]:
    """Files of an authority, of a certificate for the loopback interface, and of its key."""
    folder = tmp_path_factory.mktemp("certificate")
    authority = trustme.CA()
    leaf = authority.issue_cert("localhost", "127.0.0.1")
    ca, cert, key = (str(folder / name) for name in ("ca.pem", "server.pem", "server.key"))
    authority.cert_pem.write_to_path(ca)
    Path(cert).write_bytes(b"".join(blob.bytes() for blob in leaf.cert_chain_pems))
    leaf.private_key_pem.write_to_path(key)
    return ca, cert, key


@pytest.fixture(scope="session")
def start(certificate: tuple[str, str, str]) -> Callable[[Peer], PeerProcess]:
    """Starts a process of a peer."""
    env = environment(*certificate)

    def start(peer: Peer) -> PeerProcess:
        return PeerProcess(str(peer), peer.command, env, server=peer.end == "server")

    return start


@pytest.fixture(scope="session")
def running() -> Iterator[dict[str, PeerProcess]]:
    """The processes that tests share, by the name of the peer. All of them stop with the session."""
    processes: dict[str, PeerProcess] = {}
    yield processes
    for process in processes.values():
        process.stop()


@pytest.fixture
def link(
    request: pytest.FixtureRequest,
    start: Callable[[Peer], PeerProcess],
    running: dict[str, PeerProcess],
    certificate: tuple[str, str, str],
) -> Iterator[Link]:
    """One of our APIs and a peer whose process is shared with other tests."""
    way, peer = request.param
    _check_installed(peer)
    name = str(peer)

    def shared() -> PeerProcess:
        if name not in running or running[name].process.poll() is not None:
            running[name] = start(peer)
        return running[name]

    link = Link(way, peer, shared, certificate)
    yield link
    if not link.is_settled and name in running:
        # The peer may be busy with a connection of this test forever.
        running.pop(name).kill()


@pytest.fixture
def victim(
    request: pytest.FixtureRequest, link: Link, start: Callable[[Peer], PeerProcess], certificate: Any
) -> Iterator[Link]:
    """Like ``link``, but with a process of its own, for tests that kill it."""
    started: list[PeerProcess] = []

    def own() -> PeerProcess:
        started.append(start(link.peer))
        return started[-1]

    yield Link(link.way, link.peer, own, certificate, is_shared=False)
    for process in started:
        process.kill()


def _check_installed(peer: Peer) -> None:
    reason = missing(peer.name)
    if reason is None:
        return
    if os.environ.get("WIRESPEED_INTEROP") == "all":
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)
