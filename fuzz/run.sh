#!/bin/sh
# fuzz/run.sh [SECONDS [TARGET...]]: runs all fuzz targets, or the given ones, for SECONDS each (default 20). It uses
# libFuzzer with AddressSanitizer if there is a nightly compiler with cargo-fuzz. Otherwise it runs all targets on random
# mutations of the corpora, without coverage feedback.
# fuzz/run.sh keep [TARGET...]: stores a minimal set of the found inputs in fuzz/corpus/found.
#
# A run starts with the inputs of fuzz/corpus. New inputs are stored in build/fuzz/corpus. An input that fails is
# written to fuzz/artifacts and ends the run.
set -eu
cd "$(dirname "$0")"
first=${1:-20}
[ $# -eq 0 ] || shift
toolchain=${FUZZ_TOOLCHAIN:-nightly}

if ! cargo "+$toolchain" fuzz --version >/dev/null 2>&1; then
    echo "fuzz: no cargo-fuzz on the $toolchain toolchain (cargo install cargo-fuzz): mutating the corpora without libFuzzer"
    [ "$first" != keep ] || exit 1
    FUZZ_SECONDS=$first exec cargo test --profile quick --quiet --test replay -- --nocapture
fi

# The release profile, but with a faster build and with all checks.
export CARGO_PROFILE_RELEASE_LTO=false CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16
export CARGO_PROFILE_RELEASE_DEBUG_ASSERTIONS=true CARGO_PROFILE_RELEASE_OVERFLOW_CHECKS=true
work=../build/fuzz
targets=${*:-$(cargo "+$toolchain" fuzz list --fuzz-dir .)}
cargo "+$toolchain" fuzz build --fuzz-dir . --features libfuzzer
for target in $targets; do
    # Heads are limited to 16 KiB, chunk-size lines to 1 KiB. In other targets few input bytes stand for long payloads.
    case $target in
        *_head | opening | proxy_header) len=20000 ;;
        *) len=1024 ;;
    esac
    mkdir -p "$work/corpus/$target" "artifacts/$target"
    [ ! -e "corpus/found/$target.tar.gz" ] || tar -xzf "corpus/found/$target.tar.gz" -C "$work/corpus/$target"
    log="$work/$target.log"
    if [ "$first" = keep ]; then
        rm -rf "$work/kept/$target"
        mkdir -p "$work/kept/$target" corpus/found
        cargo "+$toolchain" fuzz run --fuzz-dir . --features libfuzzer "$target" "$work/kept/$target" \
            "$work/corpus/$target" -- -merge=1 -timeout=10 "-max_len=$len" >"$log" 2>&1
        tar -c --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner -C "$work/kept/$target" . |
            gzip -9n >"corpus/found/$target.tar.gz"
        echo "fuzz: $target, $(find "$work/kept/$target" -type f | wc -l) inputs are kept"
        continue
    fi
    echo "fuzz: $target, $first s"
    if ! cargo "+$toolchain" fuzz run --fuzz-dir . --features libfuzzer "$target" \
        "$work/corpus/$target" "corpus/$target" -- \
        "-max_total_time=$first" -timeout=10 "-max_len=$len" -malloc_limit_mb=64 -print_final_stats=1 >"$log" 2>&1; then
        tail -n 60 "$log"
        echo "fuzz: $target failed; the input is under fuzz/artifacts/$target"
        exit 1
    fi
    grep -E '^Done|number_of_executed_units' "$log"
done
