"""Every Python snippet of README.md and docs/ runs against a real server; links and commands exist.

The server is ``wirespeed serve``, as the pages say. A snippet

- that shows its output with ``# -> text`` must print exactly these texts, in this order;
- that does not connect by itself gets an open connection, ``ws``, and the names ``connect`` and ``wirespeed``;
- that awaits outside a function runs as a coroutine, and these are those of asyncio, otherwise the blocking ones;
- whose fence says ``python no-run: reason`` is compiled only.
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import inspect
import io
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import CodeType
from typing import Any

import pytest

import wirespeed
from support.certificates import Certificates
from support.serve_command import Serving
from support.servers import WebSocketsServer
from wirespeed.sync import connect

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("bench/*.md")])
WITH_SNIPPETS = [ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md"))]

CONFLICT = re.compile(r"^(<<<<<<< .*|=======|>>>>>>> .*)$", re.MULTILINE)
FENCE = re.compile(r"^```(?P<info>[^\n]*)\n(?P<code>.*?)^```$", re.DOTALL | re.MULTILINE)
PRINTS = re.compile(r"# -> (.*)$", re.MULTILINE)
LINK = re.compile(r"\]\((?!https?:|mailto:|#)(?P<target>[^)#\s]+)[^)]*\)")
# README is shown by package indexes too, so its links are those of the repository on the web.
WEB = re.compile(
    r"https://(?:github\.com/wirespeed/wirespeed/(?:blob|tree)|raw\.githubusercontent\.com/wirespeed/wirespeed)/main/"
)
MAKE = re.compile(r"\bmake ([a-z][a-z-]*)")

pytestmark = pytest.mark.wirespeed_only("the documentation is ours")


@dataclasses.dataclass(frozen=True)
class Snippet:
    """A fenced block of Python."""

    page: str
    line: int
    info: str
    code: str

    @property
    def must_run(self) -> bool:
        return "no-run" not in self.info

    @property
    def prints(self) -> list[str]:
        return PRINTS.findall(self.code)


def snippets() -> Iterator[Any]:
    for page in WITH_SNIPPETS:
        text = page.read_text(encoding="utf-8")
        name = str(page.relative_to(ROOT))
        for match in FENCE.finditer(text):
            if match["info"].split()[:1] == ["python"]:
                # Of the first line of the code, so that tracebacks point into the page.
                line = text.count("\n", 0, match.start("code")) + 1
                yield pytest.param(Snippet(name, line, match["info"], match["code"]), id=f"{name}:{line}")


@pytest.fixture(scope="module")
def places(
    certificates: Certificates,
    unix_server: WebSocketsServer,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[dict[str, str]]:
    """The placeholders in the pages for a server or a file, and their values here."""
    cert, key = certificates.server_files()
    folder = tmp_path_factory.mktemp("serving")
    with (
        Serving("--port", "0", folder=folder) as plain,
        Serving("--port", "0", "--cert", cert, "--key", key, folder=folder) as secure,
        Serving(
            "--port", "0", "--cert", cert, "--key", key, "--client-ca", certificates.ca_file, folder=folder
        ) as mutual,
    ):
        yield {
            "ws://localhost:8765": plain.uri,
            "wss://localhost:8443": secure.uri,
            "wss://localhost:8444": mutual.uri,
            "ca.pem": certificates.ca_file,
            "internal-ca.pem": certificates.ca_file,
            "client.pem": certificates.client_cert,
            "client.key": certificates.client_key,
            "/run/feed.sock": unix_server.unix_path or "",
        }


def localized(code: str, places: dict[str, str]) -> str:
    names = "|".join(re.escape(name) for name in sorted(places, key=len, reverse=True))
    return re.sub(rf"(?<![\w-])(?:{names})", lambda match: places[match[0]], code)


def compiled(snippet: Snippet, code: str) -> CodeType:
    source = "\n" * (snippet.line - 1) + code
    # Not this file's own future statements.
    program: CodeType = compile(
        source, str(ROOT / snippet.page), "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True
    )
    return program


def run_blocking(program: CodeType, namespace: dict[str, Any], uri: str | None) -> None:
    """Runs a snippet, with a connection if there is a URI."""
    with contextlib.ExitStack() as stack:
        if uri is not None:
            namespace["ws"] = stack.enter_context(connect(uri))
        exec(program, namespace)


async def run_asyncio(program: CodeType, namespace: dict[str, Any], uri: str | None) -> None:
    """Runs a snippet that awaits."""
    namespace["connect"] = wirespeed.connect
    async with contextlib.AsyncExitStack() as stack:
        if uri is not None:
            namespace["ws"] = await stack.enter_async_context(wirespeed.connect(uri))
        await eval(program, namespace)


@pytest.mark.parametrize("snippet", list(snippets()))
def test_snippet(snippet: Snippet, places: dict[str, str]) -> None:
    program = compiled(snippet, localized(snippet.code, places))
    if not snippet.must_run:
        assert ":" in snippet.info, "say why it must not run: ```python no-run: reason"
        return
    namespace: dict[str, Any] = {"__name__": "__main__", "wirespeed": wirespeed, "connect": connect}
    uri = None if "connect(" in snippet.code else places["ws://localhost:8765"]
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        if program.co_flags & inspect.CO_COROUTINE:
            wirespeed.run(run_asyncio(program, namespace, uri))
        else:
            run_blocking(program, namespace, uri)
    if snippet.prints:
        assert printed.getvalue().splitlines() == snippet.prints


def test_there_are_snippets() -> None:
    """The pattern that finds them still works."""
    assert {snippet.values[0].page for snippet in snippets()} >= {
        "README.md",
        "docs/asyncio.md",
        "docs/loop.md",
        "docs/stream.md",
        "docs/sync.md",
    }


def test_asyncio_example(places: dict[str, str]) -> None:
    command = [
        sys.executable,
        "-W",
        "error",
        str(ROOT / "examples/asyncio_client.py"),
        places["ws://localhost:8765"],
        "3",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[:3] == ["tick 0", "tick 1", "tick 2"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_exist(page: Path) -> None:
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    if page.name == "README.md" and page.parent == ROOT:
        assert LINK.findall(text) == [], "links and images of README.md are absolute"
        text = WEB.sub("", text)
    targets = LINK.findall(text)
    assert [target for target in targets if not (page.parent / target).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_no_merge_markers(page: Path) -> None:
    assert CONFLICT.findall(page.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_make_targets_exist(page: Path) -> None:
    known = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    known |= {f"bench-{scenario.stem}" for scenario in (ROOT / "bench" / "scenarios").glob("*.toml")}
    code = " ".join(re.findall(r"`[^`]+`|^ {4}.*$|^```.*?^```", page.read_text(encoding="utf-8"), re.M | re.S))
    assert set(MAKE.findall(code)) <= known
