"""Attacks of servers on clients."""

from campaigns.attack.checks import pytestmark, test_attack_stays_within_bounds

__all__ = ["KINDS", "pytestmark", "test_attack_stays_within_bounds"]

KINDS = ("client-sync", "client-asyncio-fd", "client-asyncio-transport")
