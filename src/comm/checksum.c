/* Computes CRC-32C, with the processor's instruction if it has one, else with tables. The choice is made at
 * run time. */
#include "base/platform.h"
#include "comm/frame.h"

/* ---- with tables ---- */

/* 256 checksums. A CRC is linear, so entry i is the exclusive or of the arguments whose bit is set in i. */
#define DDP__CRC_2(v, a)                 (v), (v) ^ (a)
#define DDP__CRC_4(v, a, b)              DDP__CRC_2(v, a), DDP__CRC_2((v) ^ (b), a)
#define DDP__CRC_8(v, a, b, c)           DDP__CRC_4(v, a, b), DDP__CRC_4((v) ^ (c), a, b)
#define DDP__CRC_16(v, a, b, c, d)       DDP__CRC_8(v, a, b, c), DDP__CRC_8((v) ^ (d), a, b, c)
#define DDP__CRC_32(v, a, b, c, d, e)    DDP__CRC_16(v, a, b, c, d), DDP__CRC_16((v) ^ (e), a, b, c, d)
#define DDP__CRC_64(v, a, b, c, d, e, f) DDP__CRC_32(v, a, b, c, d, e), DDP__CRC_32((v) ^ (f), a, b, c, d, e)
#define DDP__CRC_128(v, a, b, c, d, e, f, g) \
    DDP__CRC_64(v, a, b, c, d, e, f), DDP__CRC_64((v) ^ (g), a, b, c, d, e, f)
#define DDP__CRC_256(a, b, c, d, e, f, g, h) \
    DDP__CRC_128(0u, a, b, c, d, e, f, g), DDP__CRC_128(h, a, b, c, d, e, f, g)

/* Slicing by 8. by[k][b] is the checksum of byte b and k zero bytes after it.
 * Source: Kounavis and Berry, "A systematic approach to building high performance software-based CRC
 * generators", 2005. */
static uint32_t ddp__crc32c_sliced(uint32_t c, const unsigned char *p, size_t n)
{
    static const uint32_t by[8][256] = {{DDP__CRC_256(0xf26b8303u, 0xe13b70f7u, 0xc79a971fu, 0x8ad958cfu,
                                                      0x105ec76fu, 0x20bd8edeu, 0x417b1dbcu, 0x82f63b78u)},
                                        {DDP__CRC_256(0x13a29877u, 0x274530eeu, 0x4e8a61dcu, 0x9d14c3b8u,
                                                      0x3fc5f181u, 0x7f8be302u, 0xff17c604u, 0xfbc3faf9u)},
                                        {DDP__CRC_256(0xa541927eu, 0x4f6f520du, 0x9edea41au, 0x38513ec5u,
                                                      0x70a27d8au, 0xe144fb14u, 0xc76580d9u, 0x8b277743u)},
                                        {DDP__CRC_256(0xdd45aab8u, 0xbf672381u, 0x7b2231f3u, 0xf64463e6u,
                                                      0xe964b13du, 0xd725148bu, 0xaba65fe7u, 0x52a0c93fu)},
                                        {DDP__CRC_256(0x38116facu, 0x7022df58u, 0xe045beb0u, 0xc5670b91u,
                                                      0x8f2261d3u, 0x1ba8b557u, 0x37516aaeu, 0x6ea2d55cu)},
                                        {DDP__CRC_256(0xef306b19u, 0xdb8ca0c3u, 0xb2f53777u, 0x6006181fu,
                                                      0xc00c303eu, 0x85f4168du, 0x0e045bebu, 0x1c08b7d6u)},
                                        {DDP__CRC_256(0x68032cc8u, 0xd0065990u, 0xa5e0c5d1u, 0x4e2dfd53u,
                                                      0x9c5bfaa6u, 0x3d5b83bdu, 0x7ab7077au, 0xf56e0ef4u)},
                                        {DDP__CRC_256(0x493c7d27u, 0x9278fa4eu, 0x211d826du, 0x423b04dau,
                                                      0x847609b4u, 0x0d006599u, 0x1a00cb32u, 0x34019664u)}};

    for (; n >= 8; n -= 8, p += 8) {
        c ^= (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
        c = by[7][c & 255] ^ by[6][c >> 8 & 255] ^ by[5][c >> 16 & 255] ^ by[4][c >> 24] ^ by[3][p[4]] ^
            by[2][p[5]] ^ by[1][p[6]] ^ by[0][p[7]];
    }
    for (; n > 0; n--, p++) c = c >> 8 ^ by[0][(c ^ *p) & 255];
    return c;
}

/* ---- with an instruction ---- */

#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
#define DDP__CRC_HERE       __builtin_cpu_supports("sse4.2")
#define DDP__CRC_STEP(c, x) __asm__("crc32q %1, %0" : "+r"(c) : "rm"(x))
#define DDP__CRC_TARGET
#elif defined(__AARCH64EL__) && (defined(__ARM_FEATURE_CRC32) || defined(__linux__))
#define DDP__CRC_STEP(c, x) __asm__("crc32cx %w0, %w0, %x1" : "+r"(c) : "r"(x))
/* The first arm64 processors lack the instruction, so compilers accept it only in functions with this
 * attribute. */
#ifdef __clang__
#define DDP__CRC_TARGET __attribute__((target("crc")))
#else
#define DDP__CRC_TARGET __attribute__((target("+crc")))
#endif
#ifdef __ARM_FEATURE_CRC32
#define DDP__CRC_HERE 1
#else
#include <sys/auxv.h>
#define DDP__CRC_HERE (getauxval(AT_HWCAP) & HWCAP_CRC32)
#endif
#endif

#ifdef DDP__CRC_HERE
enum { DDP__CRC_PART = 1024 }; /* bytes of each of three streams, which the processor handles in parallel */

static uint64_t ddp__crc32c_read(const unsigned char *p)
{
    uint64_t v;

    memcpy(&v, p, sizeof v);
    return v;
}

/* Extends a checksum by DDP__CRC_PART bytes of 0. The operation is linear, so the table has one number per
 * bit. */
static uint64_t ddp__crc32c_shift(uint64_t c)
{
    static const uint32_t bit[32] = {
        0xfe314258u, 0xf98ef241u, 0xf6f19273u, 0xe80f5217u, 0xd5f2d2dfu, 0xae09d34fu, 0x59ffd06fu,
        0xb3ffa0deu, 0x6213374du, 0xc4266e9au, 0x8da0abc5u, 0x1ead217bu, 0x3d5a42f6u, 0x7ab485ecu,
        0xf5690bd8u, 0xef3e6141u, 0xdb90b473u, 0xb2cd1e17u, 0x60764adfu, 0xc0ec95beu, 0x84355d8du,
        0x0d86cdebu, 0x1b0d9bd6u, 0x361b37acu, 0x6c366f58u, 0xd86cdeb0u, 0xb535cb91u, 0x6f87e1d3u,
        0xdf0fc3a6u, 0xbbf3f1bdu, 0x720b958bu, 0xe4172b16u};
    uint32_t out = 0;

    for (int i = 0; i < 32; i++) out ^= bit[i] & -((uint32_t)c >> i & 1);
    return out;
}

static DDP__CRC_TARGET uint32_t ddp__crc32c_fast(uint32_t h, const unsigned char *p, size_t n)
{
    uint64_t c = h;

    for (; n >= 3 * DDP__CRC_PART; n -= 3 * DDP__CRC_PART, p += 3 * DDP__CRC_PART) {
        uint64_t c1 = 0, c2 = 0;
        for (int i = 0; i < DDP__CRC_PART; i += 8) {
            const uint64_t x = ddp__crc32c_read(p + i), x1 = ddp__crc32c_read(p + DDP__CRC_PART + i),
                           x2 = ddp__crc32c_read(p + 2 * DDP__CRC_PART + i);
            DDP__CRC_STEP(c, x);
            DDP__CRC_STEP(c1, x1);
            DDP__CRC_STEP(c2, x2);
        }
        c = ddp__crc32c_shift(ddp__crc32c_shift(c) ^ c1) ^ c2;
    }
    for (; n >= 8; n -= 8, p += 8) {
        const uint64_t x = ddp__crc32c_read(p);
        DDP__CRC_STEP(c, x);
    }
    return ddp__crc32c_sliced((uint32_t)c, p, n);
}
#endif

#if defined(__x86_64__) && (defined(__clang__) || __GNUC__ >= 9)
#define DDP__CRC_WIDE (__builtin_cpu_supports("vpclmulqdq") && __builtin_cpu_supports("avx512f"))
#define DDP__CRC_BY(w, v)      \
    {                          \
        w, v, w, v, w, v, w, v \
    }

typedef uint64_t ddp__crc_vec __attribute__((vector_size(64)));
typedef uint64_t ddp__crc_mem __attribute__((vector_size(64), aligned(1), may_alias));

/* x = next + x moved d bits: its words times x^(d+63) and x^(d-1), modulo the polynomial. */
#define DDP__CRC_MOVE(x, by, next)                                       \
    __asm__("vpclmulqdq $0, %2, %1, %0" : "=x"(even) : "x"(x), "x"(by)); \
    __asm__("vpclmulqdq $17, %2, %1, %0" : "=x"(odd) : "x"(x), "x"(by)); \
    x = even ^ odd ^ (next);

/* Folds n bytes, a multiple of 256, into 64 bytes that have the same checksum, starting from 0. It calls no
 * function: a function that runs before the wide registers are cleared is slower. */
static __attribute__((target("avx512f"))) void ddp__crc32c_fold(uint32_t h, const unsigned char *p, size_t n,
                                                                unsigned char *folded)
{
    const ddp__crc_vec far = DDP__CRC_BY(0xe9a5d8be00000000u, 0x1426a81500000000u);
    const ddp__crc_vec near = DDP__CRC_BY(0x1c19243b00000000u, 0x75bba45b00000000u);
    const ddp__crc_vec first = {h};
    const ddp__crc_mem *at = (const ddp__crc_mem *)p, *end = at + n / 64;
    ddp__crc_vec a = at[0] ^ first, b = at[1], c = at[2], d = at[3], even, odd;

    for (at += 4; at < end; at += 4) {
        DDP__CRC_MOVE(a, far, at[0])
        DDP__CRC_MOVE(b, far, at[1])
        DDP__CRC_MOVE(c, far, at[2])
        DDP__CRC_MOVE(d, far, at[3])
    }
    DDP__CRC_MOVE(a, near, b)
    DDP__CRC_MOVE(a, near, c)
    DDP__CRC_MOVE(a, near, d)
    memcpy(folded, &a, sizeof a);
}

static uint32_t ddp__crc32c_wide(uint32_t h, const unsigned char *p, size_t n)
{
    const size_t rest = n % 256;
    unsigned char folded[64];

    ddp__crc32c_fold(h, p, n - rest, folded);
    return ddp__crc32c_fast(ddp__crc32c_fast(0, folded, sizeof folded), p + n - rest, rest);
}
#endif

uint32_t ddp__crc32c(uint32_t h, const void *data, size_t n)
{
    const unsigned char *p = (const unsigned char *)data;

#ifdef DDP__CRC_WIDE
    if (n >= 1024 && DDP__CRC_WIDE) return ~ddp__crc32c_wide(~h, p, n);
#endif
#ifdef DDP__CRC_HERE
    if (DDP__CRC_HERE) return ~ddp__crc32c_fast(~h, p, n);
#endif
    return ~ddp__crc32c_sliced(~h, p, n);
}
