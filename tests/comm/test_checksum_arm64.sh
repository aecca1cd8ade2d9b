#!/bin/sh
# [test-all: needs gcc-aarch64-linux-gnu and qemu-user-static] CRC-32C on arm64: a program for the compiler's default
# processor finds the instruction at run time. test_engine.c compares the implementations on the machine that runs it.
root=$(cd "$(dirname "$0")/../.." && pwd)
. "$root/tests/cases.sh"
cross=aarch64-linux-gnu
command -v $cross-gcc >/dev/null || skip_script "no $cross-gcc"
command -v qemu-aarch64-static >/dev/null || skip_script "no qemu-aarch64-static"
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
cat >"$work/checksum.c" <<'C'
#define _GNU_SOURCE
#include "comm/checksum.c"

int main(void)
{
    static unsigned char data[5000];

    for (size_t i = 0; i < sizeof data; i++) data[i] = (unsigned char)(i * i * 7 + i / 3);
    if (!DDP__CRC_HERE) return puts("the instruction was not found");
    if (ddp__crc32c(0, "123456789", 9) != 0xe3069283u) return puts("the check value of CRC-32C is wrong");
    for (size_t n = 0; n <= sizeof data; n++)
        if (ddp__crc32c_fast(0, data, n) != ddp__crc32c_sliced(0, data, n))
            return printf("the instruction and the tables disagree about %lu bytes\n", (unsigned long)n);
    return 0;
}
C

# finds NAME COMPILER: compiles the program and runs it
finds() {
    out=$($2 -std=c11 -O1 -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Werror -DDDP_SEPARATE -I"$root/src" "$work/checksum.c" \
        -o "$work/checksum" 2>&1 && qemu-aarch64-static -L /usr/$cross "$work/checksum" 2>&1)
    result $? "$1" "$out"
}
finds "gcc finds the instruction at run time" $cross-gcc
if command -v clang >/dev/null; then finds "clang finds the instruction at run time" "clang --target=$cross"
else skip "clang finds the instruction at run time" "no clang"; fi
close
