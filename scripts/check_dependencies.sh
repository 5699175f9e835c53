#!/usr/bin/env bash
# Checks the Rust dependencies against deny.toml: versions, licences, sources and security advisories.
#
#   scripts/check_dependencies.sh
#
# Installs cargo-deny into target/tools if it is missing. The database of advisories is a repository on GitHub. Where it cannot be reached,
# everything else is checked and the last line says that advisories were not; REQUIRE_ADVISORIES=1 makes that an error.
set -euo pipefail
cd "$(dirname "$0")/.."
cargo=${CARGO:-cargo}
# Not where the user's own programs are: it would replace another version.
export CARGO_INSTALL_ROOT=${CARGO_INSTALL_ROOT:-$PWD/${CARGO_TARGET_DIR:-target}/tools}
PATH=$CARGO_INSTALL_ROOT/bin:$PATH
version=0.20.2

if ! cargo-deny --version 2>/dev/null | grep -qF " $version"; then
    echo "installing cargo-deny $version: this takes some minutes"
    # Built without optimisation: it runs for a second, and is compiled in a third of the time.
    CARGO_PROFILE_DEV_DEBUG=0 "$cargo" install --quiet --locked --debug --force "cargo-deny@$version"
fi

command -v timeout >/dev/null || { echo "timeout is missing: install coreutils" >&2; exit 1; }
if timeout 120 cargo-deny fetch db >/dev/null 2>&1; then
    cargo-deny check
    echo "advisories were checked"
else
    cargo-deny check bans licenses sources
    echo "advisories were not checked: their database at https://github.com/rustsec/advisory-db cannot be reached"
    [ "${REQUIRE_ADVISORIES:-}" != 1 ]
fi
