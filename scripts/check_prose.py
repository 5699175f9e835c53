#!/usr/bin/env python3
"""Check comments, docstrings and Markdown for phrases that readers have to decode.

Usage: check_prose.py [PATH...]    (default: every tracked file)

Each rule of RULES names what it refuses and what to write instead. A line with `prose: allow` in it is skipped;
say on that line why. The exit status is 1 if anything was found.
"""

from __future__ import annotations

import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

RULES = {
    re.compile(pattern): advice
    for pattern, advice in {
        r"\b([Ww]hoever|[Ww]homever)\b": "name the thing: the client, the caller, the thread",
        r"\b([Nn]obody|[Ss]omebody|[Aa]nybody|[Ee]verybody|[Ss]omeone|[Ee]veryone|[Nn]o one)\b": (
            "name the thing: no client, another task, all sessions"
        ),
        r"\b([Hh]e|[Hh]is|[Hh]im|[Hh]imself)\b": "programs are 'it'",
        r"\b(is|are|was|were|be|been|being) told\b|\b(told|tells?|hears?|heard) of\b|\b(says?|said) so\b": (
            "programs return, raise, report or notify"
        ),
        r"(^|[.;:(] ?|\b(for|of|to|by|with|from|and|or|than) )[Ww]ho (?!is using|are you)\w+": (
            "name the thing: 'a client that waits', not 'who waits'"
        ),
        r"\b[Oo]ne too many\b|\b[Ff]or ever\b": "give the number or the limit; 'indefinitely'",
        r"^\W*(The same([,;:.]| (of|for|on|with|in|by|as|to|without|but)\b)|As above\b|Likewise\b|See the module\b)": (
            "state the effect instead of pointing elsewhere"
        ),
        r"\bas far as (is|was) known\b|\bas it seems\b": "say when it is known",
    }.items()
}

SUFFIXES = {".md", ".rs", ".py", ".pyi", ".c", ".h", ".hpp", ".cpp", ".sh", ".toml"}
# Inputs of fuzzers, and results of benchmarks.
SKIPPED = re.compile(r"corpus|corpora|/records/")


def main(arguments: list[str]) -> int:
    listed = subprocess.run(
        ["git", "ls-files", "--", *arguments], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    found = 0
    for name in listed:
        path = ROOT / name
        if (path.suffix not in SUFFIXES and path.name != "Makefile") or SKIPPED.search(name) or not path.is_file():
            continue
        for number, text in prose(path):
            if "prose: allow" in text:
                continue
            for rule, advice in RULES.items():
                if match := rule.search(text):
                    found += 1
                    print(f"{name}:{number}: {match[0].strip()!r}: {advice}\n    {text.strip()}")
    if found:
        print(f"{found} phrases to rewrite (scripts/check_prose.py explains the rules)")
    return min(found, 1)


def prose(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the lines that people read as text, with their numbers from 1 on."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        yield from markdown(text)
    elif path.suffix in {".py", ".pyi"}:
        yield from python(text)
    elif path.suffix in {".sh", ".toml"} or path.name == "Makefile":
        for number, line in enumerate(text.splitlines(), 1):
            if match := re.search(r"(^\s*|\s)#+ (.*)", line):
                yield number, match[2]
    else:
        yield from c_like(text)


def markdown(text: str) -> Iterator[tuple[int, str]]:
    fenced = False
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("```"):
            fenced = not fenced
        elif not fenced:
            # What stands in code quotes is code.
            yield number, re.sub(r"`[^`]*`", "`code`", line)


def python(text: str) -> Iterator[tuple[int, str]]:
    """Comments, and strings that are statements of their own."""
    start, depth = True, 0
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string.lstrip("#")
        elif token.type == tokenize.OP:
            depth += (token.string in "([{") - (token.string in ")]}")
        elif token.type == tokenize.STRING and start and depth == 0:
            for offset, line in enumerate(token.string.splitlines()):
                yield token.start[0] + offset, re.sub(r"`[^`]*`", "`code`", line.strip().strip('"'))
        start = token.type in {tokenize.NEWLINE, tokenize.NL, tokenize.INDENT, tokenize.DEDENT, tokenize.COMMENT} or (
            start and token.type == tokenize.ENCODING
        )


_STRING = re.compile(r'"(?:\\.|[^"\\])*"')


def c_like(text: str) -> Iterator[tuple[int, str]]:
    """Comments of Rust and C that begin with ``//``, and block comments that begin their line."""
    block = False
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.strip()
        block = block or stripped.startswith("/*")
        bare = _STRING.sub('""', line)
        if block:
            yield number, re.sub(r"`[^`]*`", "`code`", stripped.strip("/* "))
        elif "//" in bare:
            yield number, re.sub(r"`[^`]*`", "`code`", bare.split("//", 1)[1].lstrip("/! "))
        if "*/" in stripped:
            block = False


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
