#!/usr/bin/env bash
# Builds the native module with the feature fault-injection, apart from the package, and runs tests/campaigns/panics
# with it: a panic in any layer becomes an exception and ends one connection.
#
#   scripts/panics.sh [-h | --help] [--build] [ARGUMENTS OF PYTEST]
#
# --build: build the module, and do not run the tests. PYTHON: the interpreter, with the packages that the tests need
# (.venv/bin/python). CARGO_TARGET_DIR (target): the module is put into its directory panics, and nowhere else.
set -euo pipefail
cd "$(dirname "$0")/.."

if [[ ${1-} == -h || ${1-} == --help ]]; then
    sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' "$0"
    exit 0
fi
python=${PYTHON:-.venv/bin/python}
target=${CARGO_TARGET_DIR:-target}
suffix=$("$python" -c 'import sysconfig; print(sysconfig.get_config_var("EXT_SUFFIX"))')

# The profile and the features of all tests, so that only the crates of the workspace are compiled again.
PYO3_PYTHON=$("$python" -c 'import os, sys; print(os.path.realpath(sys._base_executable))') \
    cargo build --quiet --profile quick --target-dir "$target" --workspace --features wirespeed-python/fault-injection

package=$target/panics
rm -rf "$package"
mkdir -p "$package/wirespeed"
for path in python/wirespeed/*; do
    case $path in *.so | */__pycache__) ;; *) ln -s "$PWD/$path" "$package/wirespeed/" ;; esac
done
cp "$target/quick/lib_native.so" "$package/wirespeed/_native$suffix"
if [[ ${1-} == --build ]]; then
    exit 0
fi
PYTHONPATH=$package:tests exec "$python" -m pytest -q -p no:cacheprovider -n "${WORKERS:-4}" tests/campaigns/panics "$@"
