/* Recognises file types that a user may pass by mistake, from their first bytes. */
#include "base/core.h"

#define DDP__UNPACK(program) "unpack it first with " program
#define DDP__EXPORT          "export its text to a text file, or its tokens to a .bin file of 16-bit numbers"
#define DDP__NO_TEXT         "use a text or token file"
#define DDP__PICTURES        "train_image trains on images: a folder of MNIST or CIFAR files"

/* A magic number: bytes at an offset of the file. */
typedef struct ddp__magic {
    int at;
    const char *bytes;
    int size;
    const char *name, *remedy;
} ddp__magic;

static const ddp__magic ddp__magics[] = {
    {0, "\x1f\x8b\x08", 3, "a gzip file", "let its name end in .gz, or unpack it first with gunzip"},
    {0,
     "\xfd"
     "7zXZ\0",
     6, "an xz file", DDP__UNPACK("unxz")},
    {0, "\x28\xb5\x2f\xfd", 4, "a Zstandard file", DDP__UNPACK("unzstd")},
    {0, "\x04\x22\x4d\x18", 4, "an LZ4 file", DDP__UNPACK("unlz4")},
    {0, "PK\3\4", 4, "a zip archive (as are .npz, .docx and PyTorch's .pt)", DDP__UNPACK("unzip")},
    {0, "PK\5\6", 4, "an empty zip archive", DDP__NO_TEXT},
    {0, "7z\xbc\xaf\x27\x1c", 6, "a 7z archive", DDP__UNPACK("7z x")},
    {0, "Rar!\x1a\x07", 6, "a RAR archive", DDP__UNPACK("unrar x")},
    {257, "ustar", 5, "a tar archive", DDP__UNPACK("tar -xf")},
    {0, "\x93NUMPY", 6, "a NumPy array (.npy)",
     "write its tokens with numpy.load(FILE).astype('<u2').tofile('tokens.bin'), or '<u4' and 'tokens.u32' "
     "above 65535"},
    {0, "PAR1", 4, "a Parquet file", DDP__EXPORT},
    {0, "ARROW1\0", 7, "an Arrow file", DDP__EXPORT},
    {0, "Obj\1", 4, "an Avro file", DDP__EXPORT},
    {0, "\x89HDF\r\n\x1a\n", 8, "an HDF5 file", DDP__EXPORT},
    {0, "SQLite format 3\0", 16, "an SQLite database", DDP__EXPORT},
    {0, "MMIDIDX\0", 8, "an index of Megatron-LM (.idx)", "use the .bin file next to it"},
    {0, "GGUF", 4, "a GGUF file of weights", DDP__NO_TEXT},
    {0, "\x80\x02\x8a\x0a\x6c\xfc\x9c\x46", 8, "a PyTorch file (pickle)", DDP__NO_TEXT},
    {0, "\x80\x04\x95", 3, "a Python pickle", DDP__EXPORT},
    {0, "\x80\x05\x95", 3, "a Python pickle", DDP__EXPORT},
    {0, "%PDF-", 5, "a PDF document", "extract its text first with pdftotext"},
    {0, "\x89PNG\r\n\x1a\n", 8, "a PNG image", DDP__PICTURES},
    {0, "\xff\xd8\xff", 3, "a JPEG image", DDP__PICTURES},
    {0, "GIF87a", 6, "a GIF image", DDP__PICTURES},
    {0, "GIF89a", 6, "a GIF image", DDP__PICTURES},
    {0, "\0\0\x08\x01\0", 5, "a file of MNIST labels (IDX)", "train_image reads the folder that it is in"},
    {0, "\0\0\x08\x03\0", 5, "a file of MNIST images (IDX)", "train_image reads the folder that it is in"},
    {4, "ftyp", 4, "an MP4 file", DDP__NO_TEXT},
    {0, "OggS\0", 5, "an Ogg file", DDP__NO_TEXT},
    {0, "fLaC\0", 5, "a FLAC file", DDP__NO_TEXT},
};

static const struct {
    const char *form, *name, *remedy;
} ddp__riff[] = {{"WAVE", "a WAV file", DDP__NO_TEXT},
                 {"AVI ", "an AVI file", DDP__NO_TEXT},
                 {"WEBP", "a WebP image", DDP__PICTURES}};

/* Recognises a safetensors file: an 8-byte header length, then the header, a JSON object. */
static int ddp__is_safetensors(const unsigned char *p, size_t n)
{
    uint64_t header = 0;

    if (n < 10) return 0;
    for (int k = 7; k >= 0; k--) header = header << 8 | p[k];
    return header >= 2 && header <= n - 8 && p[8] == '{' && (p[9] == '"' || p[9] == '}');
}

const char *ddp__file_type(const void *bytes, size_t n, const char **remedy)
{
    const unsigned char *p = (const unsigned char *)bytes;

    for (size_t i = 0; i < sizeof ddp__magics / sizeof ddp__magics[0]; i++) {
        const ddp__magic *m = &ddp__magics[i];
        if (n < (size_t)(m->at + m->size) || memcmp(p + m->at, m->bytes, (size_t)m->size)) continue;
        *remedy = m->remedy;
        return m->name;
    }
    if (n >= 10 && !memcmp(p, "BZh", 3) && !memcmp(p + 4, "\x31\x41\x59\x26\x53\x59", 6)) {
        *remedy = DDP__UNPACK("bunzip2");
        return "a bzip2 file";
    }
    for (size_t i = 0; n >= 12 && !memcmp(p, "RIFF", 4) && i < sizeof ddp__riff / sizeof ddp__riff[0]; i++) {
        if (memcmp(p + 8, ddp__riff[i].form, 4)) continue;
        *remedy = ddp__riff[i].remedy;
        return ddp__riff[i].name;
    }
    if (!ddp__is_safetensors(p, n)) return NULL;
    *remedy = "it holds weights: --load reads it; " DDP__NO_TEXT " as data";
    return "a safetensors file";
}
