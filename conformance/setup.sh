#!/usr/bin/env bash
# Install the Autobahn test suite (wstest) for CPython 2.7, from PyPI, every version pinned.
#
#   conformance/setup.sh [TARGET]        TARGET defaults to build/autobahn
#
# The interpreter is PYTHON27, or the newest 2.7 under ~/.pyenv/versions. Without one: exit status 77, which
# test harnesses take for "skipped". A finished TARGET with the same pins is left alone; any other is made anew.
#
# TARGET/bin/wstest-local is what to run: wstest, but listening on 127.0.0.1 only, without its web server on
# port 8080, and with unbuffered output.
set -euo pipefail

root=$(cd "$(dirname "$0")/.." && pwd)
target=${1:-$root/build/autobahn}
case $target in /*) ;; *) target=$PWD/$target ;; esac

# Settings of the caller's Python must not reach this one. Those of pip about index and proxy may.
unset PYTHONPATH PYTHONHOME VIRTUAL_ENV PIP_TARGET PIP_PREFIX PIP_USER PIP_REQUIRE_VIRTUALENV PIP_CONSTRAINT \
    PIP_REQUIREMENT PIP_NO_BINARY || true
export PIP_DISABLE_PIP_VERSION_CHECK=1 PYTHONWARNINGS=ignore

is_27() { "$1" -c 'import sys; sys.exit(sys.version_info[:2] != (2, 7))' >/dev/null 2>&1; }

python=${PYTHON27:-}
if [ -z "$python" ]; then
    for candidate in "$HOME"/.pyenv/versions/2.7*/bin/python python2.7; do
        # A pyenv shim named python2.7 exists even where no 2.7 is active: it has to run.
        if is_27 "$candidate"; then
            python=$candidate
            break
        fi
    done
fi
if [ -z "$python" ]; then
    echo "autobahn: skipped, the suite needs CPython 2.7 and there is none;" \
        "set PYTHON27 to one, or install one: pyenv install 2.7.18" >&2
    exit 77
fi
if ! is_27 "$python"; then
    echo "autobahn: PYTHON27=$python is not a CPython 2.7 interpreter" >&2
    exit 2
fi

# The last versions that run on 2.7: virtualenv and what it needs, used once; what it seeds; the suite.
virtualenv_pins='
virtualenv==20.15.1 distlib==0.3.6 filelock==3.2.1 platformdirs==2.0.2 six==1.16.0 importlib-metadata==2.1.3
importlib-resources==3.3.1 configparser==4.0.2 contextlib2==0.6.0.post1 pathlib2==2.3.7.post1 scandir==1.10.0
singledispatch==3.7.0 typing==3.10.0.0 zipp==1.2.0'
seed_pins='
pip==20.3.4 setuptools==44.1.1 wheel==0.37.1'
# incremental after 16.10.1 needs the typing module of Python 3.
suite_pins='
autobahntestsuite==0.8.2 autobahn==0.10.9 txaio==2.1.0 Twisted==20.3.0 incremental==16.10.1 zope.interface==5.4.0
constantly==15.1.0 Automat==22.10.0 hyperlink==21.0.0 PyHamcrest==1.9.0 attrs==21.4.0 six==1.16.0
typing==3.10.0.0 idna==2.10 pyOpenSSL==21.0.0 cryptography==3.3.2 cffi==1.15.1 pycparser==2.21 enum34==1.1.10
ipaddress==1.0.23 service-identity==21.1.0 pyasn1==0.5.1 pyasn1-modules==0.3.0 klein==20.6.0 Tubes==0.2.1
Werkzeug==1.0.1 Jinja2==2.11.3 MarkupSafe==1.1.1 ujson==2.0.3 unittest2==1.1.0 traceback2==1.4.0
linecache2==1.0.0 argparse==1.4.0'
# Masking and UTF-8 validation in C. Without a compiler the suite runs on its slower Python code.
fast_pins='
wsaccel==0.6.6'

version=$("$python" -c 'import sys; print(sys.version.split()[0])')
wanted="2 $version $(echo "$seed_pins $suite_pins $fast_pins" | cksum)"
stamp=$target/.finished

if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$wanted" ] && [ -x "$target/bin/wstest-local" ]; then
    exit 0
fi
if [ -e "$target" ]; then
    if [ ! -e "$target/.autobahn" ] && [ -n "$(ls -A "$target")" ]; then
        echo "autobahn: $target exists and was not made by this script" >&2
        exit 2
    fi
    rm -rf "$target"
fi
mkdir -p "$target"
touch "$target/.autobahn"
echo "autobahn: installing with CPython $version in $target" >&2

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

# shellcheck disable=SC2086 # the pins are words
{
    "$python" -m pip --version >/dev/null 2>&1 || "$python" -m ensurepip >/dev/null
    "$python" -m pip install -q --no-deps --target "$scratch/virtualenv" $virtualenv_pins
    PYTHONPATH=$scratch/virtualenv VIRTUALENV_OVERRIDE_APP_DATA=$scratch/data \
        "$python" -m virtualenv -q --no-download --no-periodic-update -p "$python" "$target"
    pip() { "$target/bin/python" -m pip --no-python-version-warning "$@"; }
    pip install -q --no-deps $seed_pins
    pip install -q --no-deps --no-build-isolation $suite_pins
    pip install -q --no-deps --no-build-isolation $fast_pins >"$scratch/fast.log" 2>&1 ||
        echo "autobahn: wsaccel does not build here, the suite will be slow" >&2
    pip check >"$scratch/check.log" || { cat "$scratch/check.log" >&2; exit 1; }
}

cat >"$target/bin/wstest-local" <<EOS
#!$target/bin/python -u
"""wstest, listening on 127.0.0.1 only."""
import sys
import warnings
warnings.simplefilter("ignore")
from autobahntestsuite import wstest
from twisted.internet import reactor

listen = reactor.listenTCP
listen_secure = reactor.listenSSL


def listen_locally(port, factory, backlog=50, interface=""):
    return listen(port, factory, backlog, interface or "127.0.0.1")


def listen_securely(port, factory, context, backlog=50, interface=""):
    return listen_secure(port, factory, context, backlog, interface or "127.0.0.1")


reactor.listenTCP = listen_locally
reactor.listenSSL = listen_securely
# Port 0 switches the web server off.
sys.argv[1:1] = ["-u", "0"]
sys.exit(wstest.run())
EOS
chmod +x "$target/bin/wstest-local"
"$target/bin/wstest-local" -a >"$scratch/version.log" 2>/dev/null || {
    echo "autobahn: the installed suite does not start" >&2
    exit 1
}
echo "$wanted" >"$stamp"
