"""``scripts/check_prose.py``: it reads comments, docstrings and Markdown, and no code."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).resolve().parent.parent / "scripts" / "check_prose.py"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("check_prose", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("name", "text", "lines"),
    [
        ("a.md", "One.\n```\ncode\n```\nTwo `quoted`.\n", [(1, "One."), (5, "Two `code`.")]),
        (
            "a.py",
            '"""Module.\n\nMore.\n"""\n\nx = "no prose"  # comment\n\n\n'
            'def f():\n    """Function."""\n    return "x"\n',
            [(1, "Module."), (2, ""), (3, "More."), (4, ""), (6, " comment"), (10, "Function.")],
        ),
        (
            "a.rs",
            'let x = "// no"; // yes\n/// Doc.\n/* block\nmore */\n',
            [(1, "yes"), (2, "Doc."), (3, "block"), (4, "more")],
        ),
        ("a.sh", "#!/bin/sh\n# Says.\necho '#no'\n", [(2, "Says.")]),
        ("Makefile", "x: ## Help text\n\techo $#\n", [(1, "Help text")]),
    ],
)
def test_prose_of_a_file(
    script: ModuleType, tmp_path: Path, name: str, text: str, lines: list[tuple[int, str]]
) -> None:
    path = tmp_path / name
    path.write_text(text)
    assert list(script.prose(path)) == lines


@pytest.mark.parametrize(
    ("text", "is_refused"),
    [
        ("Whoever waits is woken.", True),
        ("The application is told of it.", True),
        ("The same, of one.", True),
        ("The client that waits is woken.", False),
        ("The same limit applies to both.", False),
        ("A message with the same key replaces it.", False),
    ],
)
def test_refused_phrases(script: ModuleType, text: str, is_refused: bool) -> None:
    assert any(rule.search(text) for rule in script.RULES) == is_refused
