"""Attacks on servers of an event loop, with handlers and with listeners, with both I/O backends."""

from campaigns.attack.checks import pytestmark, test_attack_stays_within_bounds

__all__ = ["KINDS", "pytestmark", "test_attack_stays_within_bounds"]

KINDS = ("asyncio-fd", "asyncio-transport", "listener-fd", "listener-transport")
