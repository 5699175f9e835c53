"""The matrix is complete: each cell is run, or has its reason."""

from __future__ import annotations

import itertools

import pytest

from .lifetimes import LIFETIMES
from .process import PROCESS
from .relay import RELAYED
from .table import APIS, FAULTS, FOUND, LEFT_OUT, STAGES, all_cells, chosen, pairs, reason

pytestmark = pytest.mark.wirespeed_only("the engine, the streams and the drop-in are ours")

# The files that run the cells of a fault: test_matrix.py, test_network.py, test_memory.py.
RUN = {*RELAYED, *PROCESS, *LIFETIMES, "loss", "memory"}


def test_every_cell_is_run_or_has_a_reason() -> None:
    run = {(cell.fault, cell.stage, str(cell.api)) for cell in all_cells()}
    assert len(run) == len(all_cells())
    for fault, stage, api in itertools.product(FAULTS, STAGES, APIS):
        why = reason(fault, stage, api.name)
        assert ((fault, stage, str(api)) in run) is (why is None)
        assert why is None or len(why) > 20


def test_every_fault_is_used() -> None:
    assert set(FAULTS) == RUN


def test_every_reason_is_the_first_of_some_cell() -> None:
    used = {reason(fault, stage, api.name) for fault, stage, api in itertools.product(FAULTS, STAGES, APIS)}
    assert [why for *_, why in LEFT_OUT if why not in used] == []


def test_the_chosen_cells_meet_every_pair() -> None:
    few = chosen(all_cells())
    assert len(few) == len(set(few))
    assert set().union(*map(pairs, few)) == set().union(*map(pairs, all_cells()))
    assert {cell.fault for cell in few} == {cell.fault for cell in all_cells()}
    assert len(few) < len(all_cells()) / 5


def test_cells_of_earlier_defects_are_always_chosen() -> None:
    few = {(cell.fault, cell.stage, str(cell.api)) for cell in chosen(all_cells())}
    assert set(FOUND) <= few
