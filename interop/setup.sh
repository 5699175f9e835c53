#!/usr/bin/env bash
# Install and build the peers that are not Python, each by the package client of its language, every version pinned.
#
#   interop/setup.sh
#
# They go into interop/peers/node/node_modules and build/interop. Chromium is the system's; where it is missing, Debian's
# is installed, if this is root. What cannot be had is named and its tests are skipped; with WIRESPEED_INTEROP=all, exit
# status 1.
set -euo pipefail
cd "$(dirname "$0")/.."

peers=interop/peers
built=build/interop
missing=
mkdir -p "$built"

has() { command -v "$1" >/dev/null; }

# What the peer is, and why it is not there.
lacks() {
    echo "interop: $1 is not tested: $2" >&2
    missing="${missing:+$missing, }$1"
}

install_node() {
    has node || { lacks "node and ws" "node is missing"; return; }
    has npm || { lacks ws "npm is missing"; return; }
    if [ ! "$peers/node/node_modules/.package-lock.json" -nt "$peers/node/package-lock.json" ]; then
        npm ci --prefix "$peers/node" --no-audit --no-fund --loglevel=error ||
            lacks ws "npm could not install it"
    fi
}

build_go() {
    has go || { lacks coder "go is missing"; return; }
    # No other toolchain is fetched than the one that is there.
    (cd "$peers/go" && GOTOOLCHAIN=local go build -o "../../../$built/go-peer" .) ||
        lacks coder "go could not build it"
}

build_java() {
    has java || { lacks java "java is missing"; return; }
    has javac || { lacks java "javac is missing"; return; }
    if [ ! "$built/java/Peer.class" -nt "$peers/java/Peer.java" ]; then
        javac -d "$built/java" "$peers/java/Peer.java" || lacks java "javac could not compile it"
    fi
}

install_chromium() {
    for name in "${CHROMIUM:-}" chromium chromium-browser google-chrome; do
        if [ -n "$name" ] && has "$name"; then
            return
        fi
    done
    if has apt-get && [ "$(id -u)" = 0 ]; then
        export DEBIAN_FRONTEND=noninteractive
        # Without a font it does not start.
        apt-get update -qq && apt-get install -qqy --no-install-recommends chromium fonts-liberation >/dev/null ||
            lacks chromium "apt-get could not install it"
    else
        lacks chromium "it is not installed; set CHROMIUM to a browser's program, or apt-get install chromium"
    fi
}

install_node
build_go
build_java
install_chromium

if [ -n "$missing" ] && [ "${WIRESPEED_INTEROP:-}" = all ]; then
    echo "interop: WIRESPEED_INTEROP=all, and not there: $missing" >&2
    exit 1
fi
