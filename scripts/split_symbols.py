"""Strips the native module of a wheel and keeps its symbols in a file beside the wheel.

    scripts/split_symbols.py build/wheel dist

The first folder holds the wheel as maturin built it, with symbols. The second gets the stripped wheel and
``WHEEL.debug``, which gdb and perf find when it lies beside the installed module.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

# The largest wheel, in bytes, that may be shipped.
LIMIT = 5_000_000


def split(wheel: Path, out: Path) -> tuple[Path, Path]:
    """Write the stripped wheel and its symbols into a folder; return both paths.

    Args:
        wheel: A wheel with one native module.
        out: The folder; it is made.
    """
    out.mkdir(parents=True, exist_ok=True)
    symbols = out.resolve() / f"{wheel.stem}.debug"
    with tempfile.TemporaryDirectory() as folder:
        _run(sys.executable, "-m", "wheel", "unpack", "--dest", folder, wheel)
        [content] = Path(folder).iterdir()
        [module] = content.rglob("_native*.so")
        _run("objcopy", "--only-keep-debug", "--compress-debug-sections=zlib", module, symbols)
        _run("objcopy", "--strip-unneeded", f"--add-gnu-debuglink={symbols}", module)
        _run(sys.executable, "-m", "wheel", "pack", "--dest-dir", out, content)
    return out / wheel.name, symbols


def _run(*command: str | Path) -> None:
    subprocess.run([str(word) for word in command], check=True, stdout=subprocess.DEVNULL)


def main() -> int:
    """Strip the newest wheel of a folder; return 1 if the result is too large."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("built", type=Path, help="folder of the wheel as maturin built it")
    parser.add_argument("out", type=Path, help="folder for the stripped wheel and its symbols; its wheels are replaced")
    options = parser.parse_args()
    wheels = sorted(options.built.glob("*.whl"), key=lambda path: path.stat().st_mtime)
    if not wheels:
        sys.exit(f"no wheel in {options.built}: run make wheel")
    if shutil.which("objcopy") is None:
        sys.exit("objcopy is missing: install binutils")
    for old in [*options.out.glob("*.whl"), *options.out.glob("*.debug")]:
        old.unlink()
    wheel, symbols = split(wheels[-1], options.out)
    size = wheel.stat().st_size
    print(f"wheel: {wheel}, {size / 1e6:.2f} MB; symbols: {symbols.name}, {symbols.stat().st_size / 1e6:.1f} MB")
    if size > LIMIT:
        print(f"larger than {LIMIT / 1e6:.0f} MB", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
