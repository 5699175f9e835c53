"""The selected part of a table of cases in a test run."""

from __future__ import annotations

import argparse

import pytest

from support.samples import sample, share_text

TABLE = list("abcdefghij")


def test_short_form() -> None:
    assert sample(TABLE, 4, None) == ["a", "e", "i"]
    assert sample(TABLE, 1, None) == TABLE
    assert sample([], 1, "0/1") == []


def test_rotation_adds_a_share() -> None:
    assert sample(TABLE, 10, "1/4") == ["a", "b", "f", "j"]
    assert sample(TABLE, 3, "0/1") == TABLE
    assert {case for first in range(4) for case in sample(TABLE, 10, f"{first}/4")} == set(TABLE)


def test_short_form_has_every_kind() -> None:
    cases = ["a1", "a2", "b1", "a3", "c1", "c2"]
    assert sample(cases, 3, None, kind=lambda case: case[0]) == ["a1", "b1", "a3", "c1"]
    assert sample(cases, 3, "5/6", kind=lambda case: case[0]) == ["a1", "b1", "a3", "c1", "c2"]


@pytest.mark.parametrize("text", ["", "1", "/2", "2/2", "-1/3", "0/0", "1/2/3", "a/b"])
def test_invalid_share_option(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="N/M"):
        share_text(text)
    assert share_text("11/12") == "11/12"
