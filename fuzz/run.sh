#!/bin/sh
# fuzz/run.sh [SECONDS [TARGET...]]: runs every fuzz target, or those named, for that long each (default 20). With a
# nightly compiler and cargo-fuzz: libFuzzer with AddressSanitizer. Without: the same oracles on blind mutations of the
# corpora, every target.
# New inputs stay under fuzz/target/corpus; one that fails is written to fuzz/artifacts and ends the run.
set -eu
cd "$(dirname "$0")"
seconds=${1:-20}
[ $# -eq 0 ] || shift
toolchain=${FUZZ_TOOLCHAIN:-nightly}

if ! cargo "+$toolchain" fuzz --version >/dev/null 2>&1; then
    echo "fuzz: no cargo-fuzz on the $toolchain toolchain (cargo install cargo-fuzz): mutating the corpora without libFuzzer"
    FUZZ_SECONDS=$seconds exec cargo test --release --quiet --test replay -- --nocapture
fi

targets=${*:-$(cargo "+$toolchain" fuzz list --fuzz-dir .)}
cargo "+$toolchain" fuzz build --fuzz-dir . --features libfuzzer
for target in $targets; do
    echo "fuzz: $target, $seconds s"
    mkdir -p "target/corpus/$target" "artifacts/$target"
    log="target/$target.log"
    if ! cargo "+$toolchain" fuzz run --fuzz-dir . --features libfuzzer "$target" \
        "target/corpus/$target" "corpus/$target" -- \
        "-max_total_time=$seconds" -timeout=10 -max_len=1024 -print_final_stats=1 >"$log" 2>&1; then
        tail -n 60 "$log"
        echo "fuzz: $target failed; the input is under fuzz/artifacts/$target"
        exit 1
    fi
    grep -E '^Done|number_of_executed_units' "$log"
done
