"""Every example of docs/cli.md runs in a shell and prints the output in the page; every option is in the page."""

from __future__ import annotations

import dataclasses
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.serve_command import Serving
from support.terminal import environment
from wirespeed.cli import main

PAGE = Path(__file__).parents[2] / "docs" / "cli.md"

pytestmark = pytest.mark.wirespeed_only("the documentation is ours")


@dataclasses.dataclass(frozen=True)
class Example:
    """A command behind ``$`` in a console, and the lines that follow it."""

    command: str
    output: str


def examples() -> Iterator[Any]:
    page = PAGE.read_text(encoding="utf-8")
    for block in re.findall(r"^```console\n(.*?)^```$", page, re.DOTALL | re.MULTILINE):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, output = part.partition("\n")
            yield pytest.param(Example(command, output), id=command)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """The server that the page describes."""
    with Serving("--port", "0", folder=tmp_path_factory.mktemp("serving")) as running:
        yield running


@pytest.mark.parametrize("example", list(examples()))
def test_example(server: Serving, tmp_path: Path, example: Example) -> None:
    script = tmp_path / "wirespeed"
    script.write_text(f'#!/bin/sh\nexec {sys.executable} -m wirespeed "$@"\n')
    script.chmod(0o755)
    variables = environment()
    variables["PATH"] = f"{tmp_path}:{variables['PATH']}"
    done = subprocess.run(
        example.command.replace("ws://localhost:8765", server.uri),
        shell=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=variables,
        timeout=20,
        check=False,
    )
    assert done.stdout.decode() == example.output


def test_there_are_examples() -> None:
    assert len(list(examples())) >= 8


@pytest.mark.parametrize(
    ("command", "begin", "end"),
    [
        ("connect", "## On a terminal", "## Serving"),
        ("serve", "## Serving", "## The engine"),
        ("engine", "## The engine", "the end of the page"),
    ],
)
def test_every_option_is_in_the_page(capsys: pytest.CaptureFixture[str], command: str, begin: str, end: str) -> None:
    main([command, "--help"])
    options = set(re.findall(r"--[a-z][a-z-]+", capsys.readouterr().out)) - {"--help"}
    text = PAGE.read_text(encoding="utf-8").partition(f"\n{begin}\n")[2].partition(f"\n{end}\n")[0]
    assert set(re.findall(r"--[a-z][a-z-]+", text)) == options


def test_the_examples_use_the_default_address(capsys: pytest.CaptureFixture[str]) -> None:
    main(["serve", "--help"])
    shown = " ".join(capsys.readouterr().out.split())
    assert "(default: localhost)" in shown
    assert "(default: 8765)" in shown
    assert "ws://localhost:8765" in PAGE.read_text(encoding="utf-8")
