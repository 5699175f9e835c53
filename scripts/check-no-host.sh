#!/bin/sh
# Proves that crates/protocol needs nothing of a host: no sockets, clock, threads, randomness, files.
#
# Builds a program that calls all of it, without its `std` feature (crates/protocol/tests/no_host), and looks in two
# ways at what is still asked of a host:
# - built for wasm32-unknown-unknown, where what a host has to provide is an import: there may be none. The target is
#   installed if it is missing and rustup can.
# - built for Linux, where the standard library of a dependency could call the host unseen: the functions left to the
#   C library may only be those that the standard library's panics need in any program.
# One of the two has to be possible.
set -eu
cd "$(dirname "$0")/.."
cargo=${CARGO:-cargo}
target=wasm32-unknown-unknown
target_dir=${CARGO_TARGET_DIR:-target}/no-host
entry=wirespeed_no_host

fail() {
    echo "check-no-host: $1" >&2
    exit 1
}

build() { # crate type, further arguments
    crate_type=$1
    shift
    "$cargo" rustc --quiet --release --manifest-path crates/protocol/tests/no_host/Cargo.toml \
        --target-dir "$target_dir" --crate-type "$crate_type" "$@"
}

has_target() {
    [ -d "$(rustc --print target-libdir --target "$target")" ]
}

check_wasm() {
    build cdylib --target "$target"
    "${PYTHON:-python3}" - "$target_dir/$target/release/no_host.wasm" "$entry" <<'END'
import sys
from pathlib import Path

path, entry = sys.argv[1:]
module = Path(path).read_bytes()
if module[:8] != b"\0asm\x01\0\0\0":
    sys.exit(f"check-no-host: {path} is no WebAssembly module")


def number(at):
    value = shift = 0
    while True:
        byte = module[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at


IMPORT, EXPORT = 2, 7
sections = {}
at = 8
while at < len(module):
    kind = module[at]
    size, at = number(at + 1)
    sections[kind] = module[at : at + size]
    at += size
if IMPORT in sections:
    sys.exit(f"check-no-host: crates/protocol imports from its host: {sections[IMPORT]!r}")
if entry.encode() not in sections.get(EXPORT, b""):
    sys.exit(f"check-no-host: the WebAssembly module does not export {entry}")
print(f"check-no-host: the WebAssembly module ({len(module)} bytes) imports nothing")
END
}

undefined_symbols() { # further arguments of the build
    build staticlib "$@"
    ld -r --gc-sections -u "$entry" -e "$entry" -o "$target_dir/linked.o" "$target_dir/release/libno_host.a"
    nm "$target_dir/linked.o" | grep -q " T $entry$" || fail "$entry was not linked"
    nm -u "$target_dir/linked.o" | awk '{print $2}'
}

check_symbols() {
    undefined_symbols --no-default-features >"$target_dir/baseline"
    # Memory functions are called by the compiler itself.
    printf '%s\n' memcpy memmove memset memcmp bcmp >>"$target_dir/baseline"
    undefined_symbols >"$target_dir/needed"
    extra=$(grep -vxF -f "$target_dir/baseline" "$target_dir/needed" | tr '\n' ' ')
    [ -z "$extra" ] || fail "crates/protocol needs from its host: $extra"
    echo "check-no-host: no function of the C library is needed that a program without crates/protocol does not need as well"
}

if ! has_target && command -v rustup >/dev/null; then
    rustup target add "$target" || true
fi
checked=no
if has_target; then
    check_wasm
    checked=yes
else
    echo "check-no-host: $target is not installed and cannot be: not built for it"
fi
if [ "$(uname -s)" = Linux ] && command -v ld >/dev/null && command -v nm >/dev/null; then
    check_symbols
    checked=yes
fi
[ "$checked" = yes ] || fail "needs the target $target: rustup target add $target"
