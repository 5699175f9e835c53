"""Every failpoint that can panic is in a test."""

from __future__ import annotations

from pathlib import Path

from .tools import places


def test_every_failpoint_has_a_test() -> None:
    tests = "".join(path.read_text(encoding="utf-8") for path in Path(__file__).parent.glob("test_*.py"))
    found = places()
    assert len(found) > 40
    assert {place for place in found if f'"{place}"' not in tests} == set()
