"""Attacks on engines whose handlers are coroutines."""

from campaigns.attack.checks import pytestmark, test_attack_stays_within_bounds

__all__ = ["KINDS", "pytestmark", "test_attack_stays_within_bounds"]

KINDS = ("engine-async",)
