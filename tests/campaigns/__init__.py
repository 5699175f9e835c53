"""Campaigns: tests that run tables of cases or random schedules, briefly in every run and for hours on demand."""
