"""Tries an installed wheel from outside: imports, metadata, command line, a client and a server.

    scripts/check_wheel.py .venv-wheel/bin/python

The interpreter has the wheel and nothing else installed. Every check runs in a process of its own, in an empty folder.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile

IMPORTS = """
import pathlib, wirespeed, wirespeed.cli, wirespeed.compat.websockets, wirespeed.engine, wirespeed.sync
folder = pathlib.Path(wirespeed.__file__).parent
assert "site-packages" in folder.parts, f"not the installed package: {folder}"
assert (folder / "py.typed").is_file() and (folder / "_native.pyi").is_file()
assert not hasattr(wirespeed._native, "arm_failpoint"), "built for tests"
"""

METADATA = """
import importlib.metadata
about = importlib.metadata.metadata("wirespeed")
assert about["License-Expression"] == "MIT", about["License-Expression"]
assert about.get_all("License-File") == ["LICENSE"]
assert about["Author"] or about["Author-email"]
labels = {url.split(",")[0] for url in about.get_all("Project-URL")}
assert labels >= {"Documentation", "Source", "Issues", "Changelog"}, labels
assert not [name for name in about.get_all("Classifier") if "Free Threading" in name]
readme = about.get_payload()
import re
targets = re.findall(r"\\]\\(([^)\\s]+)", readme)
relative = [target for target in targets if not target.startswith(("https://", "#"))]
assert targets and not relative, f"links that a package index cannot follow: {relative}"
"""

ASYNCIO = """
import asyncio, wirespeed

async def echo(ws):
    async for message in ws:
        await ws.send(message)

async def main():
    async with wirespeed.serve(echo, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        async with wirespeed.connect(f"ws://127.0.0.1:{port}", proxy=None) as ws:
            await ws.send("hello")
            assert await asyncio.wait_for(ws.recv(), 10) == "hello"

wirespeed.run(main())
asyncio.run(main())
"""

ENGINE = """
import threading
from wirespeed.engine import Engine, Message
from wirespeed.sync import connect

with Engine("127.0.0.1", 0) as engine:
    with connect(f"ws://127.0.0.1:{engine.addresses[0][1]}", proxy=None) as ws:
        ws.send("hello")
        for batch in engine.batches(timeout=10):
            found = [event for event in batch if isinstance(event, Message)]
            if found:
                found[0].session.send(found[0].data)
                break
        assert ws.recv(timeout=10) == "hello"
"""

CHECKS = {"imports": IMPORTS, "metadata": METADATA, "asyncio": ASYNCIO, "engine": ENGINE}


def main() -> int:
    """Run the checks; return 1 if one has failed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("python", help="an interpreter that has the wheel installed")
    # The checks run in another folder. A symbolic link stays one, because the interpreter finds its packages by it.
    python = os.path.abspath(parser.parse_args().python)
    commands = {name: [python, "-I", "-c", code] for name, code in CHECKS.items()}
    commands["command line"] = [python, "-I", "-m", "wirespeed", "--help"]
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        for name, command in commands.items():
            try:
                subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60, check=True)
                print(f"{name}: ok")
            except subprocess.SubprocessError as exc:
                failed += 1
                print(f"{name}: {exc}\n{exc.stderr or ''}")
    print(f"{len(commands) - failed} passed, {failed} failed")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
