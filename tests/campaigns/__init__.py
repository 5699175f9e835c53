"""Campaigns: tests that run tables of cases or random schedules, briefly in every run and for hours on demand.

faults, attack, soak: tables of cells; ``common.table`` runs them, ``common.program`` starts their processes

liveness, api, engine.liveness: schedules of random seeds; ``common.schedules`` runs, shrinks and repeats them

differential: the same bytes through this library and through others

panics: needs a native module of its own: ``make panics``
"""
