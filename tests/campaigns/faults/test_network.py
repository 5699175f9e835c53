"""Loss, delay, reordering and duplication, and packets that vanish, between two network namespaces."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.certificates import Certificates
from support.samples import sample

from .emulator import Link, reason_to_skip
from .network import Network, run_over
from .table import APIS, Api, Cell, all_cells, chosen

pytestmark = pytest.mark.wirespeed_only("the engine, the streams and the drop-in are ours")

# A few of every hundred packets are lost, and as many are duplicated; they overtake each other.
LINK = Link(delay=0.001, jitter=0.004, loss=0.03, duplicates=0.03, seed=1)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    everything = bool(metafunc.config.getoption("--campaign"))
    rotation = metafunc.config.getoption("--rotation")
    if "cell" in metafunc.fixturenames:
        cells = [cell for cell in all_cells() if cell.fault == "loss"]
        metafunc.parametrize("cell", cells if everything else sample(chosen(cells), 6, rotation), ids=str)
    if "api" in metafunc.fixturenames:
        apis = [api for api in APIS if api.name != "engine-echo"]
        names = ("sync-client", "asyncio-client", "asyncio-server", "sync-server", "engine-batches", "engine-serve")
        few = [next(api for api in apis if api.name == name) for name in names]
        metafunc.parametrize("api", apis if everything else sample(few, 3, rotation), ids=str)


@pytest.fixture(scope="module")
def network() -> Iterator[Network]:
    if (reason := reason_to_skip()) is not None:
        pytest.skip(reason)
    network = Network(LINK)
    yield network
    network.stop()


def test_messages_arrive_whole_and_in_order(network: Network, certificates: Certificates, cell: Cell) -> None:
    run_over(network, cell, certificates)


def test_keepalive_finds_that_packets_vanish(network: Network, certificates: Certificates, api: Api) -> None:
    """The only sign is the missing pong."""
    log, _ = run_over(network, Cell("blackhole", "payload", api), certificates, vanishes=True)
    assert log.error is not None
