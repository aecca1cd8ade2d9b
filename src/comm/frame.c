/* Encodes and decodes frame headers, and computes payload lengths. */
#include "base/platform.h"
#include "comm/frame.h"

#define DDP__FRAME_MAGIC   0xdd97u
#define DDP__FRAME_VERSION 3u

int ddp__in_blocks(int coding) { return coding >= (int)DDP_AS_INT8 && coding <= (int)DDP_AS_E3M0; }

const char *ddp__coding_name(int coding)
{
    static const char *const name[] = {"float32",     "bfloat16",    "int8 blocks",
                                       "int4 blocks", "e3m0 blocks", "bytes"};

    return coding >= 0 && coding <= (int)DDP__AS_BYTES ? name[coding] : "an unknown coding";
}

const char *ddp__coding_wire(ddp_coding coding)
{
    static const char *const wire[] = {"f32", "bf16", "int8", "int4", "e3m0"};

    return wire[(int)coding];
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
    const size_t each = f->coding == (int)DDP_AS_INT8 ? 1 : 2; /* values per byte of a block */
    size_t n = f->length / ddp__frame_payload(f->coding, 1);

    if (ddp__in_blocks(f->coding)) {
        n = f->length / block * DDP__CODING_BLOCK +
            (rest > sizeof(float) ? (rest - sizeof(float)) * each : 0);
        /* with half bytes, only the end of the message can have an odd number of values */
        if (each == 2 && f->offset <= f->count && n == (size_t)(f->count - f->offset) + 1) n--;
    }
    return ddp__frame_payload(f->coding, n) == f->length ? n : SIZE_MAX;
}

enum { DDP__FRAME_WORDS = 8 }; /* 32-bit words of a header before its checksum */

void ddp__frame_encode(const ddp__frame *f, unsigned char *head)
{
    const uint32_t kind = (uint32_t)f->type | (uint32_t)f->p2p << 4 | (uint32_t)f->verb << 5;
    const uint32_t first =
        DDP__FRAME_MAGIC | DDP__FRAME_VERSION << 16 | (uint32_t)f->coding << 21 | kind << 24;
    uint32_t word[DDP__FRAME_WORDS + 1] = {
        first, f->seq, f->count, f->offset, f->length, (uint32_t)f->layer, f->sent, f->check, 0};

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
