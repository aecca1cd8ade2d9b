#!/bin/sh
# Installs missing packages:
#   tools/deps.sh build     a C compiler and stb_ds.h
#   tools/deps.sh header    python3
#   tools/deps.sh test      for `make test`: the above, a C++ compiler and cmocka
#   tools/deps.sh test-all  for `make test-all`: the above and, if available, clang, spin, PyTorch, igraph, pycparser, venv, pip,
#                           Open MPI, MPICH, Slurm, OpenSSL, OpenSSH, iptables, musl, a compiler and an emulator of arm64, CMake,
#                           pkg-config, debhelper and Conan (in build/conan) for the packages, clang-format (in build/format)
#   tools/deps.sh docs      for `make docs`: Doxygen, and MkDocs from PyPI in build/mkdocs
# apt is used as root or with passwordless sudo; otherwise the one command to run is printed.
set -u
cd "$(dirname "$0")/.." || exit 1

stb_commit=8b5f1f37b5b75829fc72d38e7b5d4bcbf8a26d55
stb_sha256=3ef6d369f0ee324e60326160b7721b83bb52e123d4276322e993676555d0efdd

have() { command -v "$1" >/dev/null 2>&1; }

# Succeeds if the compiler finds a header under one of the given names.
have_header() {
    for h in "$@"; do
        # shellcheck disable=SC2086  # flags are a list of words
        echo "#include <$h>" | ${CC:-cc} ${CPPFLAGS:-} -isystem build/include -include stddef.h -include stdarg.h \
            -include stdint.h -include setjmp.h -fsyntax-only -x c - 2>/dev/null && return 0
    done
    return 1
}

# Runs apt-get install, first with the existing package lists, then with updated ones.
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

has_python() { python3 -c 'import concurrent.futures, json, csv' 2>/dev/null; }

missing() { # prints the Debian packages that are needed and missing
    compiler=${CC:-cc} # may be two words: ccache gcc
    cxx=${CXX:-c++}
    if [ "$1" = header ]; then
        has_python || printf ' python3'
        return
    fi
    if [ "$1" = docs ]; then
        have doxygen || printf ' doxygen'
        /usr/bin/python3 -c 'import venv, ensurepip' 2>/dev/null || printf ' python3-venv'
        return
    fi
    have "${compiler%% *}" || case "${compiler%% *}" in cc | gcc) printf ' gcc libc6-dev' ;; *) printf ' %s libc6-dev' "${compiler%% *}" ;; esac
    have_header stb_ds.h stb/stb_ds.h || printf ' libstb-dev'
    [ "$1" = build ] && return
    has_python || printf ' python3'
    have "${cxx%% *}" || have g++ || have clang++ || printf ' g++'
    have_header cmocka.h || printf ' libcmocka-dev'
}

case "${1-}" in
build | header | test | test-all | docs) ;;
*) sed -n 's/^# \{0,1\}//;2,10p' "$0"; exit 2 ;;
esac

want=$(missing "$1")
if [ -n "$want" ]; then
    # shellcheck disable=SC2086  # a list of words
    apt_install $want || true
    [ "$1" = header ] || [ "$1" = docs ] || have_header stb_ds.h stb/stb_ds.h || fetch_stb_ds || true
    want=$(missing "$1")
fi
if [ -n "$want" ]; then
    echo "deps: not found:$want (names of Debian packages); to install them:  sudo apt-get install$want" >&2
    exit 1
fi

if [ "$1" = docs ] && [ ! -x build/mkdocs/bin/mkdocs ]; then
    mkdir -p build
    { /usr/bin/python3 -m venv build/mkdocs && build/mkdocs/bin/pip install -q mkdocs==1.6.1 mkdocs-material==9.8.2; } >&2 || {
        rm -rf build/mkdocs
        echo "deps: cannot install MkDocs from PyPI into build/mkdocs" >&2
        exit 1
    }
fi

# Best effort, tried once: without these packages the tests that need them are skipped by name.
if [ "$1" = test-all ] && [ ! -e build/.deps-test-all ]; then
    set --
    have clang || set -- "$@" clang
    { python3 -c 'import torch' || /usr/bin/python3 -c 'import torch'; } 2>/dev/null || set -- "$@" python3-torch
    have spin || set -- "$@" spin
    { python3 -c 'import igraph' || /usr/bin/python3 -c 'import igraph'; } 2>/dev/null || set -- "$@" python3-igraph
    /usr/bin/python3 -c 'import pycparser' 2>/dev/null || set -- "$@" python3-pycparser # usable together with PyTorch
    /usr/bin/python3 -c 'import venv, ensurepip, setuptools, wheel' 2>/dev/null || set -- "$@" python3-venv python3-pip python3-setuptools python3-wheel
    have mpicc && have mpirun || set -- "$@" libopenmpi-dev openmpi-bin
    have mpiexec.hydra || set -- "$@" mpich
    have_header openssl/ssl.h || set -- "$@" libssl-dev
    have openssl || set -- "$@" openssl
    have cmake || set -- "$@" cmake
    have pkg-config || set -- "$@" pkg-config
    have aarch64-linux-gnu-gcc && have qemu-aarch64-static || set -- "$@" gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user-static
    have dh || set -- "$@" debhelper
    have ssh && have ssh-keygen || set -- "$@" openssh-client
    # systemd would start these servers as system services, so they are installed only if systemd does not run.
    [ -d /run/systemd/system ] || [ -x /usr/sbin/sshd ] || have sshd || set -- "$@" openssh-server
    [ -d /run/systemd/system ] || [ -x /usr/sbin/slurmctld ] || have slurmctld || set -- "$@" slurm-wlm
    [ -x /usr/sbin/iptables ] || have iptables || set -- "$@" iptables
    have musl-gcc || set -- "$@" musl-tools
    # Install all at once; if that fails, each package separately.
    if [ $# -gt 0 ]; then
        apt_install "$@" || for package; do apt_install "$package" || true; done
    fi
    tools/format.py --install >&2 || true
    have conan || { /usr/bin/python3 -m venv build/conan && build/conan/bin/pip install -q --retries 1 'conan>=2,<3'; } >&2 || true
    mkdir -p build/include
    : >build/.deps-test-all
fi
