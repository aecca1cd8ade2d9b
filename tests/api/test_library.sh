#!/bin/bash
# [test-all: compiles the library five times] The results of make split, make lib and make install: both libraries export only public names, and
# programs in C and C++ build with each of them, with the flags of pkg-config.
cd "$(dirname "$0")/../.." || exit 1
make -s split lib || exit 1
work=$(mktemp -d build/library.XXXXXX) || exit 1 # make needs a path without a space
trap 'rm -rf "$work"' EXIT
. tests/cases.sh

# check NAME COMMAND: the command succeeds and prints nothing
check() {
    chosen "$1" || return
    if out=$(eval "$2" 2>&1) && [ -z "$out" ]; then
        ok "$1"
    else
        bad "$1" "$(printf '%s\n%s\n' "$2" "$out" | head -12)"
    fi
}

cc=${CC:-cc}
warn='-Wall -Wextra -Wpedantic -Wshadow -Wconversion -Werror'
run="-lm -lpthread $(printf '#include <openssl/ssl.h>\nint main(void) { return OPENSSL_VERSION_MAJOR < 3 || !SSL_CTX_new; }\n' |
    $cc ${CPPFLAGS-} -x c - -lssl -lcrypto -o /dev/null 2>/dev/null && echo -lssl -lcrypto)"
cat >"$work/a.c" <<'END'
#include "dreamddp.h"
static int f(ddp_ctx *d, void *user) { float x = 1; (void)user; return ddp_all_reduce(d, &x, 1, 1) || x < 2 || x > 2; }
int main(void)
{
    static ddp_config cfg;
    ddp_error err;
    cfg.world = 2, cfg.no_env = 1, cfg.transport = DDP_THREADS;
    return ddp_launch(&cfg, f, 0, &err);
}
END
cp "$work/a.c" "$work/a.cpp"
shared="nm -D --defined-only build/lib/libdreamddp.so"
static="nm -g --defined-only build/lib/libdreamddp.a"
check "the shared library exports only public functions" "$shared | awk 'NF == 3 && \$3 !~ /^ddp_[a-z]/'"
check "the static library exports only public functions" "$static | awk 'NF == 3 && \$3 !~ /^ddp_[a-z]/'"
sed -n '/^DDP_API/,/;/p' build/dreamddp.h | grep -o '\bddp_[a-z0-9_]*(' | tr -d '(' | sort -u >"$work/declared"
$shared | awk '$3 ~ /^ddp_/ { print $3 }' | sort -u >"$work/defined"
check "the shared library defines exactly the declared functions" "comm -3 $work/declared $work/defined"
check "a program builds with the two files of make split" "$cc -std=c11 $warn ${CPPFLAGS-} -Ibuild -c $work/a.c -o $work/a.o &&
    $cc -std=c11 -O0 ${CPPFLAGS-} -isystem build/include $work/a.o build/dreamddp.c -o $work/a $run; $work/a"
check "a program builds with the static library" "$cc -std=c11 $warn -Ibuild $work/a.c build/lib/libdreamddp.a $run -o $work/a && $work/a"
if command -v g++ >/dev/null; then
    check "a C++ program builds with the static library" \
        "g++ -std=c++17 $warn -Ibuild $work/a.cpp build/lib/libdreamddp.a $run -o $work/a && $work/a"
else
    skip "a C++ program builds with the static library" "g++ is not installed"
fi
check "a program builds with the shared library" \
    "$cc -std=c11 $warn -Ibuild $work/a.c -Lbuild/lib -ldreamddp -o $work/a && LD_LIBRARY_PATH=build/lib $work/a"
check "DREAMDDP_IMPLEMENTATION has no effect with the split header" \
    "printf '#define DREAMDDP_IMPLEMENTATION\n' | cat - $work/a.c >$work/b.c && $cc -std=c11 $warn -Ibuild $work/b.c build/lib/libdreamddp.a $run -o $work/a && $work/a"

make -s install DESTDIR="$work/installed" PREFIX=/opt || bad "make install"
export PKG_CONFIG_PATH=$work/installed/opt/lib/pkgconfig:$work/installed/opt/share/pkgconfig PKG_CONFIG_SYSROOT_DIR=$work/installed
if command -v pkg-config >/dev/null; then
    check "a program builds with the installed library" "$cc -std=c11 $warn $work/a.c \$(pkg-config --cflags --libs libdreamddp) -o $work/a &&
        LD_LIBRARY_PATH=$work/installed/opt/lib $work/a"
    check "a program builds with the installed static library" "$cc -std=c11 $warn -c $work/a.c \$(pkg-config --cflags libdreamddp) -o $work/a.o &&
        $cc $work/a.o $work/installed/opt/lib/libdreamddp.a \$(pkg-config --static --libs libdreamddp | sed 's/-L[^ ]* -ldreamddp//') -o $work/a && $work/a"
    check "a program builds with only the installed header" "printf '#define DREAMDDP_IMPLEMENTATION\n' | cat - $work/a.c >$work/b.c &&
        $cc -std=c11 -O0 ${CPPFLAGS-} -isystem build/include $work/b.c \$(pkg-config --cflags --libs dreamddp) -o $work/a && $work/a"
else
    for name in "a program builds with the installed library" "a program builds with the installed static library" "a program builds with only the installed header"; do
        skip "$name" "pkg-config is not installed"
    done
fi
make -s uninstall DESTDIR="$work/installed" PREFIX=/opt
check "make uninstall removes all files" "find $work/installed ! -type d"
close
