#!/bin/sh
# Proves that crates/protocol needs nothing of a host: no sockets, clock, threads, randomness, files.
#
# Builds a program without a standard library that calls all of it (crates/protocol/tests/no_host), and fails if what
# is left to be resolved is more than the memory functions that the compiler itself calls. Where the target
# wasm32-unknown-unknown is installed (rustup target add wasm32-unknown-unknown), builds it for that, too, where
# nothing at all may be imported.
set -eu
cd "$(dirname "$0")/.."
cargo=${CARGO:-cargo}
manifest=crates/protocol/tests/no_host/Cargo.toml
target_dir=${CARGO_TARGET_DIR:-target}/no-host
entry=wirespeed_no_host

build() { # crate type, further arguments
    crate_type=$1
    shift
    "$cargo" rustc --quiet --release --manifest-path "$manifest" --target-dir "$target_dir" --crate-type "$crate_type" "$@"
}

checked=no

if [ "$(uname -s)" = Linux ] && command -v ld >/dev/null && command -v nm >/dev/null; then
    build staticlib
    ld -r --gc-sections -u "$entry" -e "$entry" -o "$target_dir/linked.o" "$target_dir/release/libno_host.a"
    # The precompiled `core` names its unwinder's personality in tables that nobody reads when panics abort.
    allowed='memcpy memmove memset memcmp bcmp rust_eh_personality _GLOBAL_OFFSET_TABLE_'
    for symbol in $(nm -u "$target_dir/linked.o" | awk '{print $2}'); do
        case " $allowed " in
        *" $symbol "*) ;;
        *)
            echo "check-no-host: crates/protocol needs $symbol from its host" >&2
            exit 1
            ;;
        esac
    done
    nm "$target_dir/linked.o" | grep -q " T $entry$" || { echo "check-no-host: $entry was not linked" >&2; exit 1; }
    echo "check-no-host: no symbol but the compiler's memory functions is undefined"
    checked=yes
fi

if [ -d "$(rustc --print target-libdir --target wasm32-unknown-unknown)" ]; then
    build cdylib --target wasm32-unknown-unknown
    "${PYTHON:-python3}" - "$target_dir/wasm32-unknown-unknown/release/no_host.wasm" "$entry" <<'END'
import sys

path, entry = sys.argv[1:]
with open(path, "rb") as file:
    module = file.read()


def leb128(at):
    value = shift = 0
    while True:
        byte = module[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at


if module[:8] != b"\0asm\x01\0\0\0":
    sys.exit(f"check-no-host: {path} is no WebAssembly module")
at = 8
sections = {}
while at < len(module):
    kind = module[at]
    size, at = leb128(at + 1)
    sections[kind] = module[at : at + size]
    at += size
IMPORT, EXPORT = 2, 7
if IMPORT in sections:
    sys.exit(f"check-no-host: the WebAssembly module imports something: {sections[IMPORT]!r}")
if entry.encode() not in sections.get(EXPORT, b""):
    sys.exit(f"check-no-host: the WebAssembly module does not export {entry}")
END
    echo "check-no-host: the WebAssembly module imports nothing"
    checked=yes
else
    echo "check-no-host: wasm32-unknown-unknown is not installed, so not built for it"
fi

[ "$checked" = yes ] || { echo "check-no-host: neither way to check is there" >&2; exit 1; }
