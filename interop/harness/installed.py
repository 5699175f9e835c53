"""The programs that setup.sh installs: where they are, and which are missing."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

__all__ = ["BUILT", "JAVA", "NODE", "NODE_FLAGS", "PROGRAMS", "PYTHON", "environment", "missing"]

HERE = Path(__file__).resolve().parents[1]
ROOT = HERE.parent
PROGRAMS = HERE / "peers"
BUILT = ROOT / "build" / "interop"
PYTHON = ROOT / ".venv-interop" / "bin" / "python"
NODE = shutil.which("node") or "node"
JAVA = shutil.which("java") or "java"


def _find_browser() -> str | None:
    names = [os.environ.get("CHROMIUM"), "chromium", "chromium-browser", "google-chrome"]
    return next((path for name in names if name and (path := shutil.which(name))), None)


CHROMIUM = _find_browser()


def _node_flags() -> tuple[str, ...]:
    """Flags that give Node a built-in client. From version 22 on it has one without flags."""
    try:
        version = subprocess.run([NODE, "--version"], capture_output=True, text=True, timeout=20, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return ()
    return ("--experimental-websocket",) if int(version.lstrip("v").split(".")[0]) < 22 else ()


NODE_FLAGS = _node_flags()


def missing(name: str) -> str | None:
    """Returns, by the name of the peer, what is missing on this machine to run it; ``None``: nothing."""
    needed: dict[str, list[tuple[str, bool]]] = {
        "ws": [("node", shutil.which(NODE) is not None), ("ws", (PROGRAMS / "node" / "node_modules" / "ws").exists())],
        "node": [("node", shutil.which(NODE) is not None)],
        "coder": [("its program, built with go,", (BUILT / "go-peer").exists())],
        "java": [
            ("java", shutil.which(JAVA) is not None),
            ("its program, compiled with javac,", (BUILT / "java" / "Peer.class").exists()),
        ],
        "chromium": [("chromium", CHROMIUM is not None), (".venv-interop", PYTHON.exists())],
    }
    for what, there in needed.get(name, [(".venv-interop", PYTHON.exists())]):
        if not there:
            return f"{name} is not tested: {what} is not there; make interop installs what it can"
    return None


def environment(ca: str, cert: str, key: str) -> dict[str, str]:
    """Returns the environment of a peer.

    Args:
        ca: File of the authority to trust.
        cert: File of a server's certificate.
        key: File of its key.
    """
    # Loopback connections must not go through the proxy of the environment.
    inherited = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
    return {
        **inherited,
        "PYTHONPATH": str(HERE),
        "INTEROP_CA": ca,
        "INTEROP_CERT": cert,
        "INTEROP_KEY": key,
        "INTEROP_CHROMIUM": CHROMIUM or "",
        # The client that is built into Node takes an authority only this way.
        "NODE_EXTRA_CA_CERTS": ca,
    }
