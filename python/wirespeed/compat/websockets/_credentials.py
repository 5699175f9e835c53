"""Credentials as ``basic_auth`` of websockets takes them."""

from __future__ import annotations

from typing import Any

__all__ = ["pairs"]


def pairs(credentials: Any) -> Any:
    """Return credentials with pairs that are tuples, whatever has two items.

    Args:
        credentials: What the user passed.
    """
    if credentials is None or isinstance(credentials, str):
        return credentials
    try:
        items = list(credentials)
    except TypeError:
        return credentials
    if len(items) == 2 and all(isinstance(item, str) for item in items):
        return tuple(items)
    return [tuple(item) if isinstance(item, (list, tuple)) else item for item in items]
