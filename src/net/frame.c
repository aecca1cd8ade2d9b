#include "base/platform.h"
#include "net/frame.h"

#define DDP__FRAME_MAGIC   0xdd97u
#define DDP__FRAME_VERSION 1u

uint32_t ddp__crc32c(const void *data, size_t n)
{
    /* Half a byte at a time: 28 bytes per frame do not deserve a 1 KiB table. */
    static const uint32_t table[16] = {
        0x00000000u, 0x105ec76fu, 0x20bd8edeu, 0x30e349b1u, 0x417b1dbcu, 0x5125dad3u,
        0x61c69362u, 0x7198540du, 0x82f63b78u, 0x92a8fc17u, 0xa24bb5a6u, 0xb21572c9u,
        0xc38d26c4u, 0xd3d3e1abu, 0xe330a81au, 0xf36e6f75u};
    const unsigned char *p = (const unsigned char *)data;
    uint32_t c = 0xffffffffu;
    for (size_t i = 0; i < n; i++) {
        c ^= p[i];
        c = (c >> 4) ^ table[c & 15];
        c = (c >> 4) ^ table[c & 15];
    }
    return ~c;
}

static void ddp__put32(unsigned char *p, uint32_t v)
{
    p[0] = (unsigned char)v;
    p[1] = (unsigned char)(v >> 8);
    p[2] = (unsigned char)(v >> 16);
    p[3] = (unsigned char)(v >> 24);
}

static uint32_t ddp__get32(const unsigned char *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

size_t ddp__frame_values(const ddp__frame *f)
{
    const size_t block = sizeof(float) + DDP__CODING_BLOCK;
    size_t size = f->coding == (int)DDP__AS_BFLOAT ? sizeof(uint16_t) : sizeof(float), blocks;

    if (f->coding != (int)DDP__AS_INT8) return f->length % size ? SIZE_MAX : f->length / size;
    blocks = f->length / block + (f->length % block != 0);
    if (f->length % block > 0 && f->length % block <= sizeof(float)) return SIZE_MAX;
    return f->length - blocks * sizeof(float);
}

uint32_t ddp__frame_payload(int coding, size_t count)
{
    const size_t blocks = count / DDP__CODING_BLOCK + (count % DDP__CODING_BLOCK != 0);

    if (coding == (int)DDP__AS_INT8) return (uint32_t)(count + blocks * sizeof(float));
    return (uint32_t)(count *
                      (coding == (int)DDP__AS_BFLOAT ? sizeof(uint16_t) : sizeof(float)));
}

void ddp__frame_encode(const ddp__frame *f, unsigned char *head)
{
    uint32_t first = DDP__FRAME_MAGIC | DDP__FRAME_VERSION << 16 |
                     (uint32_t)(f->coding == (int)DDP__AS_BFLOAT) << 23 |
                     (uint32_t)(f->coding == (int)DDP__AS_INT8) << 22 |
                     ((uint32_t)f->type | (uint32_t)f->p2p << 4 | (uint32_t)f->verb << 5) << 24;
    ddp__put32(head, first);
    ddp__put32(head + 4, f->seq);
    ddp__put32(head + 8, f->count);
    ddp__put32(head + 12, f->offset);
    ddp__put32(head + 16, f->length);
    ddp__put32(head + 20, (uint32_t)f->layer);
    ddp__put32(head + 24, f->sent);
    ddp__put32(head + 28, ddp__crc32c(head, 28));
}

int ddp__frame_decode(const unsigned char *head, ddp__frame *f)
{
    uint32_t first = ddp__get32(head), kind = first >> 24;
    if ((first & 0x3fffffu) != (DDP__FRAME_MAGIC | DDP__FRAME_VERSION << 16)) return 0;
    if (ddp__get32(head + 28) != ddp__crc32c(head, 28)) return 0;
    f->coding = first >> 23 & 1   ? (int)DDP__AS_BFLOAT
                : first >> 22 & 1 ? (int)DDP__AS_INT8
                                  : (int)DDP__AS_FLOAT;
    f->type = (int)(kind & 15);
    f->p2p = (int)(kind >> 4 & 1);
    f->verb = (int)(kind >> 5);
    f->seq = ddp__get32(head + 4);
    f->count = ddp__get32(head + 8);
    f->offset = ddp__get32(head + 12);
    f->length = ddp__get32(head + 16);
    f->layer = (int32_t)ddp__get32(head + 20);
    f->sent = ddp__get32(head + 24);
    return (first >> 22 & 3) != 3 && f->type >= DDP__FRAME_PART && f->type <= DDP__FRAME_SUMMED;
}
