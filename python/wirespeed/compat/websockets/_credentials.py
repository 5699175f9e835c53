"""Converts the credentials that ``basic_auth`` of websockets accepts."""

from __future__ import annotations

from typing import Any

__all__ = ["pairs"]


def pairs(credentials: Any) -> Any:
    """Return credentials with tuples as pairs, from any objects with two items.

    Args:
        credentials: The argument of the user.
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
