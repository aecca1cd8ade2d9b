#!/bin/sh
# Installs what is missing, and nothing that is there:
#   tools/deps.sh build   a C compiler and stb_ds.h
#   tools/deps.sh header  python3
#   tools/deps.sh test    those, cmocka and, where they can be had, g++, clang, spin, PyTorch, igraph,
#                         pycparser, Python's venv and pip, Open MPI, OpenSSL, and CMake, pkg-config,
#                         debhelper and Conan (in build/conan) for the packages
# apt is used as root or with passwordless sudo; otherwise the one command to run is printed.
set -u
cd "$(dirname "$0")/.." || exit 1

stb_commit=8b5f1f37b5b75829fc72d38e7b5d4bcbf8a26d55
stb_sha256=3ef6d369f0ee324e60326160b7721b83bb52e123d4276322e993676555d0efdd

have() { command -v "$1" >/dev/null 2>&1; }

# A header that the compiler finds under any of the names given.
have_header() {
    for h in "$@"; do
        # shellcheck disable=SC2086  # flags are a list of words
        echo "#include <$h>" | ${CC:-cc} ${CPPFLAGS:-} -isystem build/include -include stddef.h -include stdarg.h \
            -include stdint.h -include setjmp.h -fsyntax-only -x c - 2>/dev/null && return 0
    done
    return 1
}

# Runs apt-get install, first with the package lists at hand, then with fresh ones.
apt_install() {
    have apt-get || return 1
    if [ "$(id -u)" = 0 ]; then sudo=; elif sudo -n true 2>/dev/null; then sudo=sudo; else return 1; fi
    $sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "$@" >&2 && return 0
    $sudo apt-get update -q >&2
    $sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "$@" >&2
}

fetch_stb_ds() {
    have curl && have sha256sum || return 1
    mkdir -p build/include
    curl -fsSL --max-time 60 -o build/include/stb_ds.h.part \
        "https://raw.githubusercontent.com/nothings/stb/$stb_commit/stb_ds.h" || return 1
    if ! echo "$stb_sha256  build/include/stb_ds.h.part" | sha256sum -c - >/dev/null 2>&1; then
        rm -f build/include/stb_ds.h.part
        echo "deps: the fetched stb_ds.h has another sha256 than $stb_sha256; it was deleted" >&2
        return 1
    fi
    mv build/include/stb_ds.h.part build/include/stb_ds.h
}

missing() { # words of the Debian packages that are needed and not there
    compiler=${CC:-cc} # may be two words: ccache gcc
    [ "$1" = build ] || have python3 || printf ' python3-minimal'
    [ "$1" = header ] && return
    have "${compiler%% *}" || printf ' gcc libc6-dev'
    have_header stb_ds.h stb/stb_ds.h || printf ' libstb-dev'
    [ "$1" = build ] || have_header cmocka.h || printf ' libcmocka-dev'
}

case "${1-}" in
build | header | test) ;;
*) sed -n 's/^# \{0,1\}//;2,8p' "$0"; exit 2 ;;
esac

want=$(missing "$1")
if [ -n "$want" ]; then
    # shellcheck disable=SC2086  # a list of words
    apt_install $want || true
    [ "$1" = header ] || have_header stb_ds.h stb/stb_ds.h || fetch_stb_ds || true
    want=$(missing "$1")
fi
if [ -n "$want" ]; then
    echo "deps: missing; run this once:  sudo apt-get install$want" >&2
    exit 1
fi

# Best effort, tried once: without them their tests are skipped by name.
if [ "$1" = test ] && [ ! -e build/.deps-test ]; then
    have g++ || apt_install g++ || true
    have clang || apt_install clang || true
    { python3 -c 'import torch' || /usr/bin/python3 -c 'import torch'; } 2>/dev/null || apt_install python3-torch || true
    have spin || apt_install spin || true
    { python3 -c 'import igraph' || /usr/bin/python3 -c 'import igraph'; } 2>/dev/null || apt_install python3-igraph || true
    { python3 -c 'import pycparser' || /usr/bin/python3 -c 'import pycparser'; } 2>/dev/null || apt_install python3-pycparser || true
    /usr/bin/python3 -c 'import venv, ensurepip, setuptools, wheel' 2>/dev/null || apt_install python3-venv python3-pip python3-setuptools python3-wheel || true
    have mpicc && have mpirun || { apt_install libopenmpi-dev openmpi-bin && rm -f build/mpi.flags; } || true
    have_header openssl/ssl.h || apt_install libssl-dev || true
    have openssl || apt_install openssl || true
    have cmake || apt_install cmake || true
    have pkg-config || apt_install pkg-config || true
    have dh || apt_install debhelper || true
    have conan || { /usr/bin/python3 -m venv build/conan && build/conan/bin/pip install -q --retries 1 'conan>=2,<3'; } >&2 || true
    mkdir -p build/include
    : >build/.deps-test
fi
