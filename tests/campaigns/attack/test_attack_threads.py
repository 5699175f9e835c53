"""Attacks on the server of threads, and on uvicorn with our class."""

from campaigns.attack.checks import pytestmark, test_attack_stays_within_bounds

__all__ = ["KINDS", "pytestmark", "test_attack_stays_within_bounds"]

KINDS = ("sync", "uvicorn")
