"""The part of a table of cases that a run of the tests takes."""

from __future__ import annotations

import argparse

import pytest

from interop.samples import rotation_of, sample

TABLE = list("abcdefghij")


def test_each_case_is_in_one_rotation() -> None:
    assert sample(TABLE, 3, "1/4") == ["b", "f", "j"]
    assert sample(TABLE, 3, "0/1") == TABLE
    assert sorted(case for first in range(4) for case in sample(TABLE, 3, f"{first}/4")) == TABLE


def test_without_a_rotation_there_is_a_short_form() -> None:
    assert sample(TABLE, 4, None) == ["a", "e", "i"]
    assert sample(TABLE, 1, None) == TABLE


def test_each_kind_is_there() -> None:
    cases = ["a1", "a2", "b1", "a3", "c1", "c2"]
    assert sample(cases, 3, None, kind=lambda case: case[0]) == ["a1", "b1", "a3", "c1"]
    assert sample(cases, 3, "5/6", kind=lambda case: case[0]) == ["a1", "b1", "c2"]


def test_no_table_is_left_out() -> None:
    assert [sample("ab", 1, f"{first}/5") for first in range(5)] == [["a"], ["b"], ["a"], ["b"], ["a"]]
    assert sample([], 1, "0/1") == []


@pytest.mark.parametrize("text", ["", "1", "/2", "2/2", "-1/3", "0/0", "1/2/3", "a/b"])
def test_what_is_no_rotation(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="N/M"):
        rotation_of(text)
    assert rotation_of("11/12") == "11/12"
