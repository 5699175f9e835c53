"""What peers have to compile: once for each state of their sources, kept in a folder that git ignores."""

import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.errors import BenchError

__all__ = ["Builder", "Missing"]

# A peer made of C++ templates, on a machine that does other things as well.
BUILD_SECONDS = 900.0
LOOK_SECONDS = 60.0
# By what stands for it in a peer.toml: the language, its compilers, the Debian package of the first.
COMPILERS = {"cc": ("C", ("cc", "gcc", "clang"), "gcc"), "cxx": ("C++", ("c++", "g++", "clang++"), "g++")}
# All that a Python extension may be compiled against.
DISTRIBUTIONS = """
import importlib.metadata, sys
print(sys.version, *sorted(f"{one.name} {one.version}" for one in importlib.metadata.distributions()))
"""
PACKAGES = "import sysconfig; print(sysconfig.get_path('purelib'))"


class Missing(Exception):
    """A peer cannot be built here; the text says what is not installed."""


@dataclass(frozen=True)
class Builder:
    """Builds peers.

    Attributes:
        folder: where what was built is kept.
        python: the interpreter of the peers.
        run: runs a command for at most so many seconds and returns what it printed, or raises BenchError.
    """

    folder: Path
    python: str
    run: Callable[[Sequence[str], float], bytes]

    def build(self, peer: Path, command: Sequence[str], needs: Mapping[str, str]) -> Path:
        """Builds the peer in the folder `peer` unless that was done before, and returns the folder with the result.

        Args:
            peer: its folder.
            command: what builds it, with {build} for the folder to fill, and {peer}, {python}, {packages}, {cc}, {cxx}.
            needs: headers that it includes, each with what installs it; only with {cc} or {cxx}.

        Raises:
            Missing: there is no compiler, or a header is not there.
            BenchError: the command failed.
        """
        used = [name for name in COMPILERS if any(f"{{{name}}}" in part for part in command)]
        places = {"python": self.python, "peer": str(peer), **{name: _compiler(name) for name in used}}
        if any("{packages}" in part for part in command):
            places["packages"] = self.run([self.python, "-c", PACKAGES], LOOK_SECONDS).decode().strip()
        built = self.folder / f"{peer.name}-{self._digest(command, places)}"
        if built.exists():
            return built
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(prefix=f"{peer.name}-", dir=self.folder) as temporary:
                folders = [part.format_map(places) for part in command if part.startswith("-I")]
                for header, install in needs.items():
                    self._look_for(header, install, [places[used[0]], *folders], Path(temporary))
                result = Path(temporary, "result")
                result.mkdir()
                self.run([part.format_map({**places, "build": str(result)}) for part in command], BUILD_SECONDS)
                try:
                    result.rename(built)
                except OSError:
                    # Another run has built the same meanwhile.
                    if not built.exists():
                        raise
        except OSError as error:
            raise BenchError(f"cannot keep what it compiles in {self.folder}: {error.strerror}") from error
        return built

    def _look_for(self, header: str, install: str, compiler: Sequence[str], temporary: Path) -> None:
        look = temporary / "look.cpp"
        look.write_text(f"#if !__has_include(<{header}>)\n#error it is not there\n#endif\n")
        try:
            self.run([*compiler, "-fsyntax-only", str(look)], LOOK_SECONDS)
        except BenchError:
            raise Missing(f"the header {header} is not there: {install}") from None

    def _digest(self, command: Sequence[str], places: Mapping[str, str]) -> str:
        """Returns what differs if the result may differ: command, compiler, the files beside those that it names."""
        parts = [part.format_map({**places, "build": "{build}"}) for part in command]
        digest = hashlib.sha256("\0".join(parts).encode())
        for name in sorted(places.keys() & COMPILERS.keys()):
            digest.update(self.run([places[name], "--version"], LOOK_SECONDS))
        if any("{python}" in part or "{packages}" in part for part in command):
            digest.update(self.run([self.python, "-c", DISTRIBUTIONS], LOOK_SECONDS))
        sources = [Path(part) for part in parts if part.startswith(places["peer"])]
        for folder in sorted({source.resolve().parent for source in sources}):
            for path in sorted(path for path in folder.iterdir() if path.is_file()):
                digest.update(path.name.encode() + b"\0" + path.read_bytes())
        return digest.hexdigest()[:16]


def _compiler(name: str) -> str:
    language, programs, package = COMPILERS[name]
    found = next(filter(None, map(shutil.which, programs)), None)
    if found is None:
        raise Missing(f"no {language} compiler ({', '.join(programs)}) found: apt-get install {package}")
    return os.fspath(found)
