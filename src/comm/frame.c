/* Frames as bytes, and the checksum that guards them. */
#include "base/platform.h"
#include "comm/frame.h"

#define DDP__FRAME_MAGIC   0xdd97u
#define DDP__FRAME_VERSION 3u

/* ---- CRC-32C ---- */

/* Half a byte at a time: the reference, and what processors without an instruction use. */
static uint32_t ddp__crc32c_plain(uint32_t c, const unsigned char *p, size_t n)
{
    static const uint32_t table[16] = {
        0x00000000u, 0x105ec76fu, 0x20bd8edeu, 0x30e349b1u, 0x417b1dbcu, 0x5125dad3u,
        0x61c69362u, 0x7198540du, 0x82f63b78u, 0x92a8fc17u, 0xa24bb5a6u, 0xb21572c9u,
        0xc38d26c4u, 0xd3d3e1abu, 0xe330a81au, 0xf36e6f75u};

    for (size_t i = 0; i < n; i++) {
        c ^= p[i];
        c = (c >> 4) ^ table[c & 15];
        c = (c >> 4) ^ table[c & 15];
    }
    return c;
}

#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
#define DDP__CRC_HERE __builtin_cpu_supports("sse4.2")
#define DDP__CRC_STEP(c, x) __asm__("crc32q %1, %0" : "+r"(c) : "rm"(x))
#elif defined(__aarch64__) && defined(__ARM_FEATURE_CRC32)
#define DDP__CRC_HERE 1
#define DDP__CRC_STEP(c, x) __asm__("crc32cx %w0, %w0, %x1" : "+r"(c) : "r"(x))
#else
#define DDP__CRC_HERE 0
#define DDP__CRC_STEP(c, x) ((c) ^= (x))
#endif

enum { DDP__CRC_PART = 1024 }; /* bytes of each of three streams, which a processor takes at a time */

static uint64_t ddp__crc32c_read(const unsigned char *p)
{
    uint64_t v;

    memcpy(&v, p, sizeof v);
    return v;
}

/* The checksum after DDP__CRC_PART bytes of 0: it is linear, so one number for each bit. */
static uint64_t ddp__crc32c_shift(uint64_t c)
{
    static const uint32_t bit[32] = {
        0xfe314258u, 0xf98ef241u, 0xf6f19273u, 0xe80f5217u, 0xd5f2d2dfu, 0xae09d34fu, 0x59ffd06fu, 0xb3ffa0deu,
        0x6213374du, 0xc4266e9au, 0x8da0abc5u, 0x1ead217bu, 0x3d5a42f6u, 0x7ab485ecu, 0xf5690bd8u, 0xef3e6141u,
        0xdb90b473u, 0xb2cd1e17u, 0x60764adfu, 0xc0ec95beu, 0x84355d8du, 0x0d86cdebu, 0x1b0d9bd6u, 0x361b37acu,
        0x6c366f58u, 0xd86cdeb0u, 0xb535cb91u, 0x6f87e1d3u, 0xdf0fc3a6u, 0xbbf3f1bdu, 0x720b958bu, 0xe4172b16u};
    uint32_t out = 0;

    for (int i = 0; i < 32; i++) out ^= bit[i] & -((uint32_t)c >> i & 1);
    return out;
}

static uint32_t ddp__crc32c_fast(uint32_t h, const unsigned char *p, size_t n)
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
    return ddp__crc32c_plain((uint32_t)c, p, n);
}

#if defined(__x86_64__) && (defined(__clang__) || __GNUC__ >= 9)
#define DDP__CRC_WIDE (__builtin_cpu_supports("vpclmulqdq") && __builtin_cpu_supports("avx512f"))
#define DDP__CRC_BY(w, v) {w, v, w, v, w, v, w, v}

typedef uint64_t ddp__crc_vec __attribute__((vector_size(64)));
typedef uint64_t ddp__crc_mem __attribute__((vector_size(64), aligned(1), may_alias));

/* x = next + what x is worth d bits later: its words times x^(d+63) and x^(d-1), modulo the polynomial. */
#define DDP__CRC_MOVE(x, by, next)                                            \
    __asm__("vpclmulqdq $0, %2, %1, %0" : "=x"(even) : "x"(x), "x"(by));      \
    __asm__("vpclmulqdq $17, %2, %1, %0" : "=x"(odd) : "x"(x), "x"(by));      \
    x = even ^ odd ^ (next);

/* Turns n bytes, a multiple of 256, into 64 that have the same checksum, from 0. It calls nothing: whoever is called before
 * the wide registers are cleared is slower. */
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

int ddp__crc32c_is_fast(void) { return DDP__CRC_HERE != 0; }

uint32_t ddp__crc32c(uint32_t h, const void *data, size_t n)
{
    const unsigned char *p = (const unsigned char *)data;

#ifdef DDP__CRC_WIDE
    if (n >= 1024 && DDP__CRC_WIDE) return ~ddp__crc32c_wide(~h, p, n);
#endif
    return ~(DDP__CRC_HERE ? ddp__crc32c_fast(~h, p, n) : ddp__crc32c_plain(~h, p, n));
}

/* ---- frames ---- */

int ddp__in_blocks(int coding) { return coding >= (int)DDP_AS_INT8 && coding <= (int)DDP_AS_E3M0; }

const char *ddp__coding_name(int coding)
{
    static const char *const name[] = {"float32", "bfloat16", "int8 blocks", "int4 blocks", "e3m0 blocks", "bytes"};

    return coding >= 0 && coding <= (int)DDP__AS_BYTES ? name[coding] : "an unknown coding";
}

size_t ddp__frame_payload(int coding, size_t count)
{
    const size_t blocks = count / DDP__CODING_BLOCK + (count % DDP__CODING_BLOCK != 0);

    if (coding == (int)DDP__AS_BYTES) return count;
    if (coding == (int)DDP_AS_INT8) return count + blocks * sizeof(float);
    if (ddp__in_blocks(coding)) return count / 2 + count % 2 + blocks * sizeof(float);
    return count * (coding == (int)DDP_AS_BFLOAT ? sizeof(uint16_t) : sizeof(float));
}

size_t ddp__frame_values(const ddp__frame *f)
{
    const size_t block = ddp__frame_payload(f->coding, DDP__CODING_BLOCK), rest = f->length % block;
    const size_t each = f->coding == (int)DDP_AS_INT8 ? 1 : 2; /* of a block, in a byte */
    size_t n = f->length / ddp__frame_payload(f->coding, 1);

    if (ddp__in_blocks(f->coding)) {
        n = f->length / block * DDP__CODING_BLOCK + (rest > sizeof(float) ? (rest - sizeof(float)) * each : 0);
        /* half bytes: an odd number of values can only end at the end of the message */
        if (each == 2 && f->offset <= f->count && n == (size_t)(f->count - f->offset) + 1) n--;
    }
    return ddp__frame_payload(f->coding, n) == f->length ? n : SIZE_MAX;
}

enum { DDP__FRAME_WORDS = 8 }; /* of a head, before its checksum */

void ddp__frame_encode(const ddp__frame *f, unsigned char *head)
{
    const uint32_t kind = (uint32_t)f->type | (uint32_t)f->p2p << 4 | (uint32_t)f->verb << 5;
    const uint32_t first = DDP__FRAME_MAGIC | DDP__FRAME_VERSION << 16 | (uint32_t)f->coding << 21 | kind << 24;
    uint32_t word[DDP__FRAME_WORDS + 1] = {first, f->seq, f->count, f->offset, f->length, (uint32_t)f->layer, f->sent,
                                           f->check, 0};

    for (int i = 0; i <= DDP__FRAME_WORDS; i++) {
        if (i == DDP__FRAME_WORDS) word[i] = ddp__crc32c(0, head, 4 * DDP__FRAME_WORDS);
        for (int b = 0; b < 4; b++) head[4 * i + b] = (unsigned char)(word[i] >> 8 * b);
    }
}

int ddp__frame_decode(const unsigned char *head, ddp__frame *f)
{
    uint32_t word[DDP__FRAME_WORDS + 1] = {0};

    for (int i = 0; i < DDP__FRAME_BYTES; i++) word[i / 4] |= (uint32_t)head[i] << 8 * (i % 4);
    if ((word[0] & 0x1fffffu) != (DDP__FRAME_MAGIC | DDP__FRAME_VERSION << 16)) return 0;
    if (word[DDP__FRAME_WORDS] != ddp__crc32c(0, head, 4 * DDP__FRAME_WORDS)) return 0;
    f->coding = (int)(word[0] >> 21 & 7);
    f->type = (int)(word[0] >> 24 & 15);
    f->p2p = (int)(word[0] >> 28 & 1);
    f->verb = (int)(word[0] >> 29);
    f->seq = word[1];
    f->count = word[2];
    f->offset = word[3];
    f->length = word[4];
    f->layer = (int32_t)word[5];
    f->sent = word[6];
    f->check = word[7];
    return f->type >= DDP__FRAME_PART && f->type <= DDP__FRAME_SUMMED;
}
