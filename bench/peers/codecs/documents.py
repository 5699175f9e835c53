"""The documents that are encoded and decoded: a tick of a market, and an order book.

There are two of each that take turns, so that a reply that is late by one is noticed. They differ in every number, and
become messages of the same length.
"""

from __future__ import annotations

from typing import Any

__all__ = ["DOCUMENTS"]

LEVELS = 200


def ticks() -> list[Any]:
    """Returns two trades, of about 130 bytes in JSON."""
    return [
        {
            "stream": f"{symbol.lower()}@trade",
            "symbol": symbol,
            "id": number,
            "time": time,
            "price": price,
            "quantity": quantity,
            "maker": True,
        }
        for symbol, number, time, price, quantity in (
            ("BTCUSDT", 812_345_671, 1_700_000_012_345, 64_250.31, 0.012_57),
            ("ETHUSDT", 912_345_678, 1_700_000_067_891, 13_427.85, 0.348_29),
        )
    ]


def books() -> list[Any]:
    """Returns two order books of 200 levels a side, of about 8 KiB in JSON."""
    return [_book("BTCUSDT", 64_250, 1), _book("ETHUSDT", 43_420, 4)]


def _book(symbol: str, price: int, first: int) -> Any:
    return {
        "symbol": symbol,
        "sequence": 9_123_456_780 + first,
        "time": 1_700_000_012_340 + first,
        "bids": [_level(price - 1 - depth, first + depth) for depth in range(LEVELS)],
        "asks": [_level(price + depth, first + depth + 3) for depth in range(LEVELS)],
    }


def _level(price: int, seed: int) -> list[Any]:
    # Numbers that end in a digit other than 0 have all their digits in JSON.
    cents = seed % 9 + 1
    return [price + 0.5 + cents / 100, (1000 + seed * 37 % 9000 // 10 * 10 + cents) / 10_000, seed % 9 + 1]


DOCUMENTS = {"tick": ticks, "book": books}
"""By name: what returns the two."""
