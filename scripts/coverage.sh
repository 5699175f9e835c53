#!/usr/bin/env bash
# Measures which lines of the package and of the crates the Python tests reach.
#
#   scripts/coverage.sh [-h | --help] [ARGUMENTS OF PYTEST]
#
# Without arguments: the default run. Builds everything anew with instrumentation, into target/coverage. Writes two lists
# of files with their lines and the lines that were not reached, build/coverage/{python,rust}.txt, and prints the totals.
#
# PYTHON: an interpreter of version 3.12 or newer (.venv-newest/bin/python), with the packages that the tests need and
# with coverage. Needs llvm-profdata and llvm-cov of rustc's version of LLVM: the component llvm-tools of rustup, or
# Debian's package llvm-VERSION.
set -euo pipefail
cd "$(dirname "$0")/.."

if [[ ${1-} == -h || ${1-} == --help ]]; then
    sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' "$0"
    exit 0
fi
python=$(realpath -s "${PYTHON:-.venv-newest/bin/python}")
major=$(rustc -vV | sed -n 's/^LLVM version: \([0-9]*\).*/\1/p')
tools=$(rustc --print sysroot)/lib/rustlib/$(rustc -vV | sed -n 's/^host: //p')/bin
tool() {
    PATH=$tools command -v "$1" || command -v "$1-$major" || {
        echo "$1 of LLVM $major is missing: rustup component add llvm-tools, or apt-get install llvm-$major" >&2
        exit 77
    }
}
profdata=$(tool llvm-profdata)
cov=$(tool llvm-cov)
"$python" -c 'import coverage' 2>/dev/null || "$python" -m pip install -q coverage

out=$PWD/build/coverage
export CARGO_TARGET_DIR=$PWD/target/coverage
rm -rf "$out"
mkdir -p "$out"
PYO3_PYTHON=$("$python" -c 'import os, sys; print(os.path.realpath(sys._base_executable))') \
    RUSTFLAGS="-C instrument-coverage" cargo build --quiet --profile quick --workspace
"$python" scripts/link_native.py "$CARGO_TARGET_DIR/quick/lib_native.so"

cat >"$out/settings" <<END
[run]
source = wirespeed
patch = subprocess
parallel = true
data_file = $out/data
core = sysmon
END
# Processes share some files, and merge their counts at their end.
status=0
LLVM_PROFILE_FILE="$out/%8m.profraw" "$python" -m coverage run --rcfile="$out/settings" -m pytest -q -n 4 \
    --dist loadfile --ignore=tests/campaigns/panics -p no:cacheprovider -p no:sugar "$@" || status=$?
# The next `make` replaces the instrumented module.
rm -f "${python%/bin/*}/built"

"$python" -m coverage combine --rcfile="$out/settings" -q
"$python" -m coverage report --rcfile="$out/settings" --show-missing >"$out/python.txt" || true
"$profdata" merge --failure-mode=all -sparse "$out"/*.profraw -o "$out/profdata"
"$cov" report "$CARGO_TARGET_DIR/quick/lib_native.so" --instr-profile="$out/profdata" \
    --ignore-filename-regex='registry|rustc' >"$out/rust.txt"
rm -f "$out"/*.profraw "$out"/data.*
tail -n 1 "$out/python.txt" | awk '{print "lines of Python, not reached, share: " $2, $3, $4}'
tail -n 1 "$out/rust.txt" | awk '{print "lines of Rust, not reached, share: " $8, $9, $10}'
exit "$status"
