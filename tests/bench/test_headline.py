"""The headline set: the cells that docs/benchmarks.md and README.md show, which ``make bench`` measures."""

from __future__ import annotations

from harness.lengths import HEADLINE_ROUNDS, Lengths
from harness.plan import plan
from harness.scenario import Cell, Job, Scenario, is_one_of, load, names
from harness.wins import is_ours

PLAN = plan()
SCENARIOS = [load(name) for name in names()]
HEADLINE = {scenario.name: PLAN.headline(scenario, scenario.jobs()) for scenario in SCENARIOS}


def jobs() -> list[tuple[Scenario, Job]]:
    return [(scenario, job) for scenario in SCENARIOS for job in HEADLINE[scenario.name]]


def shown(scenario: str) -> dict[Cell, tuple[str, ...]]:
    return {job.cell: job.peers for job in HEADLINE[scenario]}


def test_set_has_at_most_60_cells() -> None:
    assert 30 <= len(jobs()) <= 60


def test_set_takes_at_most_40_minutes() -> None:
    lengths = Lengths(headline=True)
    assert sum(lengths.expected(scenario, job) for scenario, job in jobs()) <= 40 * 60


def test_every_cell_has_five_rounds() -> None:
    lengths = Lengths(headline=True)
    assert {lengths.rounds_of(scenario, job) for scenario, job in jobs()} == {HEADLINE_ROUNDS} == {5}


def test_every_cell_that_is_shown_is_in_the_set() -> None:
    for question in PLAN.question:
        scenario, own = load(question.scenario), shown(question.scenario)
        asked = question.jobs(scenario.jobs())
        assert asked, question.title
        for name in question.workloads:
            assert any(job.workload.is_called(name) for job in asked), (question.title, name)
        for peer in question.peers:
            assert any(is_one_of(one, [peer]) for job in asked for one in job.peers), (question.title, peer)
        assert all(set(job.peers) <= set(own[job.cell]) for job in asked), question.title
    for picture in PLAN.picture:
        assert set(picture.peers) <= set(shown(picture.scenario)[picture.cell]), picture.name


def test_every_cell_of_the_set_is_shown() -> None:
    wanted = {(one.scenario, job.cell) for one in PLAN.question for job in one.jobs(load(one.scenario).jobs())}
    wanted |= {(one.scenario, one.cell) for one in PLAN.picture}
    assert {(scenario.name, job.cell) for scenario, job in jobs()} == wanted


def test_rows_of_the_readme_are_cells_of_tables() -> None:
    tables = {(one.scenario, job.cell) for one in PLAN.question for job in one.jobs(load(one.scenario).jobs())}
    assert len(PLAN.row) <= 10
    for row in PLAN.row:
        assert (row.scenario, row.cell) in tables, row.title
        assert row.peer in shown(row.scenario)[row.cell], row.title
        assert is_ours(row.peer), row.title


def test_every_rival_stands_beside_its_subject() -> None:
    for question in PLAN.question:
        scenario = load(question.scenario)
        for job in question.jobs(scenario.jobs()):
            for peer in job.peers:
                limit = is_ours(peer) or is_one_of(peer, scenario.limits)
                subject = scenario.subject_for(peer, job.workload)
                assert limit or subject in job.peers, (question.title, job.cell, peer)
