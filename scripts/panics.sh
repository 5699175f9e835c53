#!/usr/bin/env bash
# Builds the native module with the feature fault-injection, apart from the package, and runs tests/panics with it: a
# panic in any layer is an exception and one connection that fails.
#
#   scripts/panics.sh [-h | --help] [ARGUMENTS OF PYTEST]
#
# PYTHON: the interpreter, with what the tests need (.venv/bin/python). CARGO_TARGET_DIR (target): the module is in its
# directory panics, and nowhere else.
set -euo pipefail
cd "$(dirname "$0")/.."

if [[ ${1-} == -h || ${1-} == --help ]]; then
    sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' "$0"
    exit 0
fi
python=${PYTHON:-.venv/bin/python}
target=${CARGO_TARGET_DIR:-target}
suffix=$("$python" -c 'import sysconfig; print(sysconfig.get_config_var("EXT_SUFFIX"))')

PYO3_PYTHON=$("$python" -c 'import sys; print(sys.executable)') \
    cargo build --quiet --target-dir "$target" -p wirespeed-python --features fault-injection

package=$target/panics
rm -rf "$package"
mkdir -p "$package/wirespeed"
for path in python/wirespeed/*; do
    case $path in *.so | */__pycache__) ;; *) ln -s "$PWD/$path" "$package/wirespeed/" ;; esac
done
cp "$target/debug/lib_native.so" "$package/wirespeed/_native$suffix"
PYTHONPATH=$package:tests exec "$python" -m pytest -q -p no:cacheprovider tests/panics "$@"
