#!/usr/bin/env bash
# Runs the Python tests on an interpreter of Debian's development suite, which has the newest ones, in a chroot.
#
#     scripts/debian-pythons.sh 3.15 [arguments of pytest]
#
# Needs root, debootstrap and a mirror of Debian. The chroot has its own compilers and environments, sees this folder as
# /wirespeed, and stays for the next time; remove it to start again. Its mounts are private, and removed at the
# end. From the environment:
#
#     DEBIAN_ROOT        where the chroot is: ~/.cache/wirespeed/debian
#     DEBIAN_MIRROR      where packages come from: what this system uses if it is Debian, else deb.debian.org
#     DEBOOTSTRAP_ARGS   more arguments for debootstrap, such as --no-check-gpg
#     WORKERS            of pytest: 3
set -euo pipefail

python="python${1:?which version of Python? for example 3.15}"
if [ "$(id -u)" != 0 ]; then
    echo "a chroot needs root" >&2
    exit 1
fi
if ! command -v debootstrap >/dev/null; then
    echo "debootstrap is missing: apt-get install debootstrap" >&2
    exit 1
fi
if [ -z "${MOUNTS_ARE_OURS:-}" ]; then
    MOUNTS_ARE_OURS=1 exec unshare --mount --propagation private "$0" "$@"
fi

shift
cd "$(dirname "$0")/.."
here=$PWD
root=$(realpath -m "${DEBIAN_ROOT:-${XDG_CACHE_HOME:-$HOME/.cache}/wirespeed/debian}")

find_mirror() {
    sed -n 's/^URIs: *//p; s/^deb \(\[[^]]*\] \)\?\(http[^ ]*\) .*/\2/p' \
        /etc/apt/sources.list.d/debian.sources /etc/apt/sources.list 2>/dev/null | grep -v security | head -n 1 || true
}

inside() {
    chroot "$root" env -i HOME=/root PATH=/usr/local/bin:/usr/bin:/bin LANG=C.UTF-8 TERM="${TERM:-dumb}" \
        DEBIAN_FRONTEND=noninteractive CARGO_TARGET_DIR=/var/cache/wirespeed "$@"
}

# Complete or not there: debootstrap does not go on where it was stopped.
if [ ! -e "$root/complete" ]; then
    mirror=${DEBIAN_MIRROR:-$(find_mirror)}
    rm -rf --one-file-system "$root"
    mkdir -p "$root"
    # shellcheck disable=SC2086 # several arguments
    debootstrap --variant=minbase --include=ca-certificates ${DEBOOTSTRAP_ARGS:-} \
        sid "$root" "${mirror:-http://deb.debian.org/debian}"
    touch "$root/complete"
fi

# How this system reaches others: names, a proxy or index of pip, certificates.
for file in /etc/resolv.conf /etc/hosts /etc/pip.conf /etc/ssl/certs/ca-certificates.crt; do
    if [ -e "$file" ]; then
        cp --remove-destination -L "$file" "$root$file"
    fi
done

mkdir -p "$root/wirespeed"
mount --bind /proc "$root/proc"
mount --bind /dev "$root/dev"
mount --bind /dev/pts "$root/dev/pts"
mount -t tmpfs tmpfs "$root/dev/shm"
mount --bind "$here" "$root/wirespeed"

# A mirror may be a snapshot, or late.
inside apt-get -o Acquire::Check-Valid-Until=false update -q
inside apt-get install -qy --no-install-recommends \
    cargo gcc libc6-dev openssl procps "$python" "$python-dev" "$python-venv"

venv=/opt/$python
if [ ! -e "$root$venv/ready" ]; then
    inside "$python" -m venv --clear "$venv"
    inside sh -c "cd /wirespeed && $venv/bin/python -m pip install -q --upgrade 'pip>=25.1' 'maturin>=1.16,<2' \
        && $venv/bin/python -m pip install -q --group test"
    touch "$root$venv/ready"
fi
# Quick to build. The module lies beside those of other interpreters, and is no wheel, so that tests find the sources.
inside sh -c "cd /wirespeed && VIRTUAL_ENV=$venv $venv/bin/maturin develop --profile quick \
    && cargo build --quiet --profile quick -p wirespeed-bench -p wirespeed-sans-io"
inside sh -c 'cd /wirespeed && exec "$@"' sh \
    "$venv/bin/python" -m pytest -q -p no:cacheprovider -n "${WORKERS:-3}" --dist loadfile "$@"
