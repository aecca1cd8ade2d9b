/* Safetensors files: validates the header, reads arrays on demand, writes files. */
#include "io/json.h"

/* Layout: 8 bytes with the length of the header (little-endian), then the header, then the arrays without
 * gaps. The header is a JSON object that maps names to {dtype, shape, data_offsets} and may end in blanks. */
#define DDP__ST_HEADER ((uint64_t)8 << 20) /* maximum length of a header */
#define DDP__ST_EXACT  9007199254740992.0  /* 2^53: JSON numbers are exact up to here */
#define DDP__ST_CHUNK  8192                /* bytes read at a time */

DDP_STATIC_ASSERT(sizeof(float) == 4 && sizeof(double) == 8, "IEEE floats are assumed");

struct ddp_safetensors {
    char *name;
    int fd;            /* -1 if the file is in memory */
    const char *bytes; /* contents of the file if fd is -1 */
    uint64_t begin;    /* offset of the arrays in the file */
    uint64_t size;     /* bytes of all arrays, or of the file before the header is read */
    ddp__json *header;
    int count;
    ddp_safetensor *tensor; /* [count], sorted by offset. Names point into header */
};

/* ---- types and shapes ---- */

static const struct {
    const char *name;
    size_t bytes;
} ddp__st_types[] = {{"F32", 4}, {"F64", 8}, {"F16", 2}, {"BF16", 2}, {"I64", 8},
                     {"I32", 4}, {"I16", 2}, {"I8", 1},  {"U8", 1},   {"BOOL", 1}};

enum { DDP__ST_TYPES = (int)(sizeof ddp__st_types / sizeof ddp__st_types[0]) };

const char *ddp_safetensors_type_name(ddp_safetensors_type type)
{
    return (int)type >= 0 && (int)type < DDP__ST_TYPES ? ddp__st_types[type].name : "unknown";
}

size_t ddp_safetensors_type_bytes(ddp_safetensors_type type)
{
    return (int)type >= 0 && (int)type < DDP__ST_TYPES ? ddp__st_types[type].bytes : 0;
}

uint64_t ddp_safetensors_elements(const ddp_safetensor *t)
{
    uint64_t n = 1;

    for (int i = 0; i < t->dims; i++) n *= (uint64_t)t->dim[i];
    return n;
}

/* Sets t->bytes. Returns 0 if the shape is invalid or needs more than 2^53 bytes. */
static int ddp__st_measure(ddp_safetensor *t)
{
    double n = (double)ddp_safetensors_type_bytes(t->type);
    int empty = 0;

    if (t->dims < 0 || t->dims > DDP_SAFETENSORS_DIMS || !(n > 0)) return 0;
    for (int i = 0; i < t->dims; i++) {
        if (t->dim[i] < 0) return 0;
        if (t->dim[i] == 0)
            empty = 1;
        else
            n *= (double)t->dim[i]; /* omits a dimension of 0: the product of the others must not overflow */
        if (!(n <= DDP__ST_EXACT)) return 0;
    }
    t->bytes = empty ? 0 : (uint64_t)n;
    return 1;
}

/* ---- reading the header ---- */

DDP__PRINTF(4, 5)
static ddp_status ddp__st_bad(const ddp_safetensors *s, const ddp_safetensor *t, ddp_error *err,
                              const char *fmt, ...)
{
    char what[200];
    va_list ap;

    va_start(ap, fmt);
    ddp__format_list(what, sizeof what, fmt, ap);
    va_end(ap);
    return ddp__fail(err, DDP_FORMAT, "%.120s: tensor \"%.80s\" %s", s->name, t->name, what);
}

/* A whole number from 0 to 2^53. */
static int ddp__st_whole(const ddp__json *v, uint64_t *out)
{
    if (v->kind != DDP__JSON_NUMBER || !(v->number >= 0 && v->number <= DDP__ST_EXACT) ||
        v->number != floor(v->number))
        return 0;
    *out = (uint64_t)v->number;
    return 1;
}

static ddp_status ddp__st_shape(const ddp_safetensors *s, ddp_safetensor *t, const ddp__json *list,
                                ddp_error *err)
{
    uint64_t n;

    if (list->count > DDP_SAFETENSORS_DIMS)
        return ddp__st_bad(s, t, err, "has %ld dimensions, more than %d", list->count, DDP_SAFETENSORS_DIMS);
    for (const ddp__json *v = list->first; v; v = v->next) {
        if (!ddp__st_whole(v, &n))
            return ddp__st_bad(s, t, err,
                               "has an impossible dimension %d (%.17g); whole numbers from 0 to 2^53 are "
                               "possible",
                               t->dims, v->kind == DDP__JSON_NUMBER ? v->number : ddp__unknown());
        t->dim[t->dims++] = (int64_t)n;
    }
    if (ddp__st_measure(t)) return DDP_OK;
    return ddp__st_bad(s, t, err, "has a shape of more than 2^53 bytes");
}

static ddp_status ddp__st_tensor(const ddp_safetensors *s, ddp_safetensor *t, const ddp__json *entry,
                                 ddp_error *err)
{
    const ddp__json *type, *shape, *offsets;
    uint64_t begin, end;
    int i = 0;

    if (entry->kind != DDP__JSON_OBJECT || entry->count != 3)
        return ddp__st_bad(s, t, err, "must be an object of dtype, shape and data_offsets");
    DDP__TRY(ddp__json_need(s->name, entry, "dtype", DDP__JSON_STRING, &type, err));
    DDP__TRY(ddp__json_need(s->name, entry, "shape", DDP__JSON_ARRAY, &shape, err));
    DDP__TRY(ddp__json_need(s->name, entry, "data_offsets", DDP__JSON_ARRAY, &offsets, err));
    while (i < DDP__ST_TYPES && strcmp(type->string, ddp__st_types[i].name)) i++;
    if (i == DDP__ST_TYPES)
        return ddp__st_bad(s, t, err,
                           "has dtype \"%.40s\"; F32, F64, F16, BF16, I64, I32, I16, I8, U8 and BOOL are "
                           "understood",
                           type->string);
    t->type = (ddp_safetensors_type)i;
    DDP__TRY(ddp__st_shape(s, t, shape, err));
    if (offsets->count != 2 || !ddp__st_whole(offsets->first, &begin) ||
        !ddp__st_whole(offsets->first->next, &end) || begin > end)
        return ddp__st_bad(s, t, err, "has data_offsets that are not a pair of a begin and an end");
    if (end - begin != t->bytes)
        return ddp__st_bad(s, t, err,
                           "takes %" PRIu64 " bytes by its shape, but data_offsets give "
                           "it %" PRIu64,
                           t->bytes, end - begin);
    if (end > s->size)
        return ddp__st_bad(s, t, err,
                           "ends at byte %" PRIu64 ", but the file holds %" PRIu64
                           " bytes of data: is it truncated?",
                           end, s->size);
    t->offset = begin;
    return DDP_OK;
}

static int ddp__st_by_offset(const void *a, const void *b)
{
    const ddp_safetensor *x = (const ddp_safetensor *)a, *y = (const ddp_safetensor *)b;

    if (x->offset != y->offset) return x->offset < y->offset ? -1 : 1;
    return x->bytes < y->bytes ? -1 : x->bytes > y->bytes; /* empty arrays come first */
}

static ddp_status ddp__st_packed(const ddp_safetensors *s, ddp_error *err)
{
    uint64_t at = 0;

    for (int i = 0; i < s->count; i++) {
        const ddp_safetensor *t = &s->tensor[i];
        if (t->offset < at)
            return ddp__st_bad(s, t, err,
                               "begins at byte %" PRIu64 ", inside tensor \"%.60s\" "
                               "that ends at %" PRIu64,
                               t->offset, s->tensor[i - 1].name, at);
        if (t->offset > at)
            return ddp__st_bad(s, t, err,
                               "begins at byte %" PRIu64 ", a gap of %" PRIu64 " bytes "
                               "after the previous tensor",
                               t->offset, t->offset - at);
        at += t->bytes;
    }
    if (at == s->size) return DDP_OK;
    return ddp__fail(err, DDP_FORMAT, "%.120s: %" PRIu64 " bytes follow the last tensor", s->name,
                     s->size - at);
}

/* Parses the header. text: its n bytes. */
static ddp_status ddp__st_header(ddp_safetensors *s, const char *text, size_t n, ddp_error *err)
{
    const ddp__json *v, *note;

    if (n == 0 || *text != '{')
        return ddp__fail(err, DDP_FORMAT,
                         "%.120s: the header is not a JSON object: this is not a "
                         "safetensors file",
                         s->name);
    s->header = ddp__json_parse(s->name, text, n, err);
    if (!s->header) return err ? err->code : DDP_FORMAT;
    s->tensor = (ddp_safetensor *)ddp__calloc((size_t)s->header->count, sizeof *s->tensor);
    if (!s->tensor)
        return ddp__fail(err, DDP_MEMORY, "%.120s: out of memory for %ld tensors", s->name, s->header->count);
    for (v = s->header->first; v; v = v->next) {
        s->tensor[s->count].name = v->key;
        if (strcmp(v->key, "__metadata__")) {
            DDP__TRY(ddp__st_tensor(s, &s->tensor[s->count++], v, err));
            continue;
        }
        for (note = v->first; note && note->kind == DDP__JSON_STRING; note = note->next) {
        }
        if (note || v->kind != DDP__JSON_OBJECT)
            return ddp__fail(err, DDP_FORMAT, "%.120s: __metadata__ must be an object of texts", s->name);
    }
    qsort(s->tensor, (size_t)s->count, sizeof *s->tensor, ddp__st_by_offset);
    return ddp__st_packed(s, err);
}

/* ---- opening ---- */

static ddp_status ddp__st_read(const ddp_safetensors *s, uint64_t at, void *out, size_t n, ddp_error *err)
{
    char *p = (char *)out;

    if (s->fd < 0 && n) memcpy(out, s->bytes + at, n);
    while (s->fd >= 0 && n) {
        ssize_t got = pread(s->fd, p, n, (off_t)at);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0)
            return ddp__fail(err, DDP_IO, "cannot read %.120s at byte %" PRIu64 ": %s", s->name, at,
                             got ? strerror(errno) : "the file has become shorter");
        p += got;
        n -= (size_t)got;
        at += (uint64_t)got;
    }
    return DDP_OK;
}

static ddp_status ddp__st_find(ddp_safetensors *s, ddp_error *err)
{
    struct stat st;

    s->fd = open(s->name, O_RDONLY | O_NONBLOCK | O_CLOEXEC); /* O_NONBLOCK: opening a pipe must not block */
    if (s->fd < 0 || fstat(s->fd, &st))
        return ddp__fail(err, DDP_IO, "cannot read %s: %s", s->name, strerror(errno));
    s->size = (uint64_t)st.st_size;
    if (S_ISREG(st.st_mode)) return DDP_OK;
    return ddp__fail(err, DDP_IO, "cannot read %s: it is %s, a file is needed", s->name,
                     ddp__file_kind(st.st_mode));
}

/* Reports a file of another type: such a file begins with an impossible header length, and the type is
 * more helpful in an error than the number. */
static ddp_status ddp__st_stranger(const ddp_safetensors *s, uint64_t header, ddp_error *err)
{
    unsigned char begin[262];
    const size_t n = s->size < sizeof begin ? (size_t)s->size : sizeof begin;
    const char *remedy = "", *kind;

    DDP__TRY(ddp__st_read(s, 0, begin, n, err));
    kind = ddp__file_type(begin, n, &remedy);
    if (kind)
        return ddp__fail(err, DDP_FORMAT,
                         "%.120s is %s, not a safetensors file: convert it with "
                         "safetensors.torch.save_file",
                         s->name, kind);
    if (header > s->size - 8)
        return ddp__fail(err, DDP_FORMAT,
                         "%.120s: its header should have %" PRIu64 " bytes, but only %" PRIu64
                         " follow: truncated, or not a safetensors file",
                         s->name, header, s->size - 8);
    return ddp__fail(err, DDP_FORMAT, "%.120s: a header of %" PRIu64 " bytes; at most %" PRIu64 " are read",
                     s->name, header, DDP__ST_HEADER);
}

/* Reads the header length and the header from a file of s->size bytes. */
static ddp_status ddp__st_begin(ddp_safetensors *s, ddp_error *err)
{
    const uint64_t size = s->size;
    unsigned char word[8];
    uint64_t n = 0;
    ddp_status code;
    char *text;

    if (size < 8)
        return ddp__fail(err, DDP_FORMAT,
                         "%.120s: %" PRIu64 " bytes are not a safetensors file: is it truncated?", s->name,
                         size);
    DDP__TRY(ddp__st_read(s, 0, word, 8, err));
    for (int k = 7; k >= 0; k--) n = n << 8 | word[k];
    if (n > size - 8 || n > DDP__ST_HEADER) return ddp__st_stranger(s, n, err);
    s->begin = 8 + n;
    s->size = size - s->begin;
    text = (char *)ddp__calloc((size_t)n, 1);
    if (!text) return ddp__fail(err, DDP_MEMORY, "out of memory for the header of %s", s->name);
    code = ddp__st_read(s, 8, text, (size_t)n, err);
    if (code == DDP_OK) code = ddp__st_header(s, text, (size_t)n, err);
    DDP_FREE(text);
    return code;
}

/* Opens a file if bytes is NULL, otherwise bytes in memory. */
static ddp_safetensors *ddp__st_opened(const char *name, const void *bytes, size_t n, ddp_error *err)
{
    ddp_safetensors *s = (ddp_safetensors *)ddp__calloc(1, sizeof *s);
    ddp_status code = DDP_OK;

    if (s) {
        s->fd = -1;
        s->bytes = (const char *)bytes;
        s->size = n;
    }
    if (s && name) s->name = ddp__strdup(name);
    if (!name)
        code = ddp__fail(err, DDP_ARG, "the name of the safetensors file is NULL");
    else if (!s || !s->name)
        code = ddp__fail(err, DDP_MEMORY, "out of memory while opening %s", name);
    else if (!bytes)
        code = ddp__st_find(s, err);
    if (code == DDP_OK) code = ddp__st_begin(s, err);
    if (code == DDP_OK) return s;
    ddp_safetensors_close(s);
    return NULL;
}

ddp_safetensors *ddp_safetensors_open(const char *path, ddp_error *err)
{
    return ddp__st_opened(path, NULL, 0, err);
}

ddp_safetensors *ddp_safetensors_from_bytes(const char *name, const void *bytes, size_t n, ddp_error *err)
{
    return ddp__st_opened(name, bytes ? bytes : "", bytes ? n : 0, err);
}

void ddp_safetensors_close(ddp_safetensors *s)
{
    if (!s) return;
    if (s->fd >= 0) close(s->fd);
    if (s->tensor) DDP_FREE(s->tensor);
    ddp__json_free(s->header);
    if (s->name) DDP_FREE(s->name);
    DDP_FREE(s);
}

/* ---- lookup ---- */

int ddp_safetensors_count(const ddp_safetensors *s) { return s ? s->count : 0; }

const ddp_safetensor *ddp_safetensors_at(const ddp_safetensors *s, int index)
{
    return index >= 0 && index < ddp_safetensors_count(s) ? &s->tensor[index] : NULL;
}

const ddp_safetensor *ddp_safetensors_find(const ddp_safetensors *s, const char *name)
{
    for (int i = 0; i < ddp_safetensors_count(s); i++)
        if (!strcmp(s->tensor[i].name, name)) return &s->tensor[i];
    return NULL;
}

const char *ddp_safetensors_note(const ddp_safetensors *s, const char *key)
{
    const ddp__json *v = ddp__json_get(ddp__json_get(s ? s->header : NULL, "__metadata__"), key);

    return v ? v->string : NULL;
}

/* ---- reading arrays ---- */

static uint16_t ddp__st_half(const unsigned char *p) { return (uint16_t)(p[0] | p[1] << 8); }

/* Converts a float16 to float exactly, including subnormals and NaN payloads. */
static float ddp__st_from_half(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, exponent = h >> 10 & 31u, fraction = h & 0x3ffu, bits;
    float out;

    if (exponent == 0) {
        out = ldexpf((float)fraction, -24);
        return sign ? -out : out;
    }
    bits = sign | (exponent == 31 ? 255 : exponent + 112) << 23 | fraction << 13;
    memcpy(&out, &bits, sizeof out);
    return out;
}

/* Converts a double to float. Values beyond float's range become infinite, because the cast would be
 * undefined. */
static float ddp__st_from_double(double wide)
{
    const uint32_t bits = (uint32_t)(wide < 0) << 31 | UINT32_C(0x7f800000);
    float out;

    if (fabs(wide) > (double)FLT_MAX)
        memcpy(&out, &bits, sizeof out);
    else
        out = (float)wide;
    return out;
}

static void ddp__st_convert(ddp_safetensors_type type, const unsigned char *from, size_t n, float *out)
{
    double wide;

    for (size_t i = 0; i < n; i++) {
        if (type == DDP_ST_F16) {
            out[i] = ddp__st_from_half(ddp__st_half(from + 2 * i));
        } else if (type == DDP_ST_BF16) {
            uint32_t bits = (uint32_t)ddp__st_half(from + 2 * i) << 16;
            memcpy(&out[i], &bits, sizeof bits);
        } else {
            memcpy(&wide, from + 8 * i, sizeof wide);
            out[i] = ddp__st_from_double(wide);
        }
    }
}

static ddp_status ddp__st_range(const ddp_safetensors *s, const ddp_safetensor *t, uint64_t first,
                                size_t count, ddp_error *err)
{
    uint64_t n = ddp_safetensors_elements(t);

    if (first <= n && count <= n - first) return DDP_OK;
    return ddp__fail(err, DDP_ARG,
                     "%.120s: tensor \"%.80s\" has %" PRIu64 " elements; %zu from "
                     "number %" PRIu64 " on were asked for",
                     s->name, t->name, n, count, first);
}

ddp_status ddp_safetensors_bytes(ddp_safetensors *s, const ddp_safetensor *t, uint64_t first, size_t count,
                                 void *out, ddp_error *err)
{
    size_t width = ddp_safetensors_type_bytes(t->type);

    DDP__TRY(ddp__st_range(s, t, first, count, err));
    return ddp__st_read(s, s->begin + t->offset + first * width, out, count * width, err);
}

ddp_status ddp_safetensors_floats(ddp_safetensors *s, const ddp_safetensor *t, uint64_t first, size_t count,
                                  float *out, ddp_error *err)
{
    unsigned char chunk[DDP__ST_CHUNK];
    size_t most; /* elements converted at a time */

    if (t->type == DDP_ST_F32) return ddp_safetensors_bytes(s, t, first, count, out, err);
    if (t->type != DDP_ST_F64 && t->type != DDP_ST_F16 && t->type != DDP_ST_BF16)
        return ddp__fail(err, DDP_FORMAT,
                         "%.120s: tensor \"%.80s\" has dtype %s; floats are needed (F32, F64, F16 or "
                         "BF16)",
                         s->name, t->name, ddp_safetensors_type_name(t->type));
    DDP__TRY(ddp__st_range(s, t, first, count, err));
    most = sizeof chunk / ddp_safetensors_type_bytes(t->type);
    while (count) {
        const size_t n = count < most ? count : most;
        DDP__TRY(ddp_safetensors_bytes(s, t, first, n, chunk, err));
        ddp__st_convert(t->type, chunk, n, out);
        out += n;
        first += n;
        count -= n;
    }
    return DDP_OK;
}

/* ---- writing ---- */

static ddp_status ddp__st_entry(const char *path, const ddp_safetensor *tensors, int i, uint64_t *at,
                                ddp__text *text, ddp_error *err)
{
    ddp_safetensor t = tensors[i];

    for (int k = 0; k < i; k++)
        if (!strcmp(tensors[k].name, t.name))
            return ddp__fail(err, DDP_ARG, "%.120s: two tensors are named \"%.80s\"", path, t.name);
    if (!strcmp(t.name, "__metadata__") || !ddp__st_measure(&t))
        return ddp__fail(err, DDP_ARG, "%.120s: tensor \"%.80s\" has an impossible name, type or shape", path,
                         t.name);
    ddp__text_add(text, ",", text->size > 9);
    ddp__json_string(text, t.name);
    ddp__text_addf(text, ":{\"dtype\":\"%s\",\"shape\":[", ddp_safetensors_type_name(t.type));
    for (int k = 0; k < t.dims; k++) ddp__text_addf(text, "%s%" PRId64, k ? "," : "", t.dim[k]);
    ddp__text_addf(text, "],\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}", *at, *at + t.bytes);
    *at += t.bytes;
    return DDP_OK;
}

ddp_status ddp__safetensors_head(const char *path, int count, const ddp_safetensor *tensors,
                                 const char *const *notes, ddp__text *text, ddp_error *err)
{
    uint64_t at = 0;
    size_t size;

    text->size = 0;
    ddp__text_add(text, "\0\0\0\0\0\0\0\0{", 9);
    if (notes && *notes) {
        ddp__text_addf(text, "\"__metadata__\":{");
        for (int i = 0; notes[i]; i += 2) {
            ddp__text_add(text, ",", i > 0);
            ddp__json_string(text, notes[i]);
            ddp__text_add(text, ":", 1);
            ddp__json_string(text, notes[i + 1]);
        }
        ddp__text_add(text, "}", 1);
    }
    for (int i = 0; i < count; i++) DDP__TRY(ddp__st_entry(path, tensors, i, &at, text, err));
    ddp__text_add(text, "}", 1);
    while (!text->failed && text->size % 8) ddp__text_add(text, " ", 1);
    if (text->failed) return ddp__fail(err, DDP_MEMORY, "cannot write %s: out of memory", path);
    size = text->size - 8;
    for (int i = 0; i < 8; i++) text->data[i] = (char)((uint64_t)size >> (8 * i) & 255);
    if (size <= DDP__ST_HEADER) return DDP_OK;
    return ddp__fail(err, DDP_ARG,
                     "cannot write %.120s: %d tensors make a header of %zu bytes; at "
                     "most %" PRIu64 " are read",
                     path, count, size, DDP__ST_HEADER);
}

ddp_status ddp__safetensors_begin(ddp__file *f, const char *path, int count, const ddp_safetensor *tensors,
                                  const char *const *notes, ddp_error *err)
{
    ddp__text text = DDP__ZEROS;
    ddp_status s = ddp__safetensors_head(path, count, tensors, notes, &text, err);

    if (s == DDP_OK) s = ddp__file_begin(f, path, err);
    if (s == DDP_OK) ddp__file_put(f, text.data, text.size);
    ddp__text_free(&text);
    return s;
}

ddp_status ddp_safetensors_write(const char *path, int count, const ddp_safetensor *tensors,
                                 const void *const *data, const char *const *notes, ddp_error *err)
{
    ddp__file f;

    DDP__TRY(ddp__safetensors_begin(&f, path, count, tensors, notes, err));
    for (int i = 0; i < count; i++)
        ddp__file_put(&f, data[i],
                      (size_t)ddp_safetensors_elements(&tensors[i]) *
                          ddp_safetensors_type_bytes(tensors[i].type));
    return ddp__file_end(&f, err);
}
