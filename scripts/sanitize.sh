#!/usr/bin/env bash
# Runs tests with a sanitizer in the code.
#
#   scripts/sanitize.sh address [rust | python] [TESTS]   AddressSanitizer and LeakSanitizer: the Rust suites, and the
#                                                         native module under pytest
#   scripts/sanitize.sh thread [TESTS]                    ThreadSanitizer: driver and engine, from many threads
#   scripts/sanitize.sh miri [TESTS]                      Miri: the protocol, which makes no system call
#
# TESTS: for Rust, names of test files (--test), the library's own tests being "lib"; for Python, arguments of pytest.
# Without any, all that are meant. What is left out, and why, is said below where it is.
#
# Needs: rustup toolchain install nightly --component rust-src,miri
# PYTHON: an interpreter with what the tests need (.venv/bin/python). CARGO_TARGET_DIR: target; each kind has its own
# directory in it, of one to three GB. SEED, ROUNDS: of the random tests of threads.
set -euo pipefail
cd "$(dirname "$0")/.."

usage() {
    sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' "$0"
    exit "$1"
}

kind=${1-}
case $kind in
    -h | --help) usage 0 ;;
    address | thread | miri) shift ;;
    *) usage 2 >&2 ;;
esac

missing() {
    echo "$1 is missing: rustup toolchain install nightly --component rust-src,miri" >&2
    exit 1
}
cargo +nightly --version >/dev/null 2>&1 || missing "the nightly toolchain"
host=$(rustc +nightly -vV | sed -n 's/^host: //p')
target=${CARGO_TARGET_DIR:-target}/sanitize
here=$PWD/scripts/sanitizers
export CARGO_INCREMENTAL=0 CARGO_PROFILE_DEV_DEBUG=line-tables-only CARGO_PROFILE_DEV_OPT_LEVEL=1
# Fewer of what is drawn at random: the code is slower here, and other suites draw many.
export PROPTEST_CASES=${PROPTEST_CASES:-32}

# The tests of a crate: those that were named, or else all but some.
#   tests CRATE [EXCEPT ...]: sets `chosen` to arguments of cargo, empty if there is none.
tests() {
    local crate=$1 name
    shift
    chosen=()
    for name in lib $(cd "crates/$crate/tests" && ls -d *.rs */main.rs 2>/dev/null | sed 's,/main.rs$,,;s,\.rs$,,'); do
        [[ ${#names[@]} -eq 0 || " ${names[*]} " == *" $name "* ]] || continue
        [[ " $* " == *" $name "* ]] && continue
        if [[ $name == lib ]]; then chosen+=(--lib); else chosen+=(--test "$name"); fi
    done
}

address_rust() {
    local crate count=0 failed=
    export ASAN_OPTIONS=detect_leaks=1:detect_stack_use_after_return=1:strict_string_checks=1:abort_on_error=0
    export LSAN_OPTIONS=suppressions=$here/leaks.txt:print_suppressions=0
    for crate in protocol driver engine brokers; do
        case $crate in
            # The memory of the process, where the sanitizer keeps what was freed.
            engine) tests "$crate" total ;;
            # The C library's allocator, in whose place the sanitizer has its own.
            driver) tests "$crate" allocator ;;
            *) tests "$crate" ;;
        esac
        [[ ${#chosen[@]} -eq 0 ]] && continue
        RUSTFLAGS="-Zsanitizer=address ${RUSTFLAGS-}" cargo +nightly test --quiet --no-fail-fast --target "$host" \
            --target-dir "$target/address" -p "wirespeed-$crate" "${chosen[@]}" || failed+=" $crate"
        count=$((count + 1))
    done
    [[ -z $failed ]] || { echo "address rust: failed:$failed" && exit 1; }
    echo "address rust: the tests of $count crates, no error, no leak"
}

# Quick tests that cover the native module's own buffers, objects, exceptions and cycles. Tests that start programs are
# left out, because these would inherit the sanitizer, and so are tests that count system calls, memory or time.
python_tests=(
    tests/sync/test_client_messages.py tests/sync/test_client_closing.py tests/sync/test_client_compression.py
    tests/sync/test_client_limits.py tests/sync/test_client_streaming.py tests/sync/test_client_threads.py
    tests/sync/test_client_tls.py tests/sync/test_client_types.py tests/sync/test_server.py
    tests/asyncio/test_client_batches.py tests/asyncio/test_client_cancellation.py tests/asyncio/test_client_closing.py
    tests/asyncio/test_client_compression.py tests/asyncio/test_client_ending.py tests/asyncio/test_client_fragments.py
    tests/asyncio/test_client_listener.py tests/asyncio/test_client_messages.py tests/asyncio/test_client_nesting.py
    tests/asyncio/test_client_queue.py tests/asyncio/test_client_reentrance.py tests/asyncio/test_client_streaming.py
    tests/asyncio/test_client_tasks.py tests/asyncio/test_client_types.py tests/asyncio/test_client_waiter.py
    tests/asyncio/test_client_zero_copy.py tests/asyncio/test_client_zero_copy_ending.py
    tests/asyncio/test_server.py tests/asyncio/test_server_broadcast.py tests/asyncio/test_server_cancellation.py
    tests/engine/test_engine.py tests/engine/test_batches.py tests/engine/test_handlers.py tests/engine/test_relay.py
    tests/engine/test_routes.py tests/engine/test_sessions.py
)

address_python() {
    local python=${PYTHON:-.venv/bin/python} package=$target/python suffix runtime
    # The runtime of Rust is for programs alone; that of GCC has the same interface, as a library.
    runtime=$(realpath "$(gcc -print-file-name=libasan.so)")
    [[ -e $runtime ]] || { echo "libasan is missing: it comes with gcc" >&2 && exit 1; }
    suffix=$("$python" -c 'import sysconfig; print(sysconfig.get_config_var("EXT_SUFFIX"))')
    PYO3_PYTHON=$("$python" -c 'import sys; print(sys.executable)') \
        RUSTFLAGS="-Zsanitizer=address ${RUSTFLAGS-}" \
        cargo +nightly build --quiet --target "$host" --target-dir "$target/address" -p wirespeed-python
    rm -rf "$package"
    mkdir -p "$package/wirespeed"
    local path
    for path in python/wirespeed/*; do
        case $path in *.so | */__pycache__) ;; *) ln -s "$PWD/$path" "$package/wirespeed/" ;; esac
    done
    ln -s "$(realpath "$target")/address/$host/debug/lib_native.so" "$package/wirespeed/_native$suffix"
    # One process, whose leaks are looked for at its end; longer time limits, as all is three times as slow.
    LD_PRELOAD=$runtime PYTHONMALLOC=malloc PYTHONPATH=$package:tests \
        ASAN_OPTIONS=detect_leaks=1:detect_stack_use_after_return=0:allocator_may_return_null=1 \
        LSAN_OPTIONS=suppressions=$here/leaks.txt:print_suppressions=0 \
        "$python" "$here/python_leaks.py" -q -p no:cacheprovider -p no:xdist --timeout 400 \
        --deselect tests/engine/test_handlers.py::test_sigterm_while_it_starts "${@:-${python_tests[@]}}"
    echo "address python: $(($# ? $# : ${#python_tests[@]})) files of tests, no error, no leak"
}

thread() {
    local crate count=0 failed=
    # Code of other languages is not instrumented: what it synchronises is not seen. So TLS is left out, whose
    # cryptography is in C; it shares nothing between threads but what Rust guards.
    export TSAN_OPTIONS=suppressions=$here/races.txt:halt_on_error=0:second_deadlock_stack=1
    for crate in driver engine; do
        case $crate in
            # fork: a child of a program of many threads, which the sanitizer does not follow.
            # The C library's allocator, in whose place it has its own.
            driver) tests driver allocator fork tls opening ;;
            # Rates and times that its slowness would falsify; keys, which are C.
            engine) tests engine pace figures total auth_jwt auth_keys auth_acl auth_source certificate tls ;;
        esac
        [[ ${#chosen[@]} -eq 0 ]] && continue
        RUSTFLAGS="-Zsanitizer=thread ${RUSTFLAGS-}" cargo +nightly test --quiet \
            -Zbuild-std --no-fail-fast --target "$host" --target-dir "$target/thread" -p "wirespeed-$crate" "${chosen[@]}" ||
            failed+=" $crate"
        count=$((count + 1))
    done
    [[ -z $failed ]] || { echo "thread: failed:$failed" && exit 1; }
    echo "thread: the tests of $count crates, no race"
}

run_miri() {
    # Proptest keeps what has failed in files; nothing else of the system is used.
    export MIRIFLAGS="-Zmiri-disable-isolation ${MIRIFLAGS-}" PROPTEST_CASES=${MIRI_CASES:-4}
    cargo +nightly miri --version >/dev/null 2>&1 || missing Miri
    # Miri's processor has only the declared features: without AVX2, the vector code of masking would not run. That of
    # UTF-8 is not ours: simdutf8 (0.1.5) prefetches, and computes a pointer for it that may lie behind the end, which
    # Miri refuses although it is never read; its pull request 120 fixes that for the next release.
    if [[ $host == x86_64-* && (${#names[@]} -eq 0 || " ${names[*]} " == *" mask "*) ]]; then
        RUSTFLAGS="-Ctarget-feature=+avx2 ${RUSTFLAGS-}" cargo +nightly miri test --quiet \
            --target-dir "$target/miri/avx2" -p wirespeed-protocol --test mask
    fi
    tests protocol
    cargo +nightly miri test --quiet --target-dir "$target/miri" -p wirespeed-protocol "${chosen[@]}"
    echo "miri: the tests of protocol, no undefined behaviour"
}

case $kind in
    address)
        part=both
        case ${1-} in rust | python) part=$1 && shift ;; esac
        names=("$@")
        [[ $part == python ]] || address_rust
        [[ $part == rust ]] || address_python "$@"
        ;;
    thread)
        names=("$@")
        thread
        ;;
    miri)
        names=("$@")
        run_miri
        ;;
esac
